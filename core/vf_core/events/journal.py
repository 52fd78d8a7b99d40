"""The journal: every durable event of a run, one line each, in `events.jsonl`.

A line is on its way to the file within 200 ms, from a thread of its own. It survives the death of the process;
against a power cut it is synced when the journal is closed. The file is valid whatever happens: what could not
be written whole is taken back.
"""

from __future__ import annotations

import asyncio
import errno
import os
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path

from vf_core.errors import RunDirError
from vf_core.events.background import Background
from vf_core.events.codec import decode, encode
from vf_core.events.lines import read_lines, repair
from vf_core.events.types import Event

HELD = 16 << 20
"""Bytes kept for a file that cannot be written; then the oldest are dropped."""
_BATCH = 4_000


class JournalWriter:
    """Appends events to a journal. `append` never blocks and never raises.

    `on_error` is told once when the file can't be written any more (on the loop on which the writer was made,
    if there was one); writing goes on being tried with every event, and `error` is None again when it works.
    """

    def __init__(self, path: Path, *, on_error: Callable[[OSError], None] | None = None) -> None:
        """Open or create the journal (0600), setting a torn last line aside. Raises `RunDirError`."""
        self.path = path
        self.error: OSError | None = None
        self.lost = 0
        self._told = False
        self._on_error = on_error
        self._lines: deque[str] = deque()
        self._held: deque[bytes] = deque()
        self._background = Background("journal")
        try:
            self._loop: asyncio.AbstractEventLoop | None = asyncio.get_running_loop()
        except RuntimeError:
            self._loop = None
        try:
            self.torn = repair(path)
            self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        except OSError as e:
            raise RunDirError(f"cannot write the journal {path}: {e.strerror or e}") from e
        self._closed = False

    def append(self, event: Event) -> None:
        """Have `event` written soon. Nothing happens once the journal is closed."""
        if not self._closed:
            self._lines.append(encode(event))
            self._background.soon(self._flush)

    def close(self) -> None:
        """Write all there is, sync, close. Blocks for as long as that takes; idempotent."""
        self._end()
        self._background.close()

    async def aclose(self) -> None:
        """As `close`, without holding the loop."""
        self._end()
        await self._background.aclose()

    def _end(self) -> None:
        if not self._closed:
            self._closed = True
            self._background.soon(self._finish, now=True)

    # On the background thread.

    def _flush(self) -> None:
        lines = self._lines
        while lines:
            batch = [lines.popleft() for _ in range(min(_BATCH, len(lines)))]
            self._held.append(("\n".join(batch) + "\n").encode())
        try:
            while self._held:
                self._write(self._held[0])
                self._held.popleft()
        except OSError as e:
            self._failed(e)
        else:
            self.error = None

    def _finish(self) -> None:
        self._flush()
        try:
            if self.error is None:
                os.fsync(self._fd)
        except OSError as e:
            self._failed(e)
        finally:
            os.close(self._fd)

    def _write(self, data: bytes) -> None:
        """Append all of `data` or nothing."""
        before = os.fstat(self._fd)
        if before.st_nlink == 0:
            raise FileNotFoundError(errno.ENOENT, "the journal was removed", str(self.path))
        view = memoryview(data)
        try:
            while view:
                view = view[os.write(self._fd, view) :]
        except OSError:
            # A full disk takes part of it; truncating needs no space.
            os.ftruncate(self._fd, before.st_size)
            raise

    def _failed(self, error: OSError) -> None:
        self.error = error
        while sum(map(len, self._held)) > HELD:
            self.lost += self._held.popleft().count(b"\n")
        if self._told or self._on_error is None:
            return
        self._told = True
        if self._loop is None:
            self._on_error(error)
            return
        try:
            self._loop.call_soon_threadsafe(self._on_error, error)
        except RuntimeError:
            self._told = False


def read_journal(path: Path, offset: int = 0) -> Iterator[Event]:
    """The events of a journal from byte `offset` on. Lines that are no events of this version are passed over.

    Raises `RunDirError` when the file cannot be read.
    """
    try:
        for line in read_lines(path, offset):
            event = decode_or_none(line)
            if event is not None:
                yield event
    except OSError as e:
        raise RunDirError(f"cannot read the journal {path}: {e.strerror or e}") from e


def decode_or_none(line: bytes) -> Event | None:
    """The event on `line`, or None when there is none that this version understands."""
    try:
        return decode(line)
    except ValueError:
        return None
