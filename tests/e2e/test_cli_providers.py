"""What the command line says of providers that fail: words, rows and exit codes, until the proof comes."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from doubles.command_line import Home, alive, records, wait_for
from doubles.leaks import Modal, Place, Prime
from doubles.left_over import ledger_rows
from vf_core.runtimes.lifecycle import State

PLACES: dict[str, type[Place]] = {"prime": Prime, "modal": Modal}
LIST = {"prime": r"GET /api/v1/sandbox$", "modal": "SandboxList"}
DENIED = {"prime": 403, "modal": 7}
BROKEN = {"prime": 500, "modal": 13}


@pytest.fixture(params=PLACES)
def place(request: pytest.FixtureRequest) -> Iterator[Place]:
    place = PLACES[request.param]()
    yield place
    place.close()


@pytest.fixture
def home(place: Place, tmp_path: Path) -> Iterator[Home]:
    home = Home(tmp_path, place.env)
    yield home
    place.calm()
    home.stop_all()


def config(home: Home, place: Place) -> Path:
    file = home.config(["exec sleep 600"])
    file.write_text(file.read_text() + place.runtime())
    return file


def launched(home: Home, place: Place) -> dict[str, Any]:
    """A run whose sandbox is live."""
    done = home("run", config(home, place), "--detach", "--json")
    assert done.returncode == 0, done.stderr
    facts: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    journal = Path(facts["dir"]) / "events.jsonl"
    wait_for(lambda: "program.started" in journal.read_text(), "the program")
    return facts


def states(home: Home) -> list[tuple[State, bool]]:
    return [(row.state, bool(row.proof)) for row in ledger_rows(home)]


def test_a_refused_end_is_exit_code_4_wherever_it_is_asked_for(home: Home, place: Place) -> None:
    process = home.start("run", config(home, place), "--headless")
    wait_for(lambda: len(place.ours()) == 1, "the sandbox")
    place.fault(place.delete, "status", status=DENIED[place.kind], times=-1)
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 4, home.out() + home.err()
    assert "sandbox UNKNOWN" in home.out()
    assert "sandboxes: 1 unconfirmed: vf-" in home.out()
    assert "GONE" not in home.out()
    assert states(home) == [(State.UNKNOWN, False)]
    assert len(place.ours()) == 1
    assert f"1 sandbox of a dead run is left (1 {place.kind})" in home("ls").stderr
    refused = home("cleanup", "--yes", "--json", "--provider", place.kind)
    assert refused.returncode == 4
    *ends, last = records(refused.stdout)
    # It is there, says the list; that it was asked to go is not known to have come through.
    assert [end["result"] for end in ends] in (["UNKNOWN"], ["SURVIVED"])
    assert len(last["unconfirmed"]) == 1
    assert "GONE" not in refused.stdout
    place.calm()
    done = home("cleanup", "--yes", "--json", "--provider", place.kind)
    assert done.returncode == 0, done.stdout + done.stderr
    assert [end["result"] for end in records(done.stdout)[:-1]] == ["GONE"]
    assert states(home) == [(State.GONE, True)]
    assert place.ours() == set()
    assert place.bystander_lives()


def test_a_provider_that_is_down_hides_nothing_and_proves_nothing(home: Home, place: Place) -> None:
    facts = launched(home, place)
    os.kill(facts["pid"], signal.SIGKILL)
    wait_for(lambda: not alive(facts["pid"]), "the engine's end")
    place.fault(LIST[place.kind], "status", status=BROKEN[place.kind], times=-1)
    place.fault(place.delete, "status", status=BROKEN[place.kind], times=-1)
    told = home("sandboxes", "--json", "--provider", place.kind)
    assert told.returncode == 5
    (record,) = records(told.stdout)
    (report,) = [report for report in record["providers"] if report["provider"] == place.kind]
    assert (report["ok"], bool(report["error"])) == (False, True)
    (box,) = record["sandboxes"]
    assert (box["run"], box["state"], box["leftover"]) == (facts["run"], "UNKNOWN", True)
    assert states(home) == [(State.LIVE, False)]
    place.calm()
    done = home("cleanup", "--yes", "--json", "--provider", place.kind)
    assert done.returncode == 0, done.stdout + done.stderr
    assert states(home) == [(State.GONE, True)]
    assert place.ours() == set()
    assert place.bystander_lives()
