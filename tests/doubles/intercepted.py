"""Rollouts behind an interception server, and a harness that speaks raw HTTP to it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from doubles.upstream import Provider
from vf_core.events import types as ev
from vf_core.interception import InterceptionServer, Session, Upstream
from vf_core.trace.record import Trace, TraceTask
from vf_core.trace.task import WireTaskData

MODEL = "the-model"
HELLO: list[dict[str, Any]] = [{"role": "user", "content": "hello"}]


def make_trace() -> Trace[Any, Any]:
    """An empty trace."""
    return Trace(task=TraceTask(type="Test", data=WireTaskData(idx=0, prompt="hello")))


@dataclass
class Reply:
    """An answer as it came over the wire; `broken` when the connection ended before the answer did."""

    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    broken: bool = False

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> str:
        """The message of an error in OpenAI's shape."""
        return str(self.json["error"]["message"])

    @property
    def events(self) -> list[Any]:
        """The data of the server-sent events; the end mark stays text."""
        lines = [line[6:] for line in self.body.split(b"\n") if line.startswith(b"data: ")]
        return [line.decode() if line == b"[DONE]" else json.loads(line) for line in lines]

    @property
    def text(self) -> str:
        """What a streamed answer says."""
        found = (c["delta"].get("content") for e in self.events if e != "[DONE]" for c in e["choices"])
        return "".join(text for text in found if text)


class Client:
    """One connection of a harness."""

    def __init__(self, base_url: str, secret: str) -> None:
        host, _, rest = base_url.removeprefix("http://").partition(":")
        self.host, self.port, self.secret = host, int(rest.partition("/")[0]), secret
        self.reader: asyncio.StreamReader
        self.writer: asyncio.StreamWriter

    async def __aenter__(self) -> Client:
        self.reader, self.writer = await asyncio.open_connection(self.host, self.port)
        return self

    async def __aexit__(self, *exc: object) -> None:
        self.writer.close()

    def drop(self) -> None:
        """Hang up at once."""
        self.writer.transport.abort()

    def send(
        self,
        body: Any,
        headers: dict[str, str] | None = None,
        method: str = "POST",
        path: str = "/v1/chat/completions",
    ) -> None:
        """Send a request, without waiting for an answer."""
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        lines = {"Host": "here", "Content-Length": str(len(raw)), "Authorization": f"Bearer {self.secret}"}
        lines |= {"Content-Type": "application/json", **(headers or {})}
        head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
        self.writer.write(f"{method} {path} HTTP/1.1\r\n{head}\r\n".encode() + raw)

    async def head(self) -> Reply:
        """The status and headers of the next answer."""
        first, *lines = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        headers = {k.lower(): v.strip() for k, _, v in (line.partition(":") for line in lines if line)}
        return Reply(int(first.split(" ")[1]), headers)

    async def chunk(self) -> bytes:
        """The next HTTP chunk; empty at the end."""
        size = int(await self.reader.readline(), 16)
        data = await self.reader.readexactly(size)
        await self.reader.readexactly(2)
        return data

    async def receive(self) -> Reply:
        """The next answer, as far as it goes."""
        reply = Reply()
        async with asyncio.timeout(60):
            try:
                reply = await self.head()
                if "content-length" in reply.headers:
                    reply.body = await self.reader.readexactly(int(reply.headers["content-length"]))
                elif reply.headers.get("transfer-encoding") == "chunked":
                    while data := await self.chunk():
                        reply.body += data
                else:
                    reply.body = await self.reader.read()
            except (asyncio.IncompleteReadError, ConnectionError, ValueError):
                reply.broken = True
        return reply

    async def ask(self, body: Any, headers: dict[str, str] | None = None, **more: str) -> Reply:
        """Send a request and read its answer."""
        self.send(body, headers, **more)
        return await self.receive()


@dataclass
class Rig:
    """A faulty provider, a server, and the rollouts on it."""

    provider: Provider
    server: InterceptionServer
    upstream: Upstream
    events: list[ev.Event] = field(default_factory=list)

    def session(self, rollout: str = "r1", **settings: Any) -> Session:
        """A registered session; its secret is `session.secret`."""
        settings = {"model": MODEL, "emit": self.events.append, **settings}
        session = Session(rollout, 1, settings.pop("trace", None) or make_trace(), **settings)
        self.server.register(session)
        return session

    def client(self, session: Session) -> Client:
        """A harness's connection."""
        return Client(self.server.base_url, session.secret)

    async def ask(self, session: Session, body: Any = None, headers: dict[str, str] | None = None) -> Reply:
        """One request on a connection of its own; the body defaults to a greeting."""
        async with self.client(session) as client:
            return await client.ask(hello() if body is None else body, headers)

    def told(self, kind: type[ev.Event]) -> list[Any]:
        """The events of one kind so far."""
        return [event for event in self.events if isinstance(event, kind)]


def hello(*, stream: bool = False, **more: Any) -> dict[str, Any]:
    """A first request."""
    return {"model": MODEL, "messages": HELLO, **({"stream": True} if stream else {}), **more}


@asynccontextmanager
async def rig(**upstream: Any) -> AsyncIterator[Rig]:
    """A provider and a server in front of it; keywords go to `Upstream`."""
    async with Provider() as provider:
        client = Upstream(provider.base_url, **{"api_key": "sk-provider-key-0001", **upstream})
        async with InterceptionServer(client) as server:
            yield Rig(provider, server, client)
        await client.aclose()


async def settle(condition: Any, seconds: float = 60) -> None:
    """Let the loop turn until `condition()` holds."""
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.001)
