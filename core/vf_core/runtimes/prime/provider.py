"""What Prime can be asked without a runtime object."""

from __future__ import annotations

import shlex
from collections.abc import Awaitable, Callable
from typing import ClassVar, TypeVar

from vf_core.errors import ConfigError, SandboxError
from vf_core.runtimes.box import Answer
from vf_core.runtimes.prime import client as clients
from vf_core.runtimes.prime import sdk
from vf_core.runtimes.prime.client import Client
from vf_core.runtimes.prime.sdk import CallError
from vf_core.runtimes.provider import Listed, Provider

T = TypeVar("T")


class PrimeProvider(Provider):
    """Prime, with the credentials and the team that hold now. Raises `SandboxError` when the SDK is missing or there
    are no credentials."""

    kind: ClassVar[str] = "prime"

    def __init__(self) -> None:
        self._client: Client | None = None
        try:
            sdk.check_credentials()
            self._account = clients.account_of(sdk.load().Config())
        except ConfigError as e:
            raise SandboxError(e.message, hint=e.hint) from e

    @property
    def account(self) -> str:
        """See `Provider.account`."""
        return self._account

    async def listed(self) -> list[Listed]:
        """See `Provider.listed`."""
        return await self._ask("Prime's sandboxes cannot be listed", lambda client: client.listed())

    async def find(self, name: str) -> list[Listed]:
        """See `Provider.find`."""
        return await self._ask("Prime's sandboxes cannot be listed", lambda client: client.find(name))

    async def delete(self, id: str) -> None:
        """See `Provider.delete`."""
        await self._ask(f"prime sandbox {id} cannot be deleted", lambda client: client.delete(id))

    async def probe(self, id: str) -> Answer:
        """See `Provider.probe`."""
        return await self._ask(f"prime sandbox {id} cannot be looked at", lambda client: client.probe(id))

    def delete_command(self, id: str) -> str:
        """See `Provider.delete_command`: of the `prime` command, which is a package of its own."""
        return shlex.join(["prime", "sandbox", "delete", "--yes", id])

    async def close(self) -> None:
        """See `Provider.close`."""
        client, self._client = self._client, None
        if client is not None:
            clients.release(client)

    async def _ask(self, what: str, call: Callable[[Client], Awaitable[T]]) -> T:
        try:
            if self._client is None:
                self._client = clients.acquire()
            return await call(self._client)
        except CallError as e:
            raise SandboxError(f"{what}: {e}", hint=e.hint) from e
        except ConfigError as e:
            raise SandboxError(f"{what}: {e.message}", hint=e.hint) from e
