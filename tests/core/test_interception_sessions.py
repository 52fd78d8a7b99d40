"""Rollouts on one server: who may ask, what ends it, what is told about it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from doubles import upstream as up
from doubles.intercepted import HELLO, Client, hello, make_trace, rig
from vf_core.errors import ConfigError, InterceptionError, TaskError
from vf_core.events import types as ev
from vf_core.interception import InterceptionServer, Limits, Session, Upstream


def tool_turn(reply: dict[str, Any], *results: tuple[str, str]) -> list[dict[str, Any]]:
    """A greeting, a reply with tool calls, and their results."""
    tools = [{"role": "tool", "tool_call_id": ident, "content": text} for ident, text in results]
    return [*HELLO, reply["choices"][0]["message"], *tools]


async def test_i04_nobody_gets_in_without_a_live_secret_of_their_own() -> None:
    async with rig() as r:
        session, other = r.session("a"), r.session("b")
        assert session.secret != other.secret
        assert len(session.secret) >= 32
        assert r.server.base_url.startswith("http://127.0.0.1:")
        for secret in ("", "wrong", session.secret[:-1], session.secret + "x"):
            for method, path in (
                ("POST", "/v1/chat/completions"),
                ("GET", "/v1/models"),
                ("GET", "/v1/models/x"),
            ):
                async with Client(r.server.base_url, secret) as client:
                    reply = await client.ask(b"", method=method, path=path)
                    assert reply.status == 401
                    assert reply.error == "unknown or expired secret"
        async with Client(r.server.base_url, "") as client:
            assert (
                await client.ask(b"", {"Authorization": f"Basic {session.secret}"}, path="/v1/models")
            ).status == 401
        assert not r.provider.requests
        await r.ask(other)
        assert (session.trace.num_turns, other.trace.num_turns) == (0, 1)


async def test_health_needs_no_secret_and_holds_none() -> None:
    async with rig() as r:
        session = r.session()
        async with Client(r.server.base_url, "") as client:
            reply = await client.ask(b"", method="GET", path="/health")
        assert (reply.status, reply.json) == (200, {"status": "ok"})
        assert session.secret.encode() not in reply.body


async def test_models_is_the_rollouts_model() -> None:
    async with rig() as r:
        session = r.session(model="org/some-model")
        async with r.client(session) as client:
            listed = await client.ask(b"", method="GET", path="/v1/models")
            assert [model["id"] for model in listed.json["data"]] == ["org/some-model"]
            one = await client.ask(b"", method="GET", path="/v1/models/org/some-model")
            assert one.json["id"] == "org/some-model"
            assert (await client.ask(b"", method="GET", path="/v1/models/other")).status == 404
            assert (await client.ask(b"", method="GET", path="/v1/embeddings")).status == 404
            assert (await client.ask(b"", method="GET")).status == 405
        assert not r.provider.requests


@pytest.mark.parametrize("way", ["unregister", "close"])
async def test_i13_a_secret_dies_with_its_rollout(way: str) -> None:
    async with rig() as r:
        session = r.session()
        async with r.client(session) as client:
            assert (await client.ask(hello())).status == 200
            record = session.trace.to_record()
            if way == "unregister":
                r.server.unregister(session.secret)
            else:
                session.close()
            # On the connection it holds, and on a new one.
            assert (await client.ask(hello(seed=1))).status == 401
        assert (await r.ask(session)).status == 401
        assert session.trace.to_record() == record
        assert len(r.provider.requests) == 1
        r.server.unregister(session.secret)
        r.server.unregister("never known")


@pytest.mark.parametrize("stream", [False, True])
async def test_stopping_a_rollout_cancels_its_call_upstream_and_no_other(stream: bool) -> None:
    async with rig() as r:
        gate = asyncio.Event()
        events = up.chunks("a b")
        if stream:
            r.provider.plan(*[up.gated_stream(gate, events[:2], events[2:])] * 2)
        else:
            r.provider.plan(*[up.gated(gate, up.answer())] * 2)
        session, other = r.session("a"), r.session("b")
        async with r.client(session) as client, r.client(other) as neighbour:
            client.send(hello(stream=stream))
            neighbour.send(hello(stream=stream))
            await r.provider.until(lambda: len(r.provider.requests) == 2)
            if stream:
                await client.head()
                await neighbour.head()
            session.close()
            await r.provider.until(lambda: r.provider.hung_up == 1)
            assert (await client.receive()).broken
            gate.set()
            if stream:
                while await neighbour.chunk():
                    pass
            else:
                assert (await neighbour.receive()).status == 200
        (call,) = session.trace.calls
        assert call.error is not None
        assert call.error.type == "CancelledError"
        assert (session.trace.num_turns, other.trace.num_turns) == (0, 1)
        assert session.error is None
        session.close()


async def test_t11_a_stop_is_not_held_up_by_a_hook_that_swallows_cancellation() -> None:
    async with rig() as r:
        begun, freed = asyncio.Event(), asyncio.Event()

        async def stubborn(trace: Any) -> bool:
            begun.set()
            while not freed.is_set():
                try:
                    await freed.wait()
                except asyncio.CancelledError:
                    continue
            return False

        session = r.session(stops=[stubborn])
        async with r.client(session) as client:
            client.send(hello())
            await begun.wait()
            session.close()
            assert (await client.receive()).broken
        freed.set()
        await asyncio.sleep(0)
        assert not r.provider.requests
        assert not session.trace.calls


@pytest.mark.parametrize(
    ("limits", "served", "name"),
    [
        (Limits(max_turns=2), 2, "max_turns"),
        (Limits(max_turns=0), 0, "max_turns"),
        (Limits(max_output_tokens=11), 3, "max_output_tokens"),
        (Limits(max_total_tokens=40), 3, "max_total_tokens"),
        (Limits(max_input_tokens=36), 3, "max_input_tokens"),
    ],
)
async def test_a_limit_refuses_the_next_turn(limits: Limits, served: int, name: str) -> None:
    async with rig() as r:
        session = r.session(limits=limits)
        for i in range(served):
            assert (await r.ask(session, hello(seed=i))).status == 200
            assert session.refused is None
        for _ in range(2):
            reply = await r.ask(session, hello(seed=99), {"x-stainless-retry-count": "0"})
            assert (reply.status, reply.error) == (400, f"rollout stopped: {name}")
            assert reply.headers["x-should-retry"] == "false"
        assert session.refused == session.trace.stop_condition == name
        assert session.trace.is_completed
        assert session.error is None
        assert len(r.provider.requests) == served == session.trace.num_turns


async def test_turns_under_way_count() -> None:
    async with rig() as r:
        gate = asyncio.Event()
        r.provider.plan(up.gated(gate, up.answer()))
        session = r.session(limits=Limits(max_turns=1))
        first = asyncio.create_task(r.ask(session))
        await r.provider.until(lambda: len(r.provider.requests) == 1)
        assert (await r.ask(session, hello(seed=1))).status == 400
        gate.set()
        assert (await first).status == 200


async def test_h04_billed_calls_that_could_not_be_read_count() -> None:
    async with rig() as r:
        usage = {"prompt_tokens": 900, "completion_tokens": 100, "total_tokens": 1000}
        r.provider.default = up.answer(up.completion(choices=[], usage=usage))
        session = r.session(limits=Limits(max_total_tokens=5000))
        statuses = [(await r.ask(session, hello(seed=i))).status for i in range(8)]
        assert statuses == [502] * 5 + [400] * 3
        assert session.refused == "max_total_tokens"
        assert session.trace.usage is not None
        assert session.trace.usage.total_tokens == 5000
        assert all(call.node is None and call.error and call.usage for call in session.trace.calls)


async def test_h04_tool_calls_that_do_not_parse_count_like_others() -> None:
    async with rig() as r:
        usage = {"prompt_tokens": 900, "completion_tokens": 100, "total_tokens": 1000}
        garbled = up.completion(None, [up.tool(arguments='{"command": ')], usage=usage)
        r.provider.default = up.answer(garbled)
        session = r.session(limits=Limits(max_total_tokens=5000))
        served = [(await r.ask(session, hello(seed=i))).status for i in range(8)].count(200)
        assert served == 5
        assert len(session.trace.calls) == 5


async def test_a_stop_hook_refuses_the_next_turn() -> None:
    async with rig() as r:

        async def enough(trace: Any) -> bool:
            return bool(trace.num_turns >= 1)

        session = r.session(stops=[enough])
        assert (await r.ask(session)).status == 200
        reply = await r.ask(session, hello(seed=1))
        assert (reply.status, reply.error) == (400, "rollout stopped: enough")
        assert session.refused == session.trace.stop_condition == "enough"
        assert len(r.provider.requests) == 1


async def test_a_stop_hook_that_raises_is_a_task_error() -> None:
    async with rig() as r:

        def broken(trace: Any) -> bool:
            raise KeyError("answer")

        session = r.session(stops=[broken])
        reply = await r.ask(session)
        assert reply.status == 400
        assert isinstance(session.error, TaskError)
        assert "@stop broken: KeyError: 'answer'" in str(session.error)
        assert [event.kind for event in r.told(ev.ErrorRaised)] == ["TaskError"]
        assert not r.provider.requests
        assert session.refused is None


async def test_events_tell_the_story_of_a_turn() -> None:
    async with rig() as r:
        first = up.completion(None, [up.tool("c1"), up.tool("c2", "edit", "x" * 9000)])
        r.provider.plan(up.answer(first), up.answer(text="fine"))
        session = r.session("roll")
        await r.ask(session)
        results = ("c1", "a.txt"), ("c2", "error: " + "y" * 9000)
        await r.ask(session, hello() | {"messages": tool_turn(first, *results)})
        assert [event.type for event in r.events] == [
            "model.started", "model.finished", "tool.called", "tool.called",
            "tool.returned", "tool.returned", "model.started", "model.finished",
        ]  # fmt: skip
        assert {(event.rollout, event.attempt) for event in r.events} == {("roll", 1)}  # type: ignore[attr-defined]
        called = r.told(ev.ToolCalled)
        assert [(c.call, c.id, c.name) for c in called] == [(0, "c1", "bash"), (0, "c2", "edit")]
        assert len(called[1].arguments) <= ev.ARGUMENTS_LIMIT
        returned = r.told(ev.ToolReturned)
        assert [(t.id, t.failed) for t in returned] == [("c1", False), ("c2", True)]
        assert returned[0].result == "a.txt"
        assert len(returned[1].result) <= ev.RESULT_LIMIT
        assert returned[0].seconds > 0
        finished = r.told(ev.ModelCallFinished)
        assert [(f.call, f.finish_reason, f.text) for f in finished] == [
            (0, "tool_calls", ""),
            (1, "stop", "fine"),
        ]


async def test_tool_events_have_ids_of_their_own() -> None:
    async with rig() as r:
        anonymous = {"type": "function", "function": {"name": "f", "arguments": "{}"}}
        reply = up.completion(None, [up.tool("call_0"), anonymous, anonymous])
        r.provider.plan(up.answer(reply), up.answer(reply), up.answer())
        session = r.session()
        await r.ask(session)
        messages = tool_turn(reply, ("call_0", "1"), ("", "2"), ("", "3"))
        await r.ask(session, hello() | {"messages": messages})
        called = [event.id for event in r.told(ev.ToolCalled)]
        assert len(set(called)) == len(called) == 6
        assert [(t.id, t.result) for t in r.told(ev.ToolReturned)] == list(
            zip(called[:3], "123", strict=True)
        )


async def test_deltas_are_told_only_while_somebody_watches() -> None:
    async with rig() as r:
        pieces = [{"index": 0, "id": "c", "function": {"name": "bash", "arguments": '{"a'}}]
        more = [{"index": 0, "function": {"arguments": '": 1}'}}]
        events = [
            up.delta(reasoning_content="hm "), up.delta("Let me "), up.delta("look."),
            up.delta(tool_calls=pieces), up.delta(tool_calls=more), up.delta(finish="tool_calls"), b"[DONE]",
        ]  # fmt: skip
        r.provider.default = up.stream(events)
        session = r.session()
        await r.ask(session, hello(stream=True))
        assert not r.told(ev.TextDelta)
        session.emit_live = True
        await r.ask(session, hello(stream=True))
        texts = r.told(ev.TextDelta)
        assert "".join(t.text for t in texts if not t.reasoning) == "Let me look."
        assert "".join(t.text for t in texts if t.reasoning) == "hm "
        tools = r.told(ev.ToolDelta)
        assert "".join(t.arguments for t in tools) == '{"a": 1}'
        assert "".join(t.name for t in tools) == "bash"
        assert {t.call for t in (*texts, *tools)} == {1}
        (calls,) = [n.message.tool_calls for n in session.trace.nodes if n.sampled][:1]  # type: ignore[union-attr]
        assert calls
        assert (calls[0].id, calls[0].arguments) == ("c", '{"a": 1}')


async def test_s07_provider_side_tools_are_taken_out_where_there_is_no_network() -> None:
    async with rig() as r:
        function = {"type": "function", "function": {"name": "bash"}}
        body = hello(tools=[function, {"type": "web_search"}], web_search_options={}, plugins=[{"id": "web"}])
        await r.ask(r.session())
        session = r.session("offline", hosted_tools=False)
        await r.ask(session, body)
        await r.ask(session, body | {"seed": 1})
        assert r.provider.requests[1].body == hello(tools=[function])
        (log,) = r.told(ev.Log)
        assert (log.rollout, log.level) == ("offline", "warning")
        assert "web_search" in log.message
        assert session.trace.info["vf_tui"]["stripped_tools"] == [
            "web_search_options",
            "plugins",
            "web_search",
        ]
        assert (await r.ask(r.session("online"), body)).status == 200
        assert r.provider.requests[-1].body == body


async def test_i10_a_stopped_server_is_gone_and_another_has_its_own_port() -> None:
    async with rig() as r:
        session = r.session()
        async with r.client(session) as client:
            assert (await client.ask(hello())).status == 200
            old = r.server.base_url
            await r.server.stop()
            await r.server.stop()
            assert session.closed
            assert await client.reader.read() == b""
        with pytest.raises(OSError, match=r"."):
            await Client(old, session.secret).__aenter__()
        holder = await asyncio.start_server(
            lambda *_: None, "127.0.0.1", int(old.split(":")[2].split("/")[0])
        )
        async with InterceptionServer(r.upstream) as server:
            assert server.base_url != old
            again = Session("r2", 1, make_trace(), model="m")
            async with Client(server.base_url, server.register(again)) as client:
                assert (await client.ask(hello())).status == 200
        holder.close()


async def test_a_server_owns_the_client_it_was_only_told_about() -> None:
    class Settings:
        base_url = "http://127.0.0.1:9/v1"
        headers: dict[str, str] = {}

        def api_key(self) -> str:
            return "sk-1"

    with pytest.raises(InterceptionError):
        _ = InterceptionServer(Settings()).base_url
    async with InterceptionServer(Settings()) as server:
        session = Session("r", 1, make_trace(), model="m")
        async with Client(server.base_url, server.register(session)) as client:
            assert (await client.ask(hello())).status == 503
    with pytest.raises(ConfigError, match=r"client\.base_url"):
        Upstream("ftp://example.org")


async def test_many_rollouts_at_once_keep_their_own_answers() -> None:
    async with rig(max_connections=16) as r:

        async def echo(wire: up.Wire) -> None:
            text = str(wire.request.body["messages"][0]["content"])
            await up.answer(text=text)(wire)

        r.provider.default = echo
        sessions = [r.session(f"r{i}") for i in range(100)]

        async def one(i: int) -> None:
            async with r.client(sessions[i]) as client:
                for turn in range(3):
                    body = hello(stream=bool(i % 2)) | {
                        "messages": [{"role": "user", "content": f"<{i}.{turn}>"}]
                    }
                    assert f"<{i}.{turn}>".encode() in (await client.ask(body)).body

        await asyncio.gather(*(one(i) for i in range(100)))
        for i, session in enumerate(sessions):
            assert session.trace.num_turns == 3
            assert all(f"<{i}." in m.content for m in session.trace.assistant_messages if m.content)
        assert r.provider.most_open <= 16


@pytest.mark.parametrize("part", ["emit", "sampling_config", "impose"])
async def test_a_failure_of_ours_ends_one_call_only(part: str) -> None:
    async with rig() as r:
        session, other = r.session("a"), r.session("b")
        working = getattr(session, part)

        def broken(*_: Any) -> Any:
            raise RuntimeError("bug")

        setattr(session, part, broken)
        reply = await r.ask(session)
        assert reply.broken or (reply.status, reply.headers["x-should-retry"]) == (500, "false")
        assert (await r.ask(other)).status == 200
        setattr(session, part, working)
        assert (await r.ask(session, hello(seed=1))).status == 200
