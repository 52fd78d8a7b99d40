"""A harness that uses OpenAI's own SDK: its retries, its streams, and how failures look to it."""

from __future__ import annotations

import asyncio
from typing import Any

import openai
import pytest

from doubles import upstream as up
from doubles.intercepted import HELLO, MODEL, Rig, rig
from vf_core.interception import Limits, Session


def sdk(r: Rig, session: Session, **settings: Any) -> Any:
    """The SDK's client, as a harness makes it."""
    return openai.AsyncOpenAI(base_url=r.server.base_url, api_key=session.secret, **settings)


async def test_i01c_the_sdk_gives_up_and_asks_again_while_the_call_goes_on() -> None:
    async with rig() as r:
        gate = asyncio.Event()
        r.provider.plan(up.gated(gate, up.answer(text="worth the wait")))
        session = r.session()
        async with sdk(r, session, timeout=0.2, max_retries=5) as client:
            asking = asyncio.create_task(client.chat.completions.create(model=MODEL, messages=HELLO))
            asyncio.get_running_loop().call_later(0.6, gate.set)
            reply = await asking
        assert reply.choices[0].message.content == "worth the wait"
        assert (session.trace.num_turns, len(session.trace.calls), len(r.provider.requests)) == (1, 1, 1)


async def test_the_sdk_streams_and_lists_models() -> None:
    async with rig() as r:
        session = r.session()
        async with sdk(r, session) as client:
            stream = await client.chat.completions.create(model="x", messages=HELLO, stream=True)
            text = "".join([c.choices[0].delta.content or "" async for c in stream if c.choices])
            assert text == session.trace.last_reply == "done"
            assert [model.id async for model in client.models.list()] == [MODEL]


@pytest.mark.parametrize("behaviour", [up.break_after(2), up.no_end_mark(), up.error_then_end()])
async def test_i03_a_broken_stream_is_an_exception_in_the_sdk(behaviour: up.Behaviour) -> None:
    async with rig() as r:
        r.provider.plan(behaviour)
        session = r.session()
        async with sdk(r, session) as client:
            stream = await client.chat.completions.create(model=MODEL, messages=HELLO, stream=True)
            with pytest.raises(Exception, match=r"."):
                _ = [chunk async for chunk in stream]


async def test_the_sdk_does_not_retry_a_refusal_and_honours_retry_after() -> None:
    async with rig() as r:
        r.provider.plan(up.status(429, "slow down", "Retry-After: 0.01"))
        session = r.session(limits=Limits(max_turns=1))
        async with sdk(r, session) as client:
            assert await client.chat.completions.create(model=MODEL, messages=HELLO)
            with pytest.raises(openai.BadRequestError, match="max_turns"):
                await client.chat.completions.create(model=MODEL, messages=HELLO, seed=1)
        assert len(r.provider.requests) == 2
        assert [call.error is None for call in session.trace.calls] == [False, True]
