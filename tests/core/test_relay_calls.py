"""The relay of tool calls: who gets through, what is passed on, what a bad server comes to, what is held."""

from __future__ import annotations

import asyncio
import json
import logging
from typing import Any

import pytest

from doubles.intercepted import rig, settle
from doubles.tool_servers import Asked, Door, call, tool_double
from vf_core.interception import mcp_messages, relay, tool_server
from vf_core.interception.mcp_messages import FINAL, PASSING
from vf_core.interception.room import Room
from vf_core.tools.seal import opened

TOKEN = "canary-token-0123456789"
SEAL = "canary-seal-0123456789"


def events(body: bytes) -> list[Any]:
    """The messages of a stream of events."""
    lines = body.replace(b"\r\n", b"\n").split(b"\n")
    return [json.loads(line[6:]) for line in lines if line.startswith(b"data: ")]


# Who gets through


async def test_i04_an_address_opens_one_rollouts_tools_and_nothing_else() -> None:
    async with tool_double() as d, rig() as r:
        mine, other = r.session("a"), r.session("b")
        door, theirs = Door(r, mine, d.server()), Door(r, other, d.server("else"))
        assert (await door.ask()).status == 200
        secret, theirs_secret = mine.tool_secret, other.tool_secret
        keys = {
            mine.secret,
            mine.tool_secret,
            mine.channel_secret,
            other.secret,
            theirs_secret,
            other.channel_secret,
        }
        assert len(keys) == 6
        for path, status in (
            (door.path.replace(secret, "wrong"), 401),
            (door.path.replace(secret, ""), 401),
            (door.path.replace(secret, mine.secret), 401),
            (door.path.replace(secret, mine.channel_secret), 401),
            (theirs.path.replace(theirs_secret, secret), 404),
            (door.path.removesuffix("/mcp"), 404),
            (f"{door.path}/more", 404),
        ):
            async with door.client() as client:
                assert (await client.ask(call(), path=path)).status == status, path
        for method, status in (("PUT", 405), ("OPTIONS", 405)):
            assert (await door.ask(method=method)).status == status
        # Nor does it open the model or the state.
        for path in ("/v1/chat/completions", "/v1/models", "/rollout/state", "/rollout/task"):
            async with door.client() as client:
                client.secret = secret
                assert (await client.ask({}, method="GET", path=path)).status == 401
        assert len(d.asked) == 1


async def test_m08_any_host_name_with_the_secret_and_none_without() -> None:
    async with tool_double() as d, rig() as r:
        door = Door(r, r.session(), d.server())
        assert (await door.ask(headers={"Host": "host.containers.internal:1"})).status == 200
        assert d.asked[0].headers["host"] == f"127.0.0.1:{d.port}"
        door.path = f"/tools/{'x' * 43}/calc/mcp"
        assert (
            await door.ask(headers={"Host": "rebound.example", "Origin": "http://rebound.example"})
        ).status == 401
        assert len(d.asked) == 1


@pytest.mark.parametrize("way", ["close", "unregister", "remove_tools"])
async def test_i13_an_address_dies_with_its_rollout_and_what_it_waits_for_too(way: str) -> None:
    async with tool_double() as d, rig() as r:
        door = Door(r, r.session(), d.server())
        d.answer = lambda asked: asked.gone.wait()  # type: ignore[assignment,return-value]
        waiting = asyncio.create_task(door.ask())
        await settle(lambda: d.asked)
        if way == "unregister":
            r.server.unregister(door.session.secret)
        else:
            getattr(door.session, way)()
        assert (await waiting).broken
        await asyncio.wait_for(d.asked[0].gone.wait(), 30)
        assert (await door.ask()).status in {401, 404}
        assert len(d.asked) == 1


async def test_s01_secrets_of_a_server_stay_on_this_host(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    async with tool_double() as d, rig() as r:
        headers = {"Authorization": f"Bearer {TOKEN}", "X-Team-Key": TOKEN}
        door = Door(r, r.session(), d.server(headers=headers, place="external", own=False))
        assert TOKEN not in door.path + repr(d.server(headers=headers))

        def echo(asked: Asked) -> None:
            said = asked.result(json.dumps(asked.headers))
            if asked.headers.get("accept") == "text/event-stream":
                asked.stream()
                asked.event(said)
                asked.end()
            else:
                asked.whole(said, f"mcp-echo: {TOKEN}")

        d.answer = echo
        sent = {
            "Cookie": "agent",
            "X-Vf-Channel": "agent",
            "X-Other": "agent",
            "Mcp-Session-Id": "s",
            "Origin": "agent",
        }
        for accept in ("application/json", "text/event-stream"):
            reply = await door.ask(headers={**sent, "Accept": accept})
            assert TOKEN.encode() not in reply.body + str(reply.headers).encode()
            got = d.asked[-1].headers
            assert (got["authorization"], got["x-team-key"]) == (f"Bearer {TOKEN}", TOKEN)
            assert (got["mcp-session-id"], got["accept"]) == ("s", accept)
            assert "agent" not in got.values()
        await d.stop()
        assert TOKEN not in (await door.ask()).body.decode()
        assert TOKEN not in str(r.events) + caplog.text
        assert door.session.tool_secret not in str(r.events) + caplog.text


async def test_a_shared_server_of_ours_learns_whose_call_it_is() -> None:
    async with tool_double() as d, rig() as r:
        a, b = (Door(r, r.session(name), d.server(shared=True, seal=SEAL)) for name in "ab")
        await a.ask(headers={"X-Vf-Channel": b.session.channel_secret})
        await b.ask()
        said = [asked.headers["x-vf-channel"] for asked in d.asked]
        assert [opened(text, SEAL) for text in said] == [
            a.session.channel_secret,
            b.session.channel_secret,
        ]
        # Whoever took its port while it was down cannot read it, nor make one up.
        assert not [1 for asked in d.asked if a.session.channel_secret in str(asked.headers)]
        assert SEAL not in str(d.asked[0].headers) + repr(d.server(seal=SEAL))
        for wrong in (said[0][:-4] + "AAAA", said[0][4:], "", "é", a.session.channel_secret):
            assert not opened(wrong, SEAL)
        assert not opened(said[0], "other")
        for more in ({"shared": True, "own": False}, {"shared": False}):
            await Door(r, a.session, d.server(**more)).ask()
            assert "x-vf-channel" not in d.asked[-1].headers


# What is passed on


async def test_the_rest_of_the_protocol_goes_by() -> None:
    async with tool_double() as d, rig() as r:
        door = Door(r, r.session(), d.server())
        d.answer = lambda asked: asked.whole(b"", status="202 Accepted")
        assert (await door.ask({"jsonrpc": "2.0", "method": "notifications/initialized"})).status == 202
        d.answer = lambda asked: asked.whole({"no": "session"}, status="404 Not Found")
        reply = await door.ask(call())
        assert (reply.status, reply.json) == (404, {"no": "session"})
        d.answer = lambda asked: asked.whole(b"", "mcp-session-id: s2", "set-cookie: a=b", "x-own: 1")
        reply = await door.ask(b"", method="DELETE")
        assert (reply.status, reply.headers["mcp-session-id"]) == (200, "s2")
        assert not {"set-cookie", "x-own"} & set(reply.headers)
        # A batch, and what is no JSON at all: the two ends know what it is.
        d.answer = lambda asked: asked.whole([{"id": one["id"], "result": {}} for one in asked.message])
        assert len((await door.ask([call(ident=1), call(ident=2)])).json) == 2
        d.answer = lambda asked: asked.whole(b"not json either")
        assert (await door.ask(b"\xff not json")).body == b"not json either"


async def test_events_pass_as_they_come_in_both_directions() -> None:
    async with tool_double() as d, rig() as r:
        door = Door(r, r.session(), d.server())
        gate = asyncio.Event()

        async def answer(asked: Asked) -> None:
            asked.stream()
            asked.event({"jsonrpc": "2.0", "method": "notifications/progress", "params": {"progress": 1}})
            await gate.wait()
            if asked.method == "POST":
                asked.event(asked.result("done"))
            asked.end()

        d.answer = answer
        async with door.client() as post, door.client() as get:
            post.send(call(), path=door.path)
            get.send(b"", method="GET", path=door.path)
            for client in (post, get):
                head = await client.head()
                assert (head.status, head.headers["content-type"]) == (200, "text/event-stream")
                assert b"notifications/progress" in await client.chunk()
            gate.set()
            assert b"done" in await post.chunk()
            assert [await client.chunk() for client in (post, get)] == [b"", b""]


async def test_a_redirect_is_not_for_the_sandbox_to_follow() -> None:
    async with tool_double() as d, rig() as r:
        door = Door(r, r.session(), d.server())
        d.answer = lambda asked: asked.whole(
            b"", f"location: http://127.0.0.1:{d.port}/x", status="307 Temporary Redirect"
        )
        reply = await door.ask()
        assert reply.json["error"]["code"] == FINAL
        assert "location" not in reply.headers


# Bad servers


async def test_m02_a_dead_server_is_an_error_that_says_whether_to_ask_again() -> None:
    async with tool_double() as d, rig() as r:
        session = r.session()
        own, shared = Door(r, session, d.server()), Door(r, session, d.server("both", shared=True))

        def die(asked: Asked) -> None:
            asked.head("application/json", "content-length: 100")
            asked.writer.write(b'{"half":')
            asked.writer.transport.abort()

        d.answer = die
        assert (await own.ask()).json["error"]["code"] == PASSING
        await d.stop()
        for door, code in ((own, FINAL), (shared, PASSING)):
            reply = await door.ask(call(ident="x"))
            error = reply.json["error"]
            assert (reply.status, reply.json["id"], error["code"]) == (200, "x", code)
            assert "tool server" in error["message"]
            assert str(d.port) not in error["message"]
        assert (await own.ask({"jsonrpc": "2.0", "method": "notifications/x"})).status == 502
        await d.start()
        d.answer = lambda asked: asked.whole(asked.result("back"))
        assert (await own.ask()).json["result"]["content"][0]["text"] == "back"


@pytest.mark.parametrize("resumable", [False, True])
async def test_a_stream_that_ends_without_the_answer(resumable: bool) -> None:
    """What can be asked for again by its id ends in order; anything else is an error, not silence."""
    async with tool_double() as d, rig() as r:
        door = Door(r, r.session(), d.server())

        def answer(asked: Asked) -> None:
            asked.stream()
            asked.event({"jsonrpc": "2.0", "method": "x"}, extra="id: 7\r\n" if resumable else "")
            asked.end()

        d.answer = answer
        reply = await door.ask()
        assert not reply.broken
        told = events(reply.body)
        assert len(told) == (1 if resumable else 2)
        if not resumable:
            assert (told[1]["id"], told[1]["error"]["code"]) == (1, PASSING)


@pytest.mark.parametrize("begun", [False, True])
async def test_m02_a_silent_server_ends_with_the_limit(begun: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relay, "TOOL_SECONDS", 0.3)
    async with tool_double() as d, rig() as r:
        door = Door(r, r.session(), d.server())

        async def answer(asked: Asked) -> None:
            if begun:
                asked.stream()
            await asked.gone.wait()

        d.answer = answer
        reply = await door.ask()
        (told,) = events(reply.body) if begun else [reply.json]
        assert (told["id"], told["error"]["code"]) == (1, FINAL)
        assert "no answer within 0.3 s" in told["error"]["message"]
        await asyncio.wait_for(d.asked[0].gone.wait(), 30)


async def test_m11_who_goes_away_cancels_at_the_server_and_the_next_call_works() -> None:
    async with tool_double() as d, rig() as r:
        door = Door(r, r.session(), d.server())
        d.answer = lambda asked: asked.gone.wait()  # type: ignore[assignment,return-value]
        async with door.client() as client:
            client.send(call(), path=door.path)
            await settle(lambda: d.asked)
            client.drop()
            await asyncio.wait_for(d.asked[0].gone.wait(), 30)
        d.answer = lambda asked: asked.whole(asked.result("ok"))
        assert (await door.ask()).status == 200
        assert not door.session.doors.under_way


# What is held


@pytest.mark.parametrize("way", ["request", "json", "stream"])
async def test_a_message_that_is_too_large_is_refused_and_the_rollout_goes_on(
    way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (mcp_messages, relay, tool_server):
        monkeypatch.setattr(module, "MESSAGE_LIMIT", 1 << 20)
    async with tool_double() as d, rig() as r:
        door = Door(r, r.session(), d.server())
        pad = "x" * (2 << 20)

        def answer(asked: Asked) -> None:
            if way == "json":
                asked.whole(asked.result(pad))
            else:
                asked.stream()
                asked.event(asked.result(pad))

        d.answer = answer
        reply = await door.ask(call(pad=pad) if way == "request" else call())
        (told,) = events(reply.body) if way == "stream" else [reply.json]
        assert told["error"]["code"] == FINAL
        assert "larger than 1 MiB" in told["error"]["message"]
        assert told["id"] == (None if way == "request" else 1)
        d.answer = lambda asked: asked.whole(asked.result("x" * 500_000))
        assert (await door.ask()).status == 200
        assert door.session.doors.room.used == 0


async def test_what_a_rollout_posts_is_held_up_to_a_bound_and_others_have_theirs() -> None:
    async with tool_double() as d, rig() as r:
        door, other = Door(r, r.session("a"), d.server()), Door(r, r.session("b"), d.server())
        for one in (door, other):
            one.session.doors.room = Room(1 << 20)
        gate = asyncio.Event()

        async def answer(asked: Asked) -> None:
            await gate.wait()
            asked.whole(asked.result("ok"))

        d.answer = answer
        large = call(pad="x" * 400_000)
        first = [asyncio.create_task(door.ask(large)) for _ in range(2)]
        await settle(lambda: len(d.asked) == 2)
        refused = await door.ask(large)
        assert (refused.status, refused.json["error"]["code"]) == (503, PASSING)
        theirs = asyncio.create_task(other.ask(large))
        await settle(lambda: len(d.asked) == 3)
        gate.set()
        assert [(await one).status for one in (*first, theirs)] == [200] * 3
        assert (await door.ask(large)).status == 200
        assert [one.session.doors.room.used for one in (door, other)] == [0, 0]


async def test_requests_at_once_have_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tool_server, "_REQUESTS", 3)
    async with tool_double() as d, rig() as r:
        door = Door(r, r.session(), d.server())
        d.answer = lambda asked: asked.gone.wait()  # type: ignore[assignment,return-value]
        waiting = [asyncio.create_task(door.ask()) for _ in range(3)]
        await settle(lambda: len(d.asked) == 3)
        reply = await door.ask()
        assert (reply.status, reply.json["error"]["code"]) == (429, PASSING)
        door.session.close()
        await asyncio.gather(*waiting)


async def test_a_flood_that_nobody_reads_is_not_read_either() -> None:
    async with tool_double() as d, rig() as r:
        door = Door(r, r.session(), d.server())
        note = b'event: message\r\ndata: {"jsonrpc":"2.0","method":"noise","params":"%b"}\r\n\r\n' % (
            b"x" * 30_000
        )
        written = 0

        async def flood(asked: Asked) -> None:
            nonlocal written
            asked.stream()
            while written < 64 << 20:
                asked.chunk(note)
                written += len(note)
                await asked.writer.drain()
            asked.event(asked.result("at last"))
            asked.end()

        d.answer = flood
        async with door.client() as client:
            client.send(call(), path=door.path)
            await client.head()
            known = -1
            while known != written:
                known = written
                await _turns()
            # Socket buffers and one read: far from the whole.
            assert written < 40 << 20
            assert door.session.doors.room.used < 8 << 20
            size, last = 0, b""
            while chunk := await client.chunk():
                size, last = size + len(chunk), chunk
            assert size > 64 << 20
            assert b"at last" in last
        assert door.session.doors.room.used == 0


async def _turns() -> None:
    """Let both ends go on for as long as they find anything to do."""
    for _ in range(200):
        await asyncio.sleep(0.001)


async def test_a_whole_answer_is_paid_for_until_it_is_there() -> None:
    async with tool_double() as d, rig() as r:
        door = Door(r, r.session(), d.server())
        d.answer = lambda asked: asked.whole(asked.result("x" * (20 << 20)))
        async with door.client() as client:
            client.send(call(), path=door.path)
            head = await client.head()
            assert door.session.doors.room.used > 10 << 20
            assert len(await client.reader.readexactly(int(head.headers["content-length"]))) > 20 << 20
            await settle(lambda: door.session.doors.room.used == 0, 30)


def test_a_room_is_shared_and_never_more_than_full() -> None:
    house = Room(10)
    a, b = Room(8, house), Room(8, house)
    assert a.take(7)
    assert not b.take(4)
    assert b.take(3)
    assert not a.take(2)
    a.give(7)
    assert (house.used, a.used, b.used) == (3, 0, 3)
    assert b.take(5)
    assert not b.take(1)


def test_others_never_take_all_of_the_house() -> None:
    house = Room(10)
    greedy, modest = Room(20, house, free=2), Room(20, house, free=2)
    assert greedy.take(12)
    assert not greedy.take(1)
    assert modest.take(2)
    assert not modest.take(1)
    greedy.give(11)
    assert (house.used, greedy.used) == (0, 1)
    assert modest.take(10)
    modest.give(12)
    assert (house.used, modest.used) == (0, 0)
