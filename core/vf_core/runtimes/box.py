"""What is known of one sandbox, and what its provider says of it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from vf_core.errors import RolloutError
from vf_core.runtimes.lifecycle import Lifecycle, State

HandleT = TypeVar("HandleT")

# Said of a stop or check that ended with its event loop.
CUT_SHORT = "interrupted"
NEVER_ASKED = "its provider was never asked to make it"


@dataclass(frozen=True, slots=True)
class Answer:
    """What a provider says of a sandbox. `text`: the proof when it is gone, else what is still there."""

    gone: bool
    text: str


@dataclass(eq=False, slots=True)
class Box(Generic[HandleT]):
    """One sandbox, from the wish for it to the proof of its end. `handle` is the provider's own data.

    `asked`: the provider was, or may have been, asked to make it. `forced`: whoever waits for a graceful end should
    wait no longer.
    """

    life: Lifecycle
    handle: HandleT
    asked: bool = False
    forced: asyncio.Event = field(default_factory=asyncio.Event)
    creating: asyncio.Task[None] | None = None
    stopping: asyncio.Task[None] | None = None
    confirming: asyncio.Task[None] | None = None

    @property
    def state(self) -> State:
        """Where it is in its lifecycle."""
        return self.life.state

    @property
    def name(self) -> str:
        """Its name in the ledger, the journal and at the provider."""
        return self.life.sandbox

    @property
    def id(self) -> str:
        """The provider's id; empty until known."""
        return self.life.id

    def identify(self, id: str) -> None:
        """Its id is known: report it at once, so that it can be found whatever happens next."""
        self.life.identify(id)


def say(e: BaseException) -> str:
    """An error in a line: its own words when they are ours, else with its type."""
    text = str(e)
    return text if isinstance(e, RolloutError) and text else f"{type(e).__name__}: {text}".rstrip(": ")
