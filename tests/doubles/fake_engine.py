"""An engine that only tells stories: for screens, links and benches that need a run without running anything."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from doubles.stories import HOSTILE, PLOTS, Story, Teller, completed, endless
from vf_core.events import types as ev
from vf_core.events.bus import Bus
from vf_core.events.command import Reply
from vf_core.events.state import ENDED, RolloutView, RunState
from vf_core.link.local import EngineThread, LocalLink
from vf_core.runtimes.lifecycle import State

TICK = 0.02


class FakeEngine:
    """Publishes scripted events: `step` by hand, or `run` at `rate` events a second.

    `rollouts` rollouts of varied fates (see `doubles.stories.PLOTS`), `concurrency` at a time (default: 8;
    `endless`: all, and they never end). The same `seed` gives the same events. It is its own `EnginePort` and,
    once started, a host for `LocalLink`.
    """

    def __init__(
        self,
        rollouts: int = 24,
        rate: float = 200.0,
        seed: int = 0,
        *,
        concurrency: int | None = None,
        endless: bool = False,
        clock: Callable[[], float] | None = None,
        run: str = "9a1d0c5e-0000-4000-8000-000000000001",
        total: int | None = None,
    ) -> None:
        self.bus = Bus(clock=clock)
        self.rate = rate
        self.endless = endless
        self.received: list[tuple[str, tuple[str, ...], dict[str, Any], str]] = []
        self.concurrency = concurrency or (rollouts if endless else 8)
        self.watched: frozenset[str] = frozenset()
        self.attached = 0
        self._rng = random.Random(seed)
        self._run = run
        self._stories: dict[str, Story] = {}
        self._order: list[str] = []
        self._tellers: dict[str, Teller] = {}
        self._turn = 0
        self._commands = itertools.count(1)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._paused = False
        self._stopping = False
        self._shut = False
        self._ids = [f"t{n}-s0" for n in range(rollouts)]
        self._waiting = list(reversed(self._ids))
        self._total = rollouts if total is None else total

    # What links need.

    @property
    def state(self) -> RunState:
        return self.bus.state

    @property
    def port(self) -> FakeEngine:
        return self

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        assert self._loop is not None, "started neither on a thread nor in a loop"
        return self._loop

    def trace_record(self, rollout: str, attempt: int) -> dict[str, Any] | None:
        view = self.state.rollouts.get(rollout)
        if view is None or not view.attempts:
            return None
        nodes: list[dict[str, Any]] = [
            {"parent": None, "message": {"role": "user", "content": f"task {view.task}: {HOSTILE[2]}"}}
        ]
        for n, tool in enumerate(view.tools):
            calls = [{"id": tool.id, "name": tool.name, "arguments": tool.arguments}]
            nodes.append({"parent": n, "message": {"role": "assistant", "tool_calls": calls}})
        return {"id": view.attempts[-1].trace, "nodes": nodes, "errors": [], "rewards": dict(view.rewards)}

    def watch(self, rollouts: frozenset[str]) -> None:
        self.watched = rollouts

    def viewers(self, count: int) -> None:
        self.attached = count

    # Ways to run it.

    def link(self, *, read_only: bool = False) -> LocalLink:
        """A link to this engine; it runs on the loop of the caller unless `start_thread` was called."""
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
        return LocalLink(self, read_only=read_only, by="test")

    def start_thread(self) -> EngineThread:
        """Run on a thread and loop of its own until `shutdown`."""

        async def main(up: Callable[[Any], None]) -> None:
            up(self)
            await self.run()

        thread = EngineThread(main)
        self._loop = thread.loop
        thread.start()
        return thread

    async def run(self, wait: Callable[[float], Awaitable[None]] = asyncio.sleep) -> None:
        """Publish at `rate` until `shutdown` or, after the last story, for as long as commands may come."""
        self._loop = asyncio.get_running_loop()
        self.bus.bind(self._loop)
        self.begin()
        due = 0.0
        while not self._shut:
            due = min(due + self.rate * TICK, self.rate)
            told = self.step(int(due))
            due -= told if told else int(due)
            await wait(TICK)
        self.finish()

    def begin(self) -> None:
        """Publish the start of the run and its queue, once."""
        if self.state.run:
            return
        self.bus.publish(
            ev.RunStarted(
                run=self._run,
                name="demo--gpt-5-mini--bash",
                model="gpt-5-mini",
                taskset="demo",
                harness="bash",
                runtime="subprocess",
                concurrency=self.concurrency,
                total=self._total,
                host="devbox",
                pid=4242,
            )
        )
        for n, id in enumerate(self._ids):
            name = PLOTS[n % len(PLOTS)][0]
            self.bus.publish(ev.RolloutQueued(rollout=id, task=n, sample=0, name=name))
        self.bus.publish(ev.Log(level="info", message=f"{len(self._ids)} rollouts; hello {HOSTILE[0]}"))

    def step(self, count: int = 1) -> int:
        """Publish the next `count` scripted events, spread over the active rollouts; how many there were."""
        self.begin()
        for told in range(count):
            if not self._tell_one():
                return told
        return count

    def play(self, until: Callable[[RunState], bool] = lambda state: False, *, limit: int = 200_000) -> None:
        """Publish until `until` holds or everything was told."""
        self.begin()
        for _ in range(limit):
            if until(self.state) or not self._tell_one():
                return

    def warm_up(self, turns: int = 1) -> None:
        """Bring every rollout of an endless run well into its story, at once."""
        self.begin()
        for id in self._ids:
            self._launch(id)
            for event in itertools.islice(self._stories[id], 7 + 40 * turns):
                self.bus.publish(event)
        self._waiting.clear()

    def finish(self, status: str = "completed") -> None:
        """Say the last word and close the bus."""
        if not self.state.over:
            left = tuple(sorted(self.state.unconfirmed))
            self.bus.publish(ev.RunFinished(status=status, exit_code=4 if left else 0, unconfirmed=left))
        self.bus.close()

    # Telling.

    def _tell_one(self) -> bool:
        while len(self._stories) < self.concurrency and self._waiting and not self._halted:
            self._launch(self._waiting.pop())
        while self._order:
            self._turn = (self._turn + self._rng.choice((0, 0, 0, 1))) % len(self._order)
            id = self._order[self._turn]
            event = next(self._stories[id], None)
            if event is not None:
                self.bus.publish(event)
                return True
            self._end_story(id)
            if self._waiting and not self._halted:
                self._launch(self._waiting.pop())
        return False

    @property
    def _halted(self) -> bool:
        return self._paused or self._stopping

    def _launch(self, id: str, reason: str = "first") -> None:
        n = self.state.rollouts[id].task
        view = self.state.rollouts[id]
        _, plot, end = PLOTS[n % len(PLOTS)]
        attempt = view.attempt + 1
        rng = random.Random(f"{self._rng.random()}-{id}-{attempt}")
        teller = Teller(id, attempt, rng, end=end if attempt == 1 else "gone", hostile=n % len(PLOTS) == 9)
        self._tellers[id] = teller
        story = endless if self.endless else plot if attempt == 1 else completed
        self._begin_story(id, story(teller, reason))

    def _begin_story(self, id: str, story: Story) -> None:
        if id not in self._stories:
            self._order.append(id)
        self._stories[id] = story

    def _end_story(self, id: str) -> None:
        del self._stories[id]
        self._order.remove(id)

    # Commands.

    async def command(self, name: str, targets: Sequence[str], args: dict[str, Any], by: str) -> Reply:
        self.received.append((name, tuple(targets), dict(args), by))
        id = f"cmd-{next(self._commands)}"
        unknown = [t for t in targets if t not in self.state.rollouts]
        if unknown:
            return Reply(False, f"no such rollout: {', '.join(unknown)}", id=id)
        self.bus.publish(ev.CommandAccepted(command=id, name=name, targets=tuple(targets), by=by))
        handler = getattr(self, f"_do_{name}", None)
        if handler is None:
            message = f"unknown command {name!r}"
            self.bus.publish(ev.CommandFailed(command=id, name=name, message=message))
            return Reply(False, message, id=id)
        changed = handler(tuple(targets), args)
        message = f"{name}: {len(changed)} changed" if changed else f"{name}: nothing to do"
        self.bus.publish(ev.CommandDone(command=id, name=name, changed=changed, message=message))
        return Reply(True, message, changed, id)

    def _views(self, targets: tuple[str, ...], test: Callable[[RolloutView], bool]) -> list[RolloutView]:
        return [view for id in targets if test(view := self.state.rollouts[id])]

    def _stop(self, view: RolloutView, *, confirm: bool, done: bool = True) -> None:
        teller = self._tellers.get(view.id)
        if view.id in self._waiting:
            self._waiting.remove(view.id)

        def story() -> Story:
            if view.status not in ENDED:
                yield ev.AttemptFinished(
                    rollout=view.id,
                    attempt=view.attempt,
                    outcome="stopped",
                    stop_condition="user_stopped",
                    final=done,
                )
            if teller is not None and view.sandbox is not None and not view.sandbox.state.settled:
                if view.sandbox.state in (State.SENT, State.SURVIVED, State.UNKNOWN):
                    yield from teller.check() if confirm else ()
                else:
                    yield from teller.teardown(confirm=confirm)

        self._begin_story(view.id, story())

    def _do_stop(self, targets: tuple[str, ...], args: dict[str, Any]) -> tuple[str, ...]:
        views = self._views(targets, lambda v: v.status not in ENDED)
        for view in views:
            self._stop(view, confirm=False)
        return tuple(v.id for v in views)

    def _do_confirm_stop(self, targets: tuple[str, ...], args: dict[str, Any]) -> tuple[str, ...]:
        views = self._views(
            targets,
            lambda v: v.status not in ENDED or (v.sandbox is not None and not v.sandbox.state.settled),
        )
        for view in views:
            self._stop(view, confirm=True)
        return tuple(v.id for v in views)

    _do_kill = _do_confirm_stop

    def _do_restart(self, targets: tuple[str, ...], args: dict[str, Any]) -> tuple[str, ...]:
        for view in self._views(targets, lambda v: True):
            self._stop(view, confirm=True, done=False)
            first = self._stories[view.id]
            self._launch(view.id, "restart")
            self._stories[view.id] = itertools.chain(first, self._stories[view.id])
        return targets

    def _do_retry_failed(self, targets: tuple[str, ...], args: dict[str, Any]) -> tuple[str, ...]:
        ids = targets or tuple(self.state.rollouts)
        return self._do_restart(tuple(v.id for v in self._views(ids, lambda v: v.status == "error")), args)

    def _launching(self, paused: bool, concurrency: int) -> tuple[str, ...]:
        if (paused, concurrency) == (self._paused, self.concurrency):
            return ()
        self._paused, self.concurrency = paused, concurrency
        reason = "paused by the user" if paused else ""
        self.bus.publish(ev.RunLaunching(paused=paused, concurrency=concurrency, reason=reason))
        return ("run",)

    def _do_pause(self, targets: tuple[str, ...], args: dict[str, Any]) -> tuple[str, ...]:
        return self._launching(True, self.concurrency)

    def _do_unpause(self, targets: tuple[str, ...], args: dict[str, Any]) -> tuple[str, ...]:
        return self._launching(False, self.concurrency)

    def _do_set_concurrency(self, targets: tuple[str, ...], args: dict[str, Any]) -> tuple[str, ...]:
        return self._launching(self._paused, int(args["value"]))

    def _do_stop_all(self, targets: tuple[str, ...], args: dict[str, Any]) -> tuple[str, ...]:
        if self._stopping:
            return ()
        self._stopping = True
        self.bus.publish(ev.RunStopping(reason="stopped by the user"))
        return self._do_confirm_stop(tuple(self.state.rollouts), args)

    def _do_shutdown(self, targets: tuple[str, ...], args: dict[str, Any]) -> tuple[str, ...]:
        self._do_stop_all(targets, args)
        self._shut = True
        return ("run",)
