"""Mending a file of one JSON value a line after a kill at any byte: at most the line being written is lost."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

CHUNK = 1 << 20


@dataclass(frozen=True, slots=True)
class Repair:
    """What `mend` did: `size` bytes moved to the file `aside`, or (None) a missing newline added."""

    path: Path
    aside: Path | None
    size: int


def mend(path: Path, is_whole: Callable[[bytes], bool]) -> Repair | None:
    """Make appending to `path` safe: a torn last line goes to `<name>.torn-<n>`, a missing newline is added.

    `is_whole` tells of a line without its newline whether it is what such a line should be. Nothing is done to
    anything else. Returns None when the file is well as it is. Raises OSError.
    """
    with path.open("r+b") as file:
        start, tail = _last_line(file.fileno())
        if not tail:
            return None
        ends = tail.endswith(b"\n")
        if tail.strip() and not is_whole(tail.rstrip(b"\r\n")):
            aside = _set_aside(path, tail)
            file.truncate(start)
            os.fsync(file.fileno())
            return Repair(path, aside, len(tail))
        if ends:
            return None
        file.seek(0, os.SEEK_END)
        file.write(b"\n")
        return Repair(path, None, 0)


def _last_line(fd: int) -> tuple[int, bytes]:
    """Where the last line begins, and its bytes, its newline included."""
    start = os.fstat(fd).st_size
    parts: list[bytes] = []
    while start:
        step = min(CHUNK, start)
        chunk = os.pread(fd, step, start - step)
        # The newline that ends the last line is not the one that begins it.
        cut = chunk.rfind(b"\n", 0, len(chunk) - (not parts))
        if cut >= 0:
            parts.append(chunk[cut + 1 :])
            start -= step - cut - 1
            break
        parts.append(chunk)
        start -= step
    return start, b"".join(reversed(parts))


def _set_aside(path: Path, tail: bytes) -> Path:
    number = 1
    while True:
        aside = path.with_name(f"{path.name}.torn-{number}")
        try:
            fd = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        except FileExistsError:
            number += 1
            continue
        with os.fdopen(fd, "wb") as file:
            file.write(tail)
            file.flush()
            os.fsync(file.fileno())
        return aside
