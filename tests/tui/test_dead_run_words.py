"""Of a run whose engine is gone, and a program that nobody hears of any more, no more is said than is known."""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from doubles.fake_engine import FakeEngine
from doubles.inventories import alive, item
from doubles.screen_states import Rollout, Story
from doubles.watching import started
from vf_core.events import types as ev
from vf_core.events.fold import fold
from vf_core.events.journal import JournalWriter
from vf_core.events.state import RunState
from vf_core.runs.find import RunSummary
from vf_core.runtimes.lifecycle import State
from vf_core.sandboxes.items import Inventory
from vf_tui.bridge import Bridge
from vf_tui.commands import console
from vf_tui.commands.boxes import summary
from vf_tui.commands.facts import load_state
from vf_tui.commands.run import How, _last_word
from vf_tui.filter import parse
from vf_tui.inventory_view import InventoryView
from vf_tui.render import status
from vf_tui.render.header import state_words, survey
from vf_tui.screens.texts import copy_line


def lost_program(*, ended: bool, box: str) -> RunState:
    """A rollout whose program was started, and whose exit nobody saw."""
    story = Story()
    story.say(ev.RunStarted, 0, run="r", name="n", total=1, concurrency=1)
    r = Rollout(story, "a", 0, "task").begin(1)
    r.say(ev.RuntimeChanged, 2, sandbox="vf-a-1", kind="docker", state="live", id="sb-1")
    r.say(ev.ProgramStarted, 3, program="bash")
    if ended:
        r.say(ev.AttemptFinished, 4, outcome="error")
    r.say(ev.RuntimeChanged, 5, sandbox="vf-a-1", kind="docker", state=box, id="sb-1", proof="404")
    return fold(story.events)


@pytest.mark.parametrize(
    ("ended", "box", "word"),
    [
        (False, "live", "running"),
        (True, "unknown", "exit unknown"),
        (True, "gone", "exit unknown"),
        (False, "gone", "exit unknown"),
    ],
)
def test_a_program_runs_only_while_somebody_would_hear_of_its_end(ended: bool, box: str, word: str) -> None:
    view = lost_program(ended=ended, box=box).rollouts["a"]
    assert view.exit_word == status.exit_words(view)[0] == word
    assert word in copy_line(view)
    assert parse(f"exit:{word.rsplit(maxsplit=1)[-1]}")(view)


async def test_a_run_that_was_dead_when_it_was_opened_is_not_at_work() -> None:
    engine = started()
    engine.bus.bind(asyncio.get_running_loop())
    link = engine.link()
    about = replace(link.describe(), alive=False, pid=4242)
    link.describe = lambda: about  # type: ignore[method-assign]
    bridge = Bridge(link)
    following = asyncio.create_task(bridge.run())
    async with asyncio.timeout(60):
        while not bridge.connected:
            await asyncio.sleep(0.01)
    state = bridge.state
    assert state_words(state, state.now) == ("died", "error")
    left = {box.name for box in state.left_over()}
    assert left
    assert state.unconfirmed >= left
    found = survey(state, state.now)
    assert (found.unconfirmed, found.stopping, found.waits) == (len(left), 0, ())
    following.cancel()
    await bridge.close()


def test_what_was_found_gone_is_not_counted_as_a_sandbox() -> None:
    inventory = Inventory((item(0), item(1, state=State.GONE, leftover=False)), (), time.time())
    assert summary(inventory) == "1 sandbox, 1 left over (1 more is now proven gone)"


def test_that_an_owner_lived_is_said_with_its_time() -> None:
    view = InventoryView()
    view.take([alive(1)], (), time.time())
    for why in (view.why_not(view.items["box-1"]), view.why_no_claim(view.items["box-1"])):
        assert "as of " in why
        assert why.endswith("r asks again")


async def test_a_run_that_leaves_sandboxes_says_what_to_do(capsys: pytest.CaptureFixture[str]) -> None:
    state = lost_program(ended=True, box="unknown")
    state.exit_code = 4
    launched: Any = SimpleNamespace(ended=lambda patience: True, run_dir=None)
    assert await _last_word(launched, SimpleNamespace(lost="", state=state), How()) == 4
    said = capsys.readouterr()
    assert "1 unconfirmed: vf-a-1 UNKNOWN" in said.out
    assert "vf-tui cleanup" in said.err


def test_a_log_that_cannot_be_written_says_nothing(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    full = Path("/dev/full")
    if not full.exists():  # macOS: a directory stands in the way all the same
        full = tmp_path
    monkeypatch.setattr(console._LogFile, "_open", lambda self: full.open("w", buffering=1))
    handler = console._LogFile()
    handler.handle(logging.LogRecord("vf_core", logging.WARNING, __file__, 1, "told", (), None))
    assert capsys.readouterr().err == ""


def test_what_runs_gets_older_between_two_events(tmp_path: Path) -> None:
    engine = FakeEngine(rollouts=2, run="r")
    journal = JournalWriter(tmp_path / "events.jsonl")
    engine.bus.add_sink(journal.append)
    engine.begin()
    journal.close()
    live = RunSummary(tmp_path, "r", "n", "vf-tui", "live", 1.0)
    before = time.time()
    assert load_state(live).now >= before
    assert load_state(replace(live, liveness="dead")).now < before
