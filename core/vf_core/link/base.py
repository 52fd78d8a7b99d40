"""How a screen reaches an engine: one interface, whether the engine is in this process, behind a socket, or gone
and only its journal is left.

A screen connects, folds every batch into the state it was given, and sends commands; it never polls.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from vf_core.events.bus import Bus
from vf_core.events.command import COMMAND_NAMES, CommandName, Reply
from vf_core.events.state import RunState
from vf_core.events.types import Event

__all__ = [
    "COMMAND_NAMES",
    "Batch",
    "CommandName",
    "Description",
    "EnginePort",
    "Events",
    "Link",
    "Lost",
    "Reply",
    "Silent",
    "Snapshot",
]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The whole state afresh: the reader drops the one it had."""

    state: RunState


@dataclass(frozen=True, slots=True)
class Events:
    """What happened since the last batch, in order."""

    events: list[Event]


@dataclass(frozen=True, slots=True)
class Lost:
    """The engine can no longer be reached. `clean`: it said goodbye first.

    More batches may follow: what the journal on disk still holds. Commands are refused from here on.
    """

    reason: str
    clean: bool = False


@dataclass(frozen=True, slots=True)
class Silent:
    """The engine is there but does not answer any more (`over`: it does again): it is paused or overloaded."""

    over: bool = False


Batch = Snapshot | Events | Lost | Silent


@dataclass(frozen=True, slots=True)
class Description:
    """Which engine this is, so that no viewer acts on another run by accident.

    `how`: local, socket or file. `alive`: the engine could be reached when last heard of. `note` is something
    the user should know, such as why the link is read-only.
    """

    how: str
    run: str = ""
    name: str = ""
    host: str = ""
    dir: str = ""
    pid: int = 0
    version: str = ""
    alive: bool = True
    note: str = ""


class EnginePort(Protocol):
    """What links need of an engine. All of it is called on the engine's own loop."""

    @property
    def bus(self) -> Bus:
        """Where its events are published."""

    @property
    def state(self) -> RunState:
        """The fold of every event published so far."""

    async def command(self, name: str, targets: Sequence[str], args: dict[str, Any], by: str) -> Reply:
        """Carry out a command; a viewer that goes away does not undo it."""

    def trace_record(self, rollout: str, attempt: int) -> dict[str, Any] | None:
        """The trace so far of an attempt that is under way, as a JSON-able record; None when it is not."""

    def watch(self, rollouts: frozenset[str]) -> None:
        """The rollouts that all viewers together look at have become these."""

    def viewers(self, count: int) -> None:
        """So many viewers that may send commands are attached now."""


class Link(Protocol):
    """A screen's way to one engine."""

    read_only: bool

    async def connect(self) -> RunState:
        """The state as it stands; batches continue from there.

        Raises:
            EngineSilentError: It does not answer; this may be called again.
            LinkError: There is no engine to talk to, or it refused.
        """

    def batches(self) -> AsyncIterator[Batch]:
        """What happens from `connect` on, at most about ten batches a second; ends when the link is closed."""

    async def command(self, name: str, targets: Sequence[str] = (), **args: Any) -> Reply:
        """Ask the engine for something (see `CommandName`); never raises for a refusal."""

    def watch(self, rollouts: set[str]) -> None:
        """Which rollouts are looked at: only they send text, arguments and output while these come into being."""

    async def trace(self, rollout: str, attempt: int = 0) -> dict[str, Any] | None:
        """The trace record of an attempt (0: the current one), also while it runs; None when there is none."""

    def describe(self) -> Description:
        """Which engine this is and how it is reached."""

    async def close(self) -> None:
        """Leave; the engine goes on. Idempotent."""
