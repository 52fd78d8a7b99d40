"""A rollout's side of the interception: what it may still ask, what it is waiting for, what it was answered."""

from __future__ import annotations

import asyncio
import inspect
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from pydantic import ValidationError

from vf_core.errors import InterceptionError, RolloutError, TaskError, TunnelError
from vf_core.events import types as ev
from vf_core.interception.answers import Answer, Answers
from vf_core.interception.channel import STATE_PATH, Channel
from vf_core.interception.dialect_chat import ChatRequest, impose
from vf_core.interception.exchange import Exchange
from vf_core.interception.room import Room
from vf_core.interception.tool_server import FREE_ROOM, SESSION_ROOM, TOOLS, ToolDoors, ToolServer
from vf_core.interception.tools import ToolWatch
from vf_core.interception.upstream import Upstream
from vf_core.interception.wire import Headers, Refusal, Responder
from vf_core.trace.record import Trace
from vf_core.trace.types import SamplingConfig

log = logging.getLogger(__name__)

Stop = Callable[[Trace[Any, Any]], Awaitable[bool] | bool]
"""A `@stop` hook with its arguments bound but the trace; its `__name__` becomes the stop condition."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What a rollout may use; None: no limit. Checked before each turn, so the turn that crosses one is whole."""

    max_turns: int | None = None
    max_input_tokens: int | None = None
    max_output_tokens: int | None = None
    max_total_tokens: int | None = None

    def reached(self, trace: Trace[Any, Any], under_way: int = 0) -> str | None:
        """The name of the first limit that `trace` has reached; `under_way` are turns not yet recorded."""
        if self.max_turns is not None and trace.num_turns + under_way >= self.max_turns:
            return "max_turns"
        for name, used in (
            ("max_input_tokens", "num_input_tokens"),
            ("max_output_tokens", "num_output_tokens"),
            ("max_total_tokens", "num_total_tokens"),
        ):
            limit: int | None = getattr(self, name)
            if limit is not None and getattr(trace, used) >= limit:
                return name
        return None


class Session:
    """One attempt of one rollout, registered with a server under a secret.

    `error` is the latest model call's failure while no later call succeeded: the harness only saw an HTTP error.
    `refused` is the name of the limit or `@stop` hook that ended the run, else None. `emit_live` says that somebody
    watches: token deltas are emitted only then. Without `hosted_tools` the provider's own tools (web search, …) are
    taken out of requests: for a sandbox that must not reach the network. `heard` is when the harness asked last
    (monotonic), `cut` what stands between it and here while it waits. `task` is the row that tool servers of ours are
    told (None: the trace's).
    """

    def __init__(
        self,
        rollout: str,
        attempt: int,
        trace: Trace[Any, Any],
        *,
        model: str,
        sampling: SamplingConfig | None = None,
        limits: Limits | None = None,
        stops: Sequence[Stop] = (),
        emit: Callable[[ev.Event], None] | None = None,
        emit_live: bool = False,
        hosted_tools: bool = True,
        task: Any = None,
    ) -> None:
        self.rollout = rollout
        self.attempt = attempt
        self.trace = trace
        self.model = model
        self.owned: Mapping[str, Any] = {
            **(sampling.model_dump(exclude_none=True) if sampling is not None else {}),
            "model": model,
        }
        self.limits = limits or Limits()
        self.stops = tuple(stops)
        self.emit = emit or _ignore
        self.emit_live = emit_live
        self.hosted_tools = hosted_tools
        self.secret = self.tool_secret = self.channel_secret = ""
        self.house: Room | None = None
        self._task = task
        self.error: RolloutError | None = None
        self.refused: str | None = None
        self.closed = False
        self.cut: TunnelError | None = None
        self.heard = time.monotonic()
        self.tools = ToolWatch()
        self._calls = 0
        self._under_way: dict[bytes, Exchange] = {}
        self._answers = Answers()
        self._checks: set[asyncio.Task[None]] = set()
        self._sampling: tuple[dict[str, Any], SamplingConfig | None] = ({}, None)
        self._told_stripped: set[str] = set()

    def close(self) -> None:
        """The rollout is over: its secret is void, what it was waiting for is cancelled upstream at once."""
        if self.closed:
            return
        self.closed = True
        for check in tuple(self._checks):
            check.cancel()
        for exchange in tuple(self._under_way.values()):
            exchange.cancel("the rollout was stopped")
        self._answers.clear()
        self.remove_tools()

    # Tool servers

    def add_tools(self, server: ToolServer) -> str:
        """Let the rollout's program reach `server`: the path for it below this server's root, void when the session
        closes. Raises `InterceptionError` before it is registered and after it is closed."""
        if not self.tool_secret or self.closed:
            raise InterceptionError(f"rollout {self.rollout}: tools were added before or after its session")
        return f"{TOOLS}{self.tool_secret}/{self.doors.add(server)}/mcp"

    def remove_tools(self) -> None:
        """Take all of them away again; calls under way are cancelled."""
        if "doors" in self.__dict__:
            self.doors.close()

    # Made when first asked for: most of a run's sessions need neither, and each object costs the collector.

    @cached_property
    def doors(self) -> ToolDoors:
        """The rollout's tool servers; what goes through them is held in a part of the `house`."""
        return ToolDoors(self, Room(SESSION_ROOM, self.house, free=FREE_ROOM))

    @cached_property
    def shared_state(self) -> Channel:
        """What answers tool servers of ours."""
        return Channel(self, self._task)

    @property
    def channel(self) -> tuple[str, str]:
        """For tool servers of ours: the path of the rollout's state below this server's root (its task stands beside
        it, `/rollout/task`) and the bearer secret for both."""
        return STATE_PATH, self.channel_secret

    def cut_off(self, error: TunnelError) -> None:
        """The way between the harness and here is gone: what is being asked can't be delivered now. A call goes on
        as after any client's going away: the harness may come back."""
        if self._under_way:
            self.cut = error
            self.emit(self.error_event(error))

    def ask(
        self, chat: ChatRequest, digest: bytes, headers: Headers, responder: Responder, upstream: Upstream
    ) -> None:
        """Answer one request: from the call that is computing it, from a recorded answer, or from the provider.

        `digest` is that of its bytes. Raises `Refusal`.
        """
        self.cut = None
        self.heard = time.monotonic()
        waiting = self._under_way.get(digest)
        if waiting is not None:
            waiting.join(responder)
            return
        answer = self._answers.find(digest, headers)
        if answer is not None:
            answer.replay(responder)
            return
        self._check_limits(chat)
        exchange = Exchange(self, upstream, chat, digest, headers)
        exchange.join(responder)
        self._under_way[digest] = exchange
        if self.stops:
            check = asyncio.get_running_loop().create_task(self._check_stops(exchange))
            self._checks.add(check)
            check.add_done_callback(self._checks.discard)
        else:
            exchange.start()

    def _check_limits(self, chat: ChatRequest) -> None:
        if self.refused is None and (reached := self.limits.reached(self.trace, len(self._under_way))):
            self._stop(reached)
        if self.refused is not None:
            self.tell_results(chat)
            raise _stopped(self.refused)

    async def _check_stops(self, exchange: Exchange) -> None:
        """Ask the `@stop` hooks, then send the request or refuse it."""
        self.tell_results(exchange.chat)
        for stop in self.stops:
            name = getattr(stop, "__name__", type(stop).__name__)
            try:
                found = stop(self.trace)
                if inspect.isawaitable(found):
                    found = await found
            except Exception as e:
                log.warning("rollout %s: @stop %s failed", self.rollout, name, exc_info=True)
                error = TaskError(f"@stop {name}: {type(e).__name__}: {e}")
                self.error = error
                self.emit(self.error_event(error))
                exchange.refuse(Refusal(400, str(error), kind="task_error"))
                return
            if found and not self.closed:
                self._stop(name)
                exchange.refuse(_stopped(name))
                return
        exchange.start()

    def _stop(self, name: str) -> None:
        self.refused = name
        self.trace.stop(name)

    def _tell_stripped(self, names: Sequence[str]) -> None:
        """Say, once for each, which provider-side tools the rollout had to do without."""
        new = [name for name in names if name not in self._told_stripped]
        if not new:
            return
        self._told_stripped.update(new)
        self.trace.extra.setdefault("stripped_tools", []).extend(new)
        text = f"provider-side tools were taken out of the request: {', '.join(new)} (the sandbox has no network)"
        self.emit(ev.Log(level="warning", message=text, rollout=self.rollout))

    # For the exchanges

    def next_call(self) -> int:
        """The number of the next call, from 0."""
        self._calls += 1
        return self._calls - 1

    def tell_results(self, chat: ChatRequest) -> None:
        """Say what tools returned, once: a request brings it."""
        for event in self.tools.returned(self.rollout, self.attempt, chat.messages):
            self.emit(event)

    def impose(self, chat: ChatRequest) -> bytes:
        """The bytes to send for `chat`: what the run owns is put over it."""
        body, stripped = impose(chat, self.owned, hosted_tools=self.hosted_tools)
        if stripped:
            self._tell_stripped(stripped)
        return body

    def ended(self, exchange: Exchange, answer: Answer | None) -> None:
        """`exchange` is over; `answer` is what a retry of its request is to be told (None: ask again)."""
        if self._under_way.get(exchange.digest) is exchange:
            del self._under_way[exchange.digest]
        if answer is not None and not self.closed:
            self._answers.keep(exchange.digest, answer)

    def sampling_config(self, settings: dict[str, Any]) -> SamplingConfig | None:
        """`settings` as recorded with a call; None for what no config holds."""
        if settings != self._sampling[0] or not settings:
            try:
                self._sampling = settings, SamplingConfig.model_validate(settings)
            except ValidationError:
                self._sampling = settings, None
        return self._sampling[1]

    def error_event(self, error: RolloutError) -> ev.ErrorRaised:
        """The event that says what failed."""
        return ev.ErrorRaised(
            rollout=self.rollout,
            attempt=self.attempt,
            kind=type(error).__name__,
            message=str(error)[: ev.MESSAGE_LIMIT],
            status_code=getattr(error, "status_code", None),
        )


def _ignore(event: ev.Event) -> None:
    """Nobody listens."""


def _stopped(name: str) -> Refusal:
    return Refusal(
        400, f"rollout stopped: {name}", kind="rollout_stopped", headers=((b"x-should-retry", b"false"),)
    )
