"""The engine's end of the socket: every viewer gets a snapshot and what follows, at the pace it takes it.

A viewer that does not read is not waited for: what it has not taken is dropped, and it gets a fresh snapshot when
it reads again.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from vf_core import __version__
from vf_core.errors import LinkError
from vf_core.events.codec import encode
from vf_core.events.types import Event
from vf_core.link.base import EnginePort, Reply
from vf_core.link.feed import FAREWELL, Feed, Part
from vf_core.link.listener import Listener, socket_path
from vf_core.link.wire import COMMAND_LIMIT, PROTOCOL, check_peer, events_frame, frame, parse
from vf_core.runs.layout import RunDir

__all__ = ["PROTOCOL", "SocketServer"]

log = logging.getLogger(__name__)

HELLO_TIMEOUT = 10.0
"""Seconds a viewer has to introduce itself."""
BUFFER = 256 << 10
"""Bytes that wait for a viewer to read them."""
PIECE = 256 << 10
"""Characters of events, or of a trace, in one frame."""


class SocketServer:
    """Serves the engine of the run in `run_dir` at `path` (default: a short path of the run's own).

    An async context manager: entering listens, and raises `LinkError` when the place is taken; leaving says
    goodbye. Close the bus before, so that viewers hear the last of it.
    """

    def __init__(
        self, port: EnginePort, run_dir: RunDir, *, path: Path | None = None, version: str = __version__
    ) -> None:
        self.path = path or socket_path(run_dir.run_id)
        self.version = version
        self.port = port
        self.run_dir = run_dir
        self._listener: Listener | None = None
        self._server: asyncio.Server | None = None
        self._closing: asyncio.Task[None] | None = None
        self._viewers: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        # The probe of a socket found there may wait for a second.
        self._listener = await asyncio.to_thread(Listener, self.path)
        self._server = await asyncio.start_unix_server(
            self._accept, sock=self._listener.socket, limit=COMMAND_LIMIT
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Take no more viewers, let those there are hear what is left, and leave the place. Idempotent."""
        if self._closing is None:
            self._closing = asyncio.create_task(self._close())
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        if self._server is None or self._listener is None:
            return
        self._server.close()
        if self.port.bus.closed and self._viewers:
            await asyncio.wait(self._viewers, timeout=FAREWELL)
        for viewer in self._viewers:
            viewer.cancel()
        await asyncio.gather(*self._viewers, return_exceptions=True)
        self._listener.close()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None  # noqa: S101
        self._viewers.add(task)
        viewer = _Viewer(self, reader, writer)
        try:
            await viewer.serve()
        except (OSError, EOFError, LinkError, ValueError, asyncio.LimitOverrunError) as e:
            log.info("a viewer (%s) is gone: %s", viewer.by or "unknown", e)
        except asyncio.CancelledError:
            pass  # the server is closing
        except Exception:
            log.exception("serving a viewer (%s) failed", viewer.by or "unknown")
        finally:
            self._viewers.discard(task)
            viewer.close()


class _Viewer:
    def __init__(
        self, server: SocketServer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self.by = ""
        self._server = server
        self._reader = reader
        self._writer = writer
        self._read_only = True
        self._feed: Feed | None = None
        self._requests: set[asyncio.Task[None]] = set()

    async def serve(self) -> None:
        self._writer.transport.set_write_buffer_limits(high=BUFFER)
        check_peer(self._writer.get_extra_info("socket"))
        async with asyncio.timeout(HELLO_TIMEOUT):
            hello = parse(await self._reader.readuntil())
            if not await self._greet(hello):
                return
        self._feed = Feed(self._server.port, read_only=self._read_only)
        sending = asyncio.create_task(self._send(self._feed))
        receiving = asyncio.create_task(self._receive())
        try:
            await asyncio.wait({sending, receiving}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (sending, receiving, *self._requests):
                task.cancel()
            await asyncio.gather(sending, receiving, *self._requests, return_exceptions=True)
        for task in (sending, receiving):
            if not task.cancelled() and (error := task.exception()) is not None:
                raise error

    async def _greet(self, hello: dict[str, Any]) -> bool:
        server, state = self._server, self._server.port.state
        protocol = hello.get("protocol")
        if hello["frame"] != "hello" or protocol != PROTOCOL:
            reason = (
                f"the engine is vf-tui {server.version} (link {PROTOCOL}), "
                f"this viewer {str(hello.get('version'))[:40]} (link {str(protocol)[:10]})"
            )
            self._write("refused", version=server.version, reason=reason, dir=str(server.run_dir.path))
            await self._writer.drain()
            return False
        self.by = str(hello.get("by", ""))[:100]
        self._read_only = bool(hello.get("read_only", True))
        self._write(
            "hello",
            version=server.version,
            host=socket.gethostname(),
            pid=os.getpid(),
            run=server.run_dir.run_id,
            name=state.name,
            dir=str(server.run_dir.path),
            read_only=self._read_only,
        )
        return True

    def _write(self, kind: str, **fields: Any) -> None:
        if kind in ("hello", "refused"):
            fields["protocol"] = PROTOCOL
        self._writer.write(frame(kind, **fields))

    # What the viewer is sent.

    async def _send(self, feed: Feed) -> None:
        async for item in feed.items():
            if isinstance(item, Part):
                self._write("part", data=item.data, first=item.first, last=item.last)
            else:
                await self._send_events(item)
            await self._writer.drain()
        self._write("bye", reason="the engine has ended")
        await self._writer.drain()

    async def _send_events(self, events: list[Event]) -> None:
        lines: list[str] = []
        size = 0
        for event in events:
            line = encode(event)
            lines.append(line)
            size += len(line)
            if size >= PIECE:
                self._writer.write(events_frame(lines))
                await self._writer.drain()
                lines, size = [], 0
        if lines:
            self._writer.write(events_frame(lines))

    # What the viewer asks.

    async def _receive(self) -> None:
        while True:
            request = parse(await self._reader.readuntil())
            kind = request["frame"]
            if kind == "bye":
                return
            if kind == "watch" and self._feed is not None:
                self._feed.watch(set(_strings(request.get("rollouts"))))
            elif kind == "resync" and self._feed is not None:
                self._feed.resync()
            elif kind == "ping":
                self._write("pong")
            elif kind == "command":
                self._start(self._command(request))
            elif kind == "trace":
                self._start(self._trace(request))
            # Whoever does not read its answers is not asked for more questions.
            await self._writer.drain()

    def _start(self, answer: Any) -> None:
        task: asyncio.Task[None] = asyncio.create_task(answer)
        self._requests.add(task)
        task.add_done_callback(self._requests.discard)

    async def _command(self, request: dict[str, Any]) -> None:
        reply = await self._obey(request)
        self._write(
            "reply",
            id=request.get("id"),
            ok=reply.ok,
            message=reply.message,
            changed=list(reply.changed),
            command=reply.id,
        )

    async def _obey(self, request: dict[str, Any]) -> Reply:
        if self._read_only:
            return Reply(False, "this viewer is read-only")
        args = request.get("args")
        try:
            return await self._server.port.command(
                str(request.get("name")),
                _strings(request.get("targets")),
                args if isinstance(args, dict) else {},
                self.by,
            )
        except Exception as e:
            log.exception("command %s failed", request.get("name"))
            return Reply(False, f"internal error, see engine.log: {type(e).__name__}: {e}")

    async def _trace(self, request: dict[str, Any]) -> None:
        id, rollout, attempt = request.get("id"), str(request.get("rollout")), request.get("attempt")
        record = self._server.port.trace_record(rollout, attempt) if isinstance(attempt, int) else None
        if record is not None:
            for text in pieces(record):
                self._write("trace", id=id, text=text, more=True)
                await self._writer.drain()
                await asyncio.sleep(0)
        self._write("trace", id=id, text="", more=False, found=record is not None)

    def close(self) -> None:
        if self._feed is not None:
            self._feed.close()
        self._writer.close()


def pieces(record: dict[str, Any]) -> Iterator[str]:
    """`record` as JSON text, in pieces that are each made without holding the loop for long."""
    text: list[str] = []
    size = 0
    for part in _parts(record):
        text.append(part)
        size += len(part)
        if size >= PIECE:
            yield "".join(text)
            text.clear()
            size = 0
    yield "".join(text)


def _parts(record: dict[str, Any]) -> Iterator[str]:
    between = "{"
    for key, value in record.items():
        yield f"{between}{json.dumps(key)}:"
        between = ","
        if not isinstance(value, list) or not value:
            yield json.dumps(value)
            continue
        comma = "["
        for item in value:
            yield comma + json.dumps(item)
            comma = ","
        yield "]"
    yield "}" if record else "{}"


def _strings(value: Any) -> tuple[str, ...]:
    return tuple(str(item) for item in value) if isinstance(value, list) else ()
