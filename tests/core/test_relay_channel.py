"""The channel of tool servers: a rollout's state and task, by a secret of their own."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from doubles.intercepted import Client, Reply, Rig, make_trace, rig
from vf_core.interception import Session, channel
from vf_core.trace.task import State, TaskData


class Row(TaskData):
    """A row with a field of its own."""

    answer: str = ""


class Count(State):
    """A state with typed fields."""

    n: int = 0
    best: float = 0.0


def counted(r: Rig, name: str = "r1", **more: Any) -> Session:
    """A session whose rollout counts."""
    trace = make_trace()
    trace.state = Count(n=1)
    return r.session(name, trace=trace, **more)


async def ask(r: Rig, secret: str, path: str, method: str = "GET", body: Any = b"") -> Reply:
    """One request of a tool server."""
    async with Client(r.server.base_url, secret) as client:
        return await client.ask(body, method=method, path=path)


async def test_state_goes_out_and_comes_back_whole() -> None:
    async with rig() as r:
        session = counted(r)
        path, secret = session.channel
        assert (path, channel.TASK_PATH) == (channel.STATE_PATH, "/rollout/task")
        reply = await ask(r, secret, path)
        assert (reply.status, reply.json) == (200, {"n": 1, "best": 0.0})
        put = await ask(r, secret, path, "PUT", b'{"n": 5, "best": Infinity, "note": "kept"}')
        assert (put.status, put.body) == (204, b"")
        assert session.trace.state == Count(n=5, best=float("inf"), note="kept")  # type: ignore[call-arg]
        assert (await ask(r, secret, path)).body == b'{"n":5,"best":Infinity,"note":"kept"}'


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b'{"n": "many"}', "n: Input should be a valid integer"),
        (b"[]", "object"),
        (b"{", "JSON"),
        (b"\xff", "JSON"),
    ],
)
async def test_what_is_no_such_state_changes_nothing(body: bytes, says: str) -> None:
    async with rig() as r:
        session = counted(r)
        reply = await ask(r, session.channel_secret, channel.STATE_PATH, "PUT", body)
        assert reply.status == 422
        assert "not a Count" in reply.error
        assert says in reply.error
        assert session.trace.state == Count(n=1)


async def test_a_state_has_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel, "STATE_LIMIT", 1 << 20)
    async with rig() as r:
        session = counted(r)
        body = json.dumps({"n": 1, "pad": "x" * (2 << 20)}).encode()
        reply = await ask(r, session.channel_secret, channel.STATE_PATH, "PUT", body)
        assert (reply.status, session.trace.state) == (413, Count(n=1))


async def test_the_task_is_told_with_its_class() -> None:
    async with rig() as r:
        row = Row(idx=3, prompt="count", answer="42")
        session = counted(r, task=row)
        told = (await ask(r, session.channel_secret, channel.TASK_PATH)).json
        module, _, name = told["cls"].partition(":")
        assert (module, name) == (Row.__module__, "Row")
        assert Row.model_validate(told["task"]) == row
        other = counted(r, "r2")
        assert (await ask(r, other.channel_secret, channel.TASK_PATH)).json["cls"].endswith(":WireTaskData")


async def test_i04_i13_only_its_own_secret_opens_a_channel_and_only_while_the_rollout_lives() -> None:
    async with rig() as r:
        a, b = counted(r, "a"), counted(r, "b")
        for secret in ("", "wrong", a.secret, a.tool_secret):
            for path, method in (
                (channel.STATE_PATH, "GET"),
                (channel.STATE_PATH, "PUT"),
                (channel.STATE_PATH, "PATCH"),
                (channel.TASK_PATH, "GET"),
            ):
                assert (await ask(r, secret, path, method)).status == 401
        assert (await ask(r, b.channel_secret, channel.STATE_PATH, "PUT", b'{"n": 9}')).status == 204
        assert (a.trace.state.n, b.trace.state.n) == (1, 9)
        assert (await ask(r, a.channel_secret, channel.STATE_PATH, "DELETE")).status == 405
        assert (await ask(r, a.channel_secret, "/rollout/else")).status == 404
        assert (await ask(r, a.channel_secret, "/v1/models")).status == 401
        a.close()
        r.server.unregister(b.secret)
        for session in (a, b):
            for method, body in (("GET", b""), ("PUT", b'{"n": 0}')):
                assert (await ask(r, session.channel_secret, channel.STATE_PATH, method, body)).status == 401
        assert (a.trace.state.n, b.trace.state.n) == (1, 9)


async def test_two_at_once_leave_one_whole_state() -> None:
    async with rig() as r:
        session = counted(r)
        bodies = [json.dumps({"n": n, "best": n}).encode() for n in range(20)]
        replies = await asyncio.gather(
            *(ask(r, session.channel_secret, channel.STATE_PATH, "PUT", body) for body in bodies)
        )
        assert {reply.status for reply in replies} == {204}
        assert session.trace.state.n == session.trace.state.best


async def test_what_two_servers_change_at_once_is_all_kept() -> None:
    """Each read the state before either wrote: fields that one left alone are the other's."""
    async with rig() as r:
        session = counted(r)
        path, secret = session.channel
        for body in (b'{"n": 5}', b'{"best": 2.5}'):
            assert (await ask(r, secret, path, "PATCH", body)).status == 204
        assert session.trace.state == Count(n=5, best=2.5)
        for wrong in (b"[]", b'{"n": "many"}', b"{"):
            assert (await ask(r, secret, path, "PATCH", wrong)).status == 422
        assert session.trace.state == Count(n=5, best=2.5)
