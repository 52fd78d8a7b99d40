"""An MCP server by script, raw enough to break off, stay silent or flood; and a program's side of the relay."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, cast

from doubles.intercepted import Client, Reply, Rig
from vf_core.interception import Session
from vf_core.interception.tool_server import ToolServer


@dataclass
class Asked:
    """A request as it came, and the connection to answer it on."""

    method: str
    headers: dict[str, str]
    body: bytes
    writer: asyncio.StreamWriter
    gone: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def message(self) -> Any:
        return json.loads(self.body)

    def head(self, kind: str, *lines: str, status: str = "200 OK") -> None:
        """The head of an answer."""
        self.writer.write(
            "\r\n".join((f"HTTP/1.1 {status}", f"content-type: {kind}", *lines, "", "")).encode()
        )

    def whole(self, body: Any, *lines: str, status: str = "200 OK") -> None:
        """A whole JSON answer."""
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.head("application/json", f"content-length: {len(raw)}", *lines, status=status)
        self.writer.write(raw)

    def stream(self) -> None:
        """Begin a stream of events, that ends with the connection."""
        self.head("text/event-stream", "transfer-encoding: chunked", "mcp-session-id: s1")

    def event(self, data: Any, extra: str = "") -> None:
        """One event of it."""
        raw = data if isinstance(data, bytes) else json.dumps(data).encode()
        self.chunk(extra.encode() + b"event: message\r\ndata: " + raw + b"\r\n\r\n")

    def chunk(self, raw: bytes) -> None:
        """Some bytes of it."""
        self.writer.write(b"%x\r\n%b\r\n" % (len(raw), raw))

    def end(self) -> None:
        """Its orderly end."""
        self.writer.write(b"0\r\n\r\n")

    def result(self, text: str, **more: Any) -> dict[str, Any]:
        """The answer to a tool call."""
        content = [{"type": "text", "text": text}]
        return {"jsonrpc": "2.0", "id": self.message["id"], "result": {"content": content, **more}}


Answering = Callable[[Asked], Awaitable[None] | None]


class _Watched(asyncio.StreamReaderProtocol):
    """Tells the end of its connection also while an answer is being thought about."""

    gone: asyncio.Event | None = None

    def eof_received(self) -> bool:
        if self.gone is not None:
            self.gone.set()
        return super().eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self.gone is not None:
            self.gone.set()


class ToolDouble:
    """Listens on the loopback; each request is answered by `answer`, which a test replaces."""

    def __init__(self) -> None:
        self.asked: list[Asked] = []
        self.answer: Answering = lambda asked: asked.whole(asked.result("ok"))
        self.port = 0
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        """Listen, on the same port each time."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(self._protocol, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Die: nobody listens, and every connection breaks."""
        server, self._server = self._server, None
        if server is not None:
            server.close()
        for asked in self.asked:
            asked.writer.transport.abort()
        await asyncio.sleep(0)

    def _protocol(self) -> asyncio.StreamReaderProtocol:
        return _Watched(asyncio.StreamReader(limit=1 << 26), self._serve)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
                headers = {
                    k.lower(): v.strip() for k, _, v in (line.partition(":") for line in head[1:] if line)
                }
                body = await reader.readexactly(int(headers.get("content-length", 0)))
                asked = Asked(head[0].split(" ")[0], headers, body, writer)
                self.asked.append(asked)
                cast("_Watched", writer.transport.get_protocol()).gone = asked.gone
                done = self.answer(asked)
                if done is not None:
                    await done
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    def server(self, name: str = "calc", **more: Any) -> ToolServer:
        """As the relay is told of it."""
        return ToolServer(name=name, url=f"http://127.0.0.1:{self.port}/mcp", **more)


@asynccontextmanager
async def tool_double() -> AsyncIterator[ToolDouble]:
    """A server by script."""
    double = ToolDouble()
    await double.start()
    try:
        yield double
    finally:
        await double.stop()


def call(tool: str = "add", ident: Any = 1, **arguments: Any) -> dict[str, Any]:
    """A tool call as a program sends it."""
    params = {"name": tool, "arguments": arguments}
    return {"jsonrpc": "2.0", "id": ident, "method": "tools/call", "params": params}


class Door:
    """A program's side: one session's address of one server."""

    def __init__(self, rig: Rig, session: Session, server: ToolServer) -> None:
        self.rig = rig
        self.session = session
        self.path = session.add_tools(server)

    @property
    def url(self) -> str:
        """The address that a program is given."""
        return self.rig.server.base_url.removesuffix("/v1") + self.path

    def client(self) -> Client:
        """A connection of a program that has no secret but the address."""
        return Client(self.rig.server.base_url, "none")

    async def ask(
        self, body: Any = None, headers: dict[str, str] | None = None, method: str = "POST"
    ) -> Reply:
        """One request on a connection of its own."""
        async with self.client() as client:
            return await client.ask(call() if body is None else body, headers, method=method, path=self.path)
