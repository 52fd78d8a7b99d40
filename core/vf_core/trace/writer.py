"""Appending finished rollouts to `traces.jsonl`, one strict JSON object a line.

A line is written by one call and reaches the kernel before `write` returns, so it survives the end of this process
at any moment. It is forced to the disk (against loss of power) by `sync` and `close` only: forcing each line
would cost milliseconds a rollout. A write that fails half-way is taken back, so the file stays valid.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from vf_core.errors import RunDirError
from vf_core.trace.plain import plain
from vf_core.trace.reader import repair
from vf_core.trace.record import Trace
from vf_core.trace.torn import Repair

FILE_MODE = 0o600


_ENCODER = json.JSONEncoder(separators=(",", ":"), allow_nan=False)


def encode(record: Mapping[str, Any]) -> bytes:
    """One line: ASCII (so lone surrogates and every line separator survive), no NaN, newline at the end."""
    try:
        return b"".join(_pieces(record))
    except (ValueError, TypeError, RecursionError):
        return b"".join(_pieces(plain(record)))


def _pieces(record: Mapping[str, Any]) -> Iterator[bytes]:
    """A large record message by message: while one piece is made, no other thread of this process runs."""
    before = b"{"
    for key, value in record.items():
        yield before + _json(str(key)) + b":"
        before = b","
        if isinstance(value, list) and value:
            between = b"["
            for item in value:
                yield between
                yield _json(item)
                between = b","
            yield b"]"
        else:
            yield _json(value)
    yield b"}\n" if record else b"{}\n"


def _json(value: Any) -> bytes:
    return _ENCODER.encode(value).encode("ascii")


class TraceWriter:
    """Appends to one file, made (0600) if missing. May be called from any thread; one writer a file.

    A torn last line that an earlier process left is set aside first: `repaired` says what was done, or None.
    Raises RunDirError when the file can't be opened.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()
        try:
            self.repaired: Repair | None = repair(path) if path.exists() else None
            self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
            _sync_directory(path.parent)
        except OSError as e:
            raise self._error("can't be opened", e) from e

    def write(self, trace: Trace | Mapping[str, Any]) -> None:
        """Append one trace, or one record as it stands.

        Raises RunDirError when the disk is full, the file was removed, or the writer is closed; nothing of the
        record is in the file then.
        """
        record = trace.to_record() if isinstance(trace, Trace) else trace
        line = encode(record)
        with self._lock:
            if self._fd < 0:
                raise RunDirError(f"{self.path} is closed")
            try:
                self._append(line)
                gone = os.fstat(self._fd).st_nlink == 0
            except OSError as e:
                raise self._error("can't be written", e) from e
        if gone:
            raise RunDirError(
                f"{self.path} was removed while it was written to", hint="results from now on would be lost"
            )

    def _append(self, line: bytes) -> None:
        """All of `line` or, when the disk refuses, nothing of it."""
        size = os.fstat(self._fd).st_size
        rest = memoryview(line)
        try:
            while rest:
                rest = rest[os.write(self._fd, rest) :]
        except BaseException:
            os.ftruncate(self._fd, size)
            raise

    def sync(self) -> None:
        """Force what is written to the disk."""
        with self._lock:
            if self._fd >= 0:
                os.fsync(self._fd)

    def close(self) -> None:
        """Force everything to the disk and release the file; again: nothing happens."""
        with self._lock:
            if self._fd < 0:
                return
            fd, self._fd = self._fd, -1
            try:
                os.fsync(fd)
            except OSError as e:
                raise self._error("can't be forced to the disk", e) from e
            finally:
                os.close(fd)

    def __enter__(self) -> TraceWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _error(self, what: str, error: OSError) -> RunDirError:
        return RunDirError(
            f"{self.path} {what}: {error.strerror or error}",
            hint="free space or choose another output_dir; what was written before is whole",
        )


def _sync_directory(path: Path) -> None:
    """A new file's name is on the disk only when its directory is."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    except OSError:
        return
    try:
        os.fsync(fd)
    except OSError:
        pass  # not every file system can; the data itself is not at stake
    finally:
        os.close(fd)
