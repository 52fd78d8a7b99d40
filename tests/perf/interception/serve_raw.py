"""The limit: a bare relay of bytes over asyncio protocols. Arguments and output as `serve_ours`.

With `--parse` it also reads every request, answer and chunk and keeps them: the least a recording relay does.
"""

from __future__ import annotations

import asyncio
import json
import resource
import signal
import sys
from typing import Any

from pydantic_core import from_json

PARSE = "--parse" in sys.argv
UPSTREAM = sys.argv[1].split("://", 1)[1].split("/", 1)[0].partition(":")
kept: list[Any] = []
idle: list[Up] = []
turns = 0


def usage() -> dict[str, float]:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return {"cpu_s": used.ru_utime + used.ru_stime, "peak_mb": used.ru_maxrss / 1024}


def body_size(head: bytes) -> int | None:
    """The content length that a head announces."""
    lower = head.lower()
    at = lower.find(b"content-length:")
    return int(lower[at + 15 :].split(b"\r\n")[0]) if at >= 0 else None


class Up(asyncio.Protocol):
    """A connection to the provider."""

    down: Down | None = None

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        if self.down is not None:
            self.down.relay(data)

    def connection_lost(self, exc: Exception | None) -> None:
        if self in idle:
            idle.remove(self)


class Down(asyncio.Protocol):
    """A connection of a client."""

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        self.request = bytearray()
        self.answer = bytearray()
        self.up: Up | None = None

    def data_received(self, data: bytes) -> None:
        self.request += data
        end = self.request.find(b"\r\n\r\n")
        if end < 0 or self.up is not None:
            return
        whole = end + 4 + (body_size(bytes(self.request[:end])) or 0)
        if len(self.request) < whole:
            return
        message = bytes(self.request[:whole])
        del self.request[:whole]
        if PARSE:
            kept.append(from_json(message[end + 4 :]))
        self.head_end = 0
        self.answer.clear()
        if idle:
            self.send(idle.pop(), message)
        else:
            self.task = asyncio.get_running_loop().create_task(self.connect(message))

    async def connect(self, message: bytes) -> None:
        loop = asyncio.get_running_loop()
        _, up = await loop.create_connection(Up, UPSTREAM[0], int(UPSTREAM[2]))
        self.send(up, message)

    def send(self, up: Up, message: bytes) -> None:
        self.up, up.down = up, self
        up.transport.write(message)

    def relay(self, data: bytes) -> None:
        self.transport.write(data)
        self.answer += data
        if not self.head_end:
            end = self.answer.find(b"\r\n\r\n")
            if end < 0:
                return
            self.head_end = end + 4
            self.size = body_size(bytes(self.answer[:end]))
        if self.size is not None:
            over = len(self.answer) >= self.head_end + self.size
        else:
            over = self.answer.endswith(b"\r\n0\r\n\r\n")
        if over:
            self.finish()

    def finish(self) -> None:
        global turns
        turns += 1
        if PARSE:
            body = bytes(self.answer[self.head_end :])
            lines = [body] if self.size is not None else body.split(b"\n")
            kept.extend(from_json(line.removeprefix(b"data: ")) for line in lines if b"{" in line)
        if self.up is not None:
            self.up.down = None
            idle.append(self.up)
            self.up = None
        self.data_received(b"")


async def main() -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(Down, "127.0.0.1", 0, backlog=4096)
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    base_url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
    secrets = [f"s{i}" for i in range(int(sys.argv[2]))]
    print(json.dumps({"base_url": base_url, "secrets": secrets, **usage()}), flush=True)
    await stop.wait()
    print(json.dumps({"turns": turns, **usage()}), flush=True)


if __name__ == "__main__":
    asyncio.run(main())
