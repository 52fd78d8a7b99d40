"""A run in plain lines: the same facts as on the screen, for pipes, logs and terminals that can't draw.

Lines are raw: whoever prints them cleans them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from vf_core.events import types as ev
from vf_core.events.state import RolloutView, RunState
from vf_core.runtimes.lifecycle import State
from vf_core.text import one_line
from vf_tui.render import timefmt
from vf_tui.render.status import judged, scoring_failed, unscored

TOLD = (State.FAILED, State.GONE, State.SURVIVED, State.UNKNOWN)
"""Sandbox states that get a line."""
LINE_LIMIT = 2_000
_NAMES = 8
_FOREVER = 1e11


class PlainLines:
    """Turns events into lines, each after it was folded into `state`; nothing is told twice."""

    def __init__(self) -> None:
        self._told: set[tuple[str, int, str]] = set()

    def of(self, event: ev.Event, state: RunState) -> str | None:
        """The line for `event`, with its time in front; None when it is not worth one."""
        if isinstance(event, ev.Log) and not self._new((event.rollout, 0, f"{event.t} {event.message}")):
            return None
        if isinstance(event, ev.RunStarted) and not self._new(("", 0, f"{event.t} started")):
            return None
        text = self._rollout(event, state) if isinstance(event, ev.RolloutEvent) else self._run(event)
        return f"{_clock(event.t)} {one_line(text, limit=LINE_LIMIT)}" if text else None

    def missed(self, state: RunState) -> Iterator[str]:
        """The lines of what went on without our hearing of it, as far as `state` still tells."""
        if (
            state.started is not None
            and not state.idle
            and (line := self.of(_begun(state), state)) is not None
        ):
            yield line
        logs = (ev.Log(t=t, level=lvl, message=text, rollout=id) for t, lvl, text, id in state.logs)
        for event in (*logs, *(event for view in state.rollouts.values() for event in _told_by(view))):
            line = self.of(event, state)
            if line is not None:
                yield line

    def _first(self, event: ev.RolloutEvent, what: str) -> bool:
        """`what` was not told of this attempt yet; it counts as told from here on."""
        return self._new((event.rollout, event.attempt, what))

    def _new(self, key: tuple[str, int, str]) -> bool:
        new = key not in self._told
        self._told.add(key)
        return new

    def _rollout(self, event: ev.RolloutEvent, state: RunState) -> str | None:
        view = state.rollouts.get(event.rollout) or RolloutView(id=event.rollout)
        who = f"{view.id} {one_line(view.name, limit=60)}".rstrip()
        match event:
            case ev.AttemptStarted() if self._first(event, "started"):
                return f"{who}: started" if event.attempt == 1 else f"{who}: {_again(event)}"
            case ev.ErrorRaised() if self._first(event, event.message):
                return f"{who}: {event.kind}: {one_line(event.message, limit=600)}"
            case ev.AttemptFinished() if self._first(event, f"ended {event.outcome}"):
                return f"{who}: {self._ended(event, view)}"
            # What its group's rewards add comes when it has ended.
            case ev.Scored(reward=float(reward)) if view.ended_status and self._first(
                event, f"{reward} in all"
            ):
                return f"{who}: reward {reward:g} with its group's"
            case ev.RuntimeChanged() if event.state in TOLD and self._first(event, _move(event)):
                why = event.proof or event.detail
                told = f" ({one_line(why)})" if why and self._first(event, why) else ""
                return f"{_whose(event, who)}: sandbox {State(event.state).word}{told}"
        return None

    def _ended(self, event: ev.AttemptFinished, view: RolloutView) -> str:
        failed = event.outcome == "error" and scoring_failed(view, event.error_type)
        parts = ["unscored" if failed else event.outcome]
        if event.reward is not None:
            parts.append(f"reward {event.reward:g}")
        if view.program is not None and view.program.meaning and event.outcome != "declined":
            parts.append(view.program.meaning)
        elif view.program is not None and view.program.meaning:
            parts[0] = view.program.meaning
        if event.stop_condition not in ("", "agent_completed", "agent_declined", event.outcome):
            parts.append(event.stop_condition)
        parts.append(f"{view.turns} turn{'' if view.turns == 1 else 's'}")
        if view.tokens_known and view.turns:
            parts.append(f"{timefmt.count(view.prompt_tokens + view.cached_tokens)} in")
            parts.append(f"{timefmt.count(view.completion_tokens)} out")
        parts.append(timefmt.took(_sane(timefmt.elapsed(view, event.t))))
        if event.error_type:
            seen = (event.rollout, event.attempt, event.error) in self._told
            parts.append(
                event.error_type if seen else f"{event.error_type}: {one_line(event.error, limit=600)}"
            )
        if not event.final:
            parts.append("another attempt follows")
        return " · ".join(part for part in parts if part)

    def _run(self, event: ev.Event) -> str | None:
        match event:
            case ev.RunStarted():
                what = ", ".join(
                    f"{name} {value}"
                    for name, value in (
                        ("model", event.model),
                        ("tasks", event.taskset),
                        ("harness", event.harness),
                        ("runtime", event.runtime),
                    )
                    if value
                )
                return (
                    f"run {event.name} ({event.run}): {_amount(event)}, {event.concurrency} at once; {what}"
                )
            case ev.RunLaunching(paused=True):
                return f"paused: nothing new is launched{_why(event.reason)}"
            case ev.RunLaunching():
                return f"launching, {event.concurrency} at once{_why(event.reason)}"
            case ev.RunStopping():
                return f"stopping, cleaning up{_why(event.reason)}"
            case ev.Log():
                where = f"{event.rollout}: " if event.rollout else ""
                return f"{where}{event.level}: {one_line(event.message, limit=600)}"
            case ev.CommandFailed():
                return f"{event.name} failed: {one_line(event.message, limit=600)}"
            case ev.CommandAccepted():
                targets = f" {_listed(event.targets)}" if event.targets else ""
                return f"{event.name}{targets} asked{_by(event.by)}"
        return None


def _begun(state: RunState) -> ev.RunStarted:
    """The start of a run, as a snapshot still tells it; of one that goes on, that was an earlier one."""
    return ev.RunStarted(
        t=state.started or 0.0,
        run=state.run,
        name=state.name,
        total=state.total,
        concurrency=state.concurrency,
        model=state.model,
        taskset=state.taskset,
        harness=state.harness,
        runtime=state.runtime,
    )


def _amount(event: ev.RunStarted) -> str:
    """How many rollouts; of a run that goes on also how many of them stand."""
    if not (event.kept or event.owed):
        return f"{event.total} rollouts"
    return f"resumed, kept {event.kept} of {event.total} rollouts, {len(event.owed)} to run"


def _sane(seconds: float | None) -> float | None:
    """`seconds`, or None for what no clock ever showed: a journal may hold anything."""
    return seconds if seconds is not None and abs(seconds) < _FOREVER else None


def _clock(t: float) -> str:
    return timefmt.at(t) if _sane(t) is not None else "--:--:--"


def _move(event: ev.RuntimeChanged) -> str:
    """What a sandbox of an attempt is told once by; a tool server's is another than the agent's."""
    return f"{event.sandbox} {event.state}" if event.serves else event.state


def _whose(event: ev.RuntimeChanged, who: str) -> str:
    """Whose sandbox it is: the rollout's agent's, one of its tool servers', or one that all rollouts share."""
    if not event.serves:
        return who
    server = f"tool server {one_line(event.serves, limit=60)}"
    return f"{who}: {server}" if event.rollout else f"shared {server}"


def _again(event: ev.AttemptStarted) -> str:
    return f"attempt {event.attempt} started ({event.reason})"


def _told_by(view: RolloutView) -> Iterator[ev.RolloutEvent]:
    """The events that a snapshot still tells of a rollout's current attempt."""
    if not view.attempts:
        return
    id, attempt = view.id, view.attempts[-1]
    number = attempt.number
    yield ev.AttemptStarted(
        t=attempt.started, rollout=id, attempt=number, trace=attempt.trace, reason=attempt.reason
    )
    for t, kind, message in view.errors:
        yield ev.ErrorRaised(t=t, rollout=id, attempt=number, kind=kind, message=message)
    if attempt.ended is not None:
        yield ev.AttemptFinished(
            t=attempt.ended,
            rollout=id,
            attempt=number,
            outcome=attempt.outcome,
            stop_condition=attempt.stop_condition,
            reward=attempt.reward,
            error_type=view.error_type,
            error=attempt.error,
            final=view.ended_status,
        )
    box = view.sandbox
    if box is not None and box.attempt == number:
        yield ev.RuntimeChanged(
            t=box.since,
            rollout=id,
            attempt=number,
            sandbox=box.name,
            kind=box.kind,
            state=box.state.value,
            proof=box.proof,
            detail=box.detail,
        )


def _why(reason: str) -> str:
    return f": {one_line(reason)}" if reason else ""


def _by(who: str) -> str:
    return f" by {one_line(who, limit=40)}" if who else ""


def _listed(names: Iterable[str]) -> str:
    names = list(names)
    more = f" and {len(names) - _NAMES} more" if len(names) > _NAMES else ""
    return ", ".join(one_line(name, limit=80) for name in names[:_NAMES]) + more


def reward_text(state: RunState) -> str:
    """`0.842 ± 0.031 (40 scored)`, or that nothing was scored."""
    if state.reward_mean is None:
        return "nothing scored"
    error = f" ± {state.reward_error:.3f}" if state.reward_error is not None else ""
    return f"{state.reward_mean:.3f}{error} ({state.totals.scored} scored)"


def counts_text(state: RunState) -> str:
    """`38 completed, 1 declined, 1 error of 40`; only what there is."""
    totals = state.totals
    blank = sum(map(unscored, state.rollouts.values())) if totals.error else 0
    counts = [
        (totals.completed, "completed"),
        (totals.declined, "declined"),
        (totals.error - blank, "error" if totals.error - blank == 1 else "errors"),
        (blank, "unscored"),
        (totals.stopped, "stopped"),
        (totals.active, "active"),
        (totals.queued, "queued"),
    ]
    told = ", ".join(f"{n} {word}" for n, word in counts if n)
    return f"{told or 'nothing yet'} of {max(state.total, len(state.rollouts))}"


def unconfirmed_text(state: RunState) -> str:
    """`0 unconfirmed`, or how many sandboxes are not proven gone, and which."""
    left = sorted(state.unconfirmed)
    words = [
        f"{name} {state.sandboxes[name].state.word}" if name in state.sandboxes else name for name in left
    ]
    return f"{len(left)} unconfirmed" + (f": {_listed(words)}" if left else "")


def summary(state: RunState) -> Iterator[str]:
    """The last lines of a run."""
    yield from (one_line(line, limit=LINE_LIMIT) for line in _summary(state))


def _summary(state: RunState) -> Iterator[str]:
    totals = state.totals
    started = None if state.started is None else state.started + state.idle
    seconds = _sane(None if started is None else (state.finished or state.now) - started)
    took = f" in {timefmt.span(seconds)}" if seconds is not None else ""
    yield f"{state.status}: {counts_text(state)}{took}" + (
        f" ({one_line(state.message)})" if state.message else ""
    )
    yield f"reward: {reward_text(state)}"
    cached = f" ({totals.cached_tokens:,} cached)" if totals.cached_tokens else ""
    yield (
        f"tokens: {totals.prompt_tokens + totals.cached_tokens:,} in{cached}, {totals.completion_tokens:,} out, "
        f"{totals.model_calls} model calls, {totals.tool_calls} tool calls"
        + (f", {timefmt.money(totals.cost)}" if totals.cost is not None else "")
    )
    if judges := judged(totals):
        yield f"judges: {judges}"
    if state.kept or totals.redone_tokens:
        redone = totals.redone_tokens
        replaced = f"; what was replaced had used {redone:,} tokens, not counted above" if redone else ""
        yield f"resumed: kept {state.kept} of {max(state.total, len(state.rollouts))} rollouts{replaced}"
    yield f"sandboxes: {unconfirmed_text(state)}"
