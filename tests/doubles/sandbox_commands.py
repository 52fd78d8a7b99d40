"""Commands for sandboxes, and what collects their output."""

from __future__ import annotations

import asyncio
import random


def long_sleep() -> str:
    """A command like no other process on the host."""
    return f"sleep 9{random.randrange(10**8):08}"


def sh(command: str) -> list[str]:
    return ["sh", "-c", command]


class Output:
    """Collects what is streamed."""

    def __init__(self) -> None:
        self.streams: dict[str, bytearray] = {"stdout": bytearray(), "stderr": bytearray()}
        self.chunks = 0
        self.came = asyncio.Event()

    def __call__(self, stream: str, data: bytes) -> None:
        self.streams[stream] += data
        self.chunks += 1
        self.came.set()
