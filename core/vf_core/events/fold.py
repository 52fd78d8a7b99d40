"""`apply`: the one function that turns events into state. The engine, an attached screen, a screen opened on
a finished run and the tests all use it, so that they can't disagree.

It never reads a clock and never fails on an event that does not fit (a journal may have lost its head).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from vf_core.events import types as ev
from vf_core.events.state import (
    OUTPUT_KEPT,
    PARTIAL_KEPT,
    TEXT_KEPT,
    TOOLS_KEPT,
    AttemptView,
    CommandView,
    ProgramView,
    RolloutView,
    RunState,
    SandboxView,
    Status,
    ToolView,
)
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
    state.revision += 1
    state.now = max(state.now, event.t)
    if isinstance(event, ev.RolloutEvent):
        rollout = state.rollouts.get(event.rollout)
        if rollout is None:
            rollout = state.rollouts[event.rollout] = RolloutView(id=event.rollout)
            state.totals.queued += 1
        # A sandbox of an earlier attempt may still be going when the next one runs.
        if event.attempt and event.attempt < rollout.attempt and not isinstance(event, _ANY_ATTEMPT):
            return state
        rollout.revision += 1
        state.changed.add(rollout.id)
        handler = _ROLLOUT.get(type(event))
        if handler is not None:
            handler(state, rollout, event)
    else:
        run_handler = _RUN.get(type(event))
        if run_handler is not None:
            run_handler(state, event)
    return state


_ANY_ATTEMPT = (ev.RuntimeChanged, ev.AttemptFinished)


def _started(state: RunState, e: ev.RunStarted) -> None:
    state.run, state.name, state.model = e.run, e.name, e.model
    state.taskset, state.harness, state.runtime = e.taskset, e.harness, e.runtime
    state.host, state.pid, state.total = e.host, e.pid, e.total
    state.concurrency, state.caps = e.concurrency, dict(e.caps)
    state.started = e.t if state.started is None else state.started
    state.status, state.finished, state.exit_code = "running", None, None
    state.message, state.stop_reason = "", ""


def _launching(state: RunState, e: ev.RunLaunching) -> None:
    state.paused, state.concurrency, state.pause_reason = e.paused, e.concurrency, e.reason


def _stopping(state: RunState, e: ev.RunStopping) -> None:
    state.status, state.stop_reason = "stopping", e.reason


def _finished(state: RunState, e: ev.RunFinished) -> None:
    state.status, state.finished = e.status, e.t
    state.exit_code, state.message = e.exit_code, e.message


def _log(state: RunState, e: ev.Log) -> None:
    state.logs.append((e.t, e.level, e.message, e.rollout))


def _accepted(state: RunState, e: ev.CommandAccepted) -> None:
    state.commands.append(CommandView(e.command, e.name, e.t, e.targets, e.by))
    for target in e.targets:
        if (rollout := state.rollouts.get(target)) is not None:
            rollout.command = e.name
            _touch(state, rollout)


def _command_ended(state: RunState, e: ev.CommandDone | ev.CommandFailed) -> None:
    for command in reversed(state.commands):
        if command.id == e.command:
            break
    else:
        return
    command.status = "done" if isinstance(e, ev.CommandDone) else "failed"
    command.message = e.message
    if isinstance(e, ev.CommandDone):
        command.changed = e.changed
    for target in command.targets:
        rollout = state.rollouts.get(target)
        if rollout is not None and rollout.command == command.name:
            rollout.command = ""
            _touch(state, rollout)


def _touch(state: RunState, rollout: RolloutView) -> None:
    rollout.revision += 1
    state.changed.add(rollout.id)


def _queued(state: RunState, r: RolloutView, e: ev.RolloutQueued) -> None:
    r.task, r.sample, r.name = e.task, e.sample, e.name


def _attempt(state: RunState, r: RolloutView, e: ev.AttemptStarted) -> None:
    _set_status(state, r, "active")
    _unscore(state, r)
    r.attempt, r.started, r.ended = e.attempt, e.t, None
    r.attempts.append(AttemptView(number=e.attempt, trace=e.trace, reason=e.reason, started=e.t))
    r.phase, r.phase_since, r.phases = "", e.t, []
    r.sandbox, r.program = None, None
    r.turns = r.calls = r.prompt_tokens = r.cached_tokens = r.completion_tokens = r.tool_count = 0
    r.tokens_known, r.cost, r.model_since, r.model_call = True, None, None, -1
    r.text = r.reasoning = r.answer = r.output = ""
    r.tools.clear()
    r.stop_condition = r.error_type = r.error = ""
    r.errors = []
    r.metrics = {}
    r.last_progress = e.t


def _phase(state: RunState, r: RolloutView, e: ev.PhaseChanged) -> None:
    r.phase, r.phase_since, r.last_progress = e.phase, e.t, e.t
    r.phases.append((e.phase, e.t))


def _runtime(state: RunState, r: RolloutView, e: ev.RuntimeChanged) -> None:
    box = state.sandboxes.get(e.sandbox)
    if box is None:
        box = SandboxView(e.sandbox, r.id, e.attempt, e.kind)
        state.sandboxes[e.sandbox] = box
        r.sandboxes.append(e.sandbox)
        for attempt in r.attempts:
            if attempt.number == e.attempt:
                attempt.sandbox = e.sandbox
    if box.state is State.GONE:
        box.history.clear()
    box.state, box.since = State(e.state), e.t
    box.id, box.proof, box.detail = e.id, e.proof, e.detail
    box.history.append((box.state, e.t, e.proof or e.detail))
    if box.state.settled:
        state.unconfirmed.discard(box.name)
    else:
        state.unconfirmed.add(box.name)
    if e.attempt >= r.attempt:
        r.sandbox = box
        if box.state in (State.STARTING, State.LIVE):
            r.last_progress = e.t


def _program_started(state: RunState, r: RolloutView, e: ev.ProgramStarted) -> None:
    r.program = ProgramView(started=e.t)
    r.last_progress = e.t


def _program_exited(state: RunState, r: RolloutView, e: ev.ProgramExited) -> None:
    program = r.program or ProgramView(started=e.t - e.seconds)
    program.code, program.meaning, program.kind, program.ended = e.code, e.meaning, e.kind, e.t
    r.program, r.model_since = program, None
    _drop_partial(r)
    r.text = r.reasoning = ""
    if r.attempts:
        r.attempts[-1].exit_meaning = e.meaning


def _model_started(state: RunState, r: RolloutView, e: ev.ModelCallStarted) -> None:
    r.calls += 1
    r.model_since, r.model_call, r.last_progress = e.t, e.call, e.t
    r.text = r.reasoning = ""
    state.totals.model_calls += 1


def _model_finished(state: RunState, r: RolloutView, e: ev.ModelCallFinished) -> None:
    totals = state.totals
    r.model_since, r.last_progress = None, e.t
    r.text = r.reasoning = ""
    _drop_partial(r)
    for name in ("prompt_tokens", "cached_tokens", "completion_tokens"):
        value = getattr(e, name)
        if value is not None:
            setattr(r, name, getattr(r, name) + value)
            setattr(totals, name, getattr(totals, name) + value)
    if e.cost is not None:
        r.cost = (r.cost or 0.0) + e.cost
        totals.cost = (totals.cost or 0.0) + e.cost
    if e.error:
        return
    r.turns += 1
    r.answer = e.text
    r.tokens_known = r.tokens_known and e.prompt_tokens is not None


def _tool_called(state: RunState, r: RolloutView, e: ev.ToolCalled) -> None:
    _drop_partial(r)
    r.tools.append(ToolView(id=e.id, name=e.name, arguments=e.arguments, server=e.server, started=e.t))
    if len(r.tools) > TOOLS_KEPT:
        r.tools.popleft()
    r.tool_count += 1
    r.last_progress = e.t
    state.totals.tool_calls += 1


def _tool_returned(state: RunState, r: RolloutView, e: ev.ToolReturned) -> None:
    r.last_progress = e.t
    for tool in reversed(r.tools):
        if tool.id == e.id and not tool.partial:
            tool.result, tool.seconds, tool.ended, tool.failed = e.result, e.seconds, e.t, e.failed
            return


def _scored(state: RunState, r: RolloutView, e: ev.Scored) -> None:
    _unscore(state, r)
    r.reward, r.rewards, r.metrics = e.reward, dict(e.rewards), dict(e.metrics)
    if e.reward is not None:
        state.totals.scored += 1
        state.totals.reward_sum += e.reward
        state.totals.reward_squares += e.reward * e.reward


def _unscore(state: RunState, r: RolloutView) -> None:
    if r.reward is not None:
        state.totals.scored -= 1
        state.totals.reward_sum -= r.reward
        state.totals.reward_squares -= r.reward * r.reward
    r.reward, r.rewards = None, {}


def _done(state: RunState, r: RolloutView, e: ev.AttemptFinished) -> None:
    for attempt in r.attempts:
        if attempt.number == e.attempt:
            attempt.ended, attempt.outcome, attempt.stop_condition = e.t, e.outcome, e.stop_condition
            attempt.reward, attempt.error = e.reward, e.error
    if e.attempt < r.attempt:
        return
    r.stop_condition, r.error_type, r.error = e.stop_condition, e.error_type, e.error
    r.ended, r.model_since = e.t, None
    _drop_partial(r)
    r.text = r.reasoning = ""
    _set_status(state, r, _OUTCOMES.get(e.outcome, "error") if e.final else "queued")


_OUTCOMES: dict[str, Status] = {
    "completed": "completed",
    "declined": "declined",
    "stopped": "stopped",
    "error": "error",
}


def _error(state: RunState, r: RolloutView, e: ev.ErrorRaised) -> None:
    r.errors.append((e.t, e.kind, e.message))
    del r.errors[:-16]


def _text(state: RunState, r: RolloutView, e: ev.TextDelta) -> None:
    r.last_progress = e.t
    if e.reasoning:
        r.reasoning = (r.reasoning + e.text)[-TEXT_KEPT:]
    else:
        r.text = (r.text + e.text)[-TEXT_KEPT:]


def _tool_delta(state: RunState, r: RolloutView, e: ev.ToolDelta) -> None:
    r.last_progress = e.t
    partial = 0
    for tool in reversed(r.tools):
        if not tool.partial:
            break
        partial += 1
        if tool.index == e.index:
            tool.name = (tool.name + e.name)[: ev.NAME_LIMIT]
            tool.id = tool.id or e.id
            tool.arguments = (tool.arguments + e.arguments)[: ev.ARGUMENTS_LIMIT]
            return
    if partial < PARTIAL_KEPT:
        r.tools.append(_partial(e.index, e.id, e.name, e.arguments, e.t))


def _partial(index: int, id: str, name: str, arguments: str, started: float) -> ToolView:
    return ToolView(
        id=id,
        name=name[: ev.NAME_LIMIT],
        arguments=arguments[: ev.ARGUMENTS_LIMIT],
        started=started,
        partial=True,
        index=index,
    )


def _live_now(state: RunState, r: RolloutView, e: ev.LiveNow) -> None:
    r.last_progress = max(r.last_progress, e.progress)
    r.text, r.reasoning = e.text[-TEXT_KEPT:], e.reasoning[-TEXT_KEPT:]
    r.output = e.output[-OUTPUT_KEPT:]
    _drop_partial(r)
    for tool in e.tools[:PARTIAL_KEPT]:
        r.tools.append(_partial(tool["index"], tool["id"], tool["name"], tool["arguments"], tool["started"]))


def live_now(r: RolloutView) -> ev.LiveNow:
    """All that live events have built up in `r`: folded into a view that lacks them it gives `r` again."""
    return ev.LiveNow(
        rollout=r.id,
        attempt=r.attempt,
        text=r.text,
        reasoning=r.reasoning,
        output=r.output,
        tools=tuple(
            {"index": t.index, "id": t.id, "name": t.name, "arguments": t.arguments, "started": t.started}
            for t in r.tools
            if t.partial
        ),
        progress=r.last_progress,
    )


def _output(state: RunState, r: RolloutView, e: ev.OutputChunk) -> None:
    r.last_progress = e.t
    r.output = (r.output + e.text)[-OUTPUT_KEPT:]


def _drop_partial(r: RolloutView) -> None:
    while r.tools and r.tools[-1].partial:
        r.tools.pop()


def _set_status(state: RunState, r: RolloutView, status: Status) -> None:
    totals = state.totals
    setattr(totals, r.status, getattr(totals, r.status) - 1)
    setattr(totals, status, getattr(totals, status) + 1)
    r.status = status


_RUN: dict[type[ev.Event], Callable[[RunState, Any], None]] = {
    ev.RunStarted: _started,
    ev.RunLaunching: _launching,
    ev.RunStopping: _stopping,
    ev.RunFinished: _finished,
    ev.Log: _log,
    ev.CommandAccepted: _accepted,
    ev.CommandDone: _command_ended,
    ev.CommandFailed: _command_ended,
}

_ROLLOUT: dict[type[ev.Event], Callable[[RunState, RolloutView, Any], None]] = {
    ev.RolloutQueued: _queued,
    ev.AttemptStarted: _attempt,
    ev.PhaseChanged: _phase,
    ev.RuntimeChanged: _runtime,
    ev.ProgramStarted: _program_started,
    ev.ProgramExited: _program_exited,
    ev.ModelCallStarted: _model_started,
    ev.ModelCallFinished: _model_finished,
    ev.ToolCalled: _tool_called,
    ev.ToolReturned: _tool_returned,
    ev.Scored: _scored,
    ev.AttemptFinished: _done,
    ev.ErrorRaised: _error,
    ev.TextDelta: _text,
    ev.ToolDelta: _tool_delta,
    ev.OutputChunk: _output,
    ev.LiveNow: _live_now,
}
