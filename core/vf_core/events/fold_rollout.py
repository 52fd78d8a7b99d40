"""How durable events change a rollout. Whatever grows is bounded here."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from itertools import islice
from math import isfinite
from typing import Any

from vf_core.events import fold_resume
from vf_core.events import types as ev
from vf_core.events.state import (
    HISTORY_KEPT,
    OUTPUT_KEPT_ENDED,
    SERVED_KEPT,
    SERVERS_KEPT,
    TOOL_TEXT_KEPT,
    TOOLS_KEPT,
    TOOLS_KEPT_ENDED,
    TOOLS_WHOLE,
    AttemptView,
    ProgramView,
    RolloutView,
    RunState,
    SandboxView,
    ServedView,
    Status,
    ToolView,
)
from vf_core.runtimes.lifecycle import State
from vf_core.text import bound

ERRORS_KEPT = 16
ERRORS_KEPT_ENDED = 4


def finite(values: Mapping[str, Any]) -> dict[str, float]:
    """The entries of `values` that are finite numbers: the others can be neither summed nor written as JSON."""
    return {
        str(name): value
        for name, value in values.items()
        if isinstance(value, int | float) and isfinite(value)
    }


def begin(
    state: RunState, r: RolloutView, number: int, t: float, *, trace: str = "", reason: str = ""
) -> None:
    """Attempt `number` begins: nothing of the one before remains in `r` but its `AttemptView`."""
    set_status(state, r, "active")
    unscore(state, r)
    r.past = fold_resume.used(r)
    r.attempt, r.started, r.ended = number, t, None
    r.attempts.append(AttemptView(number=number, trace=trace, reason=reason or "first", started=t))
    del r.attempts[:-HISTORY_KEPT]
    r.phase, r.phase_since, r.phases = "", t, []
    r.sandbox, r.program = None, None
    fold_resume.clear(r)
    r.model_since, r.model_call = None, -1
    r.text = r.reasoning = r.answer = r.output = ""
    r.tools.clear()
    r.served = {}
    r.stop_condition = r.error_type = r.error = ""
    r.errors = []
    r.metrics = {}
    r.last_progress = t


def interrupt(state: RunState, r: RolloutView, t: float) -> None:
    """The engine that ran `r` is known at `t` to be gone: an attempt without a result is to be tried again."""
    r.command = ""
    if r.status == "active":
        _quiet(r, t)
        set_status(state, r, "queued")
        if r.attempts and not r.attempts[-1].outcome:
            r.attempts[-1].outcome = "interrupted"


def owe(state: RunState, r: RolloutView) -> None:
    """`r` is to be run again, whatever became of it."""
    unscore(state, r)
    set_status(state, r, "queued")
    r.ended = None


def set_status(state: RunState, r: RolloutView, status: Status) -> None:
    """Move `r` to `status`, in the totals too."""
    totals = state.totals
    setattr(totals, r.status, getattr(totals, r.status) - 1)
    setattr(totals, status, getattr(totals, status) + 1)
    r.status = status


def drop_partial(r: RolloutView) -> list[ToolView]:
    """Take out the tool calls that are still being generated; they stand at the end."""
    dropped: list[ToolView] = []
    while r.tools and r.tools[-1].partial:
        dropped.append(r.tools.pop())
    dropped.reverse()
    return dropped


def _quiet(r: RolloutView, t: float) -> None:
    """Nothing is being generated any more, and no call will return."""
    drop_partial(r)
    r.text = r.reasoning = ""
    r.model_since, r.calls_open = None, 0
    for tool in r.tools:
        if tool.ended is None:
            tool.ended = t


def _queued(state: RunState, r: RolloutView, e: ev.RolloutQueued) -> None:
    r.task, r.sample, r.name = e.task, e.sample, e.name


def _attempt(state: RunState, r: RolloutView, e: ev.AttemptStarted) -> None:
    last = r.attempts[-1] if r.attempts else None
    if last is not None and last.number == e.attempt and not last.trace and not last.outcome:
        last.trace, last.reason = e.trace, e.reason
    else:
        if last is not None and e.trace and (last.number, last.trace) == (e.attempt, e.trace):
            fold_resume.untell(state, r)
        begin(state, r, e.attempt, e.t, trace=e.trace, reason=e.reason)


def _phase(state: RunState, r: RolloutView, e: ev.PhaseChanged) -> None:
    r.phase, r.phase_since, r.last_progress = e.phase, e.t, e.t
    r.phases.append((e.phase, e.t))
    del r.phases[:-HISTORY_KEPT]


def sandbox_moved(state: RunState, e: ev.RuntimeChanged) -> SandboxView:
    """A sandbox's move, whoever's it is."""
    box = state.sandboxes.get(e.sandbox)
    if box is None:
        box = state.sandboxes[e.sandbox] = SandboxView(
            e.sandbox, e.rollout, e.attempt, e.kind, serves=e.serves
        )
    if box.state is State.GONE:
        box.history.clear()
        box.id, box.attempt, box.image, box.ends = "", e.attempt, "", None
    _move(box, e)
    if box.state in _UNPROVEN or (state.over and not box.state.settled):
        state.unconfirmed.add(box.name)
    elif box.state in _PROVEN:
        state.unconfirmed.discard(box.name)
    return box


def _runtime(state: RunState, r: RolloutView, e: ev.RuntimeChanged) -> None:
    box = sandbox_moved(state, e)
    if e.sandbox not in r.sandboxes:
        r.sandboxes.append(e.sandbox)
    if e.serves:
        return
    for attempt in reversed(r.attempts):
        if attempt.number == e.attempt:
            attempt.sandbox = e.sandbox
            break
    if e.attempt >= r.attempt:
        r.sandbox = box
        if box.state in (State.STARTING, State.LIVE):
            r.last_progress = e.t


def _move(box: SandboxView, e: ev.RuntimeChanged) -> None:
    before = box.state
    try:
        box.state, detail = State(e.state), e.detail
    except ValueError:
        box.state, detail = State.UNKNOWN, f"{e.state}: {e.detail}" if e.detail else e.state
    box.id, box.proof, box.detail = e.id or box.id, e.proof, detail
    if e.image:
        box.image = e.image
    if e.ends is not None:
        box.ends = e.ends
    if box.state is before and box.history:
        # How far it is, or its id: no step of its own.
        box.history[-1] = (box.state, box.since, e.proof or detail)
        return
    box.since = e.t
    box.history.append((box.state, e.t, e.proof or detail))
    # How it began and how it ends both matter; the middle of endless checking does not.
    if len(box.history) > HISTORY_KEPT:
        del box.history[HISTORY_KEPT // 2]


# Stopping and checking are on the way: they leave a sandbox counted as it was.
_UNPROVEN = frozenset({State.FAILED, State.SENT, State.SURVIVED, State.UNKNOWN})
_PROVEN = frozenset({State.NEW, State.STARTING, State.LIVE, State.GONE})


def _program_started(state: RunState, r: RolloutView, e: ev.ProgramStarted) -> None:
    r.program = ProgramView(started=e.t)
    r.last_progress = e.t


def _program_exited(state: RunState, r: RolloutView, e: ev.ProgramExited) -> None:
    program = r.program or ProgramView(started=e.t - e.seconds)
    program.code, program.meaning, program.kind, program.ended = e.code, e.meaning, e.kind, e.t
    r.program, r.last_progress = program, e.t
    _quiet(r, e.t)
    if r.attempts:
        r.attempts[-1].exit_meaning = e.meaning


def _model_started(state: RunState, r: RolloutView, e: ev.ModelCallStarted) -> None:
    r.calls += 1
    r.calls_open += 1
    r.model_since, r.model_call, r.last_progress = e.t, e.call, e.t
    r.text = r.reasoning = ""
    drop_partial(r)
    state.totals.model_calls += 1


def _model_finished(state: RunState, r: RolloutView, e: ev.ModelCallFinished) -> None:
    r.calls_open = max(0, r.calls_open - 1)
    if not r.calls_open:
        r.model_since = None
    if e.call == r.model_call:
        r.text = r.reasoning = ""
        drop_partial(r)
    r.last_progress = e.t
    _spend(state, r, e)
    if not e.error:
        r.turns += 1
        r.answer = e.text[: ev.MESSAGE_LIMIT]
        r.tokens_known = r.tokens_known and e.prompt_tokens is not None


def _spend(state: RunState, r: RolloutView, e: ev.ModelCallFinished) -> None:
    totals = state.totals
    if e.prompt_tokens is not None:
        r.prompt_tokens += e.prompt_tokens
        totals.prompt_tokens += e.prompt_tokens
    if e.cached_tokens is not None:
        r.cached_tokens += e.cached_tokens
        totals.cached_tokens += e.cached_tokens
    if e.completion_tokens is not None:
        r.completion_tokens += e.completion_tokens
        totals.completion_tokens += e.completion_tokens
    if e.cost is not None and isfinite(e.cost):
        r.cost = (r.cost or 0.0) + e.cost
        totals.cost = (totals.cost or 0.0) + e.cost


def _tool_called(state: RunState, r: RolloutView, e: ev.ToolCalled) -> None:
    r.last_progress = e.t
    r.tool_count += 1
    state.totals.tool_calls += 1
    tools = r.tools
    partial = drop_partial(r)
    tools.append(
        ToolView(
            id=e.id,
            name=e.name[: ev.NAME_LIMIT],
            arguments=e.arguments[: ev.ARGUMENTS_LIMIT],
            server=e.server,
            started=e.t,
        )
    )
    if len(tools) > TOOLS_WHOLE:
        _shorten((tools[-TOOLS_WHOLE - 1],))
    if len(tools) > TOOLS_KEPT:
        tools.popleft()
    tools.extend(partial)


def _tool_returned(state: RunState, r: RolloutView, e: ev.ToolReturned) -> None:
    r.last_progress = e.t
    newer = 0
    for tool in reversed(r.tools):
        if tool.partial:
            continue
        if tool.id == e.id:
            tool.result, tool.seconds, tool.ended = e.result[: ev.RESULT_LIMIT], e.seconds, e.t
            tool.failed, tool.server = e.failed, e.server or tool.server
            if newer >= TOOLS_WHOLE:
                _shorten((tool,))
            return
        newer += 1


def _served(state: RunState, r: RolloutView, e: ev.ToolsServed) -> None:
    """A server's tools may become known only later, and change."""
    server = e.server[: ev.NAME_LIMIT]
    known = r.served.get(server)
    if known is None and len(r.served) >= SERVERS_KEPT:
        return
    names = tuple(name[: ev.NAME_LIMIT] for name in e.tools[:SERVED_KEPT])
    r.served[server] = (
        ServedView(e.place, e.shared, names, len(e.tools))
        if names or known is None
        else replace(known, place=e.place, shared=e.shared)
    )


def _shorten(tools: Iterable[ToolView]) -> None:
    for tool in tools:
        tool.arguments = bound(tool.arguments, TOOL_TEXT_KEPT)
        tool.result = bound(tool.result, TOOL_TEXT_KEPT)


def _scored(state: RunState, r: RolloutView, e: ev.Scored) -> None:
    _score(state, r, e.reward)
    r.rewards, r.metrics = finite(e.rewards), finite(e.metrics)
    if e.judged:
        _judged(state, r, finite(e.judged))


def _judged(state: RunState, r: RolloutView, used: Mapping[str, float]) -> None:
    """What an attempt's judges used is told as a whole each time: it replaces what was told before."""
    totals = state.totals
    for name in ("judge_calls", "judge_prompt_tokens", "judge_cached_tokens", "judge_completion_tokens"):
        before, after = getattr(r, name), max(0, int(used.get(name.removeprefix("judge_"), 0)))
        setattr(r, name, after)
        setattr(totals, name, getattr(totals, name) + after - before)
    if (cost := used.get("cost")) is not None:
        totals.judge_cost = (totals.judge_cost or 0.0) + cost - (r.judge_cost or 0.0)
        r.judge_cost = cost


def _score(state: RunState, r: RolloutView, reward: float | None) -> None:
    unscore(state, r)
    if reward is None or not isfinite(reward):
        return
    r.reward = reward
    totals = state.totals
    totals.scored += 1
    totals.reward_sum += reward
    totals.reward_squares += reward * reward
    if r.attempts and r.attempts[-1].outcome:
        r.attempts[-1].reward = reward


def unscore(state: RunState, r: RolloutView) -> None:
    """Take the reward of `r` off the totals."""
    if r.reward is not None:
        totals = state.totals
        totals.scored -= 1
        totals.reward_sum -= r.reward
        totals.reward_squares -= r.reward * r.reward
        if not totals.scored:
            # Rounding must not be left over.
            totals.reward_sum = totals.reward_squares = 0.0
    r.reward, r.rewards = None, {}


def _done(state: RunState, r: RolloutView, e: ev.AttemptFinished) -> None:
    reward = e.reward if e.reward is not None and isfinite(e.reward) else None
    for attempt in reversed(r.attempts):
        if attempt.number == e.attempt:
            attempt.ended, attempt.outcome, attempt.stop_condition = e.t, e.outcome, e.stop_condition
            attempt.reward, attempt.error = reward, e.error[: ev.MESSAGE_LIMIT]
            break
    if e.attempt < r.attempt:
        return
    if reward is not None and r.reward != reward:
        rewards = r.rewards
        _score(state, r, reward)
        r.rewards = rewards
    r.stop_condition, r.error_type, r.error = e.stop_condition, e.error_type, e.error[: ev.MESSAGE_LIMIT]
    r.ended = e.t
    _quiet(r, e.t)
    if e.final:
        set_status(state, r, _OUTCOMES.get(e.outcome, "error"))
        _put_away(r)
    else:
        set_status(state, r, "queued")


def _put_away(r: RolloutView) -> None:
    """Keep little of what is over: the trace and the logs have all of it."""
    surplus = len(r.tools) - TOOLS_KEPT_ENDED
    if surplus > 0:
        r.tools = deque(islice(r.tools, surplus, None))
    _shorten(r.tools)
    r.output = r.output[-OUTPUT_KEPT_ENDED:]
    del r.errors[:-ERRORS_KEPT_ENDED]


_OUTCOMES: dict[str, Status] = {
    "completed": "completed",
    "declined": "declined",
    "stopped": "stopped",
    "error": "error",
}


def _error(state: RunState, r: RolloutView, e: ev.ErrorRaised) -> None:
    r.errors.append((e.t, e.kind, e.message[: ev.MESSAGE_LIMIT]))
    del r.errors[:-ERRORS_KEPT]


HANDLERS: dict[type[ev.Event], Callable[[RunState, RolloutView, Any], None]] = {
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
    ev.ToolsServed: _served,
    ev.Scored: _scored,
    ev.AttemptFinished: _done,
    ev.ErrorRaised: _error,
}
