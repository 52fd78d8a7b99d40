"""Tool servers as the relay knows them, and the doors by which one rollout's program reaches them.

The program gets an address of the interception server for each, with a secret in its path that opens nothing else;
where a server really is, and what it must be sent to let anybody in, stays on this host.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from vf_core.events.types import NAME_LIMIT, ToolsServed
from vf_core.interception.mcp_messages import MESSAGE_LIMIT, ToolRefusal
from vf_core.interception.relay import Relay
from vf_core.interception.room import Hold, Room
from vf_core.interception.upstream import Upstream
from vf_core.interception.wire import Request, Responder
from vf_core.text import bound
from vf_core.tools.channel import SECRET_HEADER
from vf_core.tools.seal import sealed

if TYPE_CHECKING:
    from vf_core.interception.session import Session

log = logging.getLogger(__name__)

TOOLS = "/tools/"
"""What the paths of all doors begin with: `/tools/<secret>/<key>/mcp`."""
CHANNEL = "x-vf-channel"
"""The header by which a shared server of ours learns whose a call is: the channel's secret, sealed."""
SESSION_ROOM = 80 * 1024 * 1024
"""Bytes of calls and results that are held for a rollout: of each, one of the largest size, and a little."""
FREE_ROOM = 1024 * 1024
"""... of which this much is always left to it, whatever other rollouts hold."""
_REQUESTS = 64
"""How many requests to one server a rollout may have under way."""
_CONNECT_SECONDS = 5.0
_TOOLS_KEPT = 200
_SAID = 20
"""How often a server's failures, and its changes of mind about its tools, are worth a line."""
_METHODS = (b"POST", b"GET", b"DELETE")
_ALLOWED = b", ".join(_METHODS)


@dataclass(frozen=True, slots=True)
class ToolServer:
    """An MCP server over streamable HTTP.

    `name` is its prefix as advertised (empty: its tools go bare), `url` where it is from this host, `headers` what it
    is sent with each request, tokens included. `own`: it is ours; one that is also `shared` is told whose call it is,
    so that only who has its `seal` can read it.
    """

    name: str
    url: str
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    place: Literal["host", "sandbox", "external"] = "host"
    shared: bool = False
    own: bool = True
    seal: str = field(default="", repr=False)


class ToolDoor:
    """One server's door in one session."""

    def __init__(self, session: Session, server: ToolServer, key: str) -> None:
        self.session = session
        self.server = server
        self.key = key
        headers = dict(server.headers)
        if server.own and server.shared:
            headers[SECRET_HEADER] = sealed(session.channel_secret, server.seal)
        self.upstream = Upstream(
            server.url,
            headers=headers,
            max_connections=_REQUESTS,
            connect_timeout=_CONNECT_SECONDS,
            key=f"tools.{server.name or key}",
            exact=True,
        )
        self._relays: set[Relay] = set()
        self._tools: tuple[str, ...] = ()
        self._closed = False
        self._failures = self._tellings = 0
        self._noted: dict[str, Any] = {}
        session.trace.extra.setdefault("tool_servers", []).append(self._noted)
        self.tell()

    def handle(self, request: Request, responder: Responder) -> None:
        """Carry an admitted request to the server. Raises `Refusal`."""
        if self._closed:
            raise ToolRefusal(401, "unknown or expired address")
        if len(self._relays) >= _REQUESTS:
            raise ToolRefusal(429, f"{_REQUESTS} requests to tool server {self.label} are under way")
        relay = Relay(self, request, responder)
        self._relays.add(relay)
        relay.start()

    @property
    def under_way(self) -> int:
        """Requests that wait for their answers."""
        return len(self._relays)

    def ended(self, relay: Relay) -> None:
        """`relay` is over (its own call)."""
        self._relays.discard(relay)

    def failed(self, what: str) -> None:
        """Log a failure; a program that goes on asking a dead server does not fill the disk."""
        self._failures += 1
        if self._failures <= _SAID:
            log.warning("rollout %s: tool server %s: %s", self.session.rollout, self.label, what)

    def listed(self, tools: tuple[str, ...], *, more: bool) -> None:
        """The server told its tools, or `more` of them; say so where that is news."""
        names = tuple(bound(name, NAME_LIMIT) for name in tools[:_TOOLS_KEPT])
        if more:
            names = tuple(dict.fromkeys((*self._tools, *names)))[:_TOOLS_KEPT]
        if names == self._tools or self._tellings > _SAID:
            return
        self._tools = names
        self.session.tools.served(self.server.name, names)
        self.tell()

    def tell(self) -> None:
        """Say, in the trace too, what is served."""
        server, session = self.server, self.session
        self._tellings += 1
        self._noted.update(
            server=server.name, tools=list(self._tools), place=server.place, shared=server.shared
        )
        session.emit(
            ToolsServed(
                rollout=session.rollout,
                attempt=session.attempt,
                server=server.name,
                tools=self._tools,
                place=server.place,
                shared=server.shared,
            )
        )

    def close(self) -> None:
        """End what is under way, here and at the server."""
        self._closed = True
        for relay in tuple(self._relays):
            relay.cancel()
        self.upstream.close()

    @property
    def label(self) -> str:
        """How it is named to people."""
        return repr(self.server.name) if self.server.name else "with bare names"


class ToolDoors:
    """All doors of a session."""

    def __init__(self, session: Session, room: Room) -> None:
        self.room = room
        self._session = session
        self._doors: dict[str, ToolDoor] = {}

    def add(self, server: ToolServer) -> str:
        """A door for `server`; its key."""
        stem = re.sub(r"[^a-z0-9_-]", "", server.name.lower())[:40] or "tools"
        key, n = stem, 2
        while key in self._doors:
            key, n = f"{stem}-{n}", n + 1
        self._doors[key] = ToolDoor(self._session, server, key)
        return key

    @property
    def under_way(self) -> int:
        """Requests that wait for their answers."""
        return sum(door.under_way for door in self._doors.values())

    def admit(self, path: str, request: Request) -> ToolDoor:
        """The door that `path`, `<key>/mcp`, leads to. Raises `Refusal`."""
        key, _, end = path.partition("/")
        door = self._doors.get(key) if end == "mcp" else None
        if door is None:
            raise ToolRefusal(404, "no such tool server")
        if request.method not in _METHODS:
            what = "a tool server takes POST, GET and DELETE"
            raise ToolRefusal(405, what, headers=((b"allow", _ALLOWED),))
        request.limit = MESSAGE_LIMIT
        request.hold = Hold(self.room)
        return door

    def close(self) -> None:
        """Close all doors."""
        doors, self._doors = self._doors, {}
        for door in doors.values():
            door.close()
