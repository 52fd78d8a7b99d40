"""How many bytes may be held at once: a bound that many share, and what one of them has of it."""

from __future__ import annotations


class Room:
    """`limit` bytes, shared by whoever takes of them.

    Where there is a `parent`, all beyond the first `free` of them are the parent's too: a parent that others have
    filled still leaves each room that much.
    """

    def __init__(self, limit: int, parent: Room | None = None, *, free: int = 0) -> None:
        self.limit = limit
        self.used = 0
        self._parent = parent
        self._free = free

    def take(self, size: int) -> bool:
        """Take `size` bytes; False, and nothing is taken, where that is too much."""
        after = self.used + size
        if after > self.limit:
            return False
        if self._parent is not None and not self._parent.take(self._shared(after) - self._shared(self.used)):
            return False
        self.used = after
        return True

    def give(self, size: int) -> None:
        """Give them back."""
        after = self.used - size
        if self._parent is not None:
            self._parent.give(self._shared(self.used) - self._shared(after))
        self.used = after

    def _shared(self, used: int) -> int:
        return max(0, used - self._free)


class Hold:
    """What one message has of a room."""

    __slots__ = ("_room", "size")

    def __init__(self, room: Room) -> None:
        self._room = room
        self.size = 0

    def add(self, size: int) -> bool:
        """Take more; False where there is no room for it."""
        if not self._room.take(size):
            return False
        self.size += size
        return True

    def move(self, size: int, other: Hold) -> None:
        """Let `other`, a hold on the same room, pay for `size` bytes of this one."""
        size = min(size, self.size)
        self.size -= size
        other.size += size

    def release(self) -> None:
        """Give all of it back. Idempotent."""
        size, self.size = self.size, 0
        if size:
            self._room.give(size)
