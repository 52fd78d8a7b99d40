"""A sandbox whose stop never returns holds up neither the others nor the end of the run, and is named (T08, T14)."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from doubles.command_line import Home, alive, records, wait_for
from doubles.sandbox_commands import long_sleep

# Loaded by the engine with the taskset: stops of the first rollout's sandbox neither return nor can be cancelled, and
# a thread of the plugin's never ends.
STUCK = """
import asyncio, threading, time
from functools import partialmethod
from vf_core.rollout import attempt as rollout
from vf_core.link import loop
from vf_core.runtimes.subprocess import SubprocessRuntime
from vf_test_tasks import *
from vf_test_tasks import __all__

terminate = SubprocessRuntime._terminate

async def stuck(self, box):
    if "-0000-0-" not in box.name:
        return await terminate(self, box)
    while True:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            continue

SubprocessRuntime._terminate = stuck
SubprocessRuntime.stop = partialmethod(SubprocessRuntime.stop, timeout=2.0)
SubprocessRuntime.stop_confirmed = partialmethod(SubprocessRuntime.stop_confirmed, timeout=4.0)
loop.PATIENCE = 0.5
rollout._STOP_PATIENCE = rollout._CANCEL_PATIENCE = 0.3
threading.Thread(target=time.sleep, args=(3600,)).start()
"""


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    home = Home(tmp_path)
    home.env["PYTHONPATH"] += f":{home.work}"
    (home.work / "stuck_tasks.py").write_text(STUCK)
    yield home
    home.stop_all()


def test_t08_one_stuck_stop_holds_up_neither_the_others_nor_the_exit(home: Home) -> None:
    sleep = long_sleep()
    file = home.config([sleep] * 4)
    file.write_text(file.read_text().replace("vf_test_tasks", "stuck_tasks"))
    process = home.start("run", file, "--headless")
    # A sandbox that is still being made is not stopped by `_terminate`.
    wait_for(lambda: len(sleeping(sleep)) == 4, "the programs")
    process.send_signal(signal.SIGINT)
    wait_for(lambda: home.out().count("sandbox GONE") == 3, "the others")
    assert process.wait(60) == 4, home.out() + home.err()
    assert home.out().partition("sandbox UNKNOWN")[0].count("sandbox GONE") == 3, (
        "the others were kept waiting"
    )
    assert "sandbox UNKNOWN (could not be asked to stop" in home.out()
    assert "sandboxes: 1 unconfirmed: vf-" in home.out()
    (run,) = home.runs()
    wait_for(lambda: not alive(run["pid"]), "the engine's end")
    told = records(home("events", run["run"], "--json").stdout)
    assert any("UNKNOWN" in event.get("message", "") for event in told)
    assert "1 unconfirmed: vf-" in home("show", run["run"]).stdout
    # Where the engine can still reach it, its end takes the sandbox along.
    wait_for(
        lambda: not [p for p in Path("/proc").glob("[0-9]*/cmdline") if holds(p, sleep.split()[1].encode())],
        "programs to end",
    )


def sleeping(command: str) -> list[Path]:
    """The processes that are this command, not a shell that was given it."""
    line = b"".join(word.encode() + b"\0" for word in command.split())
    return [path for path in Path("/proc").glob("[0-9]*/cmdline") if holds(path, line)]


def holds(path: Path, word: bytes) -> bool:
    try:
        return word in path.read_bytes()
    except OSError:
        return False
