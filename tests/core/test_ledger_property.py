"""Whatever a runtime and its provider do, the ledger has every sandbox that may exist, as what it is."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from doubles.fake_runtime import FakeRuntime, World
from vf_core.errors import SandboxError
from vf_core.runtimes.lifecycle import LifecycleError, State
from vf_core.sandboxes.ledger import Ledger, Owner

QUICK = 0.03
ACTIONS = st.lists(
    st.sampled_from(
        ["start", "force", "stop", "confirm", "left", "cancelled start", "lost", "exit"]
        + [f"create {fault}" for fault in ("ok", "refused", "lost")]
        + [f"terminate {fault}" for fault in ("ok", "ignored", "error")]
        + [f"probe {fault}" for fault in ("ok", "error")]
    ),
    max_size=14,
)


async def act(runtime: FakeRuntime, action: str) -> None:
    world, (verb, _, fault) = runtime.world, action.partition(" ")
    if verb in ("create", "terminate", "probe"):
        setattr(world, verb, fault)
    elif verb == "start":
        await runtime.start()
    elif verb == "force":
        await runtime.start(force=True)
    elif verb == "stop":
        await runtime.stop(QUICK)
    elif verb == "confirm":
        await runtime.stop_confirmed(QUICK)
    elif verb == "left":
        await runtime.confirm_left(QUICK)
    elif verb == "lost":
        runtime._lost("its connection")
    elif verb == "exit":
        runtime.cleanup()
    else:
        task = asyncio.create_task(runtime.start())
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait({task})
        if not task.cancelled():
            task.exception()


def known(runtime: FakeRuntime) -> tuple[dict[str, tuple[State, str]], set[str]]:
    """What the runtime says of its sandboxes that are not proven gone; and which of them it asked for."""
    boxes: list[Any] = [box for box in (runtime._box, *runtime._left) if not box.state.settled]
    return {box.name: (box.state, box.id) for box in boxes}, {box.name for box in boxes if box.asked}


async def story(path: Path, actions: list[str]) -> None:
    ledger, world = Ledger.open(path), World()
    runtime = FakeRuntime(world)
    runtime.recorder = ledger.recorder(Owner.this_process("run"), rollout="0-0", attempt=1)
    for action in actions:
        try:
            await act(runtime, action)
        except (SandboxError, LifecycleError):
            pass
        while runtime._tasks:
            await asyncio.wait(set(runtime._tasks))
        rows = await ledger.read(unproven=True)
        said = {row.name: (row.state, row.id) for row in rows}
        held, asked = known(runtime)
        assert asked <= set(said), action
        assert said == {name: held[name] for name in said}, action
        # Nothing exists that the ledger does not know by its id, or by the name that it is found under.
        ids, names = {row.id for row in rows}, {row.name for row in rows}
        assert all(id in ids or name in names for id, name in world.alive.items()), (action, world.alive)
    for row in await ledger.read():
        assert bool(row.proof) == (row.state is State.GONE)
    runtime.recorder = None
    world.heal()
    runtime.cleanup()
    ledger.close()


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(actions=ACTIONS)
def test_every_sandbox_that_may_exist_is_in_the_ledger(
    tmp_path_factory: pytest.TempPathFactory, actions: list[str]
) -> None:
    asyncio.run(story(tmp_path_factory.mktemp("story") / "state" / "sandboxes.db", actions))
