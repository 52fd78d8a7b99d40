"""Registrations of Prime tunnels that engines opened: listed, and ended where their engine could not do it."""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, ClassVar

from vf_core.errors import SandboxError
from vf_core.runtimes import labels
from vf_core.runtimes.box import Answer
from vf_core.runtimes.provider import Listed, Provider

TIMEOUT = 15.0
_OVER = ("expired", "terminated")
_PAGE = 100
_PAGES = 200


class TunnelProvider(Provider):
    """Prime's tunnel service, with the credentials and the team that hold now. Raises `SandboxError` when the SDK is
    missing or there are no credentials."""

    kind: ClassVar[str] = "tunnel"

    def __init__(self) -> None:
        try:
            from prime_tunnel.core.config import Config
        except ImportError as e:
            raise SandboxError(
                f"prime-tunnel cannot be used here: {e}", hint="pip install 'vf-tui[tunnel]'"
            ) from e
        from vf_core.runtimes.prime.client import account_of

        try:
            config = Config()
            key = config.api_key
        except (ValueError, OSError) as e:
            raise SandboxError(f"Prime's settings: {e}") from e
        if not key:
            raise SandboxError("no Prime login", hint="set PRIME_API_KEY, or run `prime login`")
        self._account = account_of(config)
        self._team = config.team_id
        self._client: Any = None

    @property
    def account(self) -> str:
        """See `Provider.account`."""
        return self._account

    async def listed(self) -> list[Listed]:
        """See `Provider.listed`."""
        found: dict[str, Listed] = {}
        async with self._asking("Prime's tunnels cannot be listed") as client:
            for page in range(1, _PAGES + 1):
                listed = await client.list_tunnels_page(labels=[labels.MARK], page=page, per_page=_PAGE)
                # What the service does not sort out is sorted out here.
                found |= {t.tunnel_id: _listed(t) for t in listed.tunnels if labels.MARK in t.labels}
                if not listed.has_next or not listed.tunnels:
                    break
        return list(found.values())

    async def find(self, name: str) -> list[Listed]:
        """See `Provider.find`."""
        return [listed for listed in await self.listed() if listed.name == name]

    async def delete(self, id: str) -> None:
        """See `Provider.delete`."""
        async with self._asking(f"tunnel {id} cannot be deleted") as client:
            await client.delete_tunnel(id)

    async def probe(self, id: str) -> Answer:
        """See `Provider.probe`: by the service's own 404, or its word that the tunnel is over."""
        async with self._asking(f"tunnel {id} cannot be looked at") as client:
            known = await client.get_tunnel(id)
        if known is None:
            return Answer(True, f"Prime knows no tunnel {id} (404)")
        status = (known.status or "").lower()
        return Answer(status in _OVER, f"Prime says that tunnel {id} is {status or 'there'}")

    def delete_command(self, id: str) -> str:
        """See `Provider.delete_command`: of the `prime` command, which is a package of its own."""
        return shlex.join(["prime", "tunnel", "stop", id])

    async def close(self) -> None:
        """See `Provider.close`."""
        client, self._client = self._client, None
        if client is not None:
            await client.close()

    @asynccontextmanager
    async def _asking(self, what: str) -> AsyncIterator[Any]:
        import prime_tunnel as sdk

        if self._client is None:
            self._client = sdk.TunnelClient(timeout=TIMEOUT / 3)
        try:
            async with asyncio.timeout(TIMEOUT):
                yield self._client
        except TimeoutError:
            raise SandboxError(f"{what}: no answer within {TIMEOUT:g} s") from None
        except sdk.TunnelAuthError as e:
            raise SandboxError(f"{what}: {e}", hint="check PRIME_API_KEY, or run `prime login`") from e
        except (sdk.TunnelError, ValueError, TypeError, KeyError) as e:
            # Beside the SDK's own errors, an answer that it could not read.
            raise SandboxError(f"{what}: {type(e).__name__}: {e}") from e


def _listed(registration: Any) -> Listed:
    status = (registration.status or "").lower()
    created, ends = registration.created_at, registration.expires_at
    return Listed(
        id=registration.tunnel_id,
        name=registration.name or "",
        labels=labels.decode_list(registration.labels),
        status=status,
        alive=status not in _OVER,
        created=None if created is None else created.timestamp(),
        ends=None if ends is None else ends.timestamp(),
    )
