"""Output on its way between the engine's loop and code of others on another: in order, bounded, never waited for.

A sink of ours may be called from any thread (`Sink`); a sink of theirs is called on their own loop (`carried_sinks`).
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

PENDING_LIMIT = 4 << 20
"""Bytes on their way at once. More from a program: what comes is dropped and marked. More from code of others: that
waits."""


class Sink:
    """`sink`, which belongs to the running loop, for callers on any thread. Nothing reaches it after `close`."""

    def __init__(self, sink: Callable[[str, bytes], None]) -> None:
        self._sink = sink
        self._loop = asyncio.get_running_loop()
        self._home = threading.get_ident()
        self._room = threading.Condition()
        self._pending = 0
        self._closed = False

    def __call__(self, stream: str, data: bytes) -> None:
        """Pass output on. Raises TypeError for what is no output."""
        if stream not in ("stdout", "stderr") or not isinstance(data, bytes | bytearray | memoryview):
            given = f"{stream!r}, {type(data).__name__}"
            raise TypeError(f"on_output takes 'stdout' or 'stderr' and bytes, not {given}")
        if threading.get_ident() == self._home:
            if not self._closed:
                self._sink(stream, bytes(data))
            return
        for start in range(0, len(data), PENDING_LIMIT):
            self._hand_over(stream, bytes(data[start : start + PENDING_LIMIT]))

    def close(self) -> None:
        """The time for output is over."""
        with self._room:
            self._closed = True
            self._room.notify_all()

    def _hand_over(self, stream: str, data: bytes) -> None:
        with self._room:
            self._room.wait_for(lambda: self._closed or self._pending + len(data) <= PENDING_LIMIT)
            if self._closed:
                return
            self._pending += len(data)
        try:
            self._loop.call_soon_threadsafe(self._arrived, stream, data)
        except RuntimeError:
            self.close()  # the loop has ended

    def _arrived(self, stream: str, data: bytes) -> None:
        with self._room:
            self._pending -= len(data)
            self._room.notify_all()
            closed = self._closed
        if not closed:
            self._sink(stream, data)


class _Theirs:
    """A sink of others, called on the loop on which it was made, for output that comes on another."""

    def __init__(self, sink: Callable[[str, bytes], None]) -> None:
        self._sink = sink
        self._loop = asyncio.get_running_loop()
        self._lock = threading.Lock()
        self._waiting: deque[tuple[str, bytes]] = deque()
        self._pending = self._dropped = 0
        self._error: Exception | None = None

    def __call__(self, stream: str, data: bytes) -> None:
        with self._lock:
            if self._error is not None or self._pending + len(data) > PENDING_LIMIT:
                self._dropped += len(data)
                return
            if self._dropped:
                mark = f"\n[… {self._dropped} bytes lost: on_output was too slow …]\n".encode()
                self._dropped = 0
                self._waiting.append((stream, mark))
                self._pending += len(mark)
            first = not self._waiting
            self._waiting.append((stream, data))
            self._pending += len(data)
        if first:
            try:
                self._loop.call_soon_threadsafe(self._deliver)
            except RuntimeError:
                pass  # their loop has ended, and with it whoever wanted this

    def _deliver(self) -> None:
        while True:
            with self._lock:
                if not self._waiting:
                    return
                stream, data = self._waiting.popleft()
                self._pending -= len(data)
            try:
                self._sink(stream, data)
            except Exception as e:
                with self._lock:
                    self._error = self._error or e
                    self._waiting.clear()
                    self._pending = 0
                return

    def close(self) -> None:
        """Deliver what is still on its way, on their loop. Raises what their sink raised."""
        self._deliver()
        if self._error is not None:
            raise self._error


def carried_sinks(
    args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any], list[_Theirs]]:
    """The arguments of a call, with the functions among them replaced by ones that may be called on another loop."""
    made: list[_Theirs] = []

    def carried(value: Any) -> Any:
        if isinstance(value, Sink | type) or not callable(value):
            return value
        made.append(_Theirs(value))
        return made[-1]

    return tuple(map(carried, args)), {name: carried(value) for name, value in kwargs.items()}, made
