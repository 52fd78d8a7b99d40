"""Tool servers as the relay knows them, and the doors by which one rollout's program reaches them.

The program gets an address of the interception server for each, with a secret in its path that opens nothing else;
where a server really is, and what it must be sent to let anybody in, stays on this host.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from vf_core.interception.mcp_messages import MESSAGE_LIMIT, ToolRefusal
from vf_core.interception.room import Hold, Room
from vf_core.interception.wire import Request, Responder

if TYPE_CHECKING:
    from vf_core.interception.session import Session

TOOLS = "/tools/"
"""What the paths of all doors begin with: `/tools/<secret>/<key>/mcp`."""
CHANNEL = "x-vf-channel"
"""The header by which a shared server of ours learns, with each request, whose call it is: the secret of the rollout's
channel."""
_METHODS = (b"POST", b"GET", b"DELETE")
_ALLOWED = b", ".join(_METHODS)


@dataclass(frozen=True, slots=True)
class ToolServer:
    """An MCP server over streamable HTTP.

    `name` is its prefix as advertised (empty: its tools go bare), `url` where it is from this host, `headers` what it
    is sent with each request, tokens included. `own`: it is ours; one that is also `shared` is told whose call it is.
    """

    name: str
    url: str
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    place: Literal["host", "sandbox", "external"] = "host"
    shared: bool = False
    own: bool = True


class ToolDoor:
    """One server's door in one session."""

    def __init__(self, session: Session, server: ToolServer, key: str) -> None:
        self.session = session
        self.server = server
        self.key = key

    def handle(self, request: Request, responder: Responder) -> None:
        """Carry an admitted request to the server. Raises `Refusal`."""
        raise ToolRefusal(503, "not yet")

    @property
    def label(self) -> str:
        """How it is named to people."""
        return repr(self.server.name) if self.server.name else "with bare names"


class ToolDoors:
    """All doors of a session."""

    def __init__(self, session: Session) -> None:
        self.room = Room(0)
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

    def admit(self, path: str, request: Request) -> ToolDoor:
        """The door that `path`, `<key>/mcp`, leads to. Raises `Refusal`."""
        key, _, end = path.partition("/")
        door = self._doors.get(key) if end == "mcp" else None
        if door is None:
            raise ToolRefusal(404, "no such tool server")
        if request.method not in _METHODS:
            raise ToolRefusal(
                405, "a tool server takes POST, GET and DELETE", headers=((b"allow", _ALLOWED),)
            )
        request.limit = MESSAGE_LIMIT
        request.hold = Hold(self.room)
        return door

    def close(self) -> None:
        """Close all doors."""
        self._doors.clear()
