"""Whatever is done to a sandbox in whatever order, and whatever its provider does: the lifecycle holds."""

from __future__ import annotations

import asyncio
import logging
from typing import Any, get_args

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from doubles.fake_runtime import Create, FakeRuntime, Probe, Terminate, World
from doubles.stepped_loop import SteppedLoop
from vf_core.errors import RolloutError, SandboxUnconfirmedError
from vf_core.runtimes import at_exit
from vf_core.runtimes.lifecycle import _ALLOWED, State, Transition

SECONDS = st.sampled_from([0.0, 0.01, 1.0, 6.0, 40.0])


class Sandboxes(RuleBasedStateMachine):
    """One runtime object under random commands, cancellations, passing time and faults."""

    def __init__(self) -> None:
        super().__init__()
        logging.disable(logging.CRITICAL)
        self.loop = SteppedLoop()
        asyncio.set_event_loop(self.loop)
        self.world = World()
        self.states: dict[str, State] = {}
        self.forced = 0
        self.box = FakeRuntime(self.world, observer=self.observe)
        self.tasks: list[asyncio.Task[None]] = []

    def observe(self, move: Transition) -> None:
        before = self.states.get(move.sandbox, State.NEW)
        if move.state is before:
            assert move.id, "a repeated state only says that the id is known"
            return
        assert move.state in _ALLOWED[before], f"{before} -> {move.state}"
        assert bool(move.proof) == (move.state is State.GONE)
        if move.state is State.STARTING:
            assert not self.world.of(move.sandbox), "created before it was said"
        if move.state is State.GONE:
            assert not self.world.of(move.sandbox), "gone is a lie"
        self.states[move.sandbox] = move.state

    def spawn(self, work: Any) -> None:
        task = self.loop.create_task(work)
        task.add_done_callback(lambda task: task.cancelled() or task.exception())
        self.tasks.append(task)
        self.loop.advance(0)

    # ---- what is done to it

    @rule()
    def start(self) -> None:
        self.spawn(self.box.start())

    @rule()
    def start_anyway(self) -> None:
        self.forced += 1
        self.spawn(self.box.start(force=True))

    @rule(timeout=st.sampled_from([0.5, 30.0]))
    def stop(self, timeout: float) -> None:
        self.spawn(self.box.stop(timeout))

    @rule(timeout=st.sampled_from([0.5, 30.0]))
    def confirm(self, timeout: float) -> None:
        self.spawn(self.box.stop_confirmed(timeout))

    @rule()
    def confirm_left(self) -> None:
        self.spawn(self.box.confirm_left(3.0))

    @rule()
    def force(self) -> None:
        self.box.force()

    @rule(which=st.integers(0, 5))
    def cancel(self, which: int) -> None:
        running = [task for task in self.tasks if not task.done()]
        if running:
            running[which % len(running)].cancel()
            self.loop.advance(0)

    @rule(seconds=SECONDS)
    def time_passes(self, seconds: float) -> None:
        self.loop.advance(seconds)

    # ---- what its provider does

    @rule(create=st.sampled_from(get_args(Create)))
    def creations(self, create: Create) -> None:
        self.world.create = create

    @rule(terminate=st.sampled_from(get_args(Terminate)))
    def terminations(self, terminate: Terminate) -> None:
        self.world.terminate = terminate

    @rule(probe=st.sampled_from(get_args(Probe)))
    def answers(self, probe: Probe) -> None:
        self.world.probe = probe

    @rule()
    def recovers(self) -> None:
        self.world.heal()
        self.loop.advance(0)

    # ---- what holds

    @invariant()
    def one_state(self) -> None:
        assert self.states.get(self.box.name, State.NEW) is self.box.state
        assert bool(self.box.proof) == (self.box.state is State.GONE)

    @invariant()
    def never_two(self) -> None:
        for name in self.states:
            assert len(self.world.of(name)) <= 1
        live = [name for name, state in self.states.items() if state is State.LIVE]
        assert len(live) <= 1
        if not self.forced:
            assert len(self.world.alive) <= 1

    @invariant()
    def nothing_is_forgotten(self) -> None:
        known = {self.box.name, *(life.sandbox for life in self.box.left)}
        assert set(self.world.alive.values()) <= known

    def teardown(self) -> None:
        try:
            self.world.heal()
            self.loop.advance(100)
            self.loop.do(self.to_the_end())
            assert self.box.state.settled
            assert self.world.alive == {}
            assert all(task.done() for task in self.tasks)
            for task in self.tasks:
                if not task.cancelled() and task.exception() is not None:
                    assert isinstance(task.exception(), RolloutError)
            assert self.box not in at_exit._UNSETTLED
        finally:
            for task in asyncio.all_tasks(self.loop):
                task.cancel()
            self.loop.advance(0)
            asyncio.set_event_loop(None)
            self.loop.close()
            logging.disable(logging.NOTSET)

    async def to_the_end(self) -> None:
        for confirm in (self.box.stop_confirmed, self.box.confirm_left):
            try:
                await confirm()
            except SandboxUnconfirmedError:
                # An earlier request was taken and not acted on; trying again asks again.
                await confirm()


TestSandboxes = Sandboxes.TestCase
TestSandboxes.settings = settings(
    max_examples=80, stateful_step_count=30, suppress_health_check=[HealthCheck.too_slow]
)
