"""MCP's messages (JSON-RPC 2.0) as far as the relay reads and writes them.

Whatever can't be read is let through: the two ends know what they said. Of a large message only the beginning and
the end are looked at, so that none costs the engine's loop more than a moment.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from vf_core.interception.dialect_chat import loads
from vf_core.interception.wire import JSON, Refusal, Responder

MESSAGE_LIMIT = 32 * 1024 * 1024
"""Bytes of one message, either way."""
FINAL = -32060
"""The code of an error that asking again only brings again: the server is gone, or the call is too large."""
PASSING = -32061
"""The code of one that may pass."""

WHOLE = 1024 * 1024
"""Bytes up to which a message is read whole."""
_PEEK = 4096
_TOOLS_KEPT = 500
_ID = re.compile(rb'"id"\s*:\s*(-?\d+|"(?:[^"\\]|\\.){0,200}")')
_METHOD = re.compile(rb'(?<!\\)"method"\s*:\s*"([A-Za-z0-9_/$.-]{1,100})"')
_RESULT = re.compile(rb'(?<!\\)"(?:result|error)"\s*:\s*\{')
_NAME = re.compile(rb'(?<!\\)"name"\s*:\s*"([^"\\]{1,200})"')
_IS_ERROR = re.compile(rb'(?<!\\)"isError"\s*:\s*true')


@dataclass(frozen=True, slots=True)
class Message:
    """One message. A request has `method` and `id`, an answer only an `id`; `key` is the id as compared.

    `name`, `arguments`: of a tool call; `more`: it asks for a further page of a list. `failed`: the answer is an
    error, or a tool's result that says so; `tools`: the names that it lists.
    """

    id: Any = None
    method: str = ""
    name: str = ""
    arguments: Any = None
    more: bool = False
    failed: bool = False
    tools: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        """Its id, `1` told from `"1"`."""
        return json.dumps(self.id)


def read(data: bytes) -> list[Message]:
    """The messages of a body or of an event's data; none where it can't be read."""
    if len(data) > WHOLE:
        return [_peek(data)]
    try:
        found = loads(data)
    except ValueError:
        return []
    return [_message(one) for one in (found if isinstance(found, list) else [found]) if isinstance(one, dict)]


def _message(raw: dict[str, Any]) -> Message:
    ident, method = raw.get("id"), raw.get("method")
    if not isinstance(ident, str | int | float):
        ident = None
    if isinstance(method, str):
        params = raw.get("params")
        params = params if isinstance(params, dict) else {}
        name = params.get("name") if method == "tools/call" else None
        return Message(
            ident,
            method,
            name if isinstance(name, str) else "",
            params.get("arguments"),
            more=bool(params.get("cursor")),
        )
    result = raw.get("result")
    result = result if isinstance(result, dict) else {}
    tools = result.get("tools")
    names = [tool.get("name") for tool in tools if isinstance(tool, dict)] if isinstance(tools, list) else []
    return Message(
        ident,
        failed=raw.get("error") is not None or result.get("isError") is True,
        tools=tuple(name for name in names[:_TOOLS_KEPT] if isinstance(name, str)),
    )


def _peek(data: bytes) -> Message:
    """What the ends of a large message say. What it holds may say the same: it is only believed where it is named."""
    head, tail = data[:_PEEK], data[-_PEEK:]
    method, result = _METHOD.search(head) or _METHOD.search(tail), _RESULT.search(head)
    if result is not None and _METHOD.search(head[: result.start()]) is None:
        method = None
    # Some write the id first, some last.
    ids = [*_ID.findall(head[:200]), *_ID.findall(tail[-200:])]
    ident = json.loads(ids[-1]) if ids else None
    if method is None:
        return Message(ident, failed=_IS_ERROR.search(head) is not None or _IS_ERROR.search(tail) is not None)
    name = _NAME.search(head) if method[1] == b"tools/call" else None
    return Message(ident, method[1].decode(), name[1].decode("utf-8", "replace") if name else "")


def error(code: int, text: str, ids: Sequence[Any] = (), *, batch: bool = False) -> bytes:
    """The error answer to the requests `ids` (none: to what could not be told apart)."""
    found = [
        {"jsonrpc": "2.0", "id": ident, "error": {"code": code, "message": text}} for ident in ids or (None,)
    ]
    return json.dumps(found if batch else found[0]).encode()


class ToolRefusal(Refusal):
    """A request for a tool server that is answered with an error at once."""

    def answer(self, responder: Responder) -> None:
        """Send it."""
        code = PASSING if self.status in {429, 500, 503} else FINAL
        responder.respond(self.status, (*JSON, *self.headers), error(code, str(self)))


class EventCutter:
    """Cuts a stream into server-sent events; what is not complete yet is `size` bytes. Linear in what comes."""

    __slots__ = ("_parts", "_tail", "size")

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._tail = b""
        self.size = 0

    def feed(self, data: bytes) -> list[bytes]:
        """The events that are complete now, with the blank lines that end them."""
        edge = self._tail + data
        self._parts.append(data)
        self.size += len(data)
        self._tail = edge[-1:]
        if next(_blank_lines(edge), None) is None:
            return []
        whole = self.rest()
        found: list[bytes] = []
        start = 0
        for end in _blank_lines(whole):
            found.append(whole[start:end])
            start = end
        if rest := whole[start:]:
            self._parts, self.size, self._tail = [rest], len(rest), rest[-1:]
        return found

    def rest(self) -> bytes:
        """Take what came after the last complete event."""
        whole = self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
        self._parts, self._tail, self.size = [], b"", 0
        return whole


_BLANK = (b"\n\n", b"\n\r", b"\r\r")


def _blank_lines(data: bytes) -> Iterator[int]:
    """Where each blank line ends, whatever ends the lines. No regular expression: one takes 200 ns a byte."""
    size, start = len(data), 0
    at = [-1, -1, -1]
    while True:
        for n, pair in enumerate(_BLANK):
            if at[n] < start:
                found = data.find(pair, start)
                at[n] = size if found < 0 else found
        first = min(at)
        if first == size:
            return
        start = first + 2
        if data[start - 1] == 13 and data[start : start + 1] == b"\n":
            start += 1
        yield start
