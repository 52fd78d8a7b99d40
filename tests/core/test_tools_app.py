"""A toolset's MCP server: who is let in, whose state a call has, what becomes of noise, failures and long answers."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from vf_test_caller import call_tool

from vf_core.tasks import State, Toolset, ToolsetConfig, tool
from vf_core.tools import serve
from vf_core.tools.app import make_app
from vf_core.tools.channel import SECRET_HEADER, Caller, Channel, ChannelError
from vf_core.tools.seal import sealed

TOKEN = "the-token"
SEAL = "the-seal"
AUTH = {"authorization": f"Bearer {TOKEN}"}
URL = "http://tools.test/mcp"


class Seen(State):
    words: list[str] = []
    left: int = 0
    right: int = 0


class Mute(Exception):
    def __str__(self) -> str:
        raise ValueError("it cannot be told")


ODD: dict[str, BaseException] = {
    "SystemExit": SystemExit(3),
    "KeyboardInterrupt": KeyboardInterrupt(),
    "CancelledError": asyncio.CancelledError(),
    "StopIteration": StopIteration(),
    "Mute": Mute(),
}


class Tools(Toolset[ToolsetConfig, Seen]):
    """Tools of every kind."""

    together: threading.Barrier | None = None
    both: asyncio.Barrier | None = None

    @tool
    def remember(self, word: str) -> list[str]:
        """Remember a word."""
        if self.together is not None:
            self.together.wait(30)
        self.state.words = [*self.state.words, word]
        return self.state.words

    @tool
    async def left(self) -> int:
        """Counts on one side."""
        self.state.left += 1
        if self.both is not None:
            await self.both.wait()
        return self.state.left

    @tool
    async def right(self) -> int:
        """Counts on the other."""
        self.state.right += 1
        if self.both is not None:
            await self.both.wait()
        return self.state.right

    @tool(name="crash")
    def fall(self) -> str:
        """Raises, having changed something."""
        self.state.left = 99
        raise ValueError("it fell")

    @tool
    def odd(self, how: str) -> str:
        """Ends as tools do not mean to end."""
        raise ODD[how]

    @tool
    def undecodable(self) -> str:
        """As a file's name may be."""
        return "name-\udcff"

    @tool
    async def odd_too(self, how: str) -> str:
        """The same on the loop."""
        raise ODD[how]

    @tool
    def noisy(self) -> str:
        """Prints, and answers with 5 MB."""
        print("a banner\n\x1b[2J" * 100)
        return "x" * 5_000_000


class Stateless(Toolset):
    @tool
    def keep(self) -> str:
        """Its state holds nothing."""
        self.state.word = "x"
        return "kept"


class Memory(Channel):
    """The engine's side, in memory: a state for each secret; `void` are secrets of rollouts that are over."""

    def __init__(self) -> None:
        super().__init__()
        self.states: dict[str, dict[str, Any]] = {"one": {"extra": "kept"}, "two": {}}
        self.writes = 0

    async def _ask(self, method: str, url: str, secret: str, body: bytes | None = None) -> bytes:
        if secret not in self.states:
            raise ChannelError("the rollout is over")
        if body is not None:
            self.writes += 1
            assert method == "PATCH"
            self.states[secret] |= json.loads(body)
        await asyncio.sleep(0)
        return json.dumps(self.states[secret]).encode()


@asynccontextmanager
async def serving(
    toolset: Toolset[Any, Any], memory: Memory, own: Caller | None = None
) -> AsyncIterator[httpx2.AsyncClient]:
    """A client of the toolset's application, which runs in this process."""
    app = make_app(
        toolset, TOKEN, memory, own, states="" if own else "http://engine.test/rollout/state", seal=SEAL
    )
    received: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
    sent: asyncio.Queue[Any] = asyncio.Queue()
    received.put_nowait({"type": "lifespan.startup"})
    life = asyncio.create_task(app({"type": "lifespan", "asgi": {"version": "3.0"}}, received.get, sent.put))  # type: ignore[arg-type]
    assert (await sent.get())["type"] == "lifespan.startup.complete"
    transport = httpx2.ASGITransport(app)  # type: ignore[arg-type]
    async with httpx2.AsyncClient(transport=transport, timeout=60) as client:
        yield client
    received.put_nowait({"type": "lifespan.shutdown"})
    await life


def of(rollout: str) -> dict[str, str]:
    """A call's headers, as the relay sends them."""
    return {**AUTH, SECRET_HEADER: sealed(rollout, SEAL)}


async def test_the_token_lets_in_whatever_the_host_is_called() -> None:
    """M08: with the token by any name, without it by none; nothing of the body is looked at before."""
    async with serving(Stateless(), Memory()) as client:
        for host in ("tools.test", "evil.example", "127.0.0.1:1"):
            answer = await call_tool(client, URL, "nothing", {}, {**AUTH, "host": host})
            assert "Unknown tool" in answer
            for wrong in (
                {},
                {"authorization": "Bearer other"},
                {"authorization": TOKEN},
                {"authorization": "Bearer"},
            ):
                assert (await call_tool(client, URL, "nothing", {}, {**wrong, "host": host})).startswith(
                    "HTTP 401"
                )
        found = await client.get("http://tools.test/", headers={"origin": "http://evil.example"})
        assert found.status_code == 401


async def test_each_call_has_its_own_rollouts_state() -> None:
    memory, toolset = Memory(), Tools()
    toolset.together = threading.Barrier(2)
    async with serving(toolset, memory) as client:
        calls = [call_tool(client, URL, "remember", {"word": who}, of(who)) for who in ("one", "two")]
        assert await asyncio.gather(*calls) == ["one", "two"]
        toolset.together = None
        assert await call_tool(client, URL, "remember", {"word": "more"}, of("one")) == "one\nmore"
        assert memory.states["one"] == {"extra": "kept", "words": ["one", "more"]}
        assert memory.states["two"] == {"words": ["two"]}
        assert "the rollout is over" in await call_tool(client, URL, "remember", {"word": "x"}, of("three"))
        # Nobody's: a state that is forgotten.
        assert await call_tool(client, URL, "remember", {"word": "x"}, AUTH) == "x"
        assert memory.writes == 3


async def test_what_calls_at_once_change_in_different_fields_is_all_kept() -> None:
    memory, toolset = Memory(), Tools()
    toolset.both = asyncio.Barrier(2)
    async with serving(toolset, memory, Caller("http://engine.test/rollout/state", "two")) as client:
        await asyncio.gather(*(call_tool(client, URL, side, {}, AUTH) for side in ("left", "right")))
    assert memory.states["two"] == {"left": 1, "right": 1}


async def test_a_failure_is_told_to_the_model_and_changes_nothing() -> None:
    memory = Memory()
    async with serving(Tools(), memory) as client:
        assert (
            await call_tool(client, URL, "crash", {}, of("one"))
            == "Error executing tool crash: ValueError: it fell"
        )
        assert "Error executing tool remember" in await call_tool(client, URL, "remember", {}, of("one"))
        assert memory.states["one"] == {"extra": "kept"}
    async with serving(Stateless(), memory) as client:
        answer = await call_tool(client, URL, "keep", {}, of("one"))
        assert "'NoState' object has no" in answer.replace('"', "'")


async def test_however_a_tool_ends_its_call_is_answered_and_the_server_goes_on() -> None:
    """`sys.exit`, `next` of what is empty, something awaited that was cancelled: none ends or holds up the server."""
    async with serving(Tools(), Memory()) as client:
        for name in ("odd", "odd_too"):
            for how in ODD:
                answer = await asyncio.wait_for(call_tool(client, URL, name, {"how": how}, of("one")), 30)
                assert answer.startswith(f"Error executing tool {name}: ")
                assert how in answer
        assert await call_tool(client, URL, "undecodable", {}, of("one")) == "name-?"
        assert len(await call_tool(client, URL, "remember", {"word": "x"}, of("two"))) == 1


async def test_noise_and_a_long_answer_do_no_harm(capsys: pytest.CaptureFixture[str]) -> None:
    """M07."""
    async with serving(Tools(), Memory()) as client:
        assert len(await call_tool(client, URL, "noisy", {}, of("one"))) == 5_000_000
    assert "a banner" in capsys.readouterr().out


def test_a_server_that_prints_without_end_does_not_fill_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serve, "LOG_LIMIT", 1000)
    with (tmp_path / "server.log").open("ab", buffering=0) as log:
        for size, left in ((600, 600), (600, 0), (10, 10)):
            log.write(b"x" * size)
            serve.cut_log(log.fileno())
            assert log.seek(0, 2) == left


async def test_tools_are_described_by_their_docstrings_and_annotations() -> None:
    async with serving(Tools(), Memory()) as client:
        message = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}}
        headers = {**AUTH, "accept": "application/json, text/event-stream"}
        told = (await client.post(URL, json=message, headers=headers)).json()["result"]["tools"]
    assert [one["name"] for one in told] == [
        "crash",
        "left",
        "noisy",
        "odd",
        "odd_too",
        "remember",
        "right",
        "undecodable",
    ]
    remember = told[5]
    assert remember["description"] == "Remember a word."
    assert remember["inputSchema"]["properties"] == {"word": {"title": "Word", "type": "string"}}


async def test_the_engine_is_asked_again_where_that_may_help() -> None:
    statuses = iter([503, 200, 401, 422, *[500] * 5])
    asked: list[tuple[str, str]] = []

    def answer(request: httpx2.Request) -> httpx2.Response:
        asked.append((request.method, request.headers["authorization"]))
        return httpx2.Response(next(statuses), json={"left": 3})

    channel = Channel(first_delay=0.001, longest=0.001)
    channel.clients[False] = httpx2.AsyncClient(transport=httpx2.MockTransport(answer))
    whose = Caller("http://engine.test/rollout/state", "s")
    assert (await channel.pull(whose, Seen)) == Seen(left=3)
    assert asked == [("GET", "Bearer s")] * 2
    for said in ("the rollout is over", "HTTP 422", "cannot be reached: HTTP 500"):
        with pytest.raises(ChannelError, match=said):
            await channel.pull(whose, Seen)
    assert len(asked) == 9
    await channel.aclose()
