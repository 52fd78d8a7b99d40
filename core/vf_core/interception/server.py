"""The interception server: one for all rollouts, told apart by a bearer secret each.

It listens on the loopback, or where a tunnel for remote sandboxes needs it.
"""

from __future__ import annotations

import asyncio
import errno
import hashlib
import ipaddress
import json
import logging
import secrets

from vf_core.errors import InterceptionError, TunnelError
from vf_core.interception.channel import Channel
from vf_core.interception.connections import Registry
from vf_core.interception.dialect_chat import parse_request
from vf_core.interception.mcp_messages import ToolRefusal
from vf_core.interception.room import Room
from vf_core.interception.session import Session
from vf_core.interception.tool_server import TOOLS, ToolDoor
from vf_core.interception.tunnel.base import Tunnel
from vf_core.interception.tunnel.probe import HEADER, HEALTH
from vf_core.interception.upstream import MAX_CONNECTIONS, ClientSettings, Upstream
from vf_core.interception.wire import JSON, Refusal, Request, Responder, ServerConnection

log = logging.getLogger(__name__)

CHAT = "/v1/chat/completions"
MODELS = "/v1/models"
_METHODS = {CHAT: b"POST", MODELS: b"GET", HEALTH: b"GET"}
_BACKLOG = 4096
_NEVER_RETRY = (b"x-should-retry", b"false")
_PROBE = HEADER.encode()
ROOM = 512 * 1024 * 1024
"""Bytes of tool calls and their results that are held at once, of all rollouts together."""
_DOORS = (TOOLS, "/rollout/")
_AT_DOORS = frozenset((ToolDoor, Channel))

NO_TUNNEL = (
    'set env.interception.tunnel: { type = "prime" } opens one, { type = "custom", url = "https://…", port = 8765 } '
    "uses yours"
)


class InterceptionServer:
    """Serves every registered session's model calls, by the provider that `client` (a config's `[client]`) describes,
    carries its tool calls to their servers, and shares its state with those.

    `async with` starts and stops it; `client` may also be an `Upstream`, which stays the caller's to close. A secret
    is a password for spending on the provider: it is for one rollout's harness only, and void from `unregister`
    or `Session.close` on. A `tunnel` is opened and closed with the server, and says where it listens.
    """

    def __init__(
        self,
        client: ClientSettings | Upstream,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        tunnel: Tunnel | None = None,
        max_connections: int = MAX_CONNECTIONS,
    ) -> None:
        self._client = client
        self._tunnel = tunnel
        self._max_connections = max_connections
        self._upstream: Upstream | None = client if isinstance(client, Upstream) else None
        self._host, self._port = (host, port) if tunnel is None else tunnel.bind
        self._probes: dict[bytes, str] = {}
        self._sessions: dict[bytes, Session] = {}
        self._tool_sessions: dict[bytes, Session] = {}
        self._channels: dict[bytes, Session] = {}
        self._room = Room(ROOM)
        self._connections = Registry()
        self._server: asyncio.Server | None = None
        self._base_url = ""

    async def start(self) -> None:
        """Listen (port 0: on one that the system chooses), then open the tunnel. The provider's key is read now.

        Raises `InterceptionError`, `TunnelError`, or `ConfigError` for a client that can't be used; nothing is
        left open then.
        """
        loop = asyncio.get_running_loop()
        if not isinstance(self._client, Upstream):
            self._upstream = Upstream.from_settings(self._client, max_connections=self._max_connections)
        try:
            self._server = await loop.create_server(
                lambda: ServerConnection(self, self._connections), self._host, self._port, backlog=_BACKLOG
            )
        except OSError as e:
            raise self._cannot_listen(e) from e
        self._port = self._server.sockets[0].getsockname()[1]
        self._base_url = f"http://{_authority(_reachable(self._host), self._port)}/v1"
        log.info("interception listens on %s", _authority(self._host, self._port))
        if self._tunnel is not None:
            self._tunnel.on_cut = self._cut
            try:
                await self._tunnel.open(self)
            except BaseException:
                await self.stop()
                raise

    async def stop(self) -> None:
        """Close the tunnel and every session and connection; afterwards the port is free. Idempotent."""
        if self._tunnel is not None:
            await self._tunnel.close()
        server, self._server = self._server, None
        if server is not None:
            server.close()
        for session in tuple(self._sessions.values()):
            session.close()
        for known in (self._sessions, self._tool_sessions, self._channels):
            known.clear()
        for connection in tuple(self._connections.all):
            connection.abort()
        if server is not None:
            await server.wait_closed()
        # An aborted transport is closed in the loop's next turn.
        await asyncio.sleep(0)
        if self._upstream is not None and self._upstream is not self._client:
            await self._upstream.aclose()

    async def __aenter__(self) -> InterceptionServer:
        await self.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.stop()

    @property
    def base_url(self) -> str:
        """`http://127.0.0.1:PORT/v1`, for a harness on this host. Raises `InterceptionError` before `start`."""
        if not self._base_url:
            raise InterceptionError("the interception server has not been started")
        return self._base_url

    def base_url_for(self, is_local: bool) -> str:
        """The base URL, `/v1` included, for a harness on this host (`is_local`) or in a remote sandbox.

        Raises `TunnelError` when remote sandboxes have no way in, now or at all.
        """
        if self._is_near(is_local):
            return self.base_url
        return f"{self._way().url}/v1"

    async def reachable(self, is_local: bool) -> bool:
        """Wait, for a bounded time, until there is a way in; whether that is a tunnel. Raises `TunnelError`."""
        if self._is_near(is_local):
            return False
        await self._way().ready()
        return True

    async def failure(self, is_local: bool, since: float) -> TunnelError | None:
        """What cut a harness off from here at any moment since `since` (monotonic clock); None: nothing did."""
        if self._tunnel is None or self._is_near(is_local):
            return None
        return await self._tunnel.failure(since)

    def _is_near(self, is_local: bool) -> bool:
        return is_local and not (self._tunnel is not None and self._tunnel.config.always)

    def _way(self) -> Tunnel:
        if self._tunnel is None:
            raise TunnelError("remote sandboxes have no way to this host", hint=NO_TUNNEL)
        return self._tunnel

    def _cut(self, error: TunnelError) -> None:
        """The tunnel is cut: say so to whoever waits for an answer that cannot be delivered."""
        for session in tuple(self._sessions.values()):
            session.cut_off(error)

    def _cannot_listen(self, error: OSError) -> InterceptionError:
        where = _authority(self._host, self._port) if self._port else self._host
        hint = None
        if error.errno == errno.EADDRINUSE:
            hint = (
                "another program, perhaps another run, has this port: set env.interception.tunnel.port, and what "
                "your tunnel forwards to, to a free one"
            )
        elif error.errno == errno.EACCES:
            hint = "ports below 1024 are the system's: set env.interception.tunnel.port to a higher one"
        return InterceptionError(f"could not listen on {where}: {error.strerror or error}", hint=hint)

    def register(self, session: Session) -> str:
        """Serve `session`; the secret that its harness must send as a bearer token (`session.secret` from now on).

        It gets two more, each for one thing: one that stands in the addresses of its tools, one for its channel.
        """
        session.secret = secret = secrets.token_urlsafe(32)
        session.tool_secret, session.channel_secret = secrets.token_urlsafe(32), secrets.token_urlsafe(32)
        session.house = self._room
        self._sessions[_digest(secret.encode())] = session
        self._tool_sessions[_digest(session.tool_secret.encode())] = session
        self._channels[_digest(session.channel_secret.encode())] = session
        return secret

    def unregister(self, secret: str) -> None:
        """Void `secret` and close its session. Unknown secrets are ignored."""
        session = self._sessions.pop(_digest(secret.encode()), None)
        if session is not None:
            self._tool_sessions.pop(_digest(session.tool_secret.encode()), None)
            self._channels.pop(_digest(session.channel_secret.encode()), None)
            session.close()

    # Door

    @property
    def port(self) -> int:
        """The port that it listens on."""
        return self._port

    def expect(self, question: str) -> str:
        """See `Door`."""
        return self._probes.setdefault(_digest(question.encode()), secrets.token_urlsafe(24))

    def forget(self, question: str) -> None:
        """See `Door`."""
        self._probes.pop(_digest(question.encode()), None)

    # Handler

    def admit(self, request: Request) -> None:
        """Who asks, for what. Raises `Refusal`: 401, 404 or 405."""
        request.path = path = request.path.rstrip("/")
        if path.startswith(_DOORS):
            self._admit_at_door(request)
            return
        known = MODELS if path.startswith(f"{MODELS}/") else path
        if known != HEALTH:
            request.owner = self._session(request)
        method = _METHODS.get(known)
        if method is None:
            raise Refusal(404, f"no such endpoint: {request.path[:200]} (there are {CHAT} and {MODELS})")
        if request.method != method:
            raise Refusal(405, f"{known} takes {method.decode()}", headers=((b"allow", method),))

    def _admit_at_door(self, request: Request) -> None:
        """Let a rollout's program to its tools, and tool servers of ours to its state."""
        if not request.path.startswith(TOOLS):
            channel = _alive(self._channels.get(_digest(_bearer(request)))).shared_state
            channel.admit(request)
            request.owner = channel
            return
        request.refusal = ToolRefusal
        secret, _, rest = request.path.removeprefix(TOOLS).partition("/")
        # From here on the path may be logged.
        request.path = f"{TOOLS}…/{rest[:80]}"
        session = self._tool_sessions.get(_digest(secret.encode("latin-1")))
        if session is None or session.closed:
            raise ToolRefusal(401, "unknown or expired address")
        request.owner = session.doors.admit(rest, request)

    def _session(self, request: Request) -> Session:
        """The live session whose secret the request carries."""
        return _alive(self._sessions.get(_digest(_bearer(request))))

    def handle(self, request: Request, responder: Responder) -> None:
        """Answer an admitted request."""
        if type(request.owner) in _AT_DOORS:
            request.owner.handle(request, responder)
            return
        session: Session | None = request.owner
        if session is None or self._upstream is None:
            question = request.header(_PROBE)
            answer = self._probes.pop(_digest(question), "ok") if question else "ok"
            responder.respond(200, JSON, b'{"status": "%b"}' % answer.encode())
        elif session.closed:
            raise _unknown()
        elif request.path == CHAT:
            digest = hashlib.sha256(request.body).digest()
            session.ask(parse_request(request.body), digest, request.headers, responder, self._upstream)
        else:
            responder.respond(200, JSON, _models(session.model, request.path))


def _bearer(request: Request) -> bytes:
    """The secret that a request carries; empty without one, which is nobody's."""
    scheme, _, token = (request.header(b"authorization") or b"").partition(b" ")
    return token.strip() if scheme.lower() == b"bearer" else b""


def _alive(session: Session | None) -> Session:
    if session is None or session.closed:
        raise _unknown()
    return session


def _unknown() -> Refusal:
    return Refusal(401, "unknown or expired secret", kind="authentication_error", headers=(_NEVER_RETRY,))


def _models(model: str, path: str) -> bytes:
    entry = {"id": model, "object": "model", "created": 0, "owned_by": "vf-tui"}
    if path == MODELS:
        return json.dumps({"object": "list", "data": [entry]}).encode()
    if path != f"{MODELS}/{model}":
        raise Refusal(404, f"this rollout's model is {model}")
    return json.dumps(entry).encode()


def _authority(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _reachable(host: str) -> str:
    """An address of this host at which a server that listens on `host` is reached from here."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host
    if not address.is_unspecified:
        return host
    return "127.0.0.1" if address.version == 4 else "::1"


def _digest(secret: bytes) -> bytes:
    return hashlib.sha256(secret).digest()
