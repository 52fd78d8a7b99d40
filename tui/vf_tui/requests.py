"""What a confirm dialog asks for: exactly which rollouts, captured when it opened, and what is true of them now.

Pure: the screen shows a `Review`, and asks again whenever a later one names other rollouts.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from vf_core.events.state import RolloutView, RunState
from vf_tui.actions import can_confirm, can_kill, can_restart, can_stop, needs_force

NAMED = 4
"""Rollouts that a dialog names; the rest are counted."""
TYPED_ABOVE = 5
"""More sandboxes than this at once need their count typed."""


@dataclass(frozen=True, slots=True)
class Kind:
    """A command that asks first. `verb`: on the button; `effect`: what it will do, in one or two sentences.

    `whole_run`: it is a command on the run, which hits whatever is going on when it arrives.

    `eligible` is asked with a rollout and the names of the run's sandboxes that are not known to be gone.
    """

    command: str
    verb: str
    effect: str
    eligible: Callable[[RolloutView, Collection[str]], bool]
    forced: bool = False
    whole_run: bool = False


STOP = Kind(
    "stop",
    "Stop",
    "The program gets its grace period, then its sandbox is asked to go. Nobody waits for the proof, "
    "which comes later.",
    lambda r, standing: can_stop(r),
)
CONFIRM_STOP = Kind(
    "confirm_stop",
    "Confirm-stop",
    "Stopped, then the provider is asked until it proves that the sandbox is gone.",
    can_confirm,
)
KILL = Kind(
    "kill",
    "Force-kill",
    "The grace period of the stop under way is cut short: files that are being written may be torn.",
    lambda r, standing: can_kill(r),
    forced=True,
)
RESTART = Kind(
    "restart",
    "Restart",
    "The old sandbox is proven gone first, then a new attempt of the same task starts in a new one.",
    lambda r, standing: can_restart(r),
)
RETRY_FAILED = Kind(
    "retry_failed",
    "Restart",
    "Each failed rollout gets a new attempt once its old sandbox is proven gone.",
    lambda r, standing: r.status == "error",
)
STOP_RUN = Kind(
    "stop_all",
    "Stop the run",
    "Every rollout is stopped, nothing more is launched, and the run ends.",
    can_confirm,
    whole_run=True,
)
LEAVE = Kind(
    "stop_all",
    "Stop the run and leave",
    "The run lives in this process (--embedded): leaving stops every rollout and ends it.",
    can_confirm,
    whole_run=True,
)


@dataclass(frozen=True, slots=True)
class Option:
    """A switch in the dialog, as an argument of the command. `forced`: with it on, the count must be typed."""

    key: str
    argument: str
    label: str
    forced: bool = False
    on: bool = False


FORCE = Option("f", "force", "start beside a sandbox that may still exist and cost money", forced=True)
PROOF = Option("c", "confirm", "wait for proof that every sandbox is gone", on=True)


@dataclass(frozen=True, slots=True)
class Request:
    """A command on `targets` (rollout id to the attempt it was at when the dialog opened)."""

    kind: Kind
    targets: Mapping[str, int]
    hidden: int = 0
    option: Option | None = None
    run: str = ""

    @property
    def args(self) -> dict[str, Any]:
        """Arguments for `Link.command`."""
        return {self.option.argument: self.option.on} if self.option else {}

    def flipped(self) -> Request:
        """The same with its option the other way."""
        return (
            self if self.option is None else replace(self, option=replace(self.option, on=not self.option.on))
        )

    def only(self, ids: Iterable[str]) -> Request:
        """The same for fewer rollouts."""
        return replace(self, targets={id: self.targets[id] for id in ids})


@dataclass(frozen=True, slots=True)
class Review:
    """What is true of a request now. `ids` is what it would hit; `gone` what it named but can't hit any more."""

    title: str
    verb: str
    ids: tuple[str, ...]
    named: tuple[tuple[str, str], ...]
    more: int
    facts: tuple[str, ...]
    typed: int | None
    gone: tuple[str, ...] = ()
    detail: str = field(default="")


def ask(
    kind: Kind,
    rollouts: Iterable[RolloutView],
    state: RunState,
    *,
    hidden: Callable[[Iterable[str]], int] = lambda _: 0,
    option: Option | None = None,
    run: str = "",
) -> Request:
    """A request for those of `rollouts` that `kind` can do something to, as they are now."""
    left = standing(state)
    targets = {r.id: r.attempt for r in rollouts if kind.eligible(r, left)}
    return Request(kind, targets, hidden(targets), option, run)


def review(request: Request, state: RunState) -> Review:
    """What `request` would do to `state` as it is now. It never names more than was captured."""
    kind, left = request.kind, standing(state)
    hit: list[RolloutView] = []
    gone: list[str] = []
    for id, attempt in request.targets.items():
        r = state.rollouts.get(id)
        if r is not None and kind.eligible(r, left) and r.attempt == attempt:
            hit.append(r)
        else:
            gone.append(id)
    boxes = sum(1 for r in hit for name in r.sandboxes if name in left)
    forced = kind.forced or bool(request.option and request.option.on and request.option.forced)
    return Review(
        title=_title(kind, hit, request),
        verb=kind.verb if kind.whole_run or len(hit) == 1 else f"{kind.verb} {len(hit)}",
        ids=tuple(r.id for r in hit),
        named=tuple(describe(r) for r in hit[:NAMED]),
        more=max(0, len(hit) - NAMED),
        facts=tuple(_facts(request, hit, boxes, state.unconfirmed)),
        typed=len(hit) if hit and (forced or boxes > TYPED_ABOVE) else None,
        gone=tuple(gone),
        detail=kind.effect,
    )


def describe(r: RolloutView) -> tuple[str, str]:
    """A rollout for a dialog: its id, and what it is and does."""
    parts = [r.name or f"task {r.task}", f"attempt {r.attempt}" if r.attempt else "not started", r.status]
    if r.status == "active":
        parts.append(f"{r.turns} turn{'s' * (r.turns != 1)}")
    if r.sandbox is not None:
        parts.append(f"sandbox {r.sandbox.state.word}")
    return r.id, " · ".join(parts)


def standing(state: RunState) -> set[str]:
    """Names of the sandboxes that are not known to be gone, those at work included."""
    return {box.name for box in state.left_over()}


def _title(kind: Kind, hit: list[RolloutView], request: Request) -> str:
    if kind.whole_run:
        return f"Stop the run {request.run}{' and leave' if kind is LEAVE else ''}?"
    if not hit:
        return f"{kind.verb}: nothing is left to do"
    if len(hit) == 1:
        return f"{kind.verb} rollout {hit[0].id}?"
    return f"{kind.verb} {len(hit)} rollouts?"


def _facts(
    request: Request, hit: list[RolloutView], boxes: int, unconfirmed: Collection[str]
) -> Iterable[str]:
    if request.kind.whole_run:
        active = sum(1 for r in hit if r.status == "active")
        queued = sum(1 for r in hit if r.status == "queued")
        yield f"{active} at work, {queued} waiting, {_sandboxes(boxes)} not proven gone"
    else:
        doubt = sum(1 for r in hit for name in r.sandboxes if name in unconfirmed)
        if len(hit) > 1 and boxes > doubt:
            yield f"{_sandboxes(boxes - doubt)} at work"
        if doubt:
            yield f"{_sandboxes(doubt)} may still exist: nothing proved {'it' if doubt == 1 else 'them'} gone"
    if request.hidden:
        yield f"{request.hidden} of them {_be(request.hidden)} hidden by the filter"
    turns = sum(r.turns for r in hit if r.status == "active")
    if turns:
        yield f"{turns} turn{'s' * (turns != 1)} at work now {_be(turns)} not saved as a finished trace"
    doubtful = sum(1 for r in hit if needs_force(r))
    if doubtful and request.kind in (RESTART, RETRY_FAILED):
        yield f"{doubtful} could not be proven gone: the engine asks again before anything starts"


def _sandboxes(n: int) -> str:
    return f"{n} sandbox{'es' * (n != 1)}"


def _be(n: int) -> str:
    return "is" if n == 1 else "are"
