"""`apply`: the one function that turns events into state. The engine, an attached screen, a screen opened on
a finished run and the tests all use it, so that they can't disagree.

It never reads a clock and never fails on an event that does not fit (a journal may have lost its head).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from vf_core.events import fold_live, fold_resume, fold_rollout
from vf_core.events import types as ev
from vf_core.events.state import CommandView, RolloutView, RunState
from vf_core.runtimes.lifecycle import State


def fold(events: Iterable[ev.Event], state: RunState | None = None) -> RunState:
    """The state after all of `events`, in order."""
    state = RunState() if state is None else state
    for event in events:
        apply(state, event)
    return state


def apply(state: RunState, event: ev.Event) -> RunState:
    """Change `state` by one event and return it; a durable event that it already holds changes nothing."""
    if event.seq:
        if event.seq <= state.seq:
            return state
        state.seq = event.seq
        if isinstance(event, ev.RunStarted) and state.started is not None:
            state.idle += max(0.0, event.t - (state.told if state.finished is None else state.finished))
        if not (isinstance(event, ev.RuntimeChanged) and event.state == State.GONE):
            # A proof may be found when no engine is at work.
            state.told = max(state.told, event.t)
    state.revision += 1
    state.now = max(state.now, event.t)
    if isinstance(event, ev.RolloutEvent):
        _apply_to_rollout(state, event)
    else:
        handler = _RUN.get(type(event))
        if handler is not None:
            handler(state, event)
    return state


def _apply_to_rollout(state: RunState, event: ev.RolloutEvent) -> None:
    if not event.rollout:
        # A sandbox that all rollouts share.
        if isinstance(event, ev.RuntimeChanged):
            fold_rollout.sandbox_moved(state, event)
        return
    rollout = state.rollouts.get(event.rollout)
    if rollout is None:
        rollout = state.rollouts[event.rollout] = RolloutView(id=event.rollout)
        state.totals.queued += 1
        state.total = max(state.total, len(state.rollouts))
    cls = type(event)
    if event.attempt != rollout.attempt and event.attempt and cls is not ev.AttemptStarted:
        if event.attempt > rollout.attempt:
            fold_rollout.begin(state, rollout, event.attempt, event.t)
        elif cls not in _ANY_ATTEMPT:
            return
    rollout.revision += 1
    state.changed.add(rollout.id)
    handler = _ROLLOUT.get(cls)
    if handler is not None:
        handler(state, rollout, event)


# A sandbox of an earlier attempt may still be going when the next one runs.
_ANY_ATTEMPT = frozenset({ev.RuntimeChanged, ev.AttemptFinished})


def _started(state: RunState, e: ev.RunStarted) -> None:
    if state.started is not None and (state.finished is None or (e.host, e.pid) != (state.host, state.pid)):
        _interrupted(state, e.t)
    if e.kept or e.owed:
        _taken_up(state, e.owed)
        state.kept = e.kept
    state.run, state.name, state.model = e.run, e.name, e.model
    state.taskset, state.harness, state.runtime = e.taskset, e.harness, e.runtime
    state.host, state.pid, state.total = e.host, e.pid, max(e.total, len(state.rollouts))
    state.concurrency, state.caps = e.concurrency, fold_rollout.finite(e.caps)
    state.started = e.t if state.started is None else state.started
    state.status, state.finished, state.exit_code = "running", None, None
    state.message = state.stop_reason = state.pause_reason = ""
    state.paused = False


def _interrupted(state: RunState, t: float) -> None:
    """Another engine carries on: what the one before had in hand ended with it, its sandboxes perhaps not."""
    for rollout in state.rollouts.values():
        if rollout.status == "active" or rollout.command:
            fold_rollout.interrupt(state, rollout, t)
            _touch(state, rollout)
    for command in state.commands:
        if command.status == "accepted":
            command.status, command.message = "failed", "the engine ended before it was done"
    state.abandon()


def _taken_up(state: RunState, owed: Iterable[str]) -> None:
    """A resume: the rollouts `owed` are run again, and count then; the others stand."""
    again = [rollout for id in owed if (rollout := state.rollouts.get(id)) is not None]
    for rollout in again:
        fold_rollout.owe(state, rollout)
        _touch(state, rollout)
    fold_resume.set_apart(state, again)


def _launching(state: RunState, e: ev.RunLaunching) -> None:
    state.paused, state.concurrency, state.pause_reason = e.paused, e.concurrency, e.reason


def _stopping(state: RunState, e: ev.RunStopping) -> None:
    state.status, state.stop_reason = "stopping", e.reason


def _finished(state: RunState, e: ev.RunFinished) -> None:
    state.status, state.finished = e.status, e.t
    state.exit_code, state.message = e.exit_code, e.message
    state.abandon()


def _log(state: RunState, e: ev.Log) -> None:
    state.logs.append((e.t, e.level, e.message[: ev.MESSAGE_LIMIT], e.rollout))


def _accepted(state: RunState, e: ev.CommandAccepted) -> None:
    state.commands.append(CommandView(e.command, e.name, e.t, e.targets, e.by))
    for target in e.targets:
        if (rollout := state.rollouts.get(target)) is not None:
            rollout.command = e.name
            _touch(state, rollout)


def _done(state: RunState, e: ev.CommandDone) -> None:
    command = _command(state, e.command)
    if command is not None:
        command.status, command.message, command.changed = "done", e.message, e.changed
    _release(state, e.name, command.targets if command is not None else e.changed)


def _failed(state: RunState, e: ev.CommandFailed) -> None:
    command = _command(state, e.command)
    if command is not None:
        command.status, command.message = "failed", e.message
    _release(state, e.name, command.targets if command is not None else e.targets)


def _command(state: RunState, id: str) -> CommandView | None:
    return next((command for command in reversed(state.commands) if command.id == id), None)


def _release(state: RunState, name: str, targets: Iterable[str]) -> None:
    for target in targets:
        rollout = state.rollouts.get(target)
        if rollout is not None and rollout.command == name:
            rollout.command = ""
            _touch(state, rollout)


def _touch(state: RunState, rollout: RolloutView) -> None:
    rollout.revision += 1
    state.changed.add(rollout.id)


_RUN: dict[type[ev.Event], Callable[[RunState, Any], None]] = {
    ev.RunStarted: _started,
    ev.RunLaunching: _launching,
    ev.RunStopping: _stopping,
    ev.RunFinished: _finished,
    ev.Log: _log,
    ev.CommandAccepted: _accepted,
    ev.CommandDone: _done,
    ev.CommandFailed: _failed,
}

_ROLLOUT: dict[type[ev.Event], Callable[[RunState, RolloutView, Any], None]] = {
    **fold_rollout.HANDLERS,
    **fold_live.HANDLERS,
}
