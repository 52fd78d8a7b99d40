"""A provider that misbehaves on demand: chat completions over real HTTP, scripted call by call.

`provider.plan(break_after(2), status(500))` says what the next requests get; without a plan every request gets an
ordinary completion, streamed when it asks for that. Whatever arrived is kept in `provider.requests`.
"""

from __future__ import annotations

import asyncio
import gzip
import json
import socket
import ssl
import struct
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

USAGE = {"prompt_tokens": 12, "completion_tokens": 5, "total_tokens": 17}


@dataclass
class Received:
    """A request as it came: `headers` in lower case."""

    method: str
    path: str
    headers: dict[str, str]
    raw: bytes
    body: Any


@dataclass
class Wire:
    """One exchange, from the provider's side. `gone` is set when the other side has hung up."""

    request: Received
    writer: asyncio.StreamWriter
    gone: asyncio.Event

    def send(self, data: bytes) -> None:
        """Raw bytes."""
        self.writer.write(data)

    def head(self, status: int = 200, *headers: str) -> None:
        """A status line and headers."""
        self.send("\r\n".join((f"HTTP/1.1 {status} Status", *headers, "", "")).encode())

    def whole(self, body: bytes, status: int = 200, *headers: str, kind: str = "application/json") -> None:
        """A whole answer."""
        self.head(status, f"Content-Type: {kind}", f"Content-Length: {len(body)}", *headers)
        self.send(body)

    def sse(self, *headers: str) -> None:
        """The head of a chunked event stream."""
        self.head(
            200, "Content-Type: text/event-stream; charset=utf-8", "Transfer-Encoding: chunked", *headers
        )

    def chunk(self, data: bytes) -> None:
        """One HTTP chunk."""
        self.send(b"%x\r\n%b\r\n" % (len(data), data))

    def event(self, value: Any) -> None:
        """One server-sent event in an HTTP chunk of its own."""
        self.chunk(sse_event(value))

    def end(self) -> None:
        """The end of a chunked body."""
        self.send(b"0\r\n\r\n")

    def reset(self) -> None:
        """Break the connection with a TCP reset."""
        sock = self.writer.get_extra_info("socket")
        if sock is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()


Behaviour = Callable[[Wire], Awaitable[None]]


class Provider:
    """The double. `open` and `most_open` count its connections; `served` is set after each exchange."""

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self._tls = tls
        self._server: asyncio.Server | None = None
        self._plan: deque[Behaviour] = deque()
        self._writers: set[asyncio.StreamWriter] = set()
        self.default: Behaviour = answer()
        self.requests: list[Received] = []
        self.hung_up = 0
        self.most_open = 0
        self.connections = 0
        self._changed = asyncio.Condition()

    @property
    def open(self) -> int:
        """Connections open now."""
        return len(self._writers)

    def plan(self, *behaviours: Behaviour) -> None:
        """What the next requests get, in order of arrival."""
        self._plan.extend(behaviours)

    async def __aenter__(self) -> Provider:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            lambda: _Connection(self._serve), "127.0.0.1", 0, ssl=self._tls
        )
        self.port: int = self._server.sockets[0].getsockname()[1]
        scheme = "https" if self._tls else "http"
        self.base_url = f"{scheme}://{'localhost' if self._tls else '127.0.0.1'}:{self.port}/v1"
        return self

    async def __aexit__(self, *exc: object) -> None:
        assert self._server is not None
        self._server.close()
        for writer in tuple(self._writers):
            writer.transport.abort()
        await asyncio.sleep(0)

    async def until(self, condition: Callable[[], bool], seconds: float = 60) -> None:
        """Wait for something about this provider to become true."""
        async with asyncio.timeout(seconds), self._changed:
            await self._changed.wait_for(condition)

    async def _tell(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    async def _serve(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, gone: asyncio.Event
    ) -> None:
        self._writers.add(writer)
        self.connections += 1
        self.most_open = max(self.most_open, len(self._writers))
        try:
            while (request := await _read(reader)) is not None:
                self.requests.append(request)
                behaviour = self._plan.popleft() if self._plan else self.default
                await self._tell()
                await self._exchange(behaviour, Wire(request, writer, gone))
                if writer.is_closing():
                    break
                await writer.drain()
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            self._writers.discard(writer)
            writer.close()
            await self._tell()

    async def _exchange(self, behaviour: Behaviour, wire: Wire) -> None:
        async def watch() -> None:
            await wire.gone.wait()
            self.hung_up += 1
            await self._tell()

        watching = asyncio.create_task(watch())
        try:
            await behaviour(wire)
        finally:
            watching.cancel()


class _Connection(asyncio.StreamReaderProtocol):
    """A stream connection that says at once when the other side hangs up, read or not."""

    def __init__(self, serve: Callable[..., Awaitable[None]]) -> None:
        super().__init__(asyncio.StreamReader(), self._run)
        self._serve = serve
        self.gone = asyncio.Event()

    async def _run(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await self._serve(reader, writer, self.gone)

    def eof_received(self) -> bool | None:
        self.gone.set()
        return super().eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        self.gone.set()
        super().connection_lost(exc)


async def _read(reader: asyncio.StreamReader) -> Received | None:
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except (asyncio.IncompleteReadError, ConnectionError):
        return None
    first, *lines = head.decode("latin-1").split("\r\n")
    method, path, _ = first.split(" ", 2)
    headers = {k.strip().lower(): v.strip() for k, _, v in (line.partition(":") for line in lines if line)}
    raw = await reader.readexactly(int(headers.get("content-length", 0)))
    try:
        body = json.loads(raw) if raw else None
    except ValueError:
        body = None
    return Received(method, path, headers, raw, body)


def sse_event(value: Any) -> bytes:
    """`value` (bytes as they are, anything else as JSON) as one event."""
    return b"data: " + (value if isinstance(value, bytes) else json.dumps(value).encode()) + b"\n\n"


def completion(
    content: str | None = "done", tools: Sequence[dict[str, Any]] = (), **more: Any
) -> dict[str, Any]:
    """A chat completion; `more` overrides its top-level fields."""
    message: dict[str, Any] = {"role": "assistant", "content": content}
    if tools:
        message["tool_calls"] = list(tools)
    choice = {"index": 0, "message": message, "finish_reason": "tool_calls" if tools else "stop"}
    return {
        "id": "c-1",
        "object": "chat.completion",
        "model": "m",
        "choices": [choice],
        "usage": USAGE,
        **more,
    }


def tool(ident: str = "call_1", name: str = "bash", arguments: str = '{"command": "ls"}') -> dict[str, Any]:
    """A tool call."""
    return {"id": ident, "type": "function", "function": {"name": name, "arguments": arguments}}


def delta(content: str | None = None, finish: str | None = None, **more: Any) -> dict[str, Any]:
    """A streamed chunk; `more` are further fields of its delta."""
    inner = {**({"content": content} if content is not None else {}), **more}
    choice = {"index": 0, "delta": inner, "finish_reason": finish}
    return {"id": "c-1", "object": "chat.completion.chunk", "choices": [choice]}


def usage_chunk(usage: dict[str, Any] = USAGE) -> dict[str, Any]:
    """The chunk that brings the usage."""
    return {"id": "c-1", "object": "chat.completion.chunk", "choices": [], "usage": usage}


def chunks(text: str = "done", usage: dict[str, Any] | None = USAGE) -> list[Any]:
    """A whole stream that says `text`, word by word, its end mark included."""
    words = text.split(" ")
    parts = [delta(word + (" " if i + 1 < len(words) else "")) for i, word in enumerate(words)]
    tail: list[Any] = [usage_chunk(usage)] if usage is not None else []
    return [delta("", role="assistant"), *parts, delta(finish="stop"), *tail, b"[DONE]"]


# Behaviours


def answer(value: dict[str, Any] | None = None, *headers: str, text: str = "done") -> Behaviour:
    """An ordinary answer, streamed if that was asked for; a whole one is `value`."""

    async def behave(wire: Wire) -> None:
        if wire.request.body and wire.request.body.get("stream"):
            await stream(chunks(text))(wire)
        else:
            wire.whole(json.dumps(value or completion(text)).encode(), 200, *headers)

    return behave


def stream(events: Sequence[Any], *, end: bool = True, headers: Sequence[str] = ()) -> Behaviour:
    """A stream of `events`; without `end` the connection is reset instead of ending the body."""

    async def behave(wire: Wire) -> None:
        wire.sse(*headers)
        for event in events:
            wire.event(event)
        if end:
            wire.end()
        else:
            await wire.writer.drain()
            wire.reset()

    return behave


def break_after(count: int) -> Behaviour:
    """A stream that breaks after `count` chunks."""
    return stream([delta(f"word{i} ") for i in range(count)], end=False)


def error_then_end() -> Behaviour:
    """A stream with an error object, followed by the ordinary end mark."""
    return stream([delta("Hel"), {"error": {"message": "overloaded", "code": 503}}, b"[DONE]"])


def no_end_mark() -> Behaviour:
    """A stream whose body ends properly, but without its end mark."""
    return stream([delta("Hello"), delta(finish="stop")])


def nothing_at_all() -> Behaviour:
    """A stream that consists of its end mark."""
    return stream([b"[DONE]"])


def raw(body: bytes, code: int = 200, *headers: str, kind: str = "application/json") -> Behaviour:
    """A whole answer, byte by byte as given."""

    async def behave(wire: Wire) -> None:
        wire.whole(body, code, *headers, kind=kind)

    return behave


def status(code: int, message: str = "it went wrong", *headers: str) -> Behaviour:
    """An error answer in OpenAI's shape."""
    return raw(json.dumps({"error": {"message": message, "type": "server_error"}}).encode(), code, *headers)


def hang_up() -> Behaviour:
    """The connection is closed without an answer."""

    async def behave(wire: Wire) -> None:
        wire.reset()

    return behave


def cut_short() -> Behaviour:
    """A whole answer that ends before its length."""

    async def behave(wire: Wire) -> None:
        wire.head(200, "Content-Type: application/json", "Content-Length: 5000")
        wire.send(b'{"choices": [')
        await wire.writer.drain()
        wire.writer.close()

    return behave


def gated(gate: asyncio.Event, then: Behaviour) -> Behaviour:
    """Silence until `gate` is set (or the other side hangs up), then `then`."""

    async def behave(wire: Wire) -> None:
        opened, gone = asyncio.create_task(gate.wait()), asyncio.create_task(wire.gone.wait())
        await asyncio.wait((opened, gone), return_when=asyncio.FIRST_COMPLETED)
        opened.cancel(), gone.cancel()
        if not wire.gone.is_set():
            await then(wire)

    return behave


def gated_stream(gate: asyncio.Event, before: Sequence[Any], after: Sequence[Any]) -> Behaviour:
    """A stream of `before`, then silence until `gate`, then `after` and the end."""

    async def rest(wire: Wire) -> None:
        for event in after:
            wire.event(event)
        wire.end()

    async def behave(wire: Wire) -> None:
        wire.sse()
        for event in before:
            wire.event(event)
        await gated(gate, rest)(wire)

    return behave


def in_pieces(data: bytes, size: int, kind: str = "text/event-stream") -> Behaviour:
    """`data` in HTTP chunks of `size` bytes, each in a packet of its own."""

    async def behave(wire: Wire) -> None:
        wire.head(200, f"Content-Type: {kind}", "Transfer-Encoding: chunked")
        for at in range(0, len(data), size):
            wire.chunk(data[at : at + size])
            await wire.writer.drain()
            await asyncio.sleep(0)
        wire.end()

    return behave


def until_close(body: bytes, kind: str = "application/json") -> Behaviour:
    """A body without a length: the connection's end is its end."""

    async def behave(wire: Wire) -> None:
        wire.head(200, f"Content-Type: {kind}")
        wire.send(body)
        await wire.writer.drain()
        wire.writer.close()

    return behave


def compressed(body: bytes, encoding: str = "gzip") -> Behaviour:
    """A body with a content encoding that nobody asked for."""

    async def behave(wire: Wire) -> None:
        data = gzip.compress(body) if encoding == "gzip" else body
        wire.whole(data, 200, f"Content-Encoding: {encoding}")

    return behave
