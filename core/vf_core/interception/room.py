"""How many bytes may be held at once: a bound that many share, and what one of them has of it."""

from __future__ import annotations


class Room:
    """`limit` bytes, shared by whoever takes of them; a part of a `parent`'s where there is one."""

    def __init__(self, limit: int, parent: Room | None = None) -> None:
        self.limit = limit
        self.used = 0
        self._parent = parent

    def take(self, size: int) -> bool:
        """Take `size` bytes; False, and nothing is taken, where that is too much."""
        if self.used + size > self.limit or (self._parent is not None and not self._parent.take(size)):
            return False
        self.used += size
        return True

    def give(self, size: int) -> None:
        """Give them back."""
        self.used -= size
        if self._parent is not None:
            self._parent.give(size)


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
