"""The scripted model over HTTP: streamed and whole answers, everything that goes wrong, and what it says it is."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from doubles.agent_program import scenario
from vf_core.scripted.server import ScriptedServer

BODY = {"model": "scripted-x", "messages": [{"role": "user", "content": "hi"}]}
STREAM = {**BODY, "stream": True, "stream_options": {"include_usage": True}}
ANSWER = {"text": "a b c d", "calls": [{"name": "bash", "arguments": {"command": "ls"}}]}


async def _post(server: ScriptedServer, body: Any, **headers: str) -> tuple[int, dict[str, str], bytes]:
    async with (
        aiohttp.ClientSession() as client,
        client.post(f"{server.base_url}/chat/completions", json=body, headers=headers) as answer,
    ):
        return answer.status, {k.lower(): v for k, v in answer.headers.items()}, await answer.read()


def _events(raw: bytes) -> list[Any]:
    lines = [line.removeprefix("data: ") for line in raw.decode().split("\n\n") if line]
    return [json.loads(line) if line != "[DONE]" else line for line in lines]


async def test_it_says_that_it_is_scripted() -> None:
    async with ScriptedServer(scenario(ANSWER)) as server, aiohttp.ClientSession() as client:
        async with client.get(f"{server.base_url}/models") as answer:
            (model,) = (await answer.json())["data"]
        assert model["id"].startswith("scripted")
        status, _, raw = await _post(server, {**BODY, "model": "gpt-5"})
        assert status == 404
        assert b"not a real one" in raw
        _, _, raw = await _post(server, BODY)
        assert json.loads(raw)["system_fingerprint"] == "scripted: not a real model"


async def test_a_whole_answer() -> None:
    async with ScriptedServer(scenario(ANSWER)) as server:
        status, headers, raw = await _post(server, BODY)
    answer = json.loads(raw)
    assert (status, headers["content-type"].partition(";")[0]) == (200, "application/json")
    assert answer["object"] == "chat.completion"
    assert answer["choices"][0]["finish_reason"] == "tool_calls"
    assert answer["choices"][0]["message"]["tool_calls"][0]["function"]["name"] == "bash"
    assert answer["usage"]["completion_tokens"] > 4


async def test_a_streamed_answer_comes_in_small_pieces_and_ends_with_usage() -> None:
    async with ScriptedServer(scenario(ANSWER)) as server:
        _, headers, raw = await _post(server, STREAM)
        *chunks, done = _events(raw)
        without = _events((await _post(server, {**BODY, "stream": True}))[2])
    assert headers["content-type"].startswith("text/event-stream")
    assert done == "[DONE]"
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"]["completion_tokens"] == len(chunks) - 3
    assert chunks[-2]["choices"][0]["finish_reason"] == "tool_calls"
    assert sum("tool_calls" in c["choices"][0]["delta"] for c in chunks[:-1]) > 2
    assert not any("usage" in chunk for chunk in without if chunk != "[DONE]")


async def test_a_status_with_its_retry_header() -> None:
    fault = {"kind": "status", "status": 429, "retry_after": 3, "message": "slow down"}
    async with ScriptedServer(scenario({"text": "x", "fault": fault})) as server:
        status, headers, raw = await _post(server, BODY)
        assert (status, headers["retry-after"]) == (429, "3")
        assert json.loads(raw)["error"]["message"] == "slow down"
        assert (await _post(server, BODY))[0] == 200


@pytest.mark.parametrize("body", [BODY, STREAM], ids=["whole", "stream"])
async def test_answers_that_break_off(body: dict[str, Any]) -> None:
    fault = {"kind": "break", "after_chunks": 2, "times": 0}
    async with ScriptedServer(scenario({"text": "x y z", "fault": fault})) as server:
        with pytest.raises(aiohttp.ClientPayloadError):
            await _post(server, body)


@pytest.mark.parametrize("body", [BODY, STREAM], ids=["whole", "stream"])
async def test_answers_that_end_early_as_if_they_were_whole(body: dict[str, Any]) -> None:
    fault = {"kind": "end", "after_chunks": 2}
    async with ScriptedServer(scenario({"text": "x y z", "fault": fault})) as server:
        status, _, raw = await _post(server, body)
    assert status == 200
    assert b"[DONE]" not in raw
    assert b'finish_reason": "stop' not in raw


async def test_an_error_object_garbage_and_nothing_at_all() -> None:
    def with_fault(kind: str) -> ScriptedServer:
        return ScriptedServer(scenario({"text": "x y z", "fault": {"kind": kind, "after_chunks": 1}}))

    async with with_fault("error") as server:
        assert _events((await _post(server, STREAM))[2])[-1]["error"]["code"] == 500
    async with with_fault("garbage") as server:
        assert (await _post(server, STREAM))[2].endswith(b"data: <html>Bad Gateway</html>\n\n")
    async with with_fault("empty") as server:
        status, _, raw = await _post(server, STREAM)
        assert (status, raw) == (200, b"")


async def test_an_answer_that_hangs_lets_go_when_its_client_leaves() -> None:
    fault = {"kind": "hang", "after_chunks": 1, "times": 0}
    async with ScriptedServer(scenario({"text": "x y z", "fault": fault})) as server:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.3):
                await _post(server, STREAM)
        async with asyncio.timeout(60):
            while server.open:
                await asyncio.sleep(0.01)


async def test_waits_are_real_and_speed_divides_them() -> None:
    loop = asyncio.get_running_loop()

    async def took(first: float, each: float, **options: Any) -> float:
        plan = scenario({"text": "a b c"}, pace={"first_token": first, "per_token": each})
        async with ScriptedServer(plan, **options) as server:
            started = loop.time()
            await _post(server, STREAM)
            return loop.time() - started

    assert await took(0.3, 0.1) >= 0.6
    assert await took(30, 10, speed=200) >= 0.3
    # An hour for each token, if it waited at all.
    await took(3600, 3600, speed=0)


@pytest.mark.parametrize("body", [[], {"model": "scripted"}, "x"])
async def test_a_request_that_is_none_is_refused(body: object) -> None:
    async with ScriptedServer(scenario(ANSWER)) as server:
        assert (await _post(server, body))[0] == 400


async def _spawn(*flags: str) -> tuple[asyncio.subprocess.Process, dict[str, Any]]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "vf_core.scripted", *flags, stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    return process, json.loads(await process.stdout.readline())


async def test_as_a_program_it_prints_where_it_listens_and_ends_when_told(tmp_path: Path) -> None:
    file = tmp_path / "s.toml"
    file.write_text('model = "scripted-mine"\n[[rule]]\nname = "all"\nstep = [{ text = "hello" }]\n')
    process, told = await _spawn("--scenario", str(file))
    server = ScriptedServer(scenario(ANSWER))
    server.base_url = told["base_url"]
    assert json.loads((await _post(server, BODY))[2])["choices"][0]["message"]["content"] == "hello"
    assert (told["model"], told["pid"]) == ("scripted-mine", process.pid)
    process.send_signal(signal.SIGTERM)
    assert await asyncio.wait_for(process.wait(), 60) == 0


async def test_as_a_program_it_can_end_by_itself() -> None:
    process, _ = await _spawn("--idle-exit", "0.2")
    assert await asyncio.wait_for(process.wait(), 60) == 0


async def test_a_scenario_that_is_not_there_is_told(tmp_path: Path) -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "vf_core.scripted", "--scenario", str(tmp_path / "no.toml"),
        stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    _, err = await process.communicate()
    assert process.returncode == 2
    assert b"no such file" in err
