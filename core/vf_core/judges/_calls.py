"""Judges' model calls, by the openai client: on a thread and loop of their own, bounded, with its own retries.

The engine's loop, which serves the agents' model calls, has no part in them; nor can a plugin that blocks its loop
hold one up. A call that its caller gives up is cancelled here, too.
"""

from __future__ import annotations

import asyncio
import re
import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vf_core.errors import JudgeError
from vf_core.judges._endpoint import CONNECT_SECONDS, Endpoint, UnfitAnswerError, make_client
from vf_core.trace.types import Usage

if TYPE_CHECKING:
    from openai import AsyncOpenAI
    from pydantic import BaseModel

RETRIES = 4
"""Tries after the first one, of rate limits, server errors and broken connections; half a second to eight apart, or
as long as the endpoint asks for."""
AT_ONCE = 64
_CLIENTS = 16
_TOLD = 500


@dataclass(frozen=True, slots=True)
class Call:
    """One call: whose it is, where to, and what is asked. `timeout`: seconds in all, tries and waits included."""

    name: str
    endpoint: Endpoint
    model: str
    messages: Sequence[dict[str, Any]]
    sampling: dict[str, Any]
    schema: type[BaseModel] | None
    timeout: float


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back; text and refusal are empty where there is none."""

    text: str
    refusal: str
    finish_reason: str
    usage: Usage | None


async def ask(call: Call) -> Answer:
    """Make a call. Raises JudgeError when no answer comes of it."""
    task = asyncio.run_coroutine_threadsafe(_place.call(call), _place.loop())
    return await asyncio.wrap_future(task)


class _Place:
    """The thread, its loop, and the clients in use."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._clients: OrderedDict[tuple[Endpoint, str], _Client] = OrderedDict()

    def loop(self) -> asyncio.AbstractEventLoop:
        """The loop; it is there as long as the process."""
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                threading.Thread(target=self._loop.run_forever, name="judge calls", daemon=True).start()
            return self._loop

    async def call(self, call: Call) -> Answer:
        """On the loop: wait for a place at the endpoint, then ask."""
        client = self._client(call.endpoint)
        async with client.places:
            try:
                async with asyncio.timeout(call.timeout):
                    return await self._ask(client.openai, call)
            except TimeoutError:
                raise _failure(call, f"gave no answer within {call.timeout:g} s, tries included") from None

    async def _ask(self, client: AsyncOpenAI, call: Call) -> Answer:
        import httpx2
        import openai

        try:
            raw = await client.chat.completions.with_raw_response.create(
                model=call.model,
                messages=[_clean(message) for message in call.messages],
                extra_body=_clean(call.sampling | _format(call.schema)),
                timeout=httpx2.Timeout(call.timeout, connect=min(call.timeout, CONNECT_SECONDS)),
            )
            body = raw.http_response.json()
        except openai.APIStatusError as e:
            raise _failure(call, f"answered {e.status_code}: {_message(e)}") from None
        except openai.OpenAIError as e:
            raise _failure(call, f"could not be asked: {_chain(e)}") from None
        except UnfitAnswerError as e:
            raise _failure(call, f"gave {e}") from None
        except (ValueError, RecursionError):
            raise _failure(call, "answered with what is no JSON") from None
        except asyncio.CancelledError:
            raise
        except Exception as e:
            raise _failure(call, f"could not be asked: {type(e).__name__}: {e}") from None
        return _read(call, body)

    def _client(self, endpoint: Endpoint) -> _Client:
        key = (endpoint, endpoint.key())
        client = self._clients.get(key)
        if client is None:
            client = self._clients[key] = _Client(make_client(*key, RETRIES), asyncio.Semaphore(AT_ONCE))
        self._clients.move_to_end(key)
        while len(self._clients) > _CLIENTS:
            self._clients.popitem(last=False)
        return client


@dataclass(frozen=True, slots=True)
class _Client:
    """A client of one endpoint, and its places."""

    openai: AsyncOpenAI
    places: asyncio.Semaphore


_place = _Place()


def _format(schema: type[BaseModel] | None) -> dict[str, Any]:
    if schema is None:
        return {}
    told = {"name": schema.__name__, "schema": strict_schema(schema.model_json_schema()), "strict": True}
    return {"response_format": {"type": "json_schema", "json_schema": told}}


def strict_schema(schema: Any) -> Any:
    """A JSON schema as structured output wants it: every property is required, no others may come, no defaults."""
    if isinstance(schema, list):
        return [strict_schema(entry) for entry in schema]
    if not isinstance(schema, dict):
        return schema
    out = {key: strict_schema(value) for key, value in schema.items() if key != "default"}
    if isinstance(schema.get("properties"), dict):
        out["properties"] = {name: strict_schema(value) for name, value in schema["properties"].items()}
        out |= {"required": list(out["properties"]), "additionalProperties": False}
    return out


_LONE = re.compile("[\ud800-\udfff]")


def _clean(value: Any) -> Any:
    """`value` as UTF-8 can carry it: an agent may have said half a character."""
    if isinstance(value, str):
        return _LONE.sub("\ufffd", value)
    if isinstance(value, dict):
        return {key: _clean(inner) for key, inner in value.items()}
    return [_clean(inner) for inner in value] if isinstance(value, list | tuple) else value


def _read(call: Call, body: Any) -> Answer:
    """An answer's parts. Raises JudgeError for one without a message."""
    usage = Usage.from_wire(body.get("usage")) if isinstance(body, dict) else None
    choices = body.get("choices") if isinstance(body, dict) else None
    choice = choices[0] if isinstance(choices, list) and choices and isinstance(choices[0], dict) else {}
    message = choice.get("message")
    if not isinstance(message, dict):
        error = body.get("error") if isinstance(body, dict) else None
        raise _failure(
            call, f"answered without a message: {error}" if error else "answered without a message"
        )
    content, refusal, reason = message.get("content"), message.get("refusal"), choice.get("finish_reason")
    if isinstance(content, list):
        parts = (part.get("text") for part in content if isinstance(part, dict))
        content = "\n".join(part for part in parts if isinstance(part, str))
    return Answer(
        text=content if isinstance(content, str) else "",
        refusal=str(refusal or ""),
        finish_reason=reason if isinstance(reason, str) else "",
        usage=usage,
    )


def _failure(call: Call, what: str) -> JudgeError:
    told = call.endpoint.redact(f"{call.model} at {call.endpoint.base_url} {what}")
    return JudgeError(f"judge {call.name!r}: {told[:_TOLD]}")


def _message(error: Any) -> str:
    body = error.body
    message = body.get("message") if isinstance(body, dict) else None
    return str(message or body or error.response.reason_phrase or "no reason given")


def _chain(error: BaseException) -> str:
    """An error and what was behind it: the openai client says no more than "Connection error."."""
    told = [str(error) or type(error).__name__]
    cause = error.__cause__
    while cause is not None and len(told) < 3:
        told.append(str(cause) or type(cause).__name__)
        cause = cause.__cause__
    return ": ".join(dict.fromkeys(told))
