"""Watching a run without a screen: lines or JSON records as things happen, and a last word."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass

from vf_core.events import types as ev
from vf_core.events.fold import apply
from vf_core.events.state import RunState
from vf_core.link.base import Events, Link, Silent, Snapshot
from vf_core.runtimes.lifecycle import State
from vf_tui.commands.console import emit, notice, say
from vf_tui.facts import rollout_facts
from vf_tui.plain import PlainLines
from vf_tui.render import timefmt

LAST_WORDS = 2.0
"""Seconds to wait for what a lost engine's journal still holds."""
DRAIN_SECONDS = 5.0
SETTLED = (State.NEW, State.GONE, State.SURVIVED, State.UNKNOWN)
SIGNALS = (signal.SIGINT, signal.SIGTERM)


@dataclass(slots=True)
class Watched:
    """How watching ended: the last state, and why the engine was lost before its last word (empty: it was not)."""

    state: RunState
    lost: str = ""


class Reporter:
    """Prints what is notable: lines, or with `json` a record for each rollout that ended, and warnings on stderr."""

    def __init__(self, *, json: bool) -> None:
        self._json = json
        self._lines = PlainLines()
        self._ended: set[tuple[str, int]] = set()

    def happened(self, event: ev.Event, state: RunState) -> None:
        """After `event` was folded into `state`."""
        if not self._json:
            line = self._lines.of(event, state)
            if line is not None:
                say(line)
        elif isinstance(event, ev.Log):
            self._warn(event, state)
        elif isinstance(event, ev.AttemptFinished | ev.RuntimeChanged):
            self._record(state, event.rollout)
        elif isinstance(event, ev.RunFinished):
            for id in state.rollouts:
                self._record(state, id, last=True)

    def caught_up(self, state: RunState, *, silent: bool = False) -> None:
        """Print what `state` tells that was not printed yet; with `silent`, only take note of it."""
        if self._json:
            for t, level, text, id in state.logs:
                self._warn(ev.Log(t=t, level=level, message=text, rollout=id), state, silent=silent)
            for id in state.rollouts:
                self._record(state, id, silent=silent, last=state.over)
            return
        for line in self._lines.missed(state):
            if not silent:
                say(line)

    def draining(self, text: str) -> None:
        """How far the teardown at the end is."""
        if self._json:
            notice(text)
        else:
            say(f"{timefmt.at(time.time())} {text}")

    def _warn(self, event: ev.Log, state: RunState, *, silent: bool = False) -> None:
        """A warning or an error, once, beside the records."""
        line = None if event.level == "info" else self._lines.of(event, state)
        if line is not None and not silent:
            notice(line)

    def _record(self, state: RunState, id: str, *, silent: bool = False, last: bool = False) -> None:
        """A rollout's record, once its sandbox's fate is known too (`last`: once nothing more is to come)."""
        view = state.rollouts.get(id)
        if view is None:  # a sandbox that all rollouts share
            return
        known = view.sandbox is None or view.sandbox.state in SETTLED
        if view.ended_status and (known or last) and (id, view.attempt) not in self._ended:
            self._ended.add((id, view.attempt))
            if not silent:
                emit({"type": "rollout", **rollout_facts(view)})


async def watch(link: Link, state: RunState, reporter: Reporter, *, from_start: bool) -> Watched:
    """Report what `link` tells from `state` on, which it gave when it was connected, until the run's last word or
    until the engine is lost.

    `from_start`: report also what happened before we came.
    """
    reporter.caught_up(state, silent=not from_start)
    now = [state]
    telling = asyncio.ensure_future(_tell_drain(now, reporter))
    try:
        return await _follow(link, now, reporter)
    finally:
        telling.cancel()


async def _tell_drain(state: list[RunState], reporter: Reporter) -> None:
    """While sandboxes are being torn down at the end of a run: every few seconds how many, and since when."""
    while True:
        await asyncio.sleep(DRAIN_SECONDS)
        text = drain_text(state[0], time.time())
        if text:
            reporter.draining(text)


def drain_text(state: RunState, now: float) -> str:
    """`stopping 9 · oldest 41 s`; blank while rollouts still run by themselves, and when nothing is torn down."""
    if state.over or (state.status != "stopping" and state.totals.active):
        return ""
    from vf_tui.render.header import survey

    found = survey(state, now)
    if not found.stopping:
        return ""
    age = timefmt.span(now - found.oldest) if found.oldest is not None else ""
    doubt = f" · {found.unconfirmed} unconfirmed" if found.unconfirmed else ""
    return f"stopping {found.stopping} · oldest {age}{doubt}"


async def _follow(link: Link, now: list[RunState], reporter: Reporter) -> Watched:
    """`now` holds the state, for whoever looks at it meanwhile."""
    state, lost = now[0], ""
    batches = link.batches()
    while not state.over:
        try:
            # A lost engine's journal may still hold what it had no time to say.
            batch = await asyncio.wait_for(anext(batches), LAST_WORDS if lost else None)
        except (TimeoutError, StopAsyncIteration):
            if lost:
                state.abandon()
            return Watched(state, lost or "the link was closed")
        if isinstance(batch, Snapshot):
            state = now[0] = batch.state
            reporter.caught_up(state)
        elif isinstance(batch, Events):
            for event in batch.events:
                apply(state, event)
                reporter.happened(event, state)
            state.changed.clear()
        elif isinstance(batch, Silent):
            notice(
                "the engine answers again"
                if batch.over
                else "the engine does not answer: it is paused or overloaded"
            )
        else:
            lost = batch.reason or "it ended without a word"
    return Watched(state)


@asynccontextmanager
async def on_signals(first: Callable[[str], None]) -> AsyncIterator[None]:
    """Inside, SIGINT and SIGTERM call `first` with the signal's name once; repeating them changes nothing."""
    loop, came = asyncio.get_running_loop(), 0

    def got(number: signal.Signals) -> None:
        nonlocal came
        came += 1
        if came == 1:
            first(number.name)
        else:
            notice(f"{number.name}: already cleaning up; nothing is cut short")

    for number in SIGNALS:
        loop.add_signal_handler(number, got, number)
    try:
        yield
    finally:
        for number in SIGNALS:
            loop.remove_signal_handler(number)


@contextmanager
def interruptible(task: asyncio.Task[object]) -> Iterator[None]:
    """Inside, SIGINT and SIGTERM cancel `task`: for a viewer, whose leaving changes nothing."""
    loop = asyncio.get_running_loop()
    for number in SIGNALS:
        loop.add_signal_handler(number, task.cancel)
    try:
        yield
    finally:
        for number in SIGNALS:
            loop.remove_signal_handler(number)
