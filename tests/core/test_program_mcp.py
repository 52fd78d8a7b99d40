"""MCP tools of the programs, against the SDK's own server over HTTP."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from doubles.agent_program import run_agent, scenario, tool_results
from doubles.mcp_process import McpProcess, mcp_server
from vf_core.harnesses.program import mcp_tools
from vf_core.harnesses.program.mcp_tools import McpSetupError, McpTools
from vf_core.scripted.server import ScriptedServer


@pytest.fixture(scope="module")
def good() -> Iterator[McpProcess]:
    with mcp_server() as server:
        yield server


@pytest.fixture(scope="module")
def other() -> Iterator[McpProcess]:
    with mcp_server("--prefix", "b_") as server:
        yield server


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mcp_tools, "MCP_FIRST_DELAY", 0.01)
    monkeypatch.setattr(mcp_tools, "MCP_LONGEST_DELAY", 0.05)


def _sockets() -> int:
    count = 0
    for name in os.listdir("/proc/self/fd"):
        try:
            count += os.readlink(f"/proc/self/fd/{name}").startswith("socket:")
        except OSError:
            continue
    return count


def test_tools_are_advertised_under_their_servers_name(good: McpProcess) -> None:
    tools = McpTools({"calc": good.spec, "": good.spec}, {"bash": "own"})
    names = [schema["function"]["name"] for schema in tools.schemas]
    assert "calc_add" in names
    assert "add" in names
    (add,) = (s["function"] for s in tools.schemas if s["function"]["name"] == "calc_add")
    assert add["description"] == "Add two numbers."
    assert add["parameters"]["required"] == ["a", "b"]
    assert tools.call("calc_add", {"a": 2, "b": 3}) == "5"
    assert tools.call("add", {"a": 2, "b": 4}) == "6"


@pytest.mark.parametrize(
    ("servers", "reserved", "says"),
    [
        (
            ["", ""],
            {"add": "the program's own tool 'add'"},
            ("'add'", "the program's own tool", "MCP server ''"),
        ),
        (["a", "a_b"], {}, ("'a_b_add'", "tool 'b_add' of MCP server 'a'", "tool 'add' of MCP server 'a_b'")),
    ],
    ids=["reserved", "twice"],
)
def test_a_name_taken_twice_is_an_error_that_names_both(
    good: McpProcess, other: McpProcess, servers: list[str], reserved: dict[str, str], says: tuple[str, ...]
) -> None:
    specs = dict(zip(servers, [other.spec, good.spec], strict=True))
    with pytest.raises(McpSetupError) as caught:
        McpTools(specs, reserved)
    assert all(word in str(caught.value) for word in says)


def test_content_of_every_kind(good: McpProcess) -> None:
    tools = McpTools({"s": good.spec}, {})
    assert tools.call("s_lines", {}) == "one\ntwo"
    picture = tools.call("s_picture", {})
    assert isinstance(picture, list)
    assert picture[0]["image_url"]["url"].startswith("data:image/png;base64,iVBOR")
    text, image, audio, resource = tools.call("s_mixed", {})
    assert text == {"type": "text", "text": "first"}
    assert image["type"] == "image_url"
    assert '"audio/wav"' in audio["text"]
    assert resource == {"type": "text", "text": "resource text"}


def test_a_big_answer_arrives_whole(good: McpProcess) -> None:
    """M07, over HTTP."""
    assert McpTools({"s": good.spec}, {}).call("s_big", {"size": 5_000_000}) == "x" * 5_000_000


def test_a_tools_own_failure_is_its_result(good: McpProcess) -> None:
    tools = McpTools({"s": good.spec}, {})
    assert "fail" in str(tools.call("s_fail", {}))
    assert "validation error" in str(tools.call("s_add", {"a": "x"}))


@pytest.mark.parametrize("mode", ["fail", "cut", "hang"])
def test_a_failure_while_closing_costs_neither_the_answer_nor_a_second_call(
    mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mcp_tools, "MCP_CLOSE_TIMEOUT", 0.3)
    with mcp_server("--close", mode) as server:
        tools = McpTools({"s": server.spec}, {})
        assert [tools.call("s_count", {}) for _ in range(2)] == ["1", "2"]


def test_a_server_that_dies_in_a_call_is_noticed_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """M02: not by its time limit of ten minutes; it is tried again, and then told to the model."""
    monkeypatch.setattr(mcp_tools, "MCP_ATTEMPTS", 3)
    with mcp_server() as server:
        tools = McpTools({"s": server.spec}, {})
        result = tools.call("s_die", {})
        assert server.process.wait(timeout=60) == 1
    assert str(result).startswith("error: MCP tool 'die' of server 's' could not be called:")


def test_a_silent_server_ends_with_the_limit_and_is_not_asked_again(
    good: McpProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """M02, M11: and the next call works."""
    monkeypatch.setattr(mcp_tools, "MCP_CALL_TIMEOUT", 0.5)
    tools = McpTools({"s": good.spec}, {})
    assert str(tools.call("s_silent", {})).endswith("no answer within 0.5 s")
    monkeypatch.setattr(mcp_tools, "MCP_CALL_TIMEOUT", 30)
    assert tools.call("s_add", {"a": 1, "b": 1}) == "2"


def test_connections_that_are_cut_now_and_then_fail_nothing() -> None:
    """M04."""
    with mcp_server("--reset", "10") as server:
        tools = McpTools({"s": server.spec}, {})
        assert [tools.call("s_add", {"a": n, "b": 1}) for n in range(12)] == [str(n + 1) for n in range(12)]


def test_many_sessions_leave_no_socket_and_say_nothing(
    good: McpProcess, capfd: pytest.CaptureFixture[str]
) -> None:
    """M01: twenty sessions, opened and left in one task each."""
    tools = McpTools({"s": good.spec}, {})
    before = _sockets()
    for _ in range(20):
        assert tools.call("s_add", {"a": 1, "b": 2}) == "3"
    assert _sockets() <= before
    assert capfd.readouterr().err == ""


def test_no_server_is_told_by_name_and_leaves_nothing_behind(capfd: pytest.CaptureFixture[str]) -> None:
    """M01: a port without a server."""
    before = _sockets()
    with pytest.raises(McpSetupError, match=r"'gone': ConnectError"):
        McpTools({"gone": {"url": "http://127.0.0.1:9/mcp"}}, {})
    assert _sockets() <= before
    assert capfd.readouterr().err == ""


async def test_listing_all_servers_has_one_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mcp_tools, "MCP_LIST_TIMEOUT", 0.5)
    hole = await asyncio.start_server(lambda r, w: asyncio.sleep(600), "127.0.0.1", 0)
    url = f"http://127.0.0.1:{hole.sockets[0].getsockname()[1]}/mcp"
    with pytest.raises(McpSetupError, match=r"'a': .*'b': no answer within 0.5 s"):
        await asyncio.to_thread(McpTools, {"a": {"url": url}, "b": {"url": url}}, {})
    hole.close()


async def test_the_program_uses_them_between_its_own(good: McpProcess, tmp_path: Path) -> None:
    calls = [
        {"name": "calc_add", "arguments": {"a": 20, "b": 22}},
        {"name": "bash", "arguments": {"command": "echo here"}},
        {"name": "calc_fail", "arguments": {}},
    ]
    config = json.dumps({"mcpServers": {"calc": {"url": good.url, "headers": {"x-test": "1"}}}})
    async with ScriptedServer(scenario({"calls": calls}, {"text": "ok"}), record=True) as server:
        proxy = {"HTTP_PROXY": "http://127.0.0.1:9", "http_proxy": "http://127.0.0.1:9"}
        ended = await run_agent("bash", server, tmp_path, "--prompt=go", f"--mcp-config={config}", env=proxy)
    assert (ended.code, ended.err) == (0, "")
    first, second, third = tool_results(server)
    assert (first, second) == ("42", "here\n")
    assert "fail" in third


async def test_servers_that_cannot_be_listed_end_the_program(tmp_path: Path) -> None:
    async with ScriptedServer(scenario({"text": "ok"})) as server:
        config = json.dumps({"mcpServers": {"calc": {"url": f"{server.base_url}/no-mcp-here"}}})
        ended = await run_agent("null", server, tmp_path, "--prompt=go", f"--mcp-config={config}")
        assert server.requests == 0
    assert ended.code == 1
    assert ended.err.startswith("error: MCP servers did not list their tools: 'calc': ")
    # There is a secret in a server's address, and this ends up in traces.
    assert "no-mcp-here" not in ended.err


async def test_a_server_without_a_url_is_a_wrong_command_line(tmp_path: Path) -> None:
    ended = await run_agent(
        "null", "http://127.0.0.1:9/v1", tmp_path, "--prompt=go", '--mcp-config={"mcpServers":{"a":{}}}'
    )
    assert (ended.code, ended.err) == (2, "error: --mcp-config: server 'a' has no url\n")
