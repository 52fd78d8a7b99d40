"""The server's side of HTTP/1.1: a connection of a harness, its requests and the answers to them.

A request is handed over whole and once; the answer is either whole, or chunked as it comes, or broken off on purpose.
"""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import struct
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, Protocol, cast

import httptools

from vf_core.interception.connections import Registry
from vf_core.interception.room import Hold

log = logging.getLogger(__name__)

BODY_LIMIT = 64 * 1024 * 1024
"""Bytes of a request's body; a larger one is answered with 413."""
REFUSED_LIMIT = 256 * 1024
"""... of a request that its head got refused: it is not read on."""
_HEAD_LIMIT = 64 * 1024
_PIPELINE_LIMIT = 16
_LINGER_SECONDS = 2.0

Headers = Sequence[tuple[bytes, bytes]]
JSON: Headers = ((b"content-type", b"application/json"),)
_STATUS_LINES = {s.value: f"HTTP/1.1 {s.value} {s.phrase}\r\n".encode() for s in HTTPStatus}


class Refusal(Exception):
    """A request that is answered with an error at once, in the shape of OpenAI's API."""

    def __init__(
        self, status: int, message: str, *, kind: str = "invalid_request_error", headers: Headers = ()
    ) -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind
        self.headers = headers

    def answer(self, responder: Responder) -> None:
        """Send it."""
        responder.respond(self.status, (*JSON, *self.headers), error_body(str(self), self.kind))


@dataclass(slots=True)
class Request:
    """A request; `headers` have names in lower case. The handler's `admit` sets `owner`, what it found out about it,
    and may set another `limit` of its body, the `hold` that pays for it, and the `refusal` that words errors."""

    method: bytes = b""
    path: str = ""
    headers: list[tuple[bytes, bytes]] = field(default_factory=list)
    body: bytes = b""
    owner: Any = None
    limit: int = BODY_LIMIT
    hold: Hold | None = None
    refusal: type[Refusal] = Refusal

    def header(self, name: bytes) -> bytes | None:
        """The first header called `name` (lower case)."""
        return next((value for key, value in self.headers if key == name), None)


class Handler(Protocol):
    """What the requests are for."""

    def admit(self, request: Request) -> None:
        """Judge a request by its head, setting its `owner` (None: anybody may ask that). Raises `Refusal`."""

    def handle(self, request: Request, responder: Responder) -> None:
        """Answer a whole request, now or later. Raises `Refusal`."""


def error_body(message: str, kind: str, code: str | None = None) -> bytes:
    """An error as OpenAI's API words it."""
    return json.dumps({"error": {"message": message, "type": kind, "param": None, "code": code}}).encode()


class Responder:
    """The answer to one request. After `respond`, `finish` or `abort` it is over, and more is ignored.

    Without `keep` the connection closes with it; without `chunked` (HTTP/1.0) only that marks the end.
    `on_gone` is called when the client went away before the answer was over.
    """

    __slots__ = ("_chunked", "_connection", "_keep", "_wire", "on_gone", "started")

    def __init__(self, connection: ServerConnection, *, keep: bool, chunked: bool) -> None:
        self._connection: ServerConnection | None = connection
        self._wire = connection
        self._keep = keep
        self._chunked = chunked
        self.started = False
        self.on_gone: Callable[[], None] | None = None

    @property
    def over(self) -> bool:
        """Nothing more can be sent."""
        return self._connection is None

    @property
    def flooded(self) -> bool:
        """The client reads more slowly than it is written to."""
        return self._wire.flooded

    def when_drained(self, callback: Callable[[], None]) -> None:
        """Call back once what was written is on its way or lost: now, if the client keeps up."""
        self._wire.when_drained(callback)

    def respond(self, status: int, headers: Headers, body: bytes) -> None:
        """Answer with a whole body."""
        if (connection := self._connection) is None:
            return
        parts = self._head(status, headers)
        parts.append(b"content-length: %d\r\n\r\n" % len(body))
        parts.append(body)
        self._connection = None
        connection.write(b"".join(parts))
        connection.answered(keep=self._keep)

    def start(self, status: int, headers: Headers, data: bytes) -> None:
        """Begin an answer whose length is not known, with its first bytes."""
        if (connection := self._connection) is None:
            return
        self.started = True
        parts = self._head(status, headers)
        parts.append(b"transfer-encoding: chunked\r\n\r\n" if self._chunked else b"\r\n")
        connection.write(b"".join(parts) + self._frame(data))

    def send(self, data: bytes) -> None:
        """More of a started answer."""
        if self._connection is not None and data:
            self._connection.write(self._frame(data))

    def finish(self, data: bytes = b"") -> None:
        """The last bytes of a started answer, and its end."""
        if (connection := self._connection) is None:
            return
        self._connection = None
        end = b"0\r\n\r\n" if self._chunked else b""
        connection.write(self._frame(data) + end)
        connection.answered(keep=self._keep)

    def abort(self) -> None:
        """Break the connection off, so that the client can't take what it has for a whole answer."""
        if (connection := self._connection) is not None:
            self._connection = None
            # Where only the connection's end ends an answer, an orderly end would look like that.
            connection.abort(reset=not self._chunked)

    def gone(self) -> None:
        """The client went away (its connection's own call)."""
        self._connection = None
        if self.on_gone is not None:
            self.on_gone()

    def _head(self, status: int, headers: Headers) -> list[bytes]:
        parts = [_STATUS_LINES.get(status) or b"HTTP/1.1 %d \r\n" % status]
        parts += [b"%b: %b\r\n" % header for header in headers]
        if not self._keep:
            parts.append(b"connection: close\r\n")
        return parts

    def _frame(self, data: bytes) -> bytes:
        return b"%x\r\n%b\r\n" % (len(data), data) if self._chunked and data else data


class ServerConnection(asyncio.Protocol):
    """One connection of a harness. Its requests are answered one after the other."""

    def __init__(self, handler: Handler, registry: Registry) -> None:
        self._handler = handler
        self._registry = registry
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpRequestParser(self)
        self._ready: deque[tuple[Request, Responder, Refusal | None]] = deque()
        self._current: Responder | None = None
        self._discarding = False
        self._stranger = True
        self._drained: list[Callable[[], None]] = []
        self.flooded = False
        self._begin()

    def _begin(self) -> None:
        self._request = Request(limit=BODY_LIMIT)
        self._url = b""
        self._body: list[bytes] = []
        self._size = 0
        self._in_head = True
        self._head_size = 0
        self._refusal: Refusal | None = None
        self._too_much = False
        self._continue = False

    def write(self, data: bytes) -> None:
        """Send bytes (a responder's own call)."""
        if self._transport is not None:
            self._transport.write(data)

    def answered(self, *, keep: bool) -> None:
        """The current request is answered: close, or go on with the next."""
        self._current = None
        if (transport := self._transport) is None:
            return
        if self._discarding:
            asyncio.get_running_loop().call_later(_LINGER_SECONDS, transport.close)
        elif not keep:
            transport.close()
        elif self._ready:
            asyncio.get_running_loop().call_soon(self._next)
        elif not transport.is_reading():
            transport.resume_reading()

    def abort(self, *, reset: bool = False) -> None:
        """Close at once; with `reset` as a failure that the client's system reports."""
        if self._transport is None:
            return
        if reset and (sock := self._transport.get_extra_info("socket")) is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._transport.abort()

    def when_drained(self, callback: Callable[[], None]) -> None:
        """See `Responder`."""
        if self.flooded:
            self._drained.append(callback)
        else:
            callback()

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._registry.opened(self)

    def pause_writing(self) -> None:
        self.flooded = True

    def resume_writing(self) -> None:
        self.flooded = False
        drained, self._drained = self._drained, []
        for callback in drained:
            callback()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self.resume_writing()
        self._registry.closed(self)
        for request in (self._request, *(request for request, _, _ in self._ready)):
            if request.hold is not None:
                request.hold.release()
        self._ready.clear()
        current, self._current = self._current, None
        if current is not None:
            current.gone()

    def data_received(self, data: bytes) -> None:
        if self._discarding:
            return
        self._head_size += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._give_up(Refusal(400, "this server does not switch protocols"))
        except httptools.HttpParserError as e:
            self._give_up(Refusal(400, f"not a valid HTTP request: {e}"))
        if self._in_head and self._head_size > _HEAD_LIMIT:
            self._give_up(Refusal(431, "the head of the request is too large"))
        if self._size > self._request.limit:
            self._give_up(_too_large(self._request))
        if self._too_much and self._refusal is not None:
            self._give_up(self._refusal)
        if len(self._ready) > _PIPELINE_LIMIT:
            self.abort()
        if self._continue and not self._discarding:
            self._continue = False
            self.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        self._next()

    def _next(self) -> None:
        """Hand over the next request, if none is being answered."""
        while self._ready and self._current is None and self._transport is not None:
            request, responder, refusal = self._ready.popleft()
            self._current = responder
            try:
                if refusal is not None:
                    raise refusal
                self._handler.handle(request, responder)
            except Refusal as e:
                e.answer(responder)
            except Exception:
                log.exception("a request to %s could not be handled", request.path)
                text = "the interception server failed; the engine's log says why"
                request.refusal(500, text, kind="server_error").answer(responder)
        if self._ready and self._transport is not None:
            self._transport.pause_reading()

    def _give_up(self, refusal: Refusal) -> None:
        """Refuse what can't be read on; keep swallowing a while, so that the client gets to read why."""
        if self._discarding:
            return
        self._discarding = True
        if self._current is not None or self._ready:
            self.abort()
            return
        self._current = Responder(self, keep=False, chunked=True)
        refusal.answer(self._current)

    # httptools callbacks

    def on_message_begin(self) -> None:
        self._begin()

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self._request.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        request = self._request
        self._in_head = False
        request.method = self._parser.get_method()
        request.path = self._url.partition(b"?")[0].decode("latin-1")
        for name, value in request.headers:
            if name == b"content-length":
                self._size = int(value)
            elif name == b"content-encoding" and value.lower() != b"identity":
                self._refusal = Refusal(415, "send the body without content-encoding")
            elif name == b"expect":
                self._continue = value.lower() == b"100-continue"
        try:
            self._handler.admit(request)
        except Refusal as e:
            self._refusal = e
        if self._stranger and request.owner is not None:
            self._stranger = False
            self._registry.known(self)
        self._too_much = self._refusal is not None and self._size > REFUSED_LIMIT
        if self._size <= request.limit:
            self._size = 0

    def on_body(self, body: bytes) -> None:
        self._size += len(body)
        if self._refusal is not None:
            self._too_much = self._too_much or self._size > REFUSED_LIMIT
        elif self._size <= self._request.limit:
            if self._request.hold is not None and not self._request.hold.add(len(body)):
                self._refusal = self._request.refusal(
                    503, "too much is under way for this rollout: ask again later"
                )
                self._body = []
                self._request.hold.release()
                return
            self._body.append(body)

    def on_message_complete(self) -> None:
        if self._size > self._request.limit:
            return
        self._continue = self._too_much = False
        self._request.body = self._body[0] if len(self._body) == 1 else b"".join(self._body)
        version_1_1 = self._parser.get_http_version() == "1.1"
        responder = Responder(
            self, keep=version_1_1 and self._parser.should_keep_alive(), chunked=version_1_1
        )
        self._ready.append((self._request, responder, self._refusal))
        self._body = []


def _too_large(request: Request) -> Refusal:
    return request.refusal(413, f"the request is larger than {request.limit >> 20} MiB")
