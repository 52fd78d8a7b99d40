"""The link to an engine in another process of this user on this machine, over its unix socket.

When the engine is lost, what its journal still holds follows, so that the screen misses nothing.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

from vf_core import __version__
from vf_core.errors import EngineSilentError, LinkError
from vf_core.events import types as ev
from vf_core.events.codec import from_record
from vf_core.events.command import Reply
from vf_core.events.snapshot import Loading
from vf_core.events.state import RunState
from vf_core.link.base import Batch, Description, Events, Lost, Silent, Snapshot
from vf_core.link.file import FileLink
from vf_core.link.traces import Traces
from vf_core.link.wire import FRAME_LIMIT, PROTOCOL, check_path, check_peer, frame, parse

ANSWER = 5.0
"""Seconds an engine has to answer before it counts as busy."""
ASK = 3.0
"""Seconds without a word after which an engine is asked whether it is there; `ANSWER` after that it is silent."""
AHEAD = 32
"""Batches that wait for a screen; then they are dropped, and it gets a fresh snapshot."""


class SocketLink:
    """A link over the socket at `path`. `run` is the id that is expected there, `run_dir` where its files are:
    with it, an engine of another version is watched by its files, and a lost one's last words are read."""

    def __init__(
        self,
        path: Path,
        *,
        run: str = "",
        run_dir: Path | None = None,
        read_only: bool = False,
        by: str = "",
        version: str = __version__,
    ) -> None:
        self.path = path
        self.read_only = read_only
        self._run = run
        self._dir = run_dir
        self._by = by or f"viewer (pid {os.getpid()})"
        self._version = version
        self._description = Description("socket", run=run, dir=str(run_dir or ""), alive=False)
        self._traces = Traces(run_dir)
        self._arrived: asyncio.Queue[Batch] = asyncio.Queue()
        self._behind = False
        self._loading = Loading()
        self._ids = itertools.count(1)
        self._replies: dict[int, asyncio.Future[Reply]] = {}
        self._records: dict[int, tuple[list[str], asyncio.Future[dict[str, Any] | None]]] = {}
        self._writer: asyncio.StreamWriter | None = None
        self._reading: asyncio.Task[None] | None = None
        self._minding: asyncio.Task[None] | None = None
        self._heard = 0.0
        self._spoke = asyncio.Event()
        self._file: FileLink | None = None
        self._seq = 0
        self._over = False
        self._lost = ""
        self._closed = asyncio.Event()

    # Coming and going.

    async def connect(self) -> RunState:
        """See `Link.connect`. An engine of another version is followed by its files, read-only, if these are
        known; `describe` then says why."""
        try:
            async with asyncio.timeout(ANSWER):
                reader = await self._greet()
        except TimeoutError as e:
            if self._writer is not None:
                self._writer.close()
            raise EngineSilentError(
                f"the engine at {self.path} does not answer: it is paused or overloaded",
                hint="it may be waited for; nothing was started in its place",
            ) from e
        if reader is None:
            assert self._file is not None  # noqa: S101
            self._description = self._file.describe()
            return await self._file.connect()
        self._heard = asyncio.get_running_loop().time()
        self._reading = asyncio.create_task(self._read(reader))
        first = await self._arrived.get()
        if isinstance(first, Lost):
            raise LinkError(first.reason)
        assert isinstance(first, Snapshot)  # noqa: S101
        self._deliver(first)
        self._minding = asyncio.create_task(self._mind())
        return first.state

    async def _greet(self) -> asyncio.StreamReader | None:
        check_path(self.path)
        try:
            reader, self._writer = await asyncio.open_unix_connection(str(self.path), limit=FRAME_LIMIT)
            check_peer(self._writer.get_extra_info("socket"))
            self._send(
                "hello", protocol=PROTOCOL, version=self._version, read_only=self.read_only, by=self._by
            )
            hello = parse(await reader.readuntil())
        except ConnectionRefusedError as e:
            raise LinkError(
                f"nobody listens at {self.path}: the engine is gone", hint="`vf-tui open` shows its run"
            ) from e
        except (OSError, EOFError, asyncio.LimitOverrunError) as e:
            raise LinkError(f"cannot reach the engine at {self.path}: {e}") from e
        if hello["frame"] != "hello" or hello.get("protocol") != PROTOCOL:
            self._other_version(hello)
            return None
        run = str(hello.get("run"))
        if self._run and run != self._run:
            raise LinkError(f"the engine at {self.path} runs {run}, not {self._run}")
        self._dir = self._dir or Path(str(hello.get("dir")))
        self._traces = Traces(self._dir)
        self._description = Description(
            "socket",
            run=run,
            name=str(hello.get("name")),
            host=str(hello.get("host")),
            dir=str(hello.get("dir")),
            pid=int(hello.get("pid", 0)),
            version=str(hello.get("version")),
        )
        return reader

    def _other_version(self, hello: dict[str, Any]) -> None:
        reason = str(
            hello.get("reason") or f"the engine is vf-tui {hello.get('version')}, this is {self._version}"
        )
        if self._writer is not None:
            self._writer.close()
        where = self._dir or (Path(str(hello["dir"])) if hello.get("dir") else None)
        if where is None:
            raise LinkError(reason, hint="use the version that started the run")
        self.read_only = True
        self._lost = f"{reason}: it can only be watched"
        self._file = FileLink(where, note=self._lost)

    async def close(self) -> None:
        """See `Link.close`."""
        if self._closed.is_set():
            return
        self._closed.set()
        self._fail("the link is closed")
        if self._file is not None:
            await self._file.close()
        if self._writer is not None and not self._writer.is_closing():
            self._send("bye")
            self._writer.close()
        tasks = [task for task in (self._reading, self._minding) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._arrived.put_nowait(Lost("closed", clean=True))

    def describe(self) -> Description:
        """See `Link.describe`."""
        return self._file.describe() if self._file is not None else self._description

    # What comes in.

    async def batches(self) -> AsyncIterator[Batch]:
        """See `Link.batches`. After `Lost` come the events that only the journal has, and any that follow."""
        while self._file is None and not self._closed.is_set():
            if self._behind and self._arrived.empty():
                self._behind = False
                self._send("resync")
            batch = await self._arrived.get()
            if self._closed.is_set():
                return
            self._deliver(batch)
            yield batch
        if self._file is not None:
            async for batch in self._file.batches():
                yield batch

    def _deliver(self, batch: Batch) -> None:
        if isinstance(batch, Snapshot):
            self._seq, self._over = batch.state.seq, batch.state.over
            self._traces.take(batch.state)
        elif isinstance(batch, Events):
            self._seq = max(self._seq, max((event.seq for event in batch.events), default=0))
            self._traces.see(batch.events)
            for event in batch.events:
                if isinstance(event, ev.RunStarted | ev.RunFinished):
                    self._over = isinstance(event, ev.RunFinished)
        elif isinstance(batch, Lost) and self._dir is not None:
            self._file = FileLink.after(self._dir, self._seq, over=self._over, traces=self._traces)

    async def _read(self, reader: asyncio.StreamReader) -> None:
        lost = Lost("the engine is gone: it was killed, or it crashed")
        try:
            while True:
                got = parse(await reader.readuntil())
                self._heard = asyncio.get_running_loop().time()
                self._spoke.set()
                if got["frame"] == "bye":
                    lost = Lost(str(got.get("reason")), clean=True)
                    break
                self._take(got)
        except (OSError, EOFError):
            pass
        except (LinkError, ValueError, KeyError, TypeError, asyncio.LimitOverrunError) as e:
            lost = Lost(f"the engine said something that makes no sense: {e}")
        self._lost, self.read_only = lost.reason, True
        self._fail(lost.reason)
        if self._minding is not None:
            self._minding.cancel()
        if self._writer is not None:
            self._writer.close()
        self._arrived.put_nowait(lost)

    async def _mind(self) -> None:
        """Tell when the engine falls silent, and when it speaks again: a quiet run looks the same otherwise."""
        loop = asyncio.get_running_loop()
        while True:
            heard = self._heard
            await asyncio.sleep(max(0.0, heard + ASK - loop.time()))
            if self._heard > heard:
                continue
            self._send("ping")
            # Two waits: of a process that was itself suspended the first is over at once, its mail unread.
            for _ in range(2):
                await asyncio.sleep(ANSWER / 2)
            if self._heard > heard:
                continue
            self._arrived.put_nowait(Silent())
            self._spoke.clear()
            await self._spoke.wait()
            self._arrived.put_nowait(Silent(over=True))

    def _take(self, got: dict[str, Any]) -> None:
        kind = got["frame"]
        if kind == "events":
            if not self._behind:
                events = [event for record in got["events"] if (event := from_record(record)) is not None]
                self._put(Events(events))
        elif kind == "part":
            if got["first"]:
                self._loading = Loading()
            if got["last"]:
                self._put(Snapshot(self._loading.finish(got["data"])))
            else:
                self._loading.add(got["data"])
        elif kind == "reply":
            self._take_reply(got)
        elif kind == "trace":
            self._take_trace(got)

    def _put(self, batch: Batch) -> None:
        if isinstance(batch, Snapshot):
            # It makes what waits void.
            self._empty()
            self._behind = False
        elif self._arrived.qsize() >= AHEAD:
            self._empty()
            self._behind = True
            return
        self._arrived.put_nowait(batch)

    def _empty(self) -> None:
        while not self._arrived.empty():
            self._arrived.get_nowait()

    def _take_reply(self, got: dict[str, Any]) -> None:
        future = self._replies.pop(int(got["id"]), None)
        if future is not None and not future.done():
            changed = tuple(str(target) for target in got["changed"])
            future.set_result(Reply(bool(got["ok"]), str(got["message"]), changed, str(got["command"])))

    def _take_trace(self, got: dict[str, Any]) -> None:
        pieces, future = self._records.get(int(got["id"]), ([], None))
        if future is None or future.done():
            return
        pieces.append(str(got["text"]))
        if not got["more"]:
            del self._records[int(got["id"])]
            future.set_result(json.loads("".join(pieces)) if got["found"] else None)

    # What goes out.

    def _send(self, kind: str, **fields: Any) -> None:
        if self._writer is not None and not self._writer.is_closing():
            self._writer.write(frame(kind, **fields))

    async def command(self, name: str, targets: Sequence[str] = (), **args: Any) -> Reply:
        """See `Link.command`. An engine that is lost before it answers may have obeyed all the same."""
        if self._lost or self._closed.is_set():
            return Reply(False, self._lost or "the link is closed")
        if self.read_only:
            return Reply(False, "this viewer is read-only")
        id = next(self._ids)
        future: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self._replies[id] = future
        self._send("command", id=id, name=name, targets=list(targets), args=args)
        try:
            return await future
        finally:
            self._replies.pop(id, None)

    async def trace(self, rollout: str, attempt: int = 0) -> dict[str, Any] | None:
        """See `Link.trace`."""
        number = self._traces.number(rollout, attempt)
        if not (self._lost or self._closed.is_set()):
            id = next(self._ids)
            future: asyncio.Future[dict[str, Any] | None] = asyncio.get_running_loop().create_future()
            self._records[id] = ([], future)
            self._send("trace", id=id, rollout=rollout, attempt=number)
            try:
                record = await future
            finally:
                self._records.pop(id, None)
            if record is not None:
                return record
        if self._file is not None:
            return await self._file.trace(rollout, attempt)
        return await self._traces.get(rollout, number)

    def watch(self, rollouts: set[str]) -> None:
        """See `Link.watch`."""
        self._send("watch", rollouts=sorted(rollouts))

    def _fail(self, reason: str) -> None:
        for reply in self._replies.values():
            if not reply.done():
                reply.set_result(Reply(False, f"not answered: {reason}"))
        for _, record in self._records.values():
            if not record.done():
                record.set_result(None)
