"""Opening any run directory as events, ours or verifiers', and following it while it grows.

All of it blocks on the disk: call it from a thread. A helping is bounded, however large the file is.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from vf_core.errors import RunDirError
from vf_core.events import types as ev
from vf_core.events.fold import fold
from vf_core.events.journal import decode_or_none
from vf_core.events.lines import LineReader, is_whole
from vf_core.events.state import RunState
from vf_core.runs.foreign import Teller
from vf_core.runs.outline import outline

HELPING = 256 << 10
"""Bytes read at a time."""
STALE = 600.0
"""Seconds after which a run that nobody writes to any more counts as over where nothing says so."""

Progress = Callable[[int, int], None]
"""Called with the bytes read so far and the size of the file."""


class Source(Protocol):
    """Where the events of a run come from."""

    path: Path

    @property
    def offset(self) -> int:
        """Bytes read so far."""

    def read(self) -> list[ev.Event]:
        """What comes next. Raises OSError when the file cannot be read."""

    @property
    def at_end(self) -> bool:
        """The last `read` came to the end of the file as it was then."""

    def replaced(self) -> bool:
        """The file is another one by now, or was cut: all that was read is void."""

    def last_words(self) -> list[ev.Event]:
        """What can be said once nothing more is going to come, because whoever wrote is gone."""


class _File:
    """What both sources do with their file."""

    def __init__(self, path: Path, offset: int = 0) -> None:
        self.path = path
        self.at_end = False
        self._lines = LineReader(path, offset)
        self._identity = self._stat()

    @property
    def offset(self) -> int:
        return self._lines.offset

    def _next(self) -> list[bytes]:
        lines = self._lines.read(HELPING)
        self.at_end = not lines
        return lines

    def replaced(self) -> bool:
        now = self._stat()
        if self._identity is None:
            self._identity = now
            return False
        return now is not None and (now[:2] != self._identity[:2] or now[2] < self._lines.offset)

    def _stat(self) -> tuple[int, int, int] | None:
        try:
            got = os.stat(self.path)
        except FileNotFoundError:
            return None
        return got.st_dev, got.st_ino, got.st_size


class JournalSource(_File):
    """The events of a journal whose numbers are above `after`."""

    def __init__(self, path: Path, *, after: int = 0) -> None:
        super().__init__(path, offset_after(path, after) if after else 0)
        self._after = after

    def read(self) -> list[ev.Event]:
        """See `Source.read`."""
        events = (decode_or_none(line) for line in self._next())
        return [event for event in events if event is not None and event.seq > self._after]

    def last_words(self) -> list[ev.Event]:
        """A last line that lacks only its newline."""
        rest = self._lines.rest()
        event = decode_or_none(rest) if is_whole(rest) else None
        if event is None:
            return []
        self._lines.offset += len(rest)
        return [event]


class TracesSource(_File):
    """The events that a file of traces amounts to."""

    def __init__(self, run_dir: Path) -> None:
        super().__init__(run_dir / "traces.jsonl")
        self._run_dir = run_dir
        self._outline = outline(run_dir)
        self._teller = Teller()
        self._begun = False
        self._ended = False
        self._rollouts = 0

    def read(self) -> list[ev.Event]:
        """See `Source.read`."""
        lines = self._next()
        events = [] if self._begun and not (lines and self._ended) else self._begin()
        for line in lines:
            if (record := _record(line)) is not None:
                events += self._teller.tell(record)
        self._rollouts += sum(isinstance(event, ev.RolloutQueued) for event in events)
        if self.at_end and not self._ended:
            events += self._end()
        return events

    def _begin(self) -> list[ev.Event]:
        self._begun, self._ended = True, False
        return self._teller.begin(self._outline, self._run_dir.name, _mtime(self._run_dir / "config.toml"))

    def _end(self) -> list[ev.Event]:
        changed = _mtime(self.path)
        whole = 0 < self._outline.total <= self._rollouts
        if not whole and time.time() - changed < STALE:
            return []
        self._ended = True
        return self._teller.end("completed" if whole else "stopped", "told from traces.jsonl", changed)

    def last_words(self) -> list[ev.Event]:
        """See `Source.last_words`: nothing."""
        return []


def open_source(run_dir: Path) -> Source:
    """The source of the run in `run_dir`. Raises `RunDirError` when there is none, saying what was looked for."""
    journal, traces = run_dir / "events.jsonl", run_dir / "traces.jsonl"
    if not run_dir.is_dir():
        raise RunDirError(f"{run_dir} is not a directory")
    has_traces = traces.is_file()
    if journal.is_file() and (journal.stat().st_size or not has_traces or not traces.stat().st_size):
        return JournalSource(journal)
    if has_traces:
        return TracesSource(run_dir)
    raise RunDirError(
        f"{run_dir} holds no run: neither events.jsonl nor traces.jsonl is in it",
        hint="give the directory of one run, as `vf-tui ls` lists them",
    )


def load(
    source: Source,
    state: RunState,
    *,
    progress: Progress | None = None,
    stop: Callable[[], bool] | None = None,
) -> RunState:
    """Fold all that `source` has by now into `state`; `stop` is asked between helpings.

    Raises `RunDirError` when it cannot be read.
    """
    try:
        while not (stop is not None and stop()):
            fold(source.read(), state)
            if progress is not None:
                progress(source.offset, max(source.offset, os.path.getsize(source.path)))
            if source.at_end:
                break
    except OSError as e:
        raise RunDirError(f"cannot read {source.path}: {e.strerror or e}") from e
    return state


def offset_after(path: Path, seq: int) -> int:
    """Where reading a journal must begin so that no event numbered above `seq` is missed: found from its end."""
    try:
        with path.open("rb") as file:
            end = file.seek(0, os.SEEK_END)
            step = HELPING
            while end > 0:
                start = max(0, end - step)
                file.seek(start)
                data = file.read(end - start)
                # What begins before `start` is not whole; the first whole line tells how far back this is.
                head = data.find(b"\n") + 1 if start else 0
                for line in data[head:].split(b"\n")[:-1]:
                    event = decode_or_none(line)
                    if event is not None and event.seq:
                        if event.seq <= seq + 1:
                            return start + head
                        break
                step *= 4
                if not start:
                    break
    except OSError:
        pass
    return 0


def _record(line: bytes) -> dict[str, Any] | None:
    if not line.strip():
        return None
    try:
        # A record from elsewhere may hold a surrogate's own bytes.
        value = json.loads(line.decode("utf-8", errors="surrogatepass"))
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _mtime(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0
