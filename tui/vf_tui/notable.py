"""What is worth a line in the log of notable events, as plain data."""

from __future__ import annotations

from dataclasses import dataclass

from vf_core.events import types as ev
from vf_core.events.state import CommandView, RolloutView, RunState
from vf_core.runtimes.lifecycle import State
from vf_core.text import one_line
from vf_tui.render.status import errors, scoring_failed

KEPT = 2_000
_SAID_BEFORE = 60
"""Characters of a message that a line shortly before has whole."""


@dataclass(frozen=True, slots=True)
class Note:
    """One line: when (Unix seconds), how bad (info, warning or error), what, and of which rollout (if any)."""

    t: float
    level: str
    text: str
    rollout: str = ""


def note_of(event: ev.Event, state: RunState | None = None) -> Note | None:  # noqa: PLR0911, C901  a line a kind
    """The line that `event`, which `state` holds, deserves; None for the everyday ones."""
    match event:
        case ev.RunStarted():
            return Note(event.t, "info", _started(event))
        case ev.RunLaunching(paused=True):
            return Note(event.t, "warning", f"launching paused{_why(event.reason)}")
        case ev.RunLaunching():
            return Note(event.t, "info", f"launching, {event.concurrency} at once{_why(event.reason)}")
        case ev.RunStopping():
            return Note(event.t, "warning", f"run is stopping{_why(event.reason)}")
        case ev.RunFinished():
            return Note(event.t, "info", _finished(event))
        case ev.AttemptStarted() if event.reason != "first":
            return Note(event.t, "info", f"attempt {event.attempt} started ({event.reason})", event.rollout)
        case ev.AttemptFinished(outcome="error"):
            return Note(event.t, "error", _failed(event, state), event.rollout)
        case ev.AttemptFinished(outcome="declined" | "stopped"):
            return Note(event.t, "info", f"attempt {event.attempt} {event.outcome}", event.rollout)
        case ev.RuntimeChanged(state="survived" | "unknown" | "failed"):
            return _sandbox(event.t, State(event.state), event.sandbox, event.detail, event.rollout)
        case ev.ErrorRaised() if not _told(state, event.rollout, event.kind, event.message, but=1):
            return Note(event.t, "error", f"{event.kind}: {event.message}", event.rollout)
        case ev.Log():
            return Note(event.t, event.level, event.message, event.rollout)
        case ev.CommandAccepted():
            return Note(event.t, "info", _command(event.name, event.targets, event.by))
        case ev.CommandDone() if event.message:
            return Note(event.t, "info", f"{event.name} done: {event.message}")
        case ev.CommandFailed():
            return Note(event.t, "error", f"{event.name} failed: {event.message}")
    return None


def notes_of(state: RunState) -> list[Note]:
    """The lines that can be told from a snapshot, for a screen that was not there when things happened."""
    out = [Note(t, level, message, rollout) for t, level, message, rollout in state.logs]
    for command in state.commands:
        out += _of_command(command)
    for r in state.rollouts.values():
        out += [Note(t, "error", f"{kind}: {message}", r.id) for t, kind, message in errors(r)]
    for box in state.sandboxes.values():
        for moved, t, detail in box.history:
            if moved in (State.SURVIVED, State.UNKNOWN, State.FAILED):
                out.append(_sandbox(t, moved, box.name, detail, box.rollout))
    if state.started is not None:
        again = f"; resumed since, kept {state.kept:,}" if state.kept else ""
        out.append(Note(state.started, "info", f"run {state.name} started: {state.total} rollouts{again}"))
    if state.finished is not None:
        out.append(Note(state.finished, "info", f"run {state.status}{_why(state.message)}"))
    out.sort(key=lambda note: note.t)
    return out[-KEPT:]


def _started(event: ev.RunStarted) -> str:
    if not (event.kept or event.owed):
        return f"run {event.name} started: {event.total} rollouts"
    return f"run {event.name} resumed: kept {event.kept:,} of {event.total:,} rollouts, {len(event.owed):,} to run"


def _failed(event: ev.AttemptFinished, state: RunState | None) -> str:
    """`attempt 1 failed: HarnessError: …`; of a message that a line before this one has, the beginning."""
    view = state.rollouts.get(event.rollout) if state is not None else None
    what = "unscored" if scoring_failed(view or RolloutView(id=event.rollout), event.error_type) else "failed"
    why = event.error
    if _told(state, event.rollout, event.error_type, event.error):
        why = one_line(event.error, limit=_SAID_BEFORE)
        why += "…" if len(event.error) > len(why) else ""
    return f"attempt {event.attempt} {what}: {event.error_type}: {why}"


def _told(state: RunState | None, rollout: str, kind: str, message: str, but: int = 0) -> bool:
    """Whether the attempt's errors have this one, the newest `but` of them left out."""
    view = state.rollouts.get(rollout) if state is not None else None
    known = view.errors[: len(view.errors) - but] if view is not None else ()
    return any(entry[1:] == (kind, message[: ev.MESSAGE_LIMIT]) for entry in known)


def _why(reason: str) -> str:
    return f": {reason}" if reason else ""


def _finished(event: ev.RunFinished) -> str:
    left = len(event.unconfirmed)
    tail = f", {left} sandbox{'es' * (left > 1)} unconfirmed" if left else ""
    return f"run {event.status}{_why(event.message)}{tail}"


def _sandbox(t: float, state: State, name: str, detail: str, rollout: str) -> Note:
    level = "error" if state is State.SURVIVED else "warning"
    return Note(t, level, f"sandbox {name} {state.word}{_why(detail)}", rollout)


def _command(name: str, targets: tuple[str, ...], by: str) -> str:
    whom = f" {', '.join(targets[:4])}{f' and {len(targets) - 4} more' if len(targets) > 4 else ''}"
    return f"{name}{whom if targets else ''}{f' (by {by})' if by else ''}"


def _of_command(command: CommandView) -> list[Note]:
    out = [Note(command.t, "info", _command(command.name, command.targets, command.by))]
    if command.status == "failed":
        out.append(Note(command.t, "error", f"{command.name} failed: {command.message}"))
    return out
