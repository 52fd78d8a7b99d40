"""What about a rollout needs a human: one word for it, and how far to the front it belongs."""

from __future__ import annotations

from vf_core.events.state import RolloutView, SandboxView
from vf_core.runtimes.lifecycle import State

STALL_SECONDS = 120.0
PASSING_SECONDS = 3.0
"""After which a sandbox that was only asked to go counts as unconfirmed: nobody seeks proof by itself."""

SURVIVED, UNKNOWN, STALLED, FAILING, ERROR = "SURVIVED", "UNKNOWN", "stalled", "failing", "error"
UNCONFIRMED = "unconfirmed"

RANKS = {SURVIVED: 0, UNKNOWN: 1, STALLED: 2, FAILING: 3, ERROR: 4, UNCONFIRMED: 5}
ACTIVE, QUEUED, DONE = 6, 7, 8
"""Ranks of what needs nobody: at work, waiting, over."""

_DOUBTFUL = {State.SURVIVED: SURVIVED, State.UNKNOWN: UNKNOWN}


def attention(r: RolloutView, now: float, stall_seconds: float = STALL_SECONDS) -> str:
    """Why `r` needs attention, as one word; empty when it doesn't. `now` is in Unix seconds.

    A sandbox that may still cost money comes before everything else. `stalled`: at work, but no output, no
    token and no tool for `stall_seconds` (0: never). `failing`: at work after an error of this attempt.
    `unconfirmed`: over, and its sandbox was only asked to go.
    """
    box = r.sandbox
    if box is not None and box.state in _DOUBTFUL:
        return _DOUBTFUL[box.state]
    if r.status == "active":
        if stall_seconds and now - r.last_progress >= stall_seconds:
            return STALLED
        return FAILING if r.errors or box_failed(r) else ""
    if r.status == "error":
        return ERROR
    return UNCONFIRMED if box is not None and only_asked(box, now) else ""


def only_asked(box: SandboxView, now: float) -> bool:
    """`box` was asked to go, and nothing has been heard of it since."""
    return box.state is State.SENT and now - box.since >= PASSING_SECONDS


def box_failed(r: RolloutView) -> bool:
    """The sandbox of `r` could not be started."""
    return r.sandbox is not None and r.sandbox.state is State.FAILED


def rank(r: RolloutView, now: float, stall_seconds: float = STALL_SECONDS) -> int:
    """Where `r` belongs in a list that shows attention first: 0 is the front."""
    word = attention(r, now, stall_seconds)
    if word:
        return RANKS[word]
    if r.status == "active":
        return ACTIVE
    return QUEUED if r.status == "queued" else DONE
