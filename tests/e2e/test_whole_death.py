"""A killed engine takes along everything that belongs to its run (T10)."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from doubles.command_line import Home, records, wait_for


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    home = Home(tmp_path)
    yield home
    home.stop_all()


def test_t10_agents_tools_and_the_scripted_model_end_with_the_engine(home: Home) -> None:
    (launch,) = records(home("demo", "-n", "4", "--detach", "--json").stdout)
    events = Path(launch["dir"]) / "events.jsonl"
    wait_for(lambda: "tool.called" in events.read_text(), "a tool call")
    assert len(processes_of(home)) >= 6
    os.kill(launch["pid"], signal.SIGKILL)
    wait_for(lambda: not processes_of(home), "the end of all that the run started")
    (run,) = home.runs()
    assert (run["status"], run["live"]) == ("died", False)


def processes_of(home: Home) -> list[str]:
    """The processes that were started from the home: its path is in their command line or their environment."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            said = (process / "cmdline").read_bytes() + (process / "environ").read_bytes()
        except OSError:
            continue
        if str(home.path).encode() in said and int(process.name) != os.getpid():
            found.append(process.name)
    return found
