"""What a provider of sandboxes can be asked without a runtime object: what exists, and to end one of them.

For the inventory and for cleanup, which work on sandboxes that other processes started.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from vf_core.runtimes.box import Answer


@dataclass(frozen=True, slots=True)
class Listed:
    """A sandbox in a provider's list. `labels` are ours by short keys, `status` is the provider's own word, times are
    Unix seconds. `alive`: it may still cost something or hold something; whatever is not known to have ended is."""

    id: str
    name: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    status: str = ""
    alive: bool = True
    created: float | None = None
    ends: float | None = None
    image: str = ""


class Provider(ABC):
    """One provider with one account. Every call has a deadline of its own and raises `SandboxError` (its message says
    what could not be asked, and why) when it gets no answer; belongs to one event loop."""

    kind: ClassVar[str]
    whole: ClassVar[bool] = True
    """An id in its list tells all there is of a sandbox, whatever the account was called when it was made."""

    @property
    @abstractmethod
    def account(self) -> str:
        """Which engine, team or workspace is asked: the same text for the same place, without secrets."""

    @abstractmethod
    async def listed(self) -> list[Listed]:
        """All sandboxes with our mark, whoever's runs they are of, fully paged."""

    @abstractmethod
    async def find(self, name: str) -> list[Listed]:
        """Those of our sandboxes that have this name: one whose id never became known is found by it."""

    @abstractmethod
    async def delete(self, id: str) -> None:
        """Ask for the end of a sandbox; one that is not there is no error. The request alone proves nothing."""

    @abstractmethod
    async def probe(self, id: str) -> Answer:
        """Whether a sandbox is still there; "not found" is known by the provider's own typed answer only."""

    @abstractmethod
    def delete_command(self, id: str) -> str:
        """The provider's own command line that would delete it, quoted for a shell."""

    def reaches(self, account: str) -> bool:
        """Whether what was made at `account` can be asked for here all the same. From then on it is.
        May read directories: not on an event loop."""
        return account in ("", self.account)

    def way_to(self, account: str) -> str:
        """What to do so that `account` is asked instead; empty where that is not known."""
        return ""

    async def close(self) -> None:  # noqa: B027 - most have nothing to let go of
        """Let go of connections. Idempotent."""
