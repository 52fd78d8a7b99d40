"""Streamed chat completions: server-sent events cut out of bytes, and the answer they add up to."""

from __future__ import annotations

import json
import re
from typing import Any

from vf_core.errors import ProviderError
from vf_core.interception.dialect_chat import Completion, Unusable, loads, provider_error
from vf_core.trace.types import Usage

_TEXTS = frozenset(("content", "reasoning_content", "reasoning", "refusal"))
# Atomic, so that one CR LF can't count as two line ends.
_EVENT_END = re.compile(rb"(?>\r\n|\r|\n){2}")


class Events:
    """Cuts a byte stream into server-sent events, however it comes in pieces."""

    __slots__ = ("_rest",)

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[bytes]:
        """The events that are complete now, with the blank lines that end them: together, the stream so far."""
        data = self._rest + data if self._rest else data
        if b"\r" not in data:
            *events, self._rest = data.split(b"\n\n")
            return [event + b"\n\n" for event in events]
        found: list[bytes] = []
        start = 0
        for end in _EVENT_END.finditer(data):
            found.append(data[start : end.end()])
            start = end.end()
        self._rest = data[start:]
        return found

    def rest(self) -> bytes:
        """What came after the last complete event."""
        rest, self._rest = self._rest, b""
        return rest


def event_data(event: bytes) -> bytes:
    """The data of one event; empty for a comment."""
    if event.startswith(b"data: ") and event.find(b"\n") == len(event) - 2 and event.endswith(b"\n\n"):
        return event[6:-2]
    lines = [line[5:] for line in event.splitlines() if line.startswith(b"data:")]
    return b"\n".join(line[1:] if line.startswith(b" ") else line for line in lines)


class ChatStream:
    """Adds up the chunks of one streamed answer.

    `ended` says that the end mark was read. With `live` set, `deltas` tells what came since it was last called.
    """

    __slots__ = (
        "_detail_texts",
        "_details",
        "_finish",
        "_order",
        "_said",
        "_texts",
        "_tools",
        "_usage",
        "ended",
        "live",
    )

    def __init__(self) -> None:
        self._texts: dict[str, list[str]] = {}
        self._tools: dict[Any, _ToolParts] = {}
        self._order: list[_ToolParts] = []
        self._details: list[dict[str, Any]] = []
        self._detail_texts: list[list[str]] = []
        self._finish: str | None = None
        self._usage: Any = None
        self._said: list[tuple[bool, str]] = []
        self.ended = False
        self.live = False

    def feed(self, data: bytes) -> bool:
        """Take in the data of one event; True when with it the model's answer is over, but for what trails it.

        Raises `Unusable` for an error that the provider sent, and for what is no chunk.
        """
        if data == b"[DONE]" or data.strip() == b"[DONE]":
            self.ended = True
            return True
        if not data:
            return False
        try:
            chunk = loads(data)
        except ValueError:
            chunk = None
        if not isinstance(chunk, dict):
            raise self._unusable(f"the provider sent a chunk that can't be read: {data[:200]!r}")
        if error := chunk.get("error"):
            raise Unusable(provider_error(error), self.usage)
        self._usage = chunk.get("usage") or self._usage
        choices = chunk.get("choices")
        for choice in choices if isinstance(choices, list) else ():
            if isinstance(choice, dict) and not choice.get("index"):
                self._choice(choice)
        return self._finish is not None

    def _choice(self, choice: dict[str, Any]) -> None:
        if error := choice.get("error"):
            raise Unusable(provider_error(error), self.usage)
        delta = choice.get("delta")
        for name, value in delta.items() if isinstance(delta, dict) else ():
            if not value:
                continue
            if name in _TEXTS:
                if isinstance(value, str):
                    self._texts.setdefault(name, []).append(value)
                    if self.live:
                        self._said.append((name.startswith("reasoning"), value))
            elif name == "tool_calls":
                self._tool_calls(value)
            elif name == "reasoning_details":
                self._reasoning_details(value)
        finish = choice.get("finish_reason")
        if finish == "error":
            raise self._unusable("the provider's answer ended in an error")
        if isinstance(finish, str) and finish:
            self._finish = finish

    def _tool_calls(self, tools: Any) -> None:
        for tool in tools if isinstance(tools, list) else ():
            if not isinstance(tool, dict):
                continue
            ident = tool.get("id")
            ident = ident if isinstance(ident, str) else ""
            index = tool.get("index")
            if not isinstance(index, int):
                # Without an index a new id begins a new call, and no id goes on with the last one.
                last = self._order[-1] if self._order else None
                index = last.key if last is not None and ident in ("", last.id) else f"#{len(self._order)}"
            function = tool.get("function")
            function = function if isinstance(function, dict) else {}
            parts = self._tools.get(index)
            # Some providers give parallel calls one index: a new id with a name is a new call.
            if parts is None or (ident and function.get("name") and parts.id not in ("", ident)):
                parts = self._tools[index] = _ToolParts(index, len(self._order))
                self._order.append(parts)
            parts.add(ident, function)

    def _reasoning_details(self, details: Any) -> None:
        for detail in details if isinstance(details, list) else ():
            if not isinstance(detail, dict):
                continue
            text = detail.get("text")
            last = self._details[-1] if self._details else {}
            if detail.get("type") == last.get("type") == "reasoning.text":
                if isinstance(text, str):
                    self._detail_texts[-1].append(text)
                for name in ("signature", "format"):
                    last[name] = last.get(name) or detail.get(name)
            else:
                self._details.append(dict(detail))
                self._detail_texts.append([text] if isinstance(text, str) else [])

    @property
    def usage(self) -> Usage | None:
        """What was billed, as far as it has been said."""
        return Usage.from_wire(self._usage)

    def deltas(self) -> tuple[list[tuple[bool, str]], list[ToolNews]]:
        """Since the last call: texts, each with whether it is reasoning, and what came of tool calls."""
        texts: list[tuple[bool, str]] = []
        for reasoning, text in self._said:
            if texts and texts[-1][0] is reasoning:
                texts[-1] = (reasoning, texts[-1][1] + text)
            else:
                texts.append((reasoning, text))
        self._said = []
        return texts, [news for parts in self._order if (news := parts.news()) is not None]

    def completion(self) -> Completion:
        """The whole answer. Raises `Unusable` when it has no end mark, or says nothing at all."""
        if not self.ended:
            raise self._unusable("the provider's stream broke off before its end mark")
        message: dict[str, Any] = {"role": "assistant", "content": None}
        message.update((name, "".join(parts)) for name, parts in self._texts.items())
        if self._order:
            message["tool_calls"] = [parts.whole() for parts in self._order]
        if self._details:
            for detail, texts in zip(self._details, self._detail_texts, strict=True):
                if texts:
                    detail["text"] = "".join(texts)
            message["reasoning_details"] = self._details
        if self._finish is None and not self._texts and not self._order:
            raise self._unusable("the provider's stream ended without an answer")
        return Completion(message, self._finish, self.usage)

    def _unusable(self, text: str) -> Unusable:
        return Unusable(ProviderError(text), self.usage)


ToolNews = tuple[int, str, str, str]
"""Of one tool call: its place among the calls, then what is new: id, name, arguments."""


class _ToolParts:
    """A tool call as it comes in pieces."""

    __slots__ = ("_arguments", "_told", "_told_name", "id", "key", "name", "place")

    def __init__(self, key: Any, place: int) -> None:
        self.key = key
        self.place = place
        self.id = ""
        self.name = ""
        self._arguments: list[str] = []
        self._told = 0
        self._told_name = False

    def add(self, ident: str, function: dict[str, Any]) -> None:
        self.id = self.id or ident
        name = function.get("name")
        if isinstance(name, str) and name:
            self.name = name
        arguments = function.get("arguments")
        if arguments:
            # Some providers give the arguments as an object instead of its text.
            self._arguments.append(arguments if isinstance(arguments, str) else json.dumps(arguments))

    def news(self) -> ToolNews | None:
        """What has come since the last time."""
        arguments = "".join(self._arguments[self._told :])
        if not arguments and (self._told_name or not self.name):
            return None
        first = not self._told_name and bool(self.name)
        self._told, self._told_name = len(self._arguments), self._told_name or first
        return self.place, self.id if first else "", self.name if first else "", arguments

    def whole(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "type": "function",
            "function": {"name": self.name, "arguments": "".join(self._arguments)},
        }
