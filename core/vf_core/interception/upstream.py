"""The provider, shared by all rollouts: one pool of connections, bounded, and the credentials that stay here."""

from __future__ import annotations

import asyncio
import re
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol
from urllib.parse import unquote

from vf_core.config.secrets import is_secret_header
from vf_core.errors import ConfigError, ProviderError
from vf_core.interception.client import Call, Connection, Headers, Listener
from vf_core.interception.dial import CONNECT_TIMEOUT, Target, dial

MAX_CONNECTIONS = 512
_IDLE_KEPT = 64
# Below the shortest keep-alive of common servers (5 s): a request sent on a connection that the server is
# just closing is lost, and a POST must not be sent twice on a guess.
_IDLE_SECONDS = 4.0
_SHORTEST_SECRET = 4
_TOKEN = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")

# These speak of the connection to the harness, or were computed from a body that is changed here.
_NOT_FORWARDED = frozenset(
    b"authorization proxy-authorization x-api-key api-key cookie host content-length content-type content-encoding "
    b"transfer-encoding accept-encoding connection proxy-connection keep-alive te trailer upgrade expect "
    b"content-digest content-md5 digest repr-digest signature signature-input".split()
)


class ClientSettings(Protocol):
    """What of `[client]` is needed here."""

    @property
    def base_url(self) -> str:
        """The provider's address, `/v1` included."""

    @property
    def headers(self) -> Mapping[str, str]:
        """Added to every request."""

    def api_key(self) -> str | None:
        """The key, read from the environment now."""


class Upstream:
    """A pooled HTTP/1.1 client for one provider.

    Requests are sent once: what to do about a failure is the harness's to decide. Connecting is bounded to
    `connect_timeout` seconds, an answer only by what the caller does about it. At most `max_connections` sockets are
    open; more requests wait in order. `key` is where the config says all this. `exact`: requests go to `base_url` as
    it stands, slash at its end included, and their answers, of any length, must not be encoded. Raises `ConfigError`
    for an unusable URL, proxy or header.
    """

    def __init__(
        self,
        base_url: str,
        api_key: str | None = None,
        headers: Mapping[str, str] | None = None,
        *,
        max_connections: int = MAX_CONNECTIONS,
        connect_timeout: float = CONNECT_TIMEOUT,
        key: str = "client",
        exact: bool = False,
    ) -> None:
        self._target = Target(base_url, key=key, exact=exact)
        self.exact = exact
        own = _checked(headers or {}, key)
        api_key = (api_key or "").strip()
        if any(c in api_key for c in "\r\n\0"):
            raise ConfigError("the API key has a line break in it", key="client.api_key_var")
        self._secrets = _secrets(api_key, own, self._target, base_url)
        self._secret_bytes = [secret.encode() for secret in self._secrets]
        if "authorization" not in own and (api_key or self._target.authorization):
            own["authorization"] = f"Bearer {api_key}" if api_key else self._target.authorization
        if (proxy := self._target.proxy) is not None and proxy.authorization and not self._target.tls:
            own["proxy-authorization"] = proxy.authorization
        own = {"content-type": "application/json", "accept-encoding": "identity", **own}
        self._dropped = _NOT_FORWARDED | {name.encode() for name in own}
        lines = [f"host: {self._target.authority}", *(f"{name}: {value}" for name, value in own.items())]
        self._head = "\r\n".join((*lines, "content-length: ")).encode()
        self._max = max_connections
        self._timeout = connect_timeout
        self._idle: list[Connection] = []
        self._open: set[Connection] = set()
        self._dials: set[asyncio.Task[None]] = set()
        self._waiting: deque[Call] = deque()
        self._sweep: asyncio.TimerHandle | None = None
        self._closed = False

    @classmethod
    def from_settings(cls, settings: ClientSettings, *, max_connections: int = MAX_CONNECTIONS) -> Upstream:
        """The upstream of a `[client]` table."""
        return cls(settings.base_url, settings.api_key(), settings.headers, max_connections=max_connections)

    @property
    def sockets(self) -> int:
        """Connections open or being opened."""
        return len(self._open) + len(self._dials)

    def post(
        self, path: str, headers: Sequence[tuple[bytes, bytes]], body: bytes, listener: Listener
    ) -> Call:
        """Send `body` to `path` under the base URL; `listener` is told what comes of it.

        `headers` are the harness's own (names in lower case): those that belong to its connection to us, its secret
        among them, are left out, and those set here win.
        """
        return self.send(b"POST", path, headers, body, listener)

    def send(
        self,
        method: bytes,
        path: str,
        headers: Sequence[tuple[bytes, bytes]],
        body: bytes,
        listener: Listener,
    ) -> Call:
        """As `post`, by any method."""
        call = Call(listener, b"".join(self._request(method, path, headers, body)))
        if self._closed:
            error = self.failure("the run is over", 503)
            asyncio.get_running_loop().call_soon(self._refuse, call, error)
        else:
            self._place(call)
        return call

    @property
    def address(self) -> str:
        """Host and port, as failures name them."""
        return self._target.connect_authority

    def redact(self, text: str) -> str:
        """`text` with every secret of this provider masked."""
        for secret in self._secrets:
            if secret in text:
                text = text.replace(secret, "[redacted]")
        return text

    def redact_bytes(self, data: bytes) -> bytes:
        """`data` with every secret of this provider masked."""
        for secret in self._secret_bytes:
            if secret in data:
                data = data.replace(secret, b"[redacted]")
        return data

    def failure(self, what: str, status_code: int = 502, *, unreachable: bool = False) -> ProviderError:
        """A `ProviderError` that says which provider it was; holds no secret."""
        return ProviderError(
            self.redact(f"{self._target.connect_authority}: {what}"),
            status_code=status_code,
            unreachable=unreachable,
        )

    def close(self) -> None:
        """Close every connection; calls that are still going fail."""
        self._closed = True
        if self._sweep is not None:
            self._sweep.cancel()
        for task in tuple(self._dials):
            task.cancel()
        for connection in tuple(self._open):
            connection.fail("the run is over")
        while self._waiting:
            self._refuse(self._waiting.popleft(), self.failure("the run is over", 503))

    async def aclose(self) -> None:
        """Close it, and wait until all is closed."""
        self.close()
        await asyncio.gather(*self._dials, return_exceptions=True)
        # A transport closes in the loop's next turns.
        for _ in range(3):
            await asyncio.sleep(0)

    def _request(
        self, method: bytes, path: str, headers: Sequence[tuple[bytes, bytes]], body: bytes
    ) -> Iterable[bytes]:
        yield b"%b %b HTTP/1.1\r\n" % (method, self._target.request_target(path).encode())
        dropped = self._dropped
        for name, value in headers:
            if name == b"connection":
                dropped = dropped | {part.strip().lower() for part in value.split(b",")}
        for name, value in headers:
            if name not in dropped:
                yield b"%b: %b\r\n" % (name, value)
        yield b"%b%d\r\n\r\n" % (self._head, len(body))
        yield body

    # The pool

    def _place(self, call: Call) -> None:
        now = asyncio.get_running_loop().time()
        while self._idle:
            connection = self._idle.pop()
            if connection.usable and now - connection.idle_since < _IDLE_SECONDS:
                connection.send(call)
                return
            connection.close()
        self._waiting.append(call)
        self._dial_more()

    def _dial_more(self) -> None:
        """Open a connection for each call that waits, as far as the bound allows."""
        while len(self._dials) < len(self._waiting) and self.sockets < self._max and not self._closed:
            task = asyncio.get_running_loop().create_task(self._dial())
            self._dials.add(task)
            task.add_done_callback(self._dialled)

    def _dialled(self, task: asyncio.Task[None]) -> None:
        self._dials.discard(task)
        self._dial_more()

    async def _dial(self) -> None:
        try:
            connection = await dial(self._target, lambda: Connection(self), self._timeout)
        except ProviderError as e:
            error = ProviderError(
                self.redact(e.message), status_code=e.status_code, hint=e.hint, unreachable=True
            )
        except Exception as e:
            error = self.failure(f"could not connect: {type(e).__name__}: {e}", 503, unreachable=True)
        else:
            self._open.add(connection)
            self.free(connection)
            return
        call = self._next_waiting()
        if call is not None:
            self._refuse(call, error)

    def _next_waiting(self) -> Call | None:
        while self._waiting:
            call = self._waiting.popleft()
            if not call.done:
                return call
        return None

    @staticmethod
    def _refuse(call: Call, error: ProviderError) -> None:
        if not call.done:
            call.done = True
            call.listener.on_failure(error)

    def free(self, connection: Connection) -> None:
        """`connection` carries nothing any more (its own call): give it the next call, or keep it a while."""
        if self._closed or not connection.usable:
            connection.close()
            return
        call = self._next_waiting()
        if call is not None:
            connection.send(call)
            return
        loop = asyncio.get_running_loop()
        connection.idle_since = loop.time()
        self._idle.append(connection)
        if len(self._idle) > _IDLE_KEPT:
            self._idle.pop(0).close()
        if self._sweep is None:
            self._sweep = loop.call_later(_IDLE_SECONDS, self._close_stale)

    def lost(self, connection: Connection) -> None:
        """`connection` is closed (its own call)."""
        self._open.discard(connection)
        if connection in self._idle:
            self._idle.remove(connection)
        self._dial_more()

    def _close_stale(self) -> None:
        loop = asyncio.get_running_loop()
        fresh = loop.time() - _IDLE_SECONDS
        for connection in [c for c in self._idle if c.idle_since <= fresh]:
            self._idle.remove(connection)
            connection.close()
        self._sweep = loop.call_later(_IDLE_SECONDS, self._close_stale) if self._idle else None


def _checked(headers: Mapping[str, str], key: str) -> dict[str, str]:
    """`headers` with names in lower case. Raises `ConfigError` for what can't stand in a request."""
    out: dict[str, str] = {}
    for name, value in headers.items():
        text = str(value)
        if not _TOKEN.fullmatch(name) or any(c in text for c in "\r\n\0"):
            raise ConfigError("not a header's name and value", key=f"{key}.headers.{name}")
        if name.lower() in {"host", "content-length", "transfer-encoding", "connection"}:
            raise ConfigError("this header is set by the client itself", key=f"{key}.headers.{name}")
        out[name.lower()] = text
    return out


def _secrets(api_key: str, own: Mapping[str, str], target: Target, base_url: str) -> tuple[str, ...]:
    """All that must never be shown: the key, what headers hold, logins in URLs. The longest first."""
    login = base_url.split("://", 1)[-1].split("/", 1)[0].rpartition("@")[0]
    found = {api_key, target.authorization, login, unquote(login.partition(":")[2])}
    found |= {value for name, value in own.items() if is_secret_header(name, value)}
    if target.proxy is not None:
        found |= {target.proxy.authorization, target.proxy.login, target.proxy.login.partition(":")[2]}
    found |= {value.partition(" ")[2] for value in found if value.startswith(("Basic ", "Bearer "))}
    return tuple(sorted((s for s in found if len(s) >= _SHORTEST_SECRET), key=len, reverse=True))


__all__ = ["Call", "ClientSettings", "Headers", "Listener", "Upstream"]
