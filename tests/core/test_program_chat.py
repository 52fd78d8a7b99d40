"""Model calls of the programs: what is asked again, how often, after how long; what is an error at once."""

from __future__ import annotations

import asyncio
import email.utils
import time
from typing import Any

import httpx
import pytest

from doubles.agent_program import scenario
from vf_core.harnesses.program import chat
from vf_core.harnesses.program.chat import ChatClient, ModelCallError
from vf_core.scripted.server import ScriptedServer


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat, "FIRST_DELAY", 0.01)


async def _ask(fault: dict[str, Any] | None, *, stream: bool = True) -> tuple[dict[str, Any], int]:
    """The answer under a fault, and how many requests it took."""
    step: dict[str, Any] = {"text": "the whole answer of the model"}
    if fault is not None:
        step["fault"] = fault
    async with ScriptedServer(scenario(step)) as server:
        client = ChatClient(server.base_url, "secret", "scripted", stream=stream)
        try:
            message = await asyncio.to_thread(client.complete, [{"role": "user", "content": "x"}], [])
        finally:
            requests = server.requests
            client._client.close()
        return message, requests


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    "fault",
    [
        {"kind": "status", "status": 408},
        {"kind": "status", "status": 409},
        {"kind": "status", "status": 429, "times": 2},
        {"kind": "status", "status": 500},
        {"kind": "status", "status": 503, "retry_after": 0.01},
        {"kind": "break"},
        {"kind": "break", "after_chunks": 3},
        {"kind": "end", "after_chunks": 3},
        {"kind": "empty"},
        {"kind": "garbage", "after_chunks": 1},
        {"kind": "error", "after_chunks": 2},
    ],
    ids=lambda fault: f"{fault['kind']}-{fault.get('status', '')}{fault.get('after_chunks', '')}",
)
async def test_a_passing_failure_is_asked_again(fault: dict[str, Any], stream: bool) -> None:
    message, requests = await _ask(fault, stream=stream)
    assert message["content"] == "the whole answer of the model"
    assert requests == 1 + fault.get("times", 1)


@pytest.mark.parametrize("status", [400, 401, 403, 404, 413, 422])
async def test_a_lasting_failure_is_told_at_once(status: int) -> None:
    with pytest.raises(ModelCallError, match=f"HTTP {status}: the reason") as caught:
        await _ask({"kind": "status", "status": status, "message": "the reason", "times": 0})
    assert caught.value.status == status


async def test_after_two_retries_the_last_failure_stands() -> None:
    fault = {"kind": "status", "status": 502, "times": 0}
    async with ScriptedServer(scenario({"text": "x", "fault": fault})) as server:
        client = ChatClient(server.base_url, "secret", "scripted")
        with pytest.raises(ModelCallError, match="HTTP 502"):
            await asyncio.to_thread(client.complete, [{"role": "user", "content": "x"}], [])
        assert server.requests == 3


async def test_no_server_is_a_failure_that_names_it() -> None:
    client = ChatClient("http://127.0.0.1:9/v1", "secret", "scripted")
    with pytest.raises(ModelCallError, match="ConnectError"):
        await asyncio.to_thread(client.complete, [{"role": "user", "content": "x"}], [])


async def test_each_try_says_which_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    original = httpx.Client.stream

    def stream(self: httpx.Client, *args: Any, **kwargs: Any) -> Any:
        seen.append(kwargs["headers"]["x-stainless-retry-count"])
        return original(self, *args, **kwargs)

    monkeypatch.setattr(httpx.Client, "stream", stream)
    await _ask({"kind": "status", "status": 500, "times": 2})
    assert seen == ["0", "1", "2"]


def _error(status: int, **headers: str) -> ModelCallError:
    response = httpx.Response(
        status, headers={k.replace("_", "-"): v for k, v in headers.items()}, json={"error": {"message": "m"}}
    )
    return chat._status_error(response)


def test_the_servers_own_word_on_retrying_wins() -> None:
    assert not _error(500, x_should_retry="false").retry
    assert _error(400, x_should_retry="true").retry


def test_how_long_the_server_asks_to_wait() -> None:
    assert _error(429, retry_after="1.5").delay == 1.5
    assert _error(429, retry_after_ms="250").delay == 0.25
    dated = _error(429, retry_after=email.utils.formatdate(time.time() + 60, usegmt=True)).delay
    assert dated is not None
    assert 50 < dated <= 61
    assert _error(429, retry_after="soon").delay is None
    assert not _error(429, retry_after="121").retry


class _Outcome:
    def __init__(self, error: Exception) -> None:
        self.error = error

    def exception(self) -> Exception:
        return self.error


class _State:
    def __init__(self, error: Exception, attempt: int) -> None:
        self.outcome = _Outcome(error)
        self.attempt_number = attempt


def test_waits_double_up_to_a_limit_unless_the_server_says_how_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat, "FIRST_DELAY", 0.5)
    broken = ModelCallError("x", status=None, retry=True)
    for attempt, longest in ((1, 0.5), (2, 1.0), (4, 4.0), (9, 8.0)):
        assert longest * 0.75 <= chat._delay(_State(broken, attempt)) <= longest
    asked = ModelCallError("x", status=429, retry=True, delay=7.0)
    assert chat._delay(_State(asked, 1)) == 7.0
