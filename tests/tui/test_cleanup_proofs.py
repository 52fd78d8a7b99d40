"""What the ledger has proven since stands on the screen of a run whose engine has gone."""

from __future__ import annotations

import asyncio
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from doubles.fake_engine import FakeEngine
from doubles.watching import started
from vf_core.events.state import RunState
from vf_core.link.base import Description
from vf_core.runs.engine_file import Standing
from vf_core.runs.find import RunSummary
from vf_core.runtimes.lifecycle import State, Transition
from vf_core.sandboxes.ledger import Ledger, Owner
from vf_tui.bridge import Bridge
from vf_tui.proofs import proofs_of, settle, settle_runs

PROOF = "docker: no such container"


async def write_down(run: str, names: list[str], proven: int) -> None:
    """A ledger with these sandboxes, the first `proven` of them proven gone."""
    with closing(Ledger.open()) as ledger:
        owner = replace(Owner.this_process(run), pid=2**22 + 5)
        for n, name in enumerate(names):
            recorder = ledger.recorder(owner, rollout="a", attempt=1)
            move = Transition(name, "docker", State.STARTING, time.time(), id=f"id-{name}")
            await recorder.reserve(move)
            recorder.note(replace(move, state=State.LIVE))
            if n < proven:
                recorder.note(replace(move, state=State.GONE, proof=PROOF))
        await asyncio.to_thread(ledger.flush)


def gone_engine() -> tuple[FakeEngine, RunState, list[str]]:
    engine = started()
    state = engine.state
    state.abandon()
    return engine, state, sorted(box.name for box in state.left_over())


async def test_proofs_settle_what_the_engine_left_and_nothing_else() -> None:
    _, state, names = gone_engine()
    await write_down(state.run, [*names, "not-in-this-journal"], proven=2)
    proofs = await asyncio.to_thread(proofs_of, state.run)
    assert sorted(proofs) == names[:2]
    touched = settle(state, proofs)
    assert touched == {state.sandboxes[name].rollout for name in names[:2]}
    assert state.unconfirmed == set(names[2:])
    box = state.sandboxes[names[0]]
    assert (box.state, box.proof, box.history[-1][0]) == (State.GONE, PROOF, State.GONE)
    assert settle(state, proofs) == set()


async def test_a_viewer_of_a_dead_engines_run_shows_the_proofs_and_a_live_one_does_not() -> None:
    for alive in (False, True):
        engine, state, names = gone_engine()
        engine.bus.bind(asyncio.get_running_loop())
        await write_down(state.run, names, proven=len(names))
        link = engine.link()
        about = link.describe()
        link.describe = lambda about=about, alive=alive: replace(about, alive=alive)  # type: ignore[method-assign,misc]
        assert isinstance(about, Description)
        bridge = Bridge(link)
        following = asyncio.create_task(bridge.run())
        async with asyncio.timeout(60):
            while not bridge.connected:
                await asyncio.sleep(0.01)
        left = [box.name for box in bridge.state.left_over()]
        assert bool(left) is alive
        assert bool(set(names) & bridge.state.unconfirmed) is alive
        following.cancel()
        await bridge.close()


async def test_lists_of_runs_count_what_is_still_in_doubt() -> None:
    at = Standing(left=3, unconfirmed=3)
    dead = RunSummary(Path("/r"), "run-1", "n", "vf-tui", "dead", 1.0, standing=at)
    other, live = replace(dead, id="unknown-here"), replace(dead, liveness="live")
    await write_down("run-1", ["a", "b", "c"], proven=2)
    got = await asyncio.to_thread(settle_runs, [dead, other, live])
    assert [run.unconfirmed for run in got] == [1, 3, 3]


def test_without_a_ledger_nothing_changes() -> None:
    dead = RunSummary(Path("/r"), "r", "n", "vf-tui", "dead", 1.0, standing=Standing(left=2))
    assert settle_runs([dead]) == [dead]
    assert proofs_of("r") == {}
    assert proofs_of("") == {}
