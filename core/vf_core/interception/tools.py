"""Which tool calls are open: asked for by the model, their results not yet back.

The relay tells which server answered a call, and how long that took. It sees a server and a tool, not the model's own
id of the call; they are brought together by the name under which programs advertise the tool (`<server>_<tool>`), by
the arguments, and by order.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from vf_core.events import types as ev
from vf_core.interception.dialect_chat import loads
from vf_core.text import bound
from vf_core.trace.types import ToolCall

_NAMES_KEPT = 4_000
_COMPARED = 64 * 1024


class OpenCall:
    """A tool call of the model. `server` is None while no tool server had to do with it.

    It may be carried out more than once: a program that lost an answer asks again, and the last one counts.
    """

    __slots__ = (
        "_lost",
        "_running",
        "_seconds",
        "_tries",
        "arguments",
        "failed",
        "ident",
        "name",
        "server",
        "since",
    )

    def __init__(self, ident: str, name: str, arguments: str, server: str | None) -> None:
        self.ident = ident
        self.name = name
        self.arguments = arguments
        self.server = server
        self.since = time.monotonic()
        self.failed = False
        self._tries = 0
        self._running = 0
        self._lost = 0.0
        self._seconds: float | None = None

    @property
    def waiting(self) -> bool:
        """Nobody carries it out, nobody did."""
        return not self._running and self._seconds is None

    @property
    def idle(self) -> bool:
        """Nobody carries it out."""
        return not self._running

    def begin(self, server: str) -> None:
        """A server is asked."""
        self.server = server
        self._running += 1
        self._tries += 1

    def ended(self, seconds: float, *, failed: bool) -> None:
        """It answered."""
        self._running -= 1
        self._seconds, self.failed = seconds, failed

    def lost(self, seconds: float) -> None:
        """It did not; the program may ask again."""
        self._running -= 1
        self._lost += seconds

    def seconds(self, now: float) -> float:
        """What the server took; where none answered, what was waited for one, or the time since the model asked."""
        if self._seconds is not None:
            return self._seconds
        return self._lost if self._tries else now - self.since

    def asks(self, arguments: Any) -> bool:
        """Its arguments are these."""
        if len(self.arguments) > _COMPARED:
            return False
        try:
            own = loads(self.arguments.encode("utf-8", "replace")) if self.arguments.strip() else {}
        except ValueError:
            return False
        return bool(own == (arguments if arguments is not None else {}))


class ToolWatch:
    """Pairs a rollout's tool calls with their results, for the events that tell of them.

    Providers may leave ids out or use them twice; an event's `id` is unique within the attempt all the same.
    """

    def __init__(self) -> None:
        self._open: dict[str, list[OpenCall]] = {}
        self._used: set[str] = set()
        self._servers: dict[str, str] = {}

    # What the relay tells

    def served(self, server: str, tools: Sequence[str]) -> None:
        """`server` has these tools."""
        for tool in tools:
            self._learn(_advertised(server, tool), server)

    def began(self, server: str, tool: str, arguments: Any) -> OpenCall | None:
        """`server` is asked for `tool`; the call of the model that it is for, if one can be found."""
        found = self._find(server, tool, arguments)
        if found is not None:
            found.begin(server)
            self._learn(found.name, server)
        return found

    def _find(self, server: str, tool: str, arguments: Any) -> OpenCall | None:
        if not tool:
            return None
        calls = [call for known in self._open.values() for call in known if call.idle]
        name = _advertised(server, tool)
        named = [call for call in calls if call.name == name]
        if not named:
            # Programs that are not ours may write it otherwise: `mcp__server__tool`, `server.tool`.
            named = [
                c for c in calls if c.name.endswith(tool) and server in c.name and c.server in {None, server}
            ]
        # One that was answered is asked for again only when the answer was lost on its way.
        named = [call for call in named if call.waiting] or named
        if len(named) < 2:
            return named[0] if named else None
        return next((call for call in named if call.asks(arguments)), named[0])

    def _learn(self, name: str, server: str) -> None:
        if len(self._servers) < _NAMES_KEPT:
            self._servers[name] = server

    # What the model and the program say

    def called(
        self, rollout: str, attempt: int, call: int, tools: Sequence[ToolCall]
    ) -> Iterator[ev.ToolCalled]:
        """The events for the tool calls of call number `call`'s reply."""
        for i, tool in enumerate(tools):
            ident = tool.id if tool.id and tool.id not in self._used else f"{tool.id or 'call'}#{call}.{i}"
            self._used.add(ident)
            server = self._servers.get(tool.name)
            self._open.setdefault(tool.id, []).append(OpenCall(ident, tool.name, tool.arguments, server))
            yield ev.ToolCalled(
                rollout=rollout,
                attempt=attempt,
                call=call,
                id=ident,
                name=bound(tool.name, ev.NAME_LIMIT),
                arguments=bound(tool.arguments, ev.ARGUMENTS_LIMIT),
                server=server or "",
            )

    def returned(
        self, rollout: str, attempt: int, messages: Sequence[Mapping[str, Any]]
    ) -> Iterator[ev.ToolReturned]:
        """The events for the results at the end of a request's `messages`, in their order."""
        if not self._open:
            return
        start = len(messages)
        while start and messages[start - 1].get("role") != "assistant":
            start -= 1
        now = time.monotonic()
        for message in messages[start:]:
            if message.get("role") not in ("tool", "function"):
                continue
            wire = message.get("tool_call_id")
            known = self._open.get(wire if isinstance(wire, str) else "")
            if not known:
                continue
            call = known.pop(0)
            if not known:
                del self._open[wire if isinstance(wire, str) else ""]
            text = _text(message.get("content"))
            yield ev.ToolReturned(
                rollout=rollout,
                attempt=attempt,
                id=call.ident,
                result=bound(text, ev.RESULT_LIMIT),
                seconds=call.seconds(now),
                failed=call.failed or text.startswith("error:"),
                server=call.server or "",
            )


def _advertised(server: str, tool: str) -> str:
    return f"{server}_{tool}" if server else tool


def _text(content: Any) -> str:
    """A result's text; its images are named only."""
    if isinstance(content, str):
        return content
    texts: list[str] = []
    for part in content if isinstance(content, list) else ():
        if isinstance(part, dict):
            text = part.get("text")
            texts.append(text if isinstance(text, str) else f"[{str(part.get('type'))[:40]}]")
    return "\n".join(texts)
