"""Reading `traces.jsonl` of this project and of verifiers, whatever a crash or another hand left in it.

Lines end at `\\n` and nowhere else. A line that is no JSON object is reported as `Torn` and never costs its
neighbours; `repair` sets a torn last line aside, so that appending is safe again.
"""

from __future__ import annotations

import json
import re
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vf_core.errors import RunDirError
from vf_core.trace.layouts import episode_traces
from vf_core.trace.record import Trace
from vf_core.trace.torn import Repair, mend

CHUNK = 1 << 20
# How a trace's line begins here and in the release that is written for; an episode's does not.
_HEAD = 512
_ID = re.compile(rb'\{\s*"id"\s*:\s*"([^"\\]{1,200})"\s*,\s*"task"\s*:')


@dataclass(frozen=True, slots=True)
class ReadRecord:
    """One trace record: on line `line` (from 1) of `path`, at byte `offset`; an episode's line gives several."""

    path: Path
    line: int
    offset: int
    record: dict[str, Any]

    def trace(self) -> Trace:
        """The typed trace. Raises RunDirError, with file and line, when the record is none."""
        try:
            return Trace.from_record(self.record)
        except (ValueError, TypeError) as e:
            raise RunDirError(f"{self.path}, line {self.line}: not a trace record: {e}") from e


@dataclass(frozen=True, slots=True)
class Torn:
    """A line that can't be read: `size` bytes at `offset`, and why. `last`: nothing follows it."""

    path: Path
    line: int
    offset: int
    size: int
    reason: str
    last: bool


def read_records(path: Path) -> Iterator[ReadRecord | Torn]:
    """Every trace record of a file, and its unreadable lines in their places. One line is in memory at a time.

    Raises RunDirError when the file can't be read.
    """
    offset, total = 0, _size(path)
    for number, raw in enumerate(_lines(path), 1):
        body = raw.rstrip(b"\r\n")
        if body.strip():
            try:
                for record in _parse(body):
                    yield ReadRecord(path, number, offset, record)
            except ValueError as e:
                yield Torn(path, number, offset, len(raw), str(e), offset + len(raw) >= total)
        offset += len(raw)


def _lines(path: Path) -> Iterator[bytes]:
    try:
        with path.open("rb") as file:
            yield from file  # a binary file's lines end at \n only
    except OSError as e:
        raise RunDirError(f"{path} can't be read: {e.strerror or e}") from e


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError as e:
        raise RunDirError(f"{path} can't be read: {e.strerror or e}") from e


def _parse(body: bytes) -> list[dict[str, Any]]:
    """The trace records of one line. Raises ValueError when it holds none."""
    try:
        # A record from elsewhere may hold a surrogate's own bytes.
        value = json.loads(body.decode("utf-8", errors="surrogatepass"))
    except RecursionError as e:
        raise ValueError("nested too deeply") from e
    if not isinstance(value, dict):
        raise ValueError(f"a JSON {type(value).__name__}, not an object")
    return episode_traces(value)


def repair(path: Path) -> Repair | None:
    """Make appending to `path` safe; see `torn.mend`. A line that holds no trace record is torn. Raises OSError."""
    return mend(path, _is_record)


def _is_record(line: bytes) -> bool:
    try:
        _parse(line)
    except ValueError:
        return False
    return True


class TraceIndex:
    """Where the complete lines of a (large, perhaps growing) file are: eight bytes a line, nothing is parsed.

    `refresh` takes in what was appended. Raises RunDirError when the file can't be read.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._starts = array("Q")
        self._end = 0
        self._ids: dict[str, int] = {}
        self._identified = 0
        self.refresh()

    def __len__(self) -> int:
        """Number of complete lines."""
        return len(self._starts)

    def refresh(self) -> int:
        """Look for new complete lines; how many there are. A file that shrank is read again from its start."""
        if _size(self.path) < self._end:
            self._starts, self._end = array("Q"), 0
            self._ids, self._identified = {}, 0
        before, at = len(self._starts), self._end
        try:
            with self.path.open("rb") as file:
                file.seek(at)
                while chunk := file.read(CHUNK):
                    found = chunk.find(b"\n")
                    while found >= 0:
                        self._starts.append(self._end)
                        self._end = at + found + 1
                        found = chunk.find(b"\n", found + 1)
                    at += len(chunk)
        except OSError as e:
            raise RunDirError(f"{self.path} can't be read: {e.strerror or e}") from e
        return len(self._starts) - before

    def line(self, number: int, limit: int | None = None) -> bytes:
        """Line `number` (from 0) without its newline, at most `limit` bytes of it."""
        start = self._starts[number]
        end = self._starts[number + 1] if number + 1 < len(self._starts) else self._end
        size = end - start if limit is None else min(limit, end - start)
        try:
            with self.path.open("rb", buffering=0) as file:
                file.seek(start)
                return file.read(size).rstrip(b"\r\n")
        except OSError as e:
            raise RunDirError(f"{self.path} can't be read: {e.strerror or e}") from e

    def records(self, number: int) -> list[dict[str, Any]]:
        """The trace records of line `number` (from 0): one, several (an episode), or none (an unreadable line)."""
        try:
            return _parse(self.line(number))
        except ValueError:
            return []

    def get(self, trace: str) -> dict[str, Any] | None:
        """The last record whose id is `trace`; None when there is none."""
        while self._identified < len(self._starts):
            for name in self._names(self._identified):
                self._ids[name] = self._identified
            self._identified += 1
        number = self._ids.get(trace)
        if number is None:
            return None
        return next((r for r in reversed(self.records(number)) if r.get("id") == trace), None)

    def _names(self, number: int) -> list[str]:
        match = _ID.match(self.line(number, _HEAD))
        if match is not None:
            return [match[1].decode(errors="replace")]
        return [str(record.get("id")) for record in self.records(number)]
