"""The one lifecycle of a sandbox. Whatever is asked about it is read off this state, never kept beside it."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from vf_core.errors import SandboxError

log = logging.getLogger(__name__)


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
    # live -> unknown: it was lost (no longer answers); whether it still exists is to be asked.
    State.LIVE: frozenset({State.STOPPING, State.UNKNOWN}),
    State.FAILED: frozenset({State.STOPPING, State.CHECKING}),
    # stopping -> unknown: the request to stop could not be made, so `sent` would be a lie.
    State.STOPPING: frozenset({State.SENT, State.UNKNOWN}),
    State.SENT: frozenset({State.CHECKING, State.STOPPING}),
    State.CHECKING: frozenset({State.GONE, State.SURVIVED, State.UNKNOWN}),
    State.SURVIVED: frozenset({State.STOPPING, State.CHECKING}),
    State.UNKNOWN: frozenset({State.STOPPING, State.CHECKING}),
    State.GONE: frozenset({State.STARTING}),
}


@dataclass(frozen=True, slots=True)
class Transition:
    """One move: `proof` is set on `gone` only (who answered, what), `detail` is an error or a remark.

    A move to the state that already holds says that the sandbox's `id` became known, or how far it is (`detail`).
    `account`, told when it is about to be asked for: where that is, as its kind's provider says it.
    """

    sandbox: str
    kind: str
    state: State
    t: float
    id: str = ""
    proof: str = ""
    detail: str = ""
    account: str = ""


Observer = Callable[[Transition], None]


class Recorder(Protocol):
    """Writes sandboxes down where a later process finds them."""

    async def reserve(self, move: Transition) -> None:
        """On disk before this returns: the sandbox is about to be asked for. What this raises prevents that."""

    def note(self, move: Transition) -> None:
        """A move, or an id that became known. Written soon; never blocks, never raises."""


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

        Leaving `gone` forgets everything about the old sandbox: id, proof, detail. What the observer raises
        prevents a start (what cannot be recorded is not created); it is logged and does not stop a teardown.
        """
        if not self.may(state):
            raise LifecycleError(f"sandbox {self.sandbox}: {self.state} cannot become {state}")
        if (state is State.GONE) != bool(proof):
            raise LifecycleError(f"sandbox {self.sandbox}: {state} with proof {proof!r}")
        if self.state is State.GONE:
            self.id = ""
        now = self._clock()
        move = Transition(self.sandbox, self.kind, state, now, id or self.id, proof, detail)
        self._tell(move)
        self.state, self.since = state, now
        self.id, self.proof, self.detail = move.id, proof, detail

    def may(self, state: State) -> bool:
        """`to(state)` would be allowed now."""
        return state in _ALLOWED[self.state]

    def identify(self, id: str) -> None:
        """The provider's id became known; the state stays. Raises `LifecycleError` when nothing was started."""
        if self.state.settled:
            raise LifecycleError(f"sandbox {self.sandbox}: {self.state}, and yet has the id {id}")
        if id != self.id:
            self.id = id
            self._tell(Transition(self.sandbox, self.kind, self.state, self._clock(), id, "", self.detail))

    def remark(self, detail: str) -> None:
        """How far it is (an image pull, a queue); the state stays. Ignored when nothing is under way."""
        if not self.state.settled and detail != self.detail:
            self.detail = detail
            self._tell(Transition(self.sandbox, self.kind, self.state, self._clock(), self.id, "", detail))

    def _tell(self, move: Transition) -> None:
        if self._observer is None:
            return
        try:
            self._observer(move)
        except Exception:
            if move.state is State.STARTING and self.state is not State.STARTING:
                raise
            log.exception("sandbox %s: its move to %s could not be reported", self.sandbox, move.state)
