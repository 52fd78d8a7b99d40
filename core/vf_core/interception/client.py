"""One connection to the provider: HTTP/1.1, one exchange at a time, told to a listener as its bytes come."""

from __future__ import annotations

import asyncio
import zlib
from typing import TYPE_CHECKING, Protocol, cast

import httptools

from vf_core.errors import ProviderError

if TYPE_CHECKING:
    from vf_core.interception.upstream import Upstream

ANSWER_LIMIT = 64 * 1024 * 1024
"""Bytes of one answer (decoded) beyond which it is cut off as a failure."""
_HEAD_LIMIT = 256 * 1024
_DRAIN_SECONDS = 2.0
_ENCODINGS = frozenset((b"gzip", b"x-gzip", b"deflate"))

Headers = list[tuple[bytes, bytes]]


class Listener(Protocol):
    """What a call tells. `on_response` comes first and once, then data, then exactly one of end and failure;
    a failure may also come first. All of it from the event loop, never from within `Upstream.post`."""

    def on_response(self, status: int, headers: Headers) -> None:
        """The head of the answer; header names in lower case, hop-by-hop ones included."""

    def on_data(self, data: bytes) -> None:
        """All of the body's bytes that one read brought, decoded."""

    def on_end(self) -> None:
        """The answer is complete."""

    def on_failure(self, error: ProviderError) -> None:
        """There will be no complete answer."""


class Call:
    """One request on its way. `cancel` ends it at once: a connection in use is closed, which the provider notices."""

    __slots__ = ("connection", "done", "listener", "payload")

    def __init__(self, listener: Listener, payload: bytes) -> None:
        self.listener = listener
        self.payload = payload
        self.connection: Connection | None = None
        self.done = False

    def cancel(self) -> None:
        """Forget the listener and the exchange."""
        if self.done:
            return
        self.done = True
        if self.connection is not None:
            self.connection.abort()

    def pause(self) -> None:
        """Read no more of the answer until `resume`."""
        if not self.done and self.connection is not None:
            self.connection.pause()

    def resume(self) -> None:
        """Read on."""
        if not self.done and self.connection is not None:
            self.connection.resume()

    def leave(self) -> None:
        """The listener has heard enough: let the exchange end by itself, soon, and keep the connection."""
        if self.done:
            return
        self.done = True
        if self.connection is not None:
            self.connection.drain(self)


class Connection(asyncio.Protocol):
    """A pooled connection. It tells `pool` when it is free again and when it is lost."""

    def __init__(self, pool: Upstream) -> None:
        self._pool = pool
        self._transport: asyncio.Transport | None = None
        self._paused = False
        self._parser = httptools.HttpResponseParser(self)
        self._call: Call | None = None
        self.idle_since = 0.0
        self._reset()

    def _reset(self) -> None:
        self._headers: Headers = []
        self._parts: list[bytes] = []
        self._status = 0
        self._answered = False  # the head has been read
        self._told = False  # ... and the listener knows
        self._complete = False
        self._until_eof = False
        self._received = 0
        self._decoder: zlib._Decompress | None = None
        self._decoded = 0
        self._unreadable = ""
        self._keep = True

    @property
    def usable(self) -> bool:
        """It is open and carries no exchange."""
        return self._call is None and self._transport is not None and not self._transport.is_closing()

    def send(self, call: Call) -> None:
        """Carry out `call`; the connection must be usable."""
        self._reset()
        self._call = call
        call.connection = self
        payload, call.payload = call.payload, b""
        if self._transport is not None:
            self._transport.write(payload)

    def pause(self) -> None:
        """Read no more for now."""
        if self._transport is not None and not self._paused:
            self._paused = True
            self._transport.pause_reading()

    def resume(self) -> None:
        """Read on."""
        if self._transport is not None and self._paused:
            self._paused = False
            self._transport.resume_reading()

    def abort(self) -> None:
        """Close at once, whatever is going on."""
        self._call = None
        if self._transport is not None:
            self._transport.abort()

    def close(self) -> None:
        """Close an idle connection in good order."""
        if self._transport is not None:
            self._transport.close()

    def drain(self, call: Call) -> None:
        """Give the exchange a moment to end by itself."""
        asyncio.get_running_loop().call_later(_DRAIN_SECONDS, self._drained, call)

    def _drained(self, call: Call) -> None:
        if self._call is call:
            self.abort()

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        if self._call is None:
            # Nobody asked: the server says that it closes (a 408), or something worse.
            self.abort()
            return
        self._received += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as e:
            self.fail(f"its answer is not HTTP: {e}")
            return
        except httptools.HttpParserUpgrade:
            self.fail("it switched protocols")
            return
        if not self._answered and self._received > _HEAD_LIMIT:
            self.fail("the head of its answer has no end")
            return
        self._tell()

    def eof_received(self) -> bool:
        if self._call is not None and self._answered and self._until_eof:
            self._complete, self._keep = True, False
            self._tell()
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        if self._call is not None:
            why = f" ({exc})" if exc is not None and str(exc) else ""
            when = "in the middle of its answer" if self._answered else "before it answered"
            self.fail(f"it closed the connection {when}{why}", unreachable=not self._answered)
        self._pool.lost(self)

    # httptools callbacks

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._complete:
            self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        if self._complete:
            self._keep = False  # a second answer to one request
            return
        self._status = self._parser.get_status_code()
        if self._status < 200:
            return
        self._answered = True
        self._keep = self._parser.should_keep_alive()
        framed = False
        for name, value in self._headers:
            if name in {b"content-length", b"transfer-encoding"}:
                framed = True
            elif name == b"content-encoding":
                self._decode(value.strip().lower())
        self._until_eof = not framed

    def _decode(self, encoding: bytes) -> None:
        """Prepare for an encoding that was not asked for."""
        if encoding in _ENCODINGS and not self._pool.exact:
            self._decoder = zlib.decompressobj(zlib.MAX_WBITS | 32)
        elif encoding not in {b"", b"identity"}:
            self._unreadable = encoding.decode("latin-1")

    def on_body(self, body: bytes) -> None:
        if not self._complete:
            self._parts.append(body)

    def on_message_complete(self) -> None:
        if self._status < 200:
            self._headers = []
        else:
            self._complete = True

    # Telling the listener

    def _tell(self) -> None:
        """Pass on what the last read brought."""
        call = self._call
        if call is None or not self._answered:
            return
        if not self._told:
            self._told = True
            if self._unreadable:
                self.fail(f"its answer is encoded as {self._unreadable!r}, which was not asked for")
                return
            if not call.done:
                call.listener.on_response(self._status, self._shown_headers())
        data = self._take()
        if data is None:
            return
        if data and not call.done:
            call.listener.on_data(data)
        if self._complete:
            self._finish(call)

    def _shown_headers(self) -> Headers:
        if self._decoder is None:
            return self._headers
        return [(name, value) for name, value in self._headers if name != b"content-encoding"]

    def _take(self) -> bytes | None:
        """The body bytes that have come, decoded; None after a failure."""
        parts = self._parts
        if not parts:
            return b""
        data = parts[0] if len(parts) == 1 else b"".join(parts)
        self._parts = []
        if self._decoder is not None:
            try:
                data = self._decoder.decompress(data, ANSWER_LIMIT + 1 - self._decoded)
            except zlib.error as e:
                self.fail(f"its answer could not be decompressed: {e}")
                return None
        self._decoded += len(data)
        if self._decoded > ANSWER_LIMIT and not self._pool.exact:
            self.fail(f"its answer is larger than {ANSWER_LIMIT >> 20} MiB")
            return None
        return data

    def _finish(self, call: Call) -> None:
        self._call = None
        call.connection = None
        was_done, call.done = call.done, True
        if self._paused:
            self.resume()
        if self._until_eof or not self._keep:
            self.close()
        self._pool.free(self)
        if not was_done:
            call.listener.on_end()

    def fail(self, what: str, *, unreachable: bool = False) -> None:
        """Close at once; the listener is told that the provider failed, `what` it did, and whether (`unreachable`)
        that was no answer at all."""
        call = self._call
        self.abort()
        if call is None or call.done:
            return
        call.done = True
        call.connection = None
        call.listener.on_failure(self._pool.failure(what, unreachable=unreachable))
