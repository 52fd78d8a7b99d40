"""The program's output: written to log files off the event loop, and read back from their ends.

Output is raw bytes and untrusted; readers decode it, whoever shows it cleans it.
"""

from __future__ import annotations

import asyncio
import codecs
import os
import threading
from collections.abc import Callable, Mapping
from pathlib import Path

from vf_core.events.background import Background
from vf_core.runs.layout import open_regular

URGENT = 1 << 20
"""Bytes waiting for the disk at which it is not waited for more of them."""
BACKLOG = 64 << 20
"""Bytes of one stream that may wait for a slow disk."""
BACKLOG_ALL = 128 << 20
"""Bytes of all streams of a run that may."""
LIMIT = 256 << 20
"""Bytes of one stream that are kept at all, so that one program can't fill the disk."""
PATIENCE = 0.05
"""Seconds for which whoever is that far ahead waits for the disk to catch up, before output is dropped until it
has."""
PIECE = 1 << 20


class OutputThread:
    """The thread that writes the logs of one run while any is open. `on_error` is told of the first failure, on
    the loop of whoever opened that log."""

    def __init__(self, on_error: Callable[[OSError], None]) -> None:
        self._on_error: Callable[[OSError], None] | None = on_error
        self._background = Background("output")
        self._lock = threading.Lock()
        self._open = 0
        self._closed = False
        self._waiting = 0

    @property
    def waiting(self) -> int:
        """Bytes of all streams that wait for the disk."""
        return self._waiting

    def count(self, size: int) -> None:
        """So many bytes more (or less) wait."""
        with self._lock:
            self._waiting += size

    def opened(self) -> bool:
        """One more log is open; False when the last one was closed already and the thread is ending."""
        with self._lock:
            self._open += not self._closed
            return not self._closed

    def soon(self, work: Callable[[], None], *, now: bool = False) -> None:
        """See `Background.soon`."""
        self._background.soon(work, now=now)

    def shut(self) -> None:
        """One log less is open; the thread ends with the last."""
        with self._lock:
            self._open -= 1
            self._closed = self._closed or not self._open
        if self._closed:
            self._background.close(wait=False)

    def failed(self, error: OSError, loop: asyncio.AbstractEventLoop | None) -> None:
        """Tell of the first failure."""
        tell, self._on_error = self._on_error, None
        if tell is None:
            return
        try:
            if loop is None:
                tell(error)
            else:
                loop.call_soon_threadsafe(tell, error)
        except RuntimeError:
            pass  # the loop is closed: nobody is left to tell


class OutputLog:
    """Writes an attempt's streams, each to its file (0600). `write` does not wait for the disk.

    `thread` counts this log as open already.
    """

    def __init__(self, paths: Mapping[str, Path], thread: OutputThread) -> None:
        self._thread = thread
        try:
            self._loop: asyncio.AbstractEventLoop | None = asyncio.get_running_loop()
        except RuntimeError:
            self._loop = None
        self._streams = {name: _Stream(path, thread, self._loop) for name, path in paths.items()}
        self._finished: asyncio.Future[None] | None = None

    def write(self, stream: str, data: bytes) -> None:
        """Append `data` to the log of `stream` (stdout or stderr); nothing once it is closed."""
        if data and self._finished is None:
            self._streams[stream].write(data)

    async def close(self) -> None:
        """Write what is left and close the files. Idempotent; a cancellation does not cut it short."""
        if self._finished is None:
            self._loop = asyncio.get_running_loop()
            self._finished = self._loop.create_future()
            self._thread.soon(self._finish, now=True)
        await asyncio.shield(self._finished)

    def _finish(self) -> None:
        for stream in self._streams.values():
            stream.close()
        self._thread.shut()
        if self._loop is not None:
            try:
                self._loop.call_soon_threadsafe(self._tell_finished)
            except RuntimeError:
                pass  # the loop was closed without waiting

    def _tell_finished(self) -> None:
        if self._finished is not None and not self._finished.done():
            self._finished.set_result(None)


class _Stream:
    def __init__(self, path: Path, thread: OutputThread, loop: asyncio.AbstractEventLoop | None) -> None:
        self._path = path
        self._thread = thread
        self._loop = loop
        self._fd: int | None = None
        self._lock = threading.Lock()
        self._done = threading.Condition()
        self._waiting: list[bytes] = []
        self._size = 0
        self._total = 0
        self._dropped = 0
        self._stuck = False

    def write(self, data: bytes) -> None:
        if self._total >= LIMIT:
            self._dropped += len(data)
            return
        if self._is_behind() and not self._room():
            self._dropped += len(data)
            return
        with self._done:
            self._waiting.append(data)
        self._count(len(data))
        self._total += len(data)
        self._thread.soon(self.flush, now=self._size > URGENT)

    def _count(self, size: int) -> None:
        with self._done:
            self._size += size
        self._thread.count(size)

    def _is_behind(self) -> bool:
        return self._size > BACKLOG or self._thread.waiting > BACKLOG_ALL

    def _room(self) -> bool:
        """Give the disk a moment to catch up, unless it made no use of the last one."""
        with self._done:
            if not self._stuck:
                self._stuck = not self._done.wait_for(lambda: not self._is_behind(), PATIENCE)
            return not self._stuck

    def flush(self) -> None:
        """Write what waits. On the thread, or wherever `close` runs."""
        with self._lock:
            while data := self._take():
                try:
                    self._put(data)
                except OSError as e:
                    self._dropped += len(data)
                    self._thread.failed(e, self._loop)
                self._count(-len(data))
                with self._done:
                    self._stuck = False
                    self._done.notify_all()

    def _take(self) -> bytes:
        """About a piece of what waits, so that progress shows."""
        size = count = 0
        with self._done:
            for data in self._waiting:
                size, count = size + len(data), count + 1
                if size >= PIECE:
                    break
            taken = self._waiting[:count]
            del self._waiting[:count]
        return b"".join(taken)

    def _put(self, data: bytes) -> None:
        if self._dropped and self._total < LIMIT:
            note = f"\n[… {self._dropped} bytes of output could not be written …]\n"
            self._append(note.encode())
            self._dropped = 0
        self._append(data)

    def _append(self, data: bytes) -> None:
        if not data:
            return
        if self._fd is None:
            self._path.parent.mkdir(mode=0o700, exist_ok=True)
            self._fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        view = memoryview(data)
        while view:
            view = view[os.write(self._fd, view) :]

    def close(self) -> None:
        self.flush()
        if self._fd is None:
            return
        try:
            if self._total >= LIMIT and self._dropped:
                self._append(f"\n[… {self._dropped} more bytes of output are not kept …]\n".encode())
        except OSError as e:
            self._thread.failed(e, self._loop)
        finally:
            os.close(self._fd)
            self._fd = None


class OutputReader:
    """Reads a log as text from `offset` on; call `read` again when it has grown.

    Characters cut in two by a read are put together by the next; bytes that are no UTF-8 become U+FFFD.
    """

    def __init__(self, path: Path, offset: int = 0) -> None:
        self.path = path
        self.offset = offset
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    @classmethod
    def at_tail(cls, path: Path, size: int) -> OutputReader:
        """A reader of the last `size` bytes and what follows, beginning with a whole line where there is one."""
        reader = cls(path)
        try:
            with open_regular(path) as file:
                end = file.seek(0, os.SEEK_END)
                start = max(0, end - size)
                if start:
                    # One byte more tells whether the tail happens to begin with a line.
                    file.seek(start - 1)
                    data = file.read(size + 1)
                    newline = data.find(b"\n")
                    start += newline if newline >= 0 else _broken_head(data[1:])
                reader.offset = start
        except FileNotFoundError:
            pass
        return reader

    def read(self, limit: int = 1 << 20) -> str:
        """The next piece of text, from up to `limit` bytes; empty when there is nothing new or no file yet.

        A file that has shrunk is read from its start. Raises OSError when it cannot be read.
        """
        try:
            with open_regular(self.path) as file:
                if os.fstat(file.fileno()).st_size < self.offset:
                    self.offset = 0
                    self._decoder.reset()
                file.seek(self.offset)
                data = file.read(limit)
        except FileNotFoundError:
            return ""
        self.offset += len(data)
        return self._decoder.decode(data)


def _broken_head(data: bytes) -> int:
    """How many bytes at the start of `data` belong to a character that began before it."""
    return next((n for n, byte in enumerate(data[:4]) if byte & 0xC0 != 0x80), 0)


def tail(path: Path, size: int) -> str:
    """The last `size` bytes of a log as text; empty when there is none. Raises OSError."""
    return OutputReader.at_tail(path, size).read(size)
