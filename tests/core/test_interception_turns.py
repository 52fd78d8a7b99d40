"""One model call: what goes to the provider, what comes back, what is recorded, and when."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from doubles import upstream as up
from doubles.intercepted import HELLO, MODEL, hello, rig
from vf_core.errors import OverlongPromptError, ProviderError
from vf_core.events import types as ev
from vf_core.trace.types import AssistantMessage, SamplingConfig


async def test_a_turn_is_forwarded_relayed_and_recorded() -> None:
    async with rig() as r:
        value = up.completion("hi there", unknown={"kept": 1}, service_tier="never heard of")
        r.provider.plan(up.answer(value, "X-Request-Id: req-7", "Connection: keep-alive", "Set-Cookie: a=b"))
        session = r.session()
        reply = await r.ask(session)
        assert (reply.status, reply.json) == (200, value)
        assert reply.headers["x-request-id"] == "req-7"
        assert reply.headers["content-type"] == "application/json"
        assert "set-cookie" not in reply.headers
        (asked,) = r.provider.requests
        assert asked.path == "/v1/chat/completions"
        assert asked.body == hello()
        assert asked.headers["authorization"] == "Bearer sk-provider-key-0001"
        assert [type(n.message).__name__ for n in session.trace.nodes] == ["UserMessage", "AssistantMessage"]
        assert session.trace.last_reply == "hi there"
        (call,) = session.trace.calls
        assert (call.node, call.model, call.endpoint, call.finish_reason) == (
            1,
            MODEL,
            "/chat/completions",
            "stop",
        )
        assert call.usage is not None
        assert (call.usage.prompt_tokens, call.usage.completion_tokens) == (12, 5)
        assert call.time.end >= call.time.start > 0


async def test_model_and_sampling_are_imposed_and_the_rest_is_kept() -> None:
    async with rig() as r:
        session = r.session(sampling=SamplingConfig.model_validate({"temperature": 0.5, "top_k": 3}))
        sent = {"model": "another", "messages": HELLO, "temperature": 1.5, "seed": 7, "odd": {"a": [1, None]}}
        await r.ask(session, sent)
        assert r.provider.requests[0].body == {**sent, "model": MODEL, "temperature": 0.5, "top_k": 3}
        sampling = session.trace.calls[0].sampling
        assert sampling is not None
        assert sampling.model_dump(exclude_none=True) == {"temperature": 0.5, "top_k": 3, "seed": 7}


async def test_a_body_that_needs_no_change_is_sent_byte_for_byte() -> None:
    async with rig() as r:
        raw = (
            b'{ "model":"the-model",\n "messages":[{"role":"user","content":"\\u00e9 \\ud800"}],'
            b' "big":123456789012345678901234567890 }'
        )
        session = r.session()
        await r.ask(session, raw)
        assert r.provider.requests[0].raw == raw
        session = r.session(sampling=SamplingConfig(temperature=0.25))
        await r.ask(session, raw)
        assert r.provider.requests[1].raw == raw[:-1] + b',"temperature":0.25}'


async def test_the_newer_name_of_max_tokens_is_kept() -> None:
    async with rig() as r:
        session = r.session(sampling=SamplingConfig(max_tokens=99))
        await r.ask(session, hello(max_completion_tokens=5, max_tokens=5))
        await r.ask(session, hello(seed=1))
        bodies = [request.body for request in r.provider.requests]
        assert bodies[0] == hello(max_completion_tokens=99)
        assert bodies[1] == hello(seed=1, max_tokens=99)


async def test_headers_of_the_harness_pass_but_not_those_of_its_connection() -> None:
    async with rig(headers={"X-Team": "blue-team-secret", "User-Agent": "vf"}) as r:
        session = r.session()
        await r.ask(
            session,
            None,
            {
                "OpenAI-Beta": "x=1",
                "User-Agent": "agent",
                "Cookie": "c",
                "Connection": "X-Hop, keep-alive",
                "X-Hop": "1",
            },
        )
        headers = r.provider.requests[0].headers
        assert headers["openai-beta"] == "x=1"
        assert headers["x-team"] == "blue-team-secret"
        assert headers["user-agent"] == "vf"
        assert headers["accept-encoding"] == "identity"
        assert not {"cookie", "x-hop"} & set(headers)
        assert session.secret not in str(headers)


async def test_a_stream_is_relayed_chunk_by_chunk() -> None:
    async with rig() as r:
        gate = asyncio.Event()
        first = [up.delta("", role="assistant"), up.delta("one ")]
        r.provider.plan(
            up.gated_stream(
                gate, first, [up.delta("two"), up.delta(finish="stop"), up.usage_chunk(), b"[DONE]"]
            )
        )
        session = r.session()
        async with r.client(session) as client:
            client.send(hello(stream=True))
            head = await client.head()
            assert head.headers["content-type"] == "text/event-stream; charset=utf-8"
            seen = b""
            while b"one" not in seen:
                seen += await client.chunk()
            assert seen == b"".join(map(up.sse_event, first))
            assert not session.trace.nodes
            gate.set()
            while data := await client.chunk():
                seen += data
        expected = [*first, up.delta("two"), up.delta(finish="stop"), up.usage_chunk(), b"[DONE]"]
        assert seen == b"".join(map(up.sse_event, expected))
        assert session.trace.last_reply == "one two"
        assert session.trace.calls[0].usage is not None


@pytest.mark.parametrize("stream", [False, True])
async def test_i02_the_turn_is_recorded_before_its_end_is_seen(stream: bool) -> None:
    async with rig() as r:
        for i in range(100):
            session = r.session(f"r{i}")
            async with r.client(session) as client:
                client.send(hello(stream=stream))
                await client.reader.readuntil(b"[DONE]" if stream else b'"stop"')
                # Nothing has run since these bytes came: what is recorded now was recorded before them.
                assert session.trace.last_reply == "done"
                client.drop()


async def test_i02_the_end_is_held_back_from_the_finish_reason_on() -> None:
    async with rig() as r:
        gate = asyncio.Event()
        r.provider.plan(up.gated_stream(gate, [up.delta("x"), up.delta(finish="stop")], [b"[DONE]"]))
        session = r.session()
        async with r.client(session) as client:
            client.send(hello(stream=True))
            await client.head()
            assert await client.chunk() == up.sse_event(up.delta("x"))
            waiting = asyncio.create_task(client.chunk())
            await asyncio.wait((waiting,), timeout=0.05)
            assert not waiting.done()
            gate.set()
            assert b"stop" in await waiting
        assert session.trace.last_reply == "x"


FAILURES: dict[str, tuple[up.Behaviour, bool]] = {
    "breaks after 2 chunks": (up.break_after(2), True),
    "breaks before a chunk": (up.break_after(0), True),
    "error object, then the end mark": (up.error_then_end(), True),
    "no end mark": (up.no_end_mark(), True),
    "only the end mark": (up.nothing_at_all(), True),
    "200 and an empty event stream": (up.stream([]), True),
    "a chunk that is no JSON": (up.stream([up.delta("x"), b"{nonsense", b"[DONE]"]), True),
    "finish reason error": (up.stream([up.delta("x"), up.delta(finish="error"), b"[DONE]"]), True),
    "a whole answer to a stream": (up.raw(json.dumps(up.completion()).encode()), True),
    "200 and an error object to a stream": (up.raw(b'{"error": {"message": "no", "code": 429}}'), True),
    "500 to a stream": (up.status(500), True),
    "200 and an empty body": (up.raw(b""), False),
    "200 and an error object": (up.raw(b'{"error": {"message": "no credits", "code": 402}}'), False),
    "200 and no choices": (up.raw(b'{"choices": []}'), False),
    "200 and HTML": (up.raw(b"<html>gateway</html>", kind="text/html"), False),
    "204": (up.raw(b"", 204), False),
    "a redirect": (up.raw(b"", 302, "Location: http://elsewhere/"), False),
    "500": (up.status(500), False),
    "429": (up.status(429, "slow down", "Retry-After: 7"), False),
    "no answer": (up.hang_up(), False),
    "cut short": (up.cut_short(), False),
}


@pytest.mark.parametrize("name", FAILURES)
async def test_i03_a_failure_is_never_a_clean_answer(name: str) -> None:
    behaviour, streamed = FAILURES[name]
    async with rig() as r:
        r.provider.plan(behaviour)
        session = r.session()
        reply = await r.ask(session, hello(stream=streamed))
        if reply.broken:
            assert "[DONE]" not in reply.body.decode()
            assert 'finish_reason": "stop' not in reply.body.decode()
        else:
            assert reply.status >= 400
            assert reply.error
        assert isinstance(session.error, ProviderError)
        assert not session.trace.nodes
        (call,) = session.trace.calls
        assert call.node is None
        assert call.error is not None
        assert call.error.type == "ProviderError"
        (finished,) = r.told(ev.ModelCallFinished)
        assert finished.error
        (raised,) = r.told(ev.ErrorRaised)
        assert raised.kind == "ProviderError"
        # The next call finds the session as it was, and settles it.
        assert (await r.ask(session)).status == 200
        assert session.error is None


async def test_an_error_status_is_relayed_as_it_is() -> None:
    async with rig() as r:
        r.provider.plan(up.status(429, "slow down", "Retry-After: 7", "X-Should-Retry: true"))
        session = r.session()
        reply = await r.ask(session)
        assert (reply.status, reply.error) == (429, "slow down")
        assert reply.headers["retry-after"] == "7"
        assert reply.headers["x-should-retry"] == "true"
        assert session.error is not None
        assert session.trace.calls[0].error is not None
        assert session.trace.calls[0].error.status_code == 429


async def test_an_overlong_prompt_is_told_apart() -> None:
    async with rig() as r:
        r.provider.plan(up.status(400, "This model's maximum context length is 8192 tokens"))
        session = r.session()
        assert (await r.ask(session)).status == 400
        assert isinstance(session.error, OverlongPromptError)


async def test_an_unreachable_provider_fails_in_seconds() -> None:
    async with rig() as r:
        session = r.session()
        await r.provider.__aexit__()
        reply = await r.ask(session)
        assert reply.status == 503
        assert "could not connect to 127.0.0.1" in reply.error


async def test_i11_a_silent_provider_is_waited_for() -> None:
    # Nothing here bounds an answer: the one that comes at last is as good as any, and asked for once.
    async with rig() as r:
        gate = asyncio.Event()
        r.provider.plan(up.gated(gate, up.answer(text="at last")))
        session = r.session()
        asking = asyncio.create_task(r.ask(session))
        await r.provider.until(lambda: len(r.provider.requests) == 1)
        asyncio.get_running_loop().call_later(0.3, gate.set)
        assert (await asking).status == 200
        assert session.trace.last_reply == "at last"
        assert len(r.provider.requests) == 1


ODD_ANSWERS: dict[str, dict[str, Any]] = {
    "no usage": up.completion(usage=None),
    "usage without details": up.completion(
        usage={"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7}
    ),
    "unknown tier and fields": up.completion(service_tier="provisioned", provider="x", citations=[1]),
    "null content": up.completion(None),
    "empty content": up.completion(""),
    "white space": up.completion(" \n "),
    "tool call without an id": up.completion(
        None, [{"type": "function", "function": {"name": "f", "arguments": "{}"}}]
    ),
    "arguments as an object": up.completion(
        None, [{"id": "c", "function": {"name": "f", "arguments": {"a": 1}}}]
    ),
    "reasoning only": up.completion(
        choices=[{"index": 0, "message": {"role": "assistant", "reasoning": "hm"}, "finish_reason": "stop"}]
    ),
    "more cached than prompted": up.completion(
        usage={"prompt_tokens": 5, "completion_tokens": 1, "prompt_tokens_details": {"cached_tokens": 900}}
    ),
    "nonsense for usage": up.completion(usage={"prompt_tokens": "many", "completion_tokens": None}),
}


@pytest.mark.parametrize("name", ODD_ANSWERS)
async def test_i07_odd_but_sound_answers_are_relayed_unchanged(name: str) -> None:
    async with rig() as r:
        r.provider.plan(up.answer(ODD_ANSWERS[name]))
        session = r.session()
        reply = await r.ask(session)
        assert reply.json == ODD_ANSWERS[name]
        assert session.error is None
        (call,) = session.trace.calls
        assert isinstance(session.trace.nodes[-1].message, AssistantMessage)
        (finished,) = r.told(ev.ModelCallFinished)
        if call.usage is None:
            assert finished.prompt_tokens is None
        else:
            assert min(call.usage.prompt_tokens, call.usage.completion_tokens) >= 0
            assert finished.prompt_tokens == call.usage.prompt_tokens
        assert session.trace.num_turns == 1


async def test_x10_cache_reads_are_split_out() -> None:
    async with rig() as r:
        usage = {"prompt_tokens": 100, "completion_tokens": 7, "total_tokens": 107, "cost": 0.25}
        r.provider.plan(
            up.answer(up.completion(usage={**usage, "prompt_tokens_details": {"cached_tokens": 60}}))
        )
        await r.ask(r.session())
        (finished,) = r.told(ev.ModelCallFinished)
        assert (finished.prompt_tokens, finished.cached_tokens, finished.completion_tokens) == (40, 60, 7)
        assert finished.cost == 0.25


@pytest.mark.parametrize(
    "behaviour",
    [
        up.in_pieces(b"".join(map(up.sse_event, up.chunks("a é → 漢 b"))), 1),
        up.in_pieces(b"".join(map(up.sse_event, up.chunks("a é → 漢 b"))), 7),
        up.in_pieces(b"".join(map(up.sse_event, up.chunks("a é → 漢 b"))).replace(b"\n", b"\r\n"), 11),
        up.in_pieces(b": waiting\n\n" + b"".join(map(up.sse_event, up.chunks("a é → 漢 b")))[:-1], 50),
        up.in_pieces(b"".join(map(up.sse_event, up.chunks("a é → 漢 b")))[:-2], 5000),
        up.until_close(b"".join(map(up.sse_event, up.chunks("a é → 漢 b"))), "text/event-stream"),
    ],
)
async def test_r12_a_stream_may_come_in_any_pieces(behaviour: up.Behaviour) -> None:
    async with rig() as r:
        r.provider.plan(behaviour)
        session = r.session()
        reply = await r.ask(session, hello(stream=True))
        assert reply.text if b"\r" not in reply.body else True
        assert "漢".encode("unicode_escape") in reply.body
        assert session.trace.last_reply == "a é → 漢 b"


async def test_r12_bytes_that_are_not_utf8_are_relayed_and_recorded_with_marks() -> None:
    async with rig() as r:
        value = json.dumps(up.completion("bad @ byte")).encode().replace(b"@", b"\xff")
        r.provider.plan(up.raw(value))
        session = r.session()
        assert (await r.ask(session)).body == value
        assert session.trace.last_reply == "bad � byte"


@pytest.mark.parametrize(("encoding", "works"), [("gzip", True), ("identity", True), ("br", False)])
async def test_an_encoding_nobody_asked_for(encoding: str, works: bool) -> None:
    async with rig() as r:
        r.provider.plan(up.compressed(json.dumps(up.completion("packed")).encode(), encoding))
        session = r.session()
        reply = await r.ask(session)
        if works:
            assert reply.json == up.completion("packed")
            assert reply.headers.get("content-encoding", "identity") == "identity"
        else:
            assert (reply.status, session.trace.nodes) == (502, [])


async def test_a_conversation_continues_its_branch_and_another_one_forks() -> None:
    async with rig() as r:
        session = r.session()
        first = up.completion(None, [up.tool()])
        r.provider.plan(up.answer(first), up.answer(), up.answer())
        await r.ask(session)
        reply = first["choices"][0]["message"]
        messages = [*HELLO, reply, {"role": "tool", "tool_call_id": "call_1", "content": "a.txt"}]
        await r.ask(session, hello() | {"messages": messages})
        assert [node.parent for node in session.trace.nodes] == [None, 0, 1, 2]
        await r.ask(session, hello() | {"messages": [{"role": "user", "content": "compacted"}]})
        assert session.trace.num_branches == 2


async def test_tools_are_recorded_when_a_turn_is() -> None:
    async with rig() as r:
        tools = [{"type": "function", "function": {"name": "bash", "parameters": {"type": "object"}}}]
        r.provider.plan(up.status(500))
        session = r.session()
        await r.ask(session, hello(tools=tools))
        assert session.trace.tools is None
        await r.ask(session, hello(tools=tools))
        assert session.trace.tools is not None
        assert [tool.name for tool in session.trace.tools] == ["bash"]
