"""A tool server's side of the state channel: its rollout's state and row, kept by the engine."""

from __future__ import annotations

import json
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from vf_core.tools.spec import find
from vf_core.trace.task import State, WireTaskData

if TYPE_CHECKING:
    import httpx2 as httpx

TIMEOUT = 30.0
TRIES = 5
SECRET_HEADER = "x-vf-channel"  # noqa: S105 - a name
"""By this a server that rollouts share learns with each request whose it is: the secret of its channel, sealed."""


class ChannelError(Exception):
    """The engine could not be asked, or refused."""


@dataclass(frozen=True, slots=True)
class Caller:
    """Where a rollout's state is kept."""

    url: str
    secret: str


caller: ContextVar[Caller | None] = ContextVar("vf_caller", default=None)
"""Whose call is under way."""


class Channel:
    """Asks the engine. A failure that may pass is tried again."""

    def __init__(self, *, first_delay: float = 0.5, longest: float = 30.0) -> None:
        self.clients: dict[bool, httpx.AsyncClient] = {}
        self._wait = first_delay, longest

    async def aclose(self) -> None:
        """Let go of connections."""
        for client in self.clients.values():
            await client.aclose()

    async def pull(self, whose: Caller, cls: type[State]) -> State:
        """The rollout's state as it is now, as `cls`."""
        return cls.model_validate_json(await self._ask("GET", whose.url, whose.secret))

    async def push(self, whose: Caller, state: State, before: dict[str, Any]) -> None:
        """Write the fields of `state` that have changed since it was `before`; the others stay as they are now."""
        after = state.model_dump(mode="json")
        changed = {
            name: value for name, value in after.items() if name not in before or before[name] != value
        }
        if changed:
            await self._ask("PATCH", whose.url, whose.secret, json.dumps(changed).encode())

    async def task(self, whose: Caller) -> Any:
        """The rollout's row, of its own class where that can be imported."""
        url = whose.url.removesuffix("state") + "task"
        told = json.loads(await self._ask("GET", url, whose.secret))
        try:
            cls = find(told["cls"])
        except (ImportError, AttributeError):
            cls = WireTaskData
        return cls.model_validate(told["task"])

    async def _ask(self, method: str, url: str, secret: str, body: bytes | None = None) -> bytes:
        import httpx2 as httpx
        import tenacity

        first, longest = self._wait
        headers = {"authorization": f"Bearer {secret}"}
        if body is not None:
            headers["content-type"] = "application/json"
        try:
            async for attempt in tenacity.AsyncRetrying(
                stop=tenacity.stop_after_attempt(TRIES),
                wait=tenacity.wait_exponential(multiplier=first, max=longest)
                + tenacity.wait_random(0, first),
                retry=tenacity.retry_if_exception_type((httpx.TransportError, _PassingError)),
                reraise=True,
            ):
                with attempt:
                    answer = await self._client(url).request(method, url, content=body, headers=headers)
                    if answer.status_code >= 500:
                        raise _PassingError(f"HTTP {answer.status_code}")
        except (httpx.TransportError, _PassingError) as e:
            raise ChannelError(f"the rollout's state cannot be reached: {e or type(e).__name__}") from e
        if answer.status_code == 401:
            raise ChannelError("the rollout is over")
        if answer.is_error:
            raise ChannelError(f"the rollout's state: HTTP {answer.status_code} {answer.text[:500]}")
        return answer.content

    def _client(self, url: str) -> httpx.AsyncClient:
        import httpx2 as httpx

        host = urlsplit(url).hostname or ""
        # The host's proxy settings are not for what is on the host itself.
        direct = host in ("localhost", "::1") or host.startswith("127.")
        if direct not in self.clients:
            self.clients[direct] = httpx.AsyncClient(timeout=TIMEOUT, trust_env=not direct)
        return self.clients[direct]


class _PassingError(Exception):
    """An answer that another try may better."""
