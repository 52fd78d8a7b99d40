"""A deterministic provider for benchmarks: chat completions over a bare asyncio protocol, as cheap as can be.

Stateless: each reply follows from the request's body. What it does is said in the model's name,
`scripted-t<T>-k<K>-d<D>-l<L>`: T tool-call turns before the last message (where a `bash` tool is offered), K tokens
a message, D microseconds between tokens (a whole answer waits K times that), L milliseconds before the first byte.
Prints `{"base_url", "pid"}` when it is ready.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
from typing import Any, NamedTuple

from pydantic_core import from_json, to_json

CREATED = 1_700_000_000
_OPTION = re.compile(r"-([tkdl])(\d+)")
_STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\n"
    b"Cache-Control: no-cache\r\nTransfer-Encoding: chunked\r\n\r\n"
)


class Options(NamedTuple):
    """What a model's name asks for; delays in seconds."""

    turns: int = 0
    tokens: int = 16
    delay: float = 0.0
    latency: float = 0.0


class Reply(NamedTuple):
    """What is said: a tool call, or tokens of text."""

    call: dict[str, Any] | None
    tokens: list[str]
    usage: dict[str, Any]


def options(model: str, known: dict[str, Options] = {}) -> Options:  # noqa: B006
    """The options in a model's name."""
    if model not in known:
        said = {key: int(value) for key, value in _OPTION.findall(model)}
        known[model] = Options(
            said.get("t", 0), said.get("k", 16), said.get("d", 0) / 1e6, said.get("l", 0) / 1e3
        )
    return known[model]


def reply_to(body: dict[str, Any], wanted: Options) -> Reply:
    """The reply to a request."""
    messages = body["messages"]
    done = sum(message["role"] == "tool" for message in messages)
    prompt = sum(len(m.get("content") or "") for m in messages) // 4 + 3 * len(messages)
    usage = {
        "prompt_tokens": prompt,
        "completion_tokens": wanted.tokens,
        "total_tokens": prompt + wanted.tokens,
        "prompt_tokens_details": {"cached_tokens": 0},
        "completion_tokens_details": {"reasoning_tokens": 0},
    }
    if body.get("tools") and done < wanted.turns:
        arguments = json.dumps({"command": f"echo turn-{done}"})
        call = {
            "id": f"call_{done}",
            "type": "function",
            "function": {"name": "bash", "arguments": arguments},
        }
        return Reply(call, [], usage)
    return Reply(None, ["done", *(f" tok{i}" for i in range(wanted.tokens - 1))], usage)


class Provider(asyncio.Protocol):
    """One connection: requests one after the other."""

    served = 0

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        self.buffer = bytearray()
        self.busy = False

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        while not self.busy:
            end = self.buffer.find(b"\r\n\r\n")
            if end < 0:
                return
            head = bytes(self.buffer[:end]).lower()
            at = head.find(b"content-length:")
            size = int(head[at + 15 :].split(b"\r\n", 1)[0]) if at >= 0 else 0
            if len(self.buffer) < end + 4 + size:
                return
            payload = bytes(self.buffer[end + 4 : end + 4 + size])
            del self.buffer[: end + 4 + size]
            self.handle(from_json(payload))

    def handle(self, body: dict[str, Any]) -> None:
        """Answer one request."""
        Provider.served += 1
        wanted = options(body["model"])
        reply = reply_to(body, wanted)
        ident = f"chatcmpl-{Provider.served:08d}"
        if body.get("stream"):
            self.busy = True
            self.task = asyncio.get_running_loop().create_task(self.stream(ident, body, reply, wanted))
            return
        message = {"role": "assistant", "content": None if reply.call else "".join(reply.tokens)}
        if reply.call:
            message["tool_calls"] = [reply.call]  # type: ignore[assignment]
        finish = "tool_calls" if reply.call else "stop"
        choice = {"index": 0, "message": message, "finish_reason": finish, "logprobs": None}
        whole = {"id": ident, "object": "chat.completion", "created": CREATED, "model": body["model"]}
        data = to_json({**whole, "choices": [choice], "usage": reply.usage})
        wait = wanted.latency + wanted.delay * wanted.tokens
        if wait:
            self.busy = True
            asyncio.get_running_loop().call_later(wait, self.whole, data)
        else:
            self.whole(data)

    def whole(self, data: bytes) -> None:
        """Send a whole answer."""
        head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
        self.transport.write(head % len(data) + data)
        if self.busy:
            self.busy = False
            self.data_received(b"")

    async def stream(self, ident: str, body: dict[str, Any], reply: Reply, wanted: Options) -> None:
        """Send an answer token by token."""
        base = {"id": ident, "object": "chat.completion.chunk", "created": CREATED, "model": body["model"]}

        def chunk(delta: dict[str, Any], finish: str | None = None) -> None:
            choice = {"index": 0, "delta": delta, "finish_reason": finish, "logprobs": None}
            self.event(to_json({**base, "choices": [choice], "usage": None}))

        if wanted.latency:
            await asyncio.sleep(wanted.latency)
        self.transport.write(_STREAM_HEAD)
        chunk({"role": "assistant", "content": None if reply.call else ""})
        for delta in deltas(reply):
            if wanted.delay:
                await asyncio.sleep(wanted.delay)
            chunk(delta)
        chunk({}, "tool_calls" if reply.call else "stop")
        self.event(to_json({**base, "choices": [], "usage": reply.usage}))
        self.event(b"[DONE]")
        self.transport.write(b"0\r\n\r\n")
        self.busy = False
        if not self.transport.is_closing():
            self.data_received(b"")

    def event(self, data: bytes) -> None:
        """Send one event, in an HTTP chunk and a write of its own."""
        self.transport.write(b"%x\r\ndata: %b\n\n\r\n" % (len(data) + 8, data))


def deltas(reply: Reply) -> list[dict[str, Any]]:
    """What a streamed reply says, piece by piece."""
    if reply.call is None:
        return [{"content": token} for token in reply.tokens]
    function = reply.call["function"]
    first = {**reply.call, "index": 0, "function": {"name": function["name"], "arguments": ""}}
    text = function["arguments"]
    pieces = ({"arguments": text[i : i + 8]} for i in range(0, len(text), 8))
    return [{"tool_calls": [first]}, *({"tool_calls": [{"index": 0, "function": p}]} for p in pieces)]


async def main() -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(Provider, "127.0.0.1", 0, backlog=4096)
    port = server.sockets[0].getsockname()[1]
    print(json.dumps({"base_url": f"http://127.0.0.1:{port}/v1", "pid": os.getpid()}), flush=True)
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    await stop.wait()


if __name__ == "__main__":
    asyncio.run(main())
