"""The interception server: one for all rollouts, on the loopback, told apart by a bearer secret each."""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import secrets

from vf_core.errors import InterceptionError
from vf_core.interception.dialect_chat import parse_request
from vf_core.interception.session import Session
from vf_core.interception.upstream import MAX_CONNECTIONS, ClientSettings, Upstream
from vf_core.interception.wire import Headers, Refusal, Request, Responder, ServerConnection

log = logging.getLogger(__name__)

CHAT = "/v1/chat/completions"
MODELS = "/v1/models"
HEALTH = "/health"
_METHODS = {CHAT: b"POST", MODELS: b"GET", HEALTH: b"GET"}
_JSON: Headers = ((b"content-type", b"application/json"),)
_BACKLOG = 4096
_NEVER_RETRY = (b"x-should-retry", b"false")


class InterceptionServer:
    """Serves every registered session's model calls, by the provider that `client` (a config's `[client]`) describes.

    `async with` starts and stops it; `client` may also be an `Upstream`, which stays the caller's to close. A secret
    is a password for spending on the provider: it is for one rollout's harness only, and void from `unregister`
    or `Session.close` on.
    """

    def __init__(
        self,
        client: ClientSettings | Upstream,
        *,
        host: str = "127.0.0.1",
        max_connections: int = MAX_CONNECTIONS,
    ) -> None:
        self._client = client
        self._max_connections = max_connections
        self._upstream: Upstream | None = client if isinstance(client, Upstream) else None
        self._host = host
        self._sessions: dict[bytes, Session] = {}
        self._connections: set[ServerConnection] = set()
        self._server: asyncio.Server | None = None
        self._base_url = ""

    async def start(self) -> None:
        """Listen on a port that the system chooses. The provider's key is read now.

        Raises `InterceptionError`, or `ConfigError` for a client that can't be used.
        """
        loop = asyncio.get_running_loop()
        if not isinstance(self._client, Upstream):
            self._upstream = Upstream.from_settings(self._client, max_connections=self._max_connections)
        try:
            self._server = await loop.create_server(
                lambda: ServerConnection(self, self._connections), self._host, 0, backlog=_BACKLOG
            )
        except OSError as e:
            raise InterceptionError(f"could not listen on {self._host}: {e}") from e
        port = self._server.sockets[0].getsockname()[1]
        host = f"[{self._host}]" if ":" in self._host else self._host
        self._base_url = f"http://{host}:{port}/v1"
        log.info("interception listens on %s", self._base_url)

    async def stop(self) -> None:
        """Close every session and connection; afterwards the port is free. Idempotent."""
        server, self._server = self._server, None
        if server is not None:
            server.close()
        for session in tuple(self._sessions.values()):
            session.close()
        self._sessions.clear()
        for connection in tuple(self._connections):
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

    def register(self, session: Session) -> str:
        """Serve `session`; the secret that its harness must send as a bearer token (`session.secret` from now on)."""
        session.secret = secret = secrets.token_urlsafe(32)
        self._sessions[_digest(secret.encode())] = session
        return secret

    def unregister(self, secret: str) -> None:
        """Void `secret` and close its session. Unknown secrets are ignored."""
        session = self._sessions.pop(_digest(secret.encode()), None)
        if session is not None:
            session.close()

    # Handler

    def admit(self, request: Request) -> None:
        """Who asks, for what. Raises `Refusal`: 401, 404 or 405."""
        request.path = path = request.path.rstrip("/")
        known = MODELS if path.startswith(f"{MODELS}/") else path
        if known != HEALTH:
            request.owner = self._session(request)
        method = _METHODS.get(known)
        if method is None:
            raise Refusal(404, f"no such endpoint: {request.path[:200]} (there are {CHAT} and {MODELS})")
        if request.method != method:
            raise Refusal(405, f"{known} takes {method.decode()}", headers=((b"allow", method),))

    def _session(self, request: Request) -> Session:
        """The live session whose secret the request carries."""
        scheme, _, token = (request.header(b"authorization") or b"").partition(b" ")
        session = self._sessions.get(_digest(token.strip())) if scheme.lower() == b"bearer" else None
        if session is None or session.closed:
            raise Refusal(
                401, "unknown or expired secret", kind="authentication_error", headers=(_NEVER_RETRY,)
            )
        return session

    def handle(self, request: Request, responder: Responder) -> None:
        """Answer an admitted request."""
        session: Session | None = request.owner
        if session is None or self._upstream is None:
            responder.respond(200, _JSON, b'{"status": "ok"}')
        elif session.closed:
            raise Refusal(
                401, "unknown or expired secret", kind="authentication_error", headers=(_NEVER_RETRY,)
            )
        elif request.path == CHAT:
            digest = hashlib.sha256(request.body).digest()
            session.ask(parse_request(request.body), digest, request.headers, responder, self._upstream)
        else:
            responder.respond(200, _JSON, _models(session.model, request.path))


def _models(model: str, path: str) -> bytes:
    entry = {"id": model, "object": "model", "created": 0, "owned_by": "vf-tui"}
    if path == MODELS:
        return json.dumps({"object": "list", "data": [entry]}).encode()
    if path != f"{MODELS}/{model}":
        raise Refusal(404, f"this rollout's model is {model}")
    return json.dumps(entry).encode()


def _digest(secret: bytes) -> bytes:
    return hashlib.sha256(secret).digest()
