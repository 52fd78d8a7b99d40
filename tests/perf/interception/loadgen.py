"""Closed-loop load that behaves like agents: each client plays conversations of growing turns over keep-alive
connections, one rollout secret after the other. It costs the same whatever it is pointed at.

Prints one JSON object: requests, rates and latencies in milliseconds.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

from model_server import options
from pydantic_core import to_json

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "bash",
            "description": "Run a bash command and return its combined stdout and stderr.",
            "parameters": {
                "type": "object",
                "properties": {"command": {"type": "string", "description": "The bash command to run."}},
                "required": ["command"],
            },
        },
    }
]


class Connection(asyncio.Protocol):
    """A client's connection: one request at a time, timed to its first event and to its end."""

    def __init__(self) -> None:
        self.buffer = bytearray()
        self.waiting: asyncio.Future[None] | None = None

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        if self.waiting is not None and not self.waiting.done():
            self.waiting.set_exception(exc or ConnectionResetError("closed"))

    async def request(self, head: bytes, body: bytes) -> tuple[float, float, int]:
        """Seconds to the end and to the first event, and how many events came."""
        self.waiting = asyncio.get_running_loop().create_future()
        self.buffer.clear()
        self.length: int | None = None
        self.in_head = True
        self.first = 0.0
        self.events = 0
        begun = time.perf_counter()
        self.transport.write(head % len(body) + body)
        await self.waiting
        end = time.perf_counter()
        return end - begun, (self.first or end) - begun, self.events

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        if self.in_head and not self.read_head():
            return
        if self.length is not None:
            if len(self.buffer) >= self.length:
                self.finish()
            return
        while (end := self.buffer.find(b"\r\n")) >= 0:
            size = int(self.buffer[:end], 16)
            if len(self.buffer) < end + size + 4:
                return
            if size == 0:
                self.finish()
                return
            self.events += self.buffer.count(b"data:", end, end + size)
            if self.events and not self.first:
                self.first = time.perf_counter()
            del self.buffer[: end + size + 4]

    def read_head(self) -> bool:
        end = self.buffer.find(b"\r\n\r\n")
        if end < 0:
            return False
        head = bytes(self.buffer[:end]).lower()
        del self.buffer[: end + 4]
        if not head.startswith(b"http/1.1 200"):
            sys.exit(f"refused: {head!r} {bytes(self.buffer[:300])!r}")
        at = head.find(b"content-length:")
        self.length = int(head[at + 15 :].split(b"\r\n")[0]) if at >= 0 else None
        self.in_head = False
        return True

    def finish(self) -> None:
        if self.waiting is not None and not self.waiting.done():
            self.waiting.set_result(None)


async def agent(
    args: argparse.Namespace, number: int, secrets: list[str], clock: Any, out: list[Any]
) -> None:
    """One client: conversation after conversation until the time is over (or the secrets are)."""
    loop = asyncio.get_running_loop()
    address = args.base_url.split("://", 1)[1]
    host, _, rest = address.partition(":")
    port, _, path = rest.partition("/")
    while time.perf_counter() < clock[1] and (secrets or not args.secrets):
        secret = secrets.pop() if secrets else "none"
        _, connection = await loop.create_connection(Connection, host, int(port))
        head = (
            f"POST /{path}/chat/completions HTTP/1.1\r\nHost: {host}:{port}\r\nAuthorization: Bearer {secret}\r\n"
            "Content-Type: application/json\r\nAccept: */*\r\nUser-Agent: bench\r\nContent-Length: "
        ).encode() + b"%d\r\n\r\n"
        messages: list[dict[str, Any]] = [
            {"role": "system", "content": "You are a coding agent. You have access to a bash tool."},
            {"role": "user", "content": f"client {number} {secret} " + "x" * args.pad},
        ]
        for turn in range(args.turns):
            body: dict[str, Any] = {"model": args.model, "messages": messages, "tools": TOOLS}
            if args.stream:
                body |= {"stream": True, "stream_options": {"include_usage": True}}
            taken = await connection.request(head, to_json(body))
            if clock[0] <= time.perf_counter() <= clock[1]:
                out.append(taken)
            elif time.perf_counter() > clock[1]:
                break
            messages += said(turn, args)
        connection.transport.close()


def said(turn: int, args: argparse.Namespace) -> list[dict[str, Any]]:
    """What a turn adds to the conversation: the model server's reply, word for word, and the answer to it."""
    if "-t0-" in args.model:
        text = "".join(["done", *(f" tok{i}" for i in range(options(args.model).tokens - 1))])
        return [{"role": "assistant", "content": text}, {"role": "user", "content": f"go on, turn {turn}"}]
    function = {"name": "bash", "arguments": f'{{"command": "echo turn-{turn}"}}'}
    call = {"id": f"call_{turn}", "type": "function", "function": function}
    return [
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": f"call_{turn}", "content": f"turn-{turn}\n"},
    ]


async def main(args: argparse.Namespace) -> None:
    secrets = json.loads(Path(args.secrets).read_text()) if args.secrets else []
    begun = time.perf_counter() + args.warmup
    clock = (begun, begun + args.seconds)
    out: list[tuple[float, float, int]] = []
    await asyncio.gather(*(agent(args, i, secrets, clock, out) for i in range(args.clients)))
    whole = sorted(taken[0] * 1e3 for taken in out)
    first = sorted(taken[1] * 1e3 for taken in out)
    result = {
        "requests": len(out),
        "per_second": len(out) / args.seconds,
        "p50_ms": statistics.median(whole),
        "p99_ms": whole[int(len(whole) * 0.99)],
        "first_p50_ms": statistics.median(first),
        "events": sum(taken[2] for taken in out),
        "ran_out": bool(args.secrets) and not secrets,
    }
    print(json.dumps(result))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--base-url", required=True)
    parser.add_argument("--secrets", default="", help="a JSON file with a list of them")
    parser.add_argument("--clients", type=int, default=1)
    parser.add_argument("--turns", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=3)
    parser.add_argument("--warmup", type=float, default=0.5)
    parser.add_argument("--stream", action="store_true")
    parser.add_argument("--model", default="scripted-t999-k16")
    parser.add_argument("--pad", type=int, default=200)
    asyncio.run(main(parser.parse_args()))
