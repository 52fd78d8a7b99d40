"""One request of a rollout's program to a tool server, and the answer to it.

What goes by is passed on as it is, and read only to tell what tools were called, where and for how long. An answer is
held until it is whole (of a stream: each event), so that what goes wrong is an answer too: the error that MCP has for
it, which a model gets to read. Nothing is asked twice here; whether to ask again is the program's to decide.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from vf_core.errors import ProviderError
from vf_core.interception.client import Call
from vf_core.interception.mcp_messages import (
    FINAL,
    MESSAGE_LIMIT,
    PASSING,
    WHOLE,
    EventCutter,
    Message,
    error,
    read,
)
from vf_core.interception.room import Hold
from vf_core.interception.stream_chat import event_data
from vf_core.interception.wire import JSON, Request, Responder

if TYPE_CHECKING:
    from vf_core.interception.tool_server import ToolDoor
    from vf_core.interception.tools import OpenCall

log = logging.getLogger(__name__)

TOOL_SECONDS = 600.0
"""How long a server may take to answer."""
_PASSED_ON = frozenset(
    (b"accept", b"last-event-id", b"user-agent", b"traceparent", b"tracestate", b"accept-language")
)
_RELAYED = frozenset((b"content-type", b"cache-control", b"retry-after", b"allow"))
_STREAM = b"text/event-stream"


class Ask:
    """A request that waits for its answer; `call` is the model's tool call that it carries out, if it is one."""

    __slots__ = ("call", "message")

    def __init__(self, message: Message, call: OpenCall | None) -> None:
        self.message = message
        self.call = call


class Relay:
    """Carries one request. It is told what comes of it as a `Listener`."""

    def __init__(self, door: ToolDoor, request: Request, responder: Responder) -> None:
        self._door = door
        self._request = request
        self._responder = responder
        self._hold = request.hold or Hold(door.session.doors.room)
        self._asks: dict[str, Ask] = {}
        self._batch = False
        self._call: Call | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._clock = 0.0
        self._over = False
        self._status = 0
        self._headers: list[tuple[bytes, bytes]] = []
        self._parts: list[bytes] = []
        self._size = 0
        self._events: EventCutter | None = None
        self._resumable = False

    def start(self) -> None:
        """Send it."""
        request, self._responder.on_gone = self._request, self._gone
        if request.method == b"POST":
            self._read_request(request.body)
        self._clock = time.monotonic()
        headers = [(k, v) for k, v in request.headers if k in _PASSED_ON or k.startswith(b"mcp-")]
        self._call = self._door.upstream.send(request.method, "", headers, request.body, self)
        request.body = b""
        if request.method != b"GET":
            self._timer = asyncio.get_running_loop().call_later(TOOL_SECONDS, self._late)

    def cancel(self) -> None:
        """The rollout is over, or the server is taken away: end it at once, on both sides."""
        if self._end():
            self._responder.abort()

    def _read_request(self, body: bytes) -> None:
        self._batch = body.lstrip()[:1] == b"["
        watch = self._door.session.tools
        for message in read(body):
            if message.method and message.id is not None:
                call = None
                if message.method == "tools/call":
                    call = watch.began(self._door.server.name, message.name, message.arguments)
                self._asks[message.key] = Ask(message, call)

    def _gone(self) -> None:
        """Nobody waits any more."""
        self._end()

    def _late(self) -> None:
        self._timer = None
        if self._asks or not self._responder.started:
            self._fail(FINAL, f"no answer within {TOOL_SECONDS:g} s", status=504)
        elif self._end():
            self._responder.finish()

    # Listener

    def on_response(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        self._guarded(self._response, status, headers)

    def on_data(self, data: bytes) -> None:
        self._guarded(self._data, data)

    def on_end(self) -> None:
        self._guarded(self._complete)

    def on_failure(self, error: ProviderError) -> None:
        server, address = self._door.server, self._door.upstream.address
        # Where nobody listens any more: a server that is this rollout's alone does not come back.
        gone = error.unreachable and error.status_code == 503 and server.own and not server.shared
        # Where it is, is not for the sandbox to know.
        told = error.message.removeprefix(f"{address}: ")
        if address in told:
            told = "it is gone" if gone else "it cannot be reached now"
        self._guarded(self._fail, FINAL if gone else PASSING, told, why=error.message)

    def _guarded(self, step: Callable[..., None], *args: Any, **more: Any) -> None:
        """A failure of ours ends this request and nothing else."""
        if self._over:
            return
        try:
            step(*args, **more)
        except Exception:
            log.exception("rollout %s: a tool call could not be carried", self._door.session.rollout)
            if self._end():
                self._responder.abort()

    def _response(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        redact = self._door.upstream.redact_bytes
        self._status = status
        self._headers = [
            (name, redact(value)) for name, value in headers if name in _RELAYED or name.startswith(b"mcp-")
        ]
        if 300 <= status < 400:
            self._fail(FINAL, f"it redirects (status {status}), which is not followed: set its own address")
            return
        kind = next((value for name, value in headers if name == b"content-type"), b"")
        if status == 200 and kind.strip().lower().startswith(_STREAM):
            self._events = EventCutter()
            self._responder.start(status, self._headers, b"")

    def _data(self, data: bytes) -> None:
        if not self._hold.add(len(data)):
            self._fail(PASSING, "too much is under way for this rollout", status=503)
        elif self._events is None:
            self._parts.append(data)
            self._size += len(data)
            if self._size > MESSAGE_LIMIT:
                self._too_large()
        else:
            self._stream(self._events, data)

    def _stream(self, cutter: EventCutter, data: bytes) -> None:
        events = cutter.feed(data)
        if cutter.size > MESSAGE_LIMIT or any(len(event) > MESSAGE_LIMIT for event in events):
            self._too_large()
            return
        if not events:
            return
        for event in events:
            self._read_answer(event_data(event))
            self._resumable = self._resumable or event.startswith(b"id:") or b"\nid:" in event[:200]
        self._responder.send(self._door.upstream.redact_bytes(b"".join(events)))
        # What is on its way is paid for until it is there; no more is read before that.
        sent = Hold(self._door.session.doors.room)
        self._hold.move(sum(map(len, events)), sent)
        if self._responder.flooded and self._call is not None:
            self._call.pause()
        self._responder.when_drained(lambda: self._sent(sent))

    def _sent(self, sent: Hold) -> None:
        sent.release()
        if not self._over and self._call is not None:
            self._call.resume()

    def _complete(self) -> None:
        if self._events is None:
            body, self._parts = b"".join(self._parts), []
            self._read_answer(body)
            body = self._door.upstream.redact_bytes(body)
            hold, self._hold = self._hold, Hold(self._door.session.doors.room)
            if self._end():
                self._responder.respond(self._status, self._headers, body)
            self._responder.when_drained(hold.release)
            return
        rest = self._events.rest()
        self._read_answer(event_data(rest))
        if self._asks and not self._resumable:
            self._fail(PASSING, "it closed the connection before it answered")
        elif self._end():
            self._responder.finish(self._door.upstream.redact_bytes(rest))

    # What it says

    def _read_answer(self, data: bytes) -> None:
        """Take note of the answers in `data`."""
        if not data or not self._asks:
            return
        # A large one does not tell reliably whose it is; where only one request waits there is no doubt.
        only = next(iter(self._asks)) if len(data) > WHOLE and len(self._asks) == 1 else None
        for message in read(data):
            ask = None if message.method else self._asks.pop(only or message.key, None)
            if ask is not None:
                self._answered(ask, message)

    def _answered(self, ask: Ask, answer: Message) -> None:
        if ask.message.method == "tools/list" and not answer.failed:
            self._door.listed(answer.tools, more=ask.message.more)
        elif ask.call is not None:
            ask.call.ended(time.monotonic() - self._clock, failed=answer.failed)

    # The end

    def _too_large(self) -> None:
        self._fail(FINAL, f"its answer is larger than {MESSAGE_LIMIT >> 20} MiB")

    def _fail(self, code: int, what: str, *, status: int = 502, why: str = "") -> None:
        """Answer with an error that says which server it was and `what` it did; `why` is for the log."""
        door, responder = self._door, self._responder
        door.failed(door.upstream.redact(why or what))
        text = door.upstream.redact(f"tool server {door.label}: {what}")
        ids = [ask.message.id for ask in self._asks.values()]
        batch, stream = self._batch, self._events is not None
        if not self._end():
            return
        body = error(code, text, ids, batch=batch)
        if stream and not ids:
            responder.abort()
        elif stream:
            responder.finish(b"event: message\ndata: " + body + b"\n\n")
        else:
            responder.respond(200 if ids else status, JSON, body)

    def _end(self) -> bool:
        """Leave the door; whether it was not over yet."""
        if self._over:
            return False
        self._over = True
        if self._timer is not None:
            self._timer.cancel()
        if self._call is not None:
            self._call.cancel()
        self._responder.on_gone = None
        self._hold.release()
        self._parts = []
        for ask in self._asks.values():
            if ask.call is not None:
                ask.call.lost(time.monotonic() - self._clock)
        self._asks = {}
        self._door.ended(self)
        return True
