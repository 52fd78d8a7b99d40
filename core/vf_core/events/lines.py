"""Files of one JSON value a line, read and mended so that a kill at any byte costs at most the line being written.

Lines end at `\\n` and nothing else. What follows the last one is *torn*, unless it is a whole JSON object that
lacks only its newline.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from vf_core.trace.torn import mend

CHUNK = 1 << 20


class LineReader:
    """Reads whole lines from `offset` on, a bounded piece at a time; call again when the file has grown.

    `offset` is where the first line not yet given begins.
    """

    def __init__(self, path: Path, offset: int = 0) -> None:
        self.path = path
        self.offset = offset

    def read(self, limit: int = CHUNK) -> list[bytes]:
        """Whole lines without their newlines, about `limit` bytes of them (a longer line comes whole).

        Empty at the end of the file. Raises OSError when it cannot be read.
        """
        parts: list[bytes] = []
        with self.path.open("rb") as file:
            file.seek(self.offset)
            while (data := file.read(limit)) and b"\n" not in data:
                parts.append(data)
        if not data:
            return []
        whole = b"".join((*parts, data[: data.rindex(b"\n")]))
        self.offset += len(whole) + 1
        return whole.split(b"\n")

    def rest(self) -> bytes:
        """What stands behind the last line read: to be called at the end of the file."""
        with self.path.open("rb") as file:
            file.seek(self.offset)
            return file.read()


def read_lines(path: Path, offset: int = 0) -> Iterator[bytes]:
    """All lines from `offset` on; a last one that lacks only its newline is one, a torn one is not."""
    reader = LineReader(path, offset)
    while lines := reader.read():
        yield from lines
    rest = reader.rest()
    if is_whole(rest):
        yield rest


def is_whole(line: bytes) -> bool:
    """Whether `line` is a complete JSON object."""
    if not line.rstrip().endswith(b"}"):
        return False
    try:
        return isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False


def repair(path: Path) -> Path | None:
    """Make it safe to append to `path`: what is torn is set aside in a file beside it, whose path is returned.

    None when nothing was torn, or there is no file. Only for the one process that writes. Raises OSError when the
    file cannot be read or written.
    """
    try:
        done = mend(path, is_whole)
    except FileNotFoundError:
        return None
    return done.aside if done is not None else None
