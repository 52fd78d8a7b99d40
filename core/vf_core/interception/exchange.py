"""One model call: from the harness's request to the recorded turn, and to everyone who waits for the answer.

The turn is recorded before a client can see the end of the answer. A client that goes away does not end the call
at once: its retry, which comes within seconds, is answered by the same call. Only when nobody comes back is it
cancelled. What fails never looks like an end: before the first byte it is an error status, later the connection is
broken off.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from vf_core.errors import InterceptionError, ProviderError, RolloutError
from vf_core.events import types as ev
from vf_core.interception import dialect_chat as chat_dialect
from vf_core.interception.answers import Answer, operation_key
from vf_core.interception.client import Call
from vf_core.interception.dialect_chat import ChatRequest, Completion, Unusable
from vf_core.interception.stream_chat import ChatStream, Events, event_data
from vf_core.interception.upstream import Upstream
from vf_core.interception.wire import Headers, Refusal, Responder, error_body
from vf_core.text import bound
from vf_core.trace.graph import PendingTurn, prepare_turn
from vf_core.trace.nodes import Error, ModelCall
from vf_core.trace.timing import TimeSpan
from vf_core.trace.types import AssistantMessage, Usage

if TYPE_CHECKING:
    from vf_core.interception.session import Session

log = logging.getLogger(__name__)

ORPHAN_SECONDS = 30.0
"""How long a call goes on without anyone waiting for it: more than the longest pause of an SDK before a retry."""

_NOT_RELAYED = frozenset(
    b"connection keep-alive proxy-authenticate proxy-connection te trailer transfer-encoding upgrade "
    b"content-length set-cookie alt-svc strict-transport-security".split()
)


class Exchange:
    """A call of a session, waited for by any number of clients. It is told what comes of it as a `Listener`."""

    def __init__(
        self, session: Session, upstream: Upstream, chat: ChatRequest, digest: bytes, headers: Headers
    ) -> None:
        self.session = session
        self.chat = chat
        self.digest = digest
        self.number = -1
        self._upstream = upstream
        self._asked = headers
        self._clients: list[Responder] = []
        self._orphaned: asyncio.TimerHandle | None = None
        self._call: Call | None = None
        self._turn: PendingTurn | None = None
        self._started = 0.0
        self._clock = 0.0
        self._over = False
        self._status = 0
        self._headers: list[tuple[bytes, bytes]] = []
        self._parts: list[bytes] = []  # of a whole answer; of a stream, what was relayed
        self._held: list[bytes] = []
        self._events = Events()
        self._stream: ChatStream | None = None

    # Clients

    def join(self, responder: Responder) -> None:
        """Let another client wait for the answer; it gets what the others got so far."""
        if self._orphaned is not None:
            self._orphaned.cancel()
            self._orphaned = None
        self._clients.append(responder)
        responder.on_gone = lambda: self._gone(responder)
        if self._stream is not None and self._parts:
            responder.start(self._status, self._headers, b"".join(self._parts))

    def _gone(self, responder: Responder) -> None:
        self._clients.remove(responder)
        if not self._clients and not self._over:
            self._orphaned = asyncio.get_running_loop().call_later(
                ORPHAN_SECONDS, self.cancel, "the client went away and did not ask again"
            )

    # The call

    def start(self) -> None:
        """Send it."""
        self._guarded(self._start)

    def _start(self) -> None:
        session, chat = self.session, self.chat
        self.number = session.next_call()
        body = session.impose(chat)
        self._started = time.time()
        self._clock = time.monotonic()
        # The rest is done while the provider works: nothing of its answer is heard before this returns.
        self._call = self._upstream.post(chat_dialect.PATH, self._asked, body, self)
        chat.raw = b""
        session.tell_results(chat)
        session.emit(
            ev.ModelCallStarted(
                rollout=session.rollout, attempt=session.attempt, call=self.number, stream=chat.stream
            )
        )
        self._turn = prepare_turn(session.trace, chat.messages)

    def refuse(self, refusal: Refusal) -> None:
        """Answer without asking the provider."""
        clients = self._end(None)
        for client in clients:
            refusal.answer(client)

    def cancel(self, why: str) -> None:
        """End it at once, upstream too; the call is recorded as failed."""
        if self._over:
            return
        if self._call is not None:
            self._call.cancel()
            usage = self._stream.usage if self._stream is not None else None
            cut = None if self._clients else self.session.cut
            why = why if cut is None else str(cut)
            kind = "CancelledError" if cut is None else type(cut).__name__
            self._record(error=Error(type=kind, message=why), usage=usage)
            self._tell_finished(usage, error=why)
        for client in self._end(None):
            client.abort()

    # Listener

    def on_response(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        self._guarded(self._response, status, headers)

    def on_data(self, data: bytes) -> None:
        self._guarded(self._data, data)

    def on_end(self) -> None:
        self._guarded(self._complete)

    def on_failure(self, error: ProviderError) -> None:
        self._guarded(self._fail, error)

    def _guarded(self, step: Callable[..., None], *args: Any) -> None:
        """A failure of ours, or an answer that can't be used, ends this call and nothing else."""
        if self._over:
            return
        try:
            try:
                step(*args)
            except Unusable as e:
                self._fail(e.error, e.usage)
        except Exception as e:
            self._break(e)
        self._let_go()

    def _break(self, cause: Exception) -> None:
        """Something here is wrong: say so wherever that still works, and let nobody wait."""
        log.error(
            "rollout %s: call %d could not be handled", self.session.rollout, self.number, exc_info=cause
        )
        try:
            self._fail(InterceptionError(f"the call could not be handled: {type(cause).__name__}: {cause}"))
        except Exception:
            log.exception("rollout %s: nor could its failure be told", self.session.rollout)
            for client in self._end(None):
                client.abort()

    def _let_go(self) -> None:
        """After the end: a call that is not at its own end yet is left to reach it, or cut off."""
        if self._over and self._call is not None:
            if self._stream is not None and self._stream.ended:
                self._call.leave()
            else:
                self._call.cancel()

    def _response(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        self._status = status
        redact = self._upstream.redact_bytes
        self._headers = [(name, redact(value)) for name, value in headers if name not in _NOT_RELAYED]
        kind = next((value for name, value in headers if name == b"content-type"), b"")
        # An error that came instead of a stream is read whole.
        if self.chat.stream and status == 200 and not kind.strip().lower().startswith(b"application/json"):
            self._stream = ChatStream()

    def _data(self, data: bytes) -> None:
        if self._stream is None:
            self._parts.append(data)
        else:
            self._relay(self._stream, self._events.feed(data))

    def _relay(self, stream: ChatStream, events: list[bytes]) -> None:
        """Pass events on; from the one that ends the answer, hold them back."""
        stream.live = self.session.emit_live
        ready: list[bytes] = []
        try:
            for event in events:
                if stream.ended or stream.feed(event_data(event)) or self._held:
                    self._held.append(event)
                elif self._parts:
                    ready.append(event)
                else:
                    # Reading all that came with the first event would delay it.
                    self._send(event)
        finally:
            if ready:
                self._send(ready[0] if len(ready) == 1 else b"".join(ready))
        if stream.live:
            self._tell_deltas(stream)
        if stream.ended:
            self._succeed(stream.completion())

    def _send(self, data: bytes) -> None:
        self._parts.append(data)
        for client in tuple(self._clients):
            if client.started:
                client.send(data)
            else:
                client.start(self._status, self._headers, data)

    def _complete(self) -> None:
        """The provider's answer has ended."""
        if self._stream is not None:
            if rest := self._events.rest():
                self._relay(self._stream, [rest])
            if not self._over:
                self._succeed(self._stream.completion())  # raises: there was no end mark
            return
        body = b"".join(self._parts)
        if self._status >= 400:
            self._fail(chat_dialect.status_error(self._status, body), relay=body)
        elif not 200 <= self._status < 300:
            raise Unusable(
                ProviderError(f"the provider answered with status {self._status}; check client.base_url")
            )
        else:
            completion = chat_dialect.parse_completion(body)
            if self.chat.stream:
                raise Unusable(ProviderError("a stream was asked for, a whole answer came"), completion.usage)
            self._succeed(completion)

    # The end

    def _succeed(self, completion: Completion) -> None:
        """Record the turn, then let the clients see the end."""
        session = self.session
        if self._turn is None:
            raise InterceptionError("an answer came before the request")
        node = self._turn.commit(completion.message, tools=self.chat.tools)
        self._record(node=node, usage=completion.usage, finish_reason=completion.finish_reason)
        session.error = None
        reply = session.trace.nodes[node].message
        if isinstance(reply, AssistantMessage):
            self._tell_finished(completion.usage, completion.finish_reason or "", reply.content or "")
            for called in session.tools.called(
                session.rollout, session.attempt, self.number, reply.tool_calls or ()
            ):
                session.emit(called)
        streamed = self._stream is not None
        end = b"".join(self._held)
        answer = Answer(
            self._status,
            self._headers,
            b"".join((*self._parts, end)),
            streamed,
            bool(self._clients),
            operation_key(self._asked),
        )
        for client in self._end(answer):
            if not streamed:
                client.respond(answer.status, answer.headers, answer.body)
            elif client.started:
                client.finish(end)
            else:
                answer.replay(client)

    def _fail(self, error: RolloutError, usage: Usage | None = None, relay: bytes | None = None) -> None:
        """Record the failure and show it: `relay` is the provider's own error body."""
        session = self.session
        error.message = self._upstream.redact(error.message)
        if self._stream is not None and usage is None:
            usage = self._stream.usage
        self._record(error=Error.of(error), usage=usage)
        session.error = error
        self._tell_finished(usage, error=str(error), status=getattr(error, "status_code", None))
        session.emit(session.error_event(error))
        if relay is not None and relay.strip():
            status, headers, body = self._status, self._headers, self._upstream.redact_bytes(relay)
        else:
            status = error.status_code if isinstance(error, ProviderError) else 500
            headers = [(name, value) for name, value in self._headers if name != b"content-type"]
            headers.append((b"content-type", b"application/json"))
            if status == 500:
                headers.append((b"x-should-retry", b"false"))
            body = error_body(str(error), "upstream_error")
        for client in self._end(None):
            if client.started:
                client.abort()
            else:
                client.respond(status, headers, body)

    def _end(self, answer: Answer | None) -> list[Responder]:
        """Leave the session; the clients that still wait."""
        self._over = True
        if self._orphaned is not None:
            self._orphaned.cancel()
        self.session.ended(self, answer)
        clients, self._clients = self._clients, []
        for client in clients:
            client.on_gone = None
        self._parts, self._held = [], []
        return clients

    def _record(
        self,
        *,
        node: int | None = None,
        usage: Usage | None = None,
        finish_reason: str | None = None,
        error: Error | None = None,
    ) -> None:
        body = self.chat.body
        self.session.trace.record_call(
            ModelCall(
                node=node,
                model=self.session.model,
                sampling=self.session.sampling_config(chat_dialect.sampling_of(body)),
                endpoint=chat_dialect.PATH,
                finish_reason=finish_reason,
                usage=usage,
                time=TimeSpan(start=self._started, end=max(time.time(), self._started)),
                error=error,
            )
        )

    def _tell_finished(
        self,
        usage: Usage | None,
        finish: str = "",
        text: str = "",
        error: str = "",
        status: int | None = None,
    ) -> None:
        self.session.emit(
            ev.ModelCallFinished(
                rollout=self.session.rollout,
                attempt=self.session.attempt,
                call=self.number,
                seconds=time.monotonic() - self._clock,
                finish_reason=finish[:64],
                prompt_tokens=usage.prompt_tokens if usage is not None else None,
                cached_tokens=usage.cached_input_tokens if usage is not None else None,
                completion_tokens=usage.completion_tokens if usage is not None else None,
                cost=usage.cost if usage is not None else None,
                text=bound(text, ev.MESSAGE_LIMIT),
                error=bound(error, ev.MESSAGE_LIMIT),
                status_code=status,
            )
        )

    def _tell_deltas(self, stream: ChatStream) -> None:
        session = self.session
        texts, tools = stream.deltas()
        for reasoning, text in texts:
            session.emit(
                ev.TextDelta(
                    rollout=session.rollout,
                    attempt=session.attempt,
                    call=self.number,
                    text=text[-ev.MESSAGE_LIMIT :],
                    reasoning=reasoning,
                )
            )
        for index, ident, name, arguments in tools:
            session.emit(
                ev.ToolDelta(
                    rollout=session.rollout,
                    attempt=session.attempt,
                    call=self.number,
                    index=index,
                    id=ident,
                    name=name,
                    arguments=bound(arguments, ev.ARGUMENTS_LIMIT),
                )
            )
