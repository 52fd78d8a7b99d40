"""The chat-completions dialect: reading a request, imposing what the run owns on it, and reading an answer.

Providers differ in what they leave out and add; whatever can be read is, and the rest is let through. What is
not let pass is an answer that says nothing and calls itself a success.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic_core import from_json, to_json

from vf_core.errors import OverlongPromptError, ProviderError
from vf_core.interception.wire import Refusal
from vf_core.trace.types import Usage

PATH = "/chat/completions"
_SAMPLING = frozenset((
    "temperature", "top_p", "top_k", "min_p", "max_tokens", "reasoning_effort", "seed", "stop", "n", "logprobs",
    "top_logprobs", "logit_bias", "frequency_penalty", "presence_penalty", "repetition_penalty", "response_format",
    "tool_choice", "parallel_tool_calls", "verbosity", "thinking",
))  # fmt: skip
_OWN_TOOLS = frozenset(("function", "custom", None))
_OVERLONG = (
    "context length", "context_length", "maximum context", "context window", "prompt is too long",
    "input is too long", "too many tokens", "exceeds the model's maximum", "longer than the model's context",
)  # fmt: skip
_SAID_LIMIT = 2_000


def loads(data: bytes) -> Any:
    """Parse JSON once. Lone surrogates survive; bytes that are not UTF-8 become replacement characters.

    Raises ValueError for anything else.
    """
    try:
        return from_json(data)
    except ValueError:
        pass
    try:
        return json.loads(data.decode("utf-8", "replace"))
    except RecursionError:
        raise ValueError("nested too deeply") from None


def dumps(value: Any) -> bytes:
    """JSON of `value` as UTF-8; lone surrogates and numbers of any size survive."""
    try:
        return to_json(value)
    except ValueError:
        return json.dumps(value).encode()


@dataclass(slots=True)
class ChatRequest:
    """A harness's request: its `raw` bytes, the `body` they parse to, and its `messages` (wire dicts)."""

    raw: bytes
    body: dict[str, Any]
    messages: list[dict[str, Any]]
    stream: bool

    @property
    def tools(self) -> Any:
        """The tools it offers, as sent."""
        return self.body.get("tools")


def parse_request(raw: bytes) -> ChatRequest:
    """Read a request. Raises `Refusal` (400) for what no provider would take either."""
    try:
        body = loads(raw)
    except ValueError as e:
        raise Refusal(400, f"the request's body is not JSON: {e}") from None
    if not isinstance(body, dict):
        raise Refusal(400, "the request's body must be a JSON object")
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        raise Refusal(400, "the request has no messages")
    if not all(isinstance(message, dict) for message in messages):
        raise Refusal(400, "every message must be a JSON object")
    return ChatRequest(raw, body, messages, body.get("stream") is True)


def impose(
    request: ChatRequest, owned: Mapping[str, Any], *, hosted_tools: bool = True
) -> tuple[bytes, list[str]]:
    """The body to send: the harness's own with the settings of the run (`owned`: the model, sampling) put over it,
    and the names of provider-side tools that were taken out (none unless `hosted_tools` is off).

    `request.body` is changed to what is sent. Bytes are only made anew where something differs.
    """
    body = request.body
    stripped = [] if hosted_tools else _strip_hosted(body)
    changes = {key: value for key, value in owned.items() if key not in body or body[key] != value}
    if "max_tokens" in owned and "max_completion_tokens" in body:
        # Newer models know only the newer name: keep the one that the harness chose.
        changes.pop("max_tokens", None)
        body.pop("max_tokens", None)
        changes["max_completion_tokens"] = owned["max_tokens"]
    elsewhere = any(key in body for key in changes)
    body.update(changes)
    if not changes and not stripped:
        return request.raw, stripped
    if elsewhere or stripped:
        return dumps(body), stripped
    head, brace, tail = request.raw.rpartition(b"}")
    return b"".join((head, b",", dumps(changes)[1:-1], brace, tail)), stripped


def _strip_hosted(body: dict[str, Any]) -> list[str]:
    """Take out what would make the provider reach into the network for the agent."""
    found = [name for name in ("web_search_options", "plugins") if body.pop(name, None) is not None]
    tools = body.get("tools")
    if isinstance(tools, list):
        kinds = [tool.get("type") if isinstance(tool, dict) else None for tool in tools]
        found += [str(kind)[:64] for kind in kinds if kind not in _OWN_TOOLS]
        kept = [tool for tool, kind in zip(tools, kinds, strict=True) if kind in _OWN_TOOLS]
        if not kept:
            del body["tools"]
        elif len(kept) < len(tools):
            body["tools"] = kept
    return found


def sampling_of(body: Mapping[str, Any]) -> dict[str, Any]:
    """The sampling settings in a request's body."""
    out = {key: value for key, value in body.items() if key in _SAMPLING}
    if "max_completion_tokens" in body:
        out["max_tokens"] = body["max_completion_tokens"]
    return out


@dataclass(slots=True)
class Completion:
    """A model's answer: its `message` as on the wire, why it stopped (the provider's word), what it cost."""

    message: dict[str, Any]
    finish_reason: str | None = None
    usage: Usage | None = None


class Unusable(Exception):
    """An answer that is no completion. `error` says why; `usage` is what was billed for it, where it is known."""

    def __init__(self, error: ProviderError, usage: Usage | None = None) -> None:
        super().__init__(str(error))
        self.error = error
        self.usage = usage


def parse_completion(data: bytes) -> Completion:
    """Read a whole answer. Raises `Unusable`."""
    if not data.strip():
        raise Unusable(ProviderError("the provider answered with an empty body"))
    try:
        answer = loads(data)
    except ValueError:
        raise Unusable(ProviderError(f"the provider's answer is not JSON: {_said(data)}")) from None
    if not isinstance(answer, dict):
        raise Unusable(ProviderError(f"the provider's answer is no completion: {_said(data)}"))
    usage = Usage.from_wire(answer.get("usage"))
    choices = answer.get("choices")
    choice = choices[0] if isinstance(choices, list) and choices else None
    choice = choice if isinstance(choice, dict) else {}
    if error := answer.get("error") or choice.get("error"):
        raise Unusable(provider_error(error), usage)
    message = choice.get("message")
    if not isinstance(message, dict):
        raise Unusable(ProviderError(f"the provider's answer holds no message: {_said(data)}"), usage)
    finish = choice.get("finish_reason")
    if finish == "error":
        raise Unusable(ProviderError("the provider's answer ended in an error"), usage)
    return Completion(message, finish if isinstance(finish, str) else None, usage)


def provider_error(error: Any, status: int | None = None) -> ProviderError:
    """What an `error` object of the provider says. `status` is that of the HTTP answer, where it was one."""
    text, code = _error_text(error)
    if status is None:
        status = code if code is not None and 400 <= code < 600 else 502
    lower = text.casefold()
    if status in {400, 413, 422} and any(phrase in lower for phrase in _OVERLONG):
        return OverlongPromptError(text, status_code=status)
    return ProviderError(text, status_code=status)


def status_error(status: int, data: bytes) -> ProviderError:
    """What an answer with an error status says."""
    error: Any = None
    try:
        answer = loads(data)
    except ValueError:
        pass
    else:
        error = answer.get("error") or answer.get("detail") or answer if isinstance(answer, dict) else answer
    found = provider_error(error if error is not None else _said(data), status)
    found.message = f"upstream {status}: {found.message}" if found.message else f"upstream {status}"
    if status == 404 and error is None:
        # Not the API's own answer, which would say what it has not got.
        found.message += " (is client.base_url right? most end in /v1)"
    return found


def _error_text(error: Any) -> tuple[str, int | None]:
    if not isinstance(error, Mapping):
        return str(error)[:_SAID_LIMIT], None
    message = error.get("message")
    text = message if isinstance(message, str) and message else json.dumps(error)
    code = error.get("code")
    if isinstance(code, str):
        text = text if code.casefold() in text.casefold() else f"{text} ({code})"
        code = int(code) if code.isdecimal() else None
    return text[:_SAID_LIMIT], code if isinstance(code, int) else None


def _said(data: bytes) -> str:
    return data[:400].decode("utf-8", "replace").strip()
