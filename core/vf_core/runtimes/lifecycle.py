"""The one lifecycle of a sandbox. Whatever is asked about it is read off this state, never kept beside it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from vf_core.errors import SandboxError


class State(StrEnum):
    """States of a sandbox; the values are what the journal holds, `word` is what the screen shows."""

    NEW = "new"
    STARTING = "starting"
    LIVE = "live"
    FAILED = "failed"
    STOPPING = "stopping"
    SENT = "sent"
    CHECKING = "checking"
    GONE = "gone"
    SURVIVED = "survived"
    UNKNOWN = "unknown"

    @property
    def word(self) -> str:
        """The word for the screen; the three results of a check stand in capitals."""
        return self.upper() if self in (State.GONE, State.SURVIVED, State.UNKNOWN) else self.value

    @property
    def settled(self) -> bool:
        """Nothing exists, and that is known: never started, or proven gone."""
        return self in (State.NEW, State.GONE)


_ALLOWED: dict[State, frozenset[State]] = {
    State.NEW: frozenset({State.STARTING}),
    State.STARTING: frozenset({State.LIVE, State.FAILED, State.STOPPING}),
    State.LIVE: frozenset({State.STOPPING}),
    State.FAILED: frozenset({State.STOPPING, State.CHECKING}),
    State.STOPPING: frozenset({State.SENT}),
    State.SENT: frozenset({State.CHECKING, State.STOPPING}),
    State.CHECKING: frozenset({State.GONE, State.SURVIVED, State.UNKNOWN}),
    State.SURVIVED: frozenset({State.STOPPING, State.CHECKING}),
    State.UNKNOWN: frozenset({State.STOPPING, State.CHECKING}),
    State.GONE: frozenset({State.STARTING}),
}


@dataclass(frozen=True, slots=True)
class Transition:
    """One move: `proof` is set on `gone` only (who answered, what), `detail` is an error or a remark."""

    sandbox: str
    kind: str
    state: State
    t: float
    id: str = ""
    proof: str = ""
    detail: str = ""


Observer = Callable[[Transition], None]


class LifecycleError(SandboxError):
    """A move that the lifecycle does not allow: a fault of ours, never of a provider."""


class Lifecycle:
    """Holds a sandbox's state; every move passes `to`, which tells the observer first."""

    def __init__(
        self,
        sandbox: str,
        kind: str,
        observer: Observer | None = None,
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.sandbox = sandbox
        self.kind = kind
        self.state = State.NEW
        self.since = clock()
        self.id = ""
        self.proof = ""
        self.detail = ""
        self._observer = observer
        self._clock = clock

    def to(self, state: State, *, id: str = "", proof: str = "", detail: str = "") -> None:
        """Move to `state`. Raises `LifecycleError` when that is not allowed, or `gone` comes without proof.

        Leaving `gone` forgets everything about the old sandbox: id, proof, detail.
        """
        if state not in _ALLOWED[self.state]:
            raise LifecycleError(f"sandbox {self.sandbox}: {self.state} cannot become {state}")
        if (state is State.GONE) != bool(proof):
            raise LifecycleError(f"sandbox {self.sandbox}: {state} with proof {proof!r}")
        if self.state is State.GONE:
            self.id = ""
        now = self._clock()
        move = Transition(self.sandbox, self.kind, state, now, id or self.id, proof, detail)
        if self._observer is not None:
            self._observer(move)
        self.state, self.since = state, now
        self.id, self.proof, self.detail = move.id, proof, detail

    @property
    def accepts_work(self) -> bool:
        """Commands and files may be placed here."""
        return self.state is State.LIVE
