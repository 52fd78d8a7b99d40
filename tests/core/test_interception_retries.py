"""The same request sent again: by an SDK that lost the answer, or on purpose."""

from __future__ import annotations

import asyncio

import pytest

from doubles import upstream as up
from doubles.intercepted import Rig, hello, rig, settle
from vf_core.errors import ProviderError
from vf_core.events import types as ev
from vf_core.interception import Session, exchange

RETRY = {"x-stainless-retry-count": "1"}
FIRST = {"x-stainless-retry-count": "0"}


def turns(session: Session) -> tuple[int, int]:
    """Recorded turns and calls."""
    return session.trace.num_turns, len(session.trace.calls)


@pytest.mark.parametrize("stream", [False, True])
async def test_i01a_a_retry_of_an_answered_request_gets_the_same_answer(stream: bool) -> None:
    async with rig() as r:
        session = r.session()
        first = await r.ask(session, hello(stream=stream), FIRST)
        again = await r.ask(session, hello(stream=stream), RETRY)
        assert (again.status, again.body) == (200, first.body)
        assert again.headers["content-type"] == first.headers["content-type"]
        assert turns(session) == (1, 1)
        assert len(r.provider.requests) == 1
        assert len(r.told(ev.ModelCallFinished)) == 1


@pytest.mark.parametrize("stream", [False, True])
async def test_i01a_an_answer_that_nobody_received_is_given_to_whoever_asks_again(stream: bool) -> None:
    async with rig() as r:
        gate = asyncio.Event()
        r.provider.plan(up.gated(gate, up.answer(text="once")))
        session = r.session()
        async with r.client(session) as client:
            client.send(hello(stream=stream))
            await r.provider.until(lambda: len(r.provider.requests) == 1)
            client.drop()
        gate.set()
        await settle(lambda: session.trace.num_turns == 1)
        # A client that does not count its retries: it can only be one.
        assert b"once" in (await r.ask(session, hello(stream=stream))).body
        assert turns(session) == (1, 1)
        assert len(r.provider.requests) == 1


async def test_i01b_the_same_request_on_purpose_is_a_second_sample() -> None:
    async with rig() as r:
        r.provider.plan(up.answer(text="heads"), up.answer(text="tails"))
        session = r.session()
        assert b"heads" in (await r.ask(session, None, FIRST)).body
        assert b"tails" in (await r.ask(session, None, FIRST)).body
        assert turns(session) == (2, 2)
        assert session.trace.num_branches == 2


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("hang_up", [False, True])
async def test_i01c_a_retry_joins_the_call_that_is_still_going(stream: bool, hang_up: bool) -> None:
    async with rig() as r:
        gate = asyncio.Event()
        r.provider.plan(up.gated(gate, up.answer(text="slow")))
        session = r.session()
        async with r.client(session) as first, r.client(session) as second:
            first.send(hello(stream=stream))
            await r.provider.until(lambda: len(r.provider.requests) == 1)
            if hang_up:
                first.drop()
            second.send(hello(stream=stream), RETRY)
            await asyncio.sleep(0)
            gate.set()
            replies = [await second.receive()] + ([] if hang_up else [await first.receive()])
        assert all(reply.status == 200 and b"slow" in reply.body for reply in replies)
        assert len({reply.body for reply in replies}) == 1
        assert turns(session) == (1, 1)
        assert len(r.provider.requests) == 1


async def test_i01c_who_joins_a_stream_late_gets_all_of_it() -> None:
    async with rig() as r:
        gate = asyncio.Event()
        events = up.chunks("one two three")
        r.provider.plan(up.gated_stream(gate, events[:2], events[2:]))
        session = r.session()
        async with r.client(session) as first:
            first.send(hello(stream=True))
            await first.head()
            while b"one" not in await first.chunk():
                pass
            async with r.client(session) as second:
                second.send(hello(stream=True), RETRY)
                await second.head()
                begun = await second.chunk()
                gate.set()
                rest = b""
                while data := await second.chunk():
                    rest += data
        assert begun + rest == b"".join(map(up.sse_event, events))
        assert turns(session) == (1, 1)


async def test_a_retry_of_a_failed_request_asks_again() -> None:
    async with rig() as r:
        r.provider.plan(up.status(500), up.break_after(1))
        session = r.session()
        assert (await r.ask(session, hello(stream=True), FIRST)).status == 500
        assert (await r.ask(session, hello(stream=True), RETRY)).broken
        assert isinstance(session.error, ProviderError)
        assert (await r.ask(session, hello(stream=True), {"x-stainless-retry-count": "2"})).text == "done"
        assert session.error is None
        assert turns(session) == (1, 3)


async def test_one_idempotency_key_is_one_operation() -> None:
    async with rig() as r:
        session = r.session()
        for key in ("k1", "k1", "k2"):
            await r.ask(session, None, {"Idempotency-Key": key})
        assert turns(session) == (2, 2)


async def test_an_old_answer_is_not_replayed_once_the_conversation_went_on() -> None:
    async with rig() as r:
        session = r.session()
        for i in range(8):
            await r.ask(session, hello(seed=i))
        await r.ask(session, hello(seed=0), RETRY)
        assert turns(session) == (9, 9)


async def test_answers_are_not_shared_between_rollouts() -> None:
    async with rig() as r:
        r.provider.plan(up.answer(text="mine"), up.answer(text="yours"))
        mine, yours = r.session("a"), r.session("b")
        await r.ask(mine)
        assert b"yours" in (await r.ask(yours, None, RETRY)).body


async def orphan(r: Rig, session: Session) -> None:
    """Begin a streamed call and leave it."""
    r.provider.plan(up.gated_stream(asyncio.Event(), [up.delta("half "), up.usage_chunk()], []))
    async with r.client(session) as client:
        client.send(hello(stream=True))
        await client.head()
        client.drop()


async def test_a_call_that_nobody_comes_back_for_is_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange, "ORPHAN_SECONDS", 0.05)
    async with rig() as r:
        session = r.session()
        await orphan(r, session)
        await r.provider.until(lambda: r.provider.hung_up == 1)
        (call,) = session.trace.calls
        assert (call.node, call.error is not None) == (None, True)
        assert call.usage is not None
        # It is forgotten: the same request is a new call.
        assert (await r.ask(session, hello(stream=True))).text == "done"


async def test_i08_dropped_streams_leave_the_pool_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange, "ORPHAN_SECONDS", 0.0)
    async with rig(max_connections=2) as r:
        sessions = [r.session(f"r{i}") for i in range(50)]

        async def one(i: int) -> str:
            async with r.client(sessions[i]) as client:
                client.send(hello(stream=True))
                if i % 2:
                    await client.head()
                    client.drop()
                    return "dropped"
                return (await client.receive()).text

        said = await asyncio.gather(*(one(i) for i in range(50)))
        assert said.count("done") == 25
        assert r.provider.most_open <= 2
        assert r.upstream.sockets <= 2
        assert (await r.ask(sessions[0], hello(seed=1))).status == 200
