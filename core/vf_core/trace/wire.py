"""Chat-completions wire messages (dicts parsed from JSON) to typed messages and back.

Nothing here raises on odd input: the provider decides what it accepts, a trace only says what was sent.
"""

from __future__ import annotations

import json
from typing import Any

from vf_core.trace.types import (
    AssistantMessage,
    ImageUrlContentPart,
    ImageUrlSource,
    Message,
    MessageContent,
    SystemMessage,
    TextContentPart,
    Tool,
    ToolCall,
    ToolMessage,
    UserMessage,
)

_REASONING = ("reasoning_content", "reasoning", "reasoning_details")


def parse_message(raw: Any) -> Message:
    """One wire message as a typed one.

    `developer` counts as system, `function` as tool, an unknown role as user. Parts that a record can't hold (audio,
    files) leave a short text in their place.
    """
    if not isinstance(raw, dict):
        return UserMessage(content=_string(raw))
    role = raw.get("role")
    if role == "assistant":
        return parse_assistant(raw)
    content = raw.get("content")
    parsed = content if isinstance(content, str) else _content(content)
    if role in ("tool", "function"):
        name = raw.get("name")
        name = name if isinstance(name, str) else None
        call = raw.get("tool_call_id")
        return ToolMessage(tool_call_id=_string(name if call is None else call), content=parsed, name=name)
    if role in ("system", "developer"):
        return SystemMessage(content=parsed)
    return UserMessage(content=parsed)


def parse_assistant(raw: dict[str, Any]) -> AssistantMessage:
    """An assistant's wire message (in a request, or a completion's `message`) as a typed one.

    A refusal stands as the content where there is no other. Empty content is None.
    """
    content = raw.get("content")
    if not isinstance(content, str):
        content = _flat(content)
    details = raw.get("reasoning_details")
    return AssistantMessage(
        content=content or _text(raw.get("refusal")) or None,
        reasoning_content=_reasoning(raw),
        tool_calls=_calls(raw),
        provider_state=_state(details) if details else None,
    )


def parse_tools(raw: Any) -> list[Tool] | None:
    """The functions of a request's `tools`; None when it offers none (other kinds of tools are left out)."""
    tools = []
    for entry in raw if isinstance(raw, list) else ():
        function = entry.get("function") if isinstance(entry, dict) else None
        if not isinstance(function, dict):
            continue
        parameters, strict = function.get("parameters"), function.get("strict")
        tools.append(
            Tool(
                name=_string(function.get("name")),
                description=_text(function.get("description")),
                parameters=dict(parameters) if isinstance(parameters, dict) else {},
                strict=strict if isinstance(strict, bool) else None,
            )
        )
    return tools or None


def message_to_wire(message: Message) -> dict[str, Any]:
    """A typed message as a chat-completions message."""
    if isinstance(message, AssistantMessage):
        wire: dict[str, Any] = {"role": "assistant", "content": message.content}
        if message.provider_state:
            wire["reasoning_details"] = message.provider_state
        elif message.reasoning_content is not None:
            wire["reasoning_content"] = message.reasoning_content
        if message.tool_calls:
            wire["tool_calls"] = [
                {"id": c.id, "type": "function", "function": {"name": c.name, "arguments": c.arguments}}
                for c in message.tool_calls
            ]
        return wire
    content = message.content
    wire = {
        "role": message.role,
        "content": content if isinstance(content, str) else [part.model_dump() for part in content],
    }
    if isinstance(message, ToolMessage):
        wire["tool_call_id"] = message.tool_call_id
        if message.name:
            wire["name"] = message.name
    return wire


def _content(content: Any) -> MessageContent:
    if content is None:
        return ""
    if not isinstance(content, list):
        return _string(content)
    return [_part(part) for part in content]


def _part(part: Any) -> TextContentPart | ImageUrlContentPart:
    if not isinstance(part, dict):
        return TextContentPart(text=_string(part))
    kind = part.get("type")
    if kind == "text":
        return TextContentPart(text=_text(part.get("text")))
    if kind == "image_url":
        source = part.get("image_url")
        url = source.get("url") if isinstance(source, dict) else source
        return ImageUrlContentPart(image_url=ImageUrlSource(url=_text(url)))
    if kind == "refusal":
        return TextContentPart(text=_text(part.get("refusal")))
    return TextContentPart(text=f"[a part of type {_text(kind) or 'unknown'}]")


def _flat(content: Any) -> str:
    """Content parts of an assistant as one text."""
    if not isinstance(content, list):
        return "" if content is None else _string(content)
    return "".join(part.text for raw in content if isinstance(part := _part(raw), TextContentPart))


def _calls(raw: dict[str, Any]) -> list[ToolCall] | None:
    calls = raw.get("tool_calls")
    if not calls:
        legacy = raw.get("function_call")
        return [_call({"function": legacy})] if isinstance(legacy, dict) else None
    if not isinstance(calls, list):
        return None
    return [_call(call) for call in calls if isinstance(call, dict)] or None


def _call(call: dict[str, Any]) -> ToolCall:
    body = call.get("function") or call.get("custom")
    body = body if isinstance(body, dict) else {}
    arguments = body.get("arguments", body.get("input"))
    return ToolCall(
        id=_string(call.get("id")),
        name=_string(body.get("name")),
        arguments=arguments if isinstance(arguments, str) else _arguments(arguments),
    )


def _arguments(value: Any) -> str:
    """Some providers give the arguments as an object instead of its text."""
    return "" if value is None else json.dumps(value)


def _reasoning(raw: dict[str, Any]) -> str | None:
    for name in _REASONING:
        if (value := raw.get(name)) and isinstance(value, str):
            return value
    details = raw.get("reasoning_details")
    if not isinstance(details, list):
        return None
    texts = (d.get("text") or d.get("summary") for d in details if isinstance(d, dict))
    return "\n".join(text for text in texts if isinstance(text, str) and text) or None


def _state(details: Any) -> list[dict[str, Any]] | None:
    items = [dict(item) for item in details if isinstance(item, dict)] if isinstance(details, list) else []
    return items or None


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _string(value: Any) -> str:
    return value if isinstance(value, str) else "" if value is None else str(value)
