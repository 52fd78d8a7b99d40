"""Our own programs' MCP client (the SDK's) and the SDK's server, with the relay between them."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator

import mcp_types as types
import pytest
from pydantic import ValidationError

from doubles.intercepted import Rig, rig, settle
from doubles.mcp_process import McpProcess, mcp_server
from doubles.tool_servers import Door
from vf_core.events import types as ev
from vf_core.harnesses.program import mcp_tools
from vf_core.harnesses.program.mcp_tools import McpTools
from vf_core.interception.mcp_messages import FINAL, PASSING
from vf_core.interception.tool_server import ToolServer


@pytest.fixture(scope="module")
def good() -> Iterator[McpProcess]:
    with mcp_server() as server:
        yield server


def door(r: Rig, url: str) -> Door:
    """A rollout's address of the server at `url`."""
    return Door(r, r.session(), ToolServer(name="calc", url=url))


async def program(there: Door) -> McpTools:
    """A program's tools; its client has loops of its own."""
    return await asyncio.to_thread(McpTools, {"calc": {"url": there.url}}, {})


async def test_tools_are_listed_and_called_through_the_relay(good: McpProcess) -> None:
    """M07 over HTTP: what is large, an image, a failure and progress arrive as from the server itself."""
    async with rig() as r:
        tools = await program(door(r, good.url))
        assert await asyncio.to_thread(tools.call, "calc_add", {"a": 2, "b": 3}) == "5"
        assert await asyncio.to_thread(tools.call, "calc_big", {"size": 5_000_000}) == "x" * 5_000_000
        picture = await asyncio.to_thread(tools.call, "calc_picture", {})
        assert picture[0]["image_url"]["url"].startswith("data:image/png;base64,iVBOR")
        assert "fail" in str(await asyncio.to_thread(tools.call, "calc_fail", {}))
        _, served = r.told(ev.ToolsServed)
        assert (served.server, served.place, served.shared) == ("calc", "host", False)
        assert {"add", "fail", "silent"} <= set(served.tools)


async def test_m04_m02_resets_fail_nothing_and_a_death_is_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mcp_tools, "MCP_FIRST_DELAY", 0.01)
    async with rig() as r:
        with mcp_server("--reset", "10") as server:
            tools = await asyncio.gather(*(program(door(r, server.url)) for _ in range(2)))
            calls = [asyncio.to_thread(t.call, "calc_add", {"a": n, "b": 1}) for n, t in enumerate(tools * 4)]
            assert await asyncio.gather(*calls) == [str(n + 1) for n in range(8)]
            told = await asyncio.to_thread(tools[0].call, "calc_die", {})
            assert server.process.wait(timeout=30) == 1
        # What the relay calls final is not asked again.
        assert {FINAL, PASSING} & set(mcp_tools._FINAL_CODES) == {FINAL}
        assert "tool server 'calc': it is gone" in told
        assert server.url.removeprefix("http://").removesuffix("/mcp") not in told


def test_what_a_server_says_that_no_tool_list_is_is_not_asked_again() -> None:
    """S01, too: the address that a failure names has a secret in it."""
    with pytest.raises(ValidationError) as caught:
        types.ListToolsResult.model_validate({"tools": [{"name": "a", "inputSchema": "nonsense"}]})
    assert not mcp_tools._may_pass(mcp_tools._Failed(caught.value, None))
    assert mcp_tools._may_pass(mcp_tools._Failed(ConnectionError("reset"), None))
    spec = {"url": "http://127.0.0.1:9/tools/canary/calc/mcp"}
    assert mcp_tools._cause(OSError(f"no answer from {spec['url']}"), spec) == "no answer from its address"


async def test_m01_m11_a_cancelled_call_ends_at_the_server_and_leaves_nothing(
    good: McpProcess, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    async with rig() as r:
        there = door(r, good.url)
        tools = await program(there)
        before = len(os.listdir("/proc/self/fd"))
        monkeypatch.setattr(mcp_tools, "MCP_CALL_TIMEOUT", 0.3)
        assert "no answer within" in str(await asyncio.to_thread(tools.call, "calc_silent", {}))
        monkeypatch.setattr(mcp_tools, "MCP_CALL_TIMEOUT", 60)
        for _ in range(5):
            assert await asyncio.to_thread(tools.call, "calc_add", {"a": 1, "b": 1}) == "2"
        await settle(lambda: not there.session.doors.under_way, 30)
        there.session.remove_tools()
        await settle(lambda: len(os.listdir("/proc/self/fd")) <= before, 30)
    assert capfd.readouterr().err == ""
