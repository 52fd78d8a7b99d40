"""A real MCP server (the SDK's own) for tests, with tools that behave well, badly, or not at all.

`python mcp_server.py` serves streamable HTTP on a free port of loopback and prints it. `--close MODE` says what
becomes of the request that ends a session: `fail` (HTTP 500), `hang` (never answered), `cut` (connection closed).
`--reset N` cuts every Nth connection before it is answered, `--prefix P` goes before every tool's name.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import os
import socket
from typing import Any

import uvicorn
from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.utilities.types import Image
from mcp_types import AudioContent, EmbeddedResource, ImageContent, TextContent, TextResourceContents
from uvicorn.protocols.http.h11_impl import H11Protocol

PIXEL = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhfDwAChwGA60e6kgAAAABJRU5ErkJggg=="
)


def build(prefix: str) -> MCPServer[Any]:
    """The server and its tools."""
    server: MCPServer[Any] = MCPServer("double", log_level="CRITICAL")
    calls = {"count": 0, "flaky": 0}

    def tool(function: Any) -> Any:
        return server.tool(name=prefix + function.__name__)(function)

    @tool
    def add(a: int, b: int) -> int:
        """Add two numbers."""
        return a + b

    @tool
    def count() -> str:
        """How often this tool has been called."""
        calls["count"] += 1
        return str(calls["count"])

    @tool
    def big(size: int) -> str:
        """A long text."""
        return "x" * size

    @tool
    def picture() -> Image:
        """An image."""
        return Image(data=PIXEL, format="png")

    @tool
    def mixed() -> list[Any]:
        """Blocks of every kind."""
        encoded = base64.b64encode(PIXEL).decode()
        return [
            TextContent(type="text", text="first"),
            ImageContent(type="image", data=encoded, mime_type="image/png"),
            AudioContent(type="audio", data="AAAA", mime_type="audio/wav"),
            EmbeddedResource(
                type="resource",
                resource=TextResourceContents(uri="file:///x", text="resource text", mime_type=None),
            ),
        ]

    @tool
    def lines() -> list[Any]:
        """Two text blocks."""
        return [TextContent(type="text", text="one"), TextContent(type="text", text="two")]

    @tool
    def fail() -> str:
        """Always fails."""
        raise ValueError("the tool's own failure")

    @tool
    def die() -> str:
        """Ends the server's process in the middle of the call."""
        os._exit(1)

    @tool
    async def silent() -> str:
        """Never answers."""
        await asyncio.Event().wait()
        return ""

    return server


class Badly:
    """Wraps the server's application with the failures that were asked for."""

    def __init__(self, app: Any, close: str, reset: int) -> None:
        self.app = app
        self.close = close
        self.reset = reset
        self.requests = 0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            self.requests += 1
            if self.reset and self.requests % self.reset == 0:
                raise ConnectionResetError("cut on purpose")
            if scope["method"] == "DELETE" and self.close:
                if self.close == "hang":
                    await asyncio.Event().wait()
                if self.close == "cut":
                    raise ConnectionResetError("cut on purpose")
                await send({"type": "http.response.start", "status": 500, "headers": []})
                await send({"type": "http.response.body", "body": b"no"})
                return
        await self.app(scope, receive, send)


class Cutting(H11Protocol):
    """Cuts the connection where an application's error would have been answered by a 500."""

    async def send_500_response(self) -> None:
        self.transport.abort()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--close", default="")
    parser.add_argument("--reset", type=int, default=0)
    parser.add_argument("--prefix", default="")
    options = parser.parse_args()
    app = Badly(build(options.prefix).streamable_http_app(), options.close, options.reset)
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    print(listener.getsockname()[1], flush=True)
    config = uvicorn.Config(app, log_level="critical", lifespan="on", http=Cutting)
    uvicorn.Server(config).run(sockets=[listener])


if __name__ == "__main__":
    main()
