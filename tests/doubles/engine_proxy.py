"""An engine that misbehaves: what it is asked goes to the real one, but for the faults that a test sets."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import shutil
import tempfile
import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Self

from doubles.engine_host import engine_url

_CHUNK = 1 << 16


@dataclass(eq=False)
class Exchange:
    """One request: its line's parts, all of its bytes so far, and both ends of its connection."""

    method: str
    path: str
    request: bytes
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    upstream: str

    async def ask(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Pass the request on; the engine's answer is being read."""
        reader, writer = await asyncio.open_unix_connection(self.upstream)
        writer.write(self.request)
        await writer.drain()
        return reader, writer

    async def answer(self, status: int, body: Any) -> None:
        """Answer in the engine's place."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        head = f"HTTP/1.1 {status} Status\r\nContent-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
        self.writer.write(head.encode() + data)
        await self.writer.drain()

    async def join(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Pass everything on in both directions until either end closes."""
        await _either(_pass(self.reader, writer), _pass(reader, self.writer))
        writer.close()


Fault = Callable[[Exchange], Awaitable[None]]


async def _pass(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(_CHUNK):
        writer.write(data)
        await writer.drain()
    if writer.can_write_eof():
        writer.write_eof()


async def _either(*work: Any) -> None:
    tasks = [asyncio.ensure_future(one) for one in work]
    try:
        # The request's direction may be closed while its answer still comes.
        await tasks[1]
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class EngineProxy:
    """Serves at `url` from a thread of its own, while it is entered."""

    def __init__(self) -> None:
        self._directory = tempfile.mkdtemp(prefix="vfp-")
        self.path = f"{self._directory}/e.sock"
        self.url = f"unix://{self.path}"
        self.requests: list[tuple[str, str]] = []
        self._faults: list[tuple[re.Pattern[str], Fault, list[int]]] = []
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._released = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()

    def __enter__(self) -> Self:
        self._thread.start()
        self._on_loop(self._serve())
        return self

    def __exit__(self, *_: object) -> None:
        self.release()
        self.stop()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(60)
        self._loop.close()
        shutil.rmtree(self._directory, ignore_errors=True)

    def stop(self) -> None:
        """The engine is stopped: nobody listens, and what was under way breaks off."""

        async def close() -> None:
            self._server.close()
            for task in list(self._tasks):
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

        self._on_loop(close())

    def restart(self) -> None:
        """It listens again."""
        self._on_loop(self._serve())

    # ------------------------------------------------------------------ faults

    def on(self, pattern: str, fault: Fault, times: int = 10**9) -> None:
        """Do `fault` for the next `times` requests whose `METHOD path` matches; later ones go before earlier ones."""
        self._faults.insert(0, (re.compile(pattern), fault, [times]))

    def clear(self) -> None:
        """It behaves from now on."""
        self._faults.clear()

    def release(self) -> None:
        """What is held back goes on."""
        self._loop.call_soon_threadsafe(self._released.set)

    def asked(self, pattern: str) -> int:
        """How many requests matched."""
        return sum(bool(re.search(pattern, f"{method} {path}")) for method, path in self.requests)

    def late(self) -> Fault:
        """The engine acts at once; its answer waits for `release`."""

        async def fault(exchange: Exchange) -> None:
            reader, writer = await exchange.ask()
            first = await reader.read(1)
            await self._released.wait()
            exchange.writer.write(first)
            await exchange.join(reader, writer)

        return fault

    def acts_later(self) -> Fault:
        """The connection breaks at once; the engine acts after `release`."""

        async def fault(exchange: Exchange) -> None:
            exchange.writer.transport.abort()
            await self._released.wait()
            reader, writer = await exchange.ask()
            await reader.read(1)
            writer.close()

        return fault

    def stalls(self, after: bytes) -> Fault:
        """Once these bytes of the answer came, nothing more does, and nothing is closed, until `release`."""

        async def fault(exchange: Exchange) -> None:
            reader, writer = await exchange.ask()
            seen = b""
            while after not in seen and (data := await reader.read(_CHUNK)):
                seen += data
                exchange.writer.write(data)
            await self._released.wait()
            writer.close()

        return fault

    def hangs(self) -> Fault:
        """No answer until `release`, and then none either."""

        async def fault(exchange: Exchange) -> None:
            await self._released.wait()

        return fault

    # ------------------------------------------------------------------ serving

    def _on_loop(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(10)

    async def _serve(self) -> None:
        self._server = await asyncio.start_unix_server(self._connected, self.path)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task
        self._tasks.add(task)
        try:
            # Cancelled by `stop` only, which waits for it.
            with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
                await self._exchange(reader, writer)
        finally:
            self._tasks.discard(task)
            writer.close()

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = re.search(rb"(?i)^content-length: *(\d+)", head, re.MULTILINE)
        body = await reader.readexactly(int(length[1])) if length else b""
        method, path, _ = head.split(b" ", 2)
        exchange = Exchange(
            method.decode(), path.decode(), head + body, reader, writer, engine_url().removeprefix("unix://")
        )
        self.requests.append((exchange.method, exchange.path))
        for pattern, fault, left in self._faults:
            if left[0] > 0 and pattern.search(f"{exchange.method} {exchange.path}"):
                left[0] -= 1
                return await fault(exchange)
        await exchange.join(*await exchange.ask())


async def _some(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, count: int) -> None:
    while count > 0 and (data := await reader.read(min(count, _CHUNK))):
        count -= len(data)
        writer.write(data)
        await writer.drain()


def status(code: int, message: str = "as the test wants it") -> Fault:
    """Answers with an error, and does nothing."""

    async def fault(exchange: Exchange) -> None:
        await exchange.answer(code, {"message": message})

    return fault


def says(body: Any, code: int = 200) -> Fault:
    """Answers with JSON (bytes: as they are), and does nothing."""

    async def fault(exchange: Exchange) -> None:
        await exchange.answer(code, body)

    return fault


async def loses_answer(exchange: Exchange) -> None:
    """The engine acts; the connection breaks before its answer."""
    reader, writer = await exchange.ask()
    await reader.read(1)
    exchange.writer.transport.abort()
    writer.close()


async def drops(exchange: Exchange) -> None:
    """The connection breaks; the engine heard of nothing."""
    exchange.writer.transport.abort()


def cuts(after: int) -> Fault:
    """The connection closes after so many bytes of the answer."""

    async def fault(exchange: Exchange) -> None:
        reader, writer = await exchange.ask()
        await _some(reader, exchange.writer, after)
        exchange.writer.transport.abort()
        writer.close()

    return fault
