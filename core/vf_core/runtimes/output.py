"""Keeping a bounded part of an endless output, and making text of it."""

from __future__ import annotations

_INCOMPLETE = 3  # bytes of a UTF-8 character that may be missing at a cut


class Capture:
    """Keeps the head and the tail of what is added, at most about `limit` bytes; `head=0` keeps a tail only."""

    def __init__(self, limit: int, *, head: int | None = None) -> None:
        self._head_limit = limit // 2 if head is None else head
        self._tail_limit = max(0, limit - self._head_limit)
        self._head = bytearray()
        self._tail = bytearray()
        self.size = 0

    def add(self, data: bytes) -> None:
        """Take more output; memory stays under the head's limit and twice the tail's."""
        self.size += len(data)
        room = self._head_limit - len(self._head)
        if room > 0:
            self._head += data[:room]
            data = data[room:]
        if not data:
            return
        if len(data) >= self._tail_limit:
            self._tail[:] = data[len(data) - self._tail_limit :]
            return
        self._tail += data
        if len(self._tail) > 2 * self._tail_limit:
            del self._tail[: -self._tail_limit]

    @property
    def truncated(self) -> bool:
        """Something was left out."""
        return self.size > self._head_limit + self._tail_limit

    def text(self) -> str:
        """What was kept, decoded as UTF-8 with replacement marks; where something was left out, a line says so."""
        if not self.truncated:
            return bytes(self._head + self._tail).decode(errors="replace")
        head = _whole_end(bytes(self._head))
        tail = _whole_start(bytes(self._tail[len(self._tail) - self._tail_limit :]))
        missing = self.size - len(head) - len(tail)
        mark = f"[… {missing} bytes left out …]\n"
        if head:
            mark = f"\n{mark}"
        return head.decode(errors="replace") + mark + tail.decode(errors="replace")


def _whole_end(data: bytes) -> bytes:
    """`data` without the beginning of a character at its end."""
    for back in range(1, min(_INCOMPLETE, len(data)) + 1):
        byte = data[-back]
        if byte & 0xC0 == 0x80:
            continue
        wanted = 4 if byte >= 0xF0 else 3 if byte >= 0xE0 else 2 if byte >= 0xC0 else 1
        return data[:-back] if wanted > back else data
    return data


def _whole_start(data: bytes) -> bytes:
    """`data` without the end of a character at its beginning."""
    skip = 0
    while skip < min(_INCOMPLETE, len(data)) and data[skip] & 0xC0 == 0x80:
        skip += 1
    return data[skip:]
