"""Reading a streamed chat completion: server-sent events, and the message that their pieces make."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any


class Broken(Exception):
    """An answer that is not whole. `retry`: the same question may get a whole one."""

    def __init__(self, message: str, *, retry: bool = True) -> None:
        super().__init__(message)
        self.retry = retry


def event_data(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """The data of each event in a byte stream that is cut anywhere; its last event may lack its blank line."""
    rest, data = b"", list[bytes]()
    for chunk in chunks:
        *lines, rest = (rest + chunk).split(b"\n")
        for raw in lines:
            line = raw.rstrip(b"\r")
            if line.startswith(b"data:"):
                data.append(line[5:].removeprefix(b" "))
            elif not line and data:
                yield b"\n".join(data)
                data = []
    if rest.startswith(b"data:"):
        data.append(rest[5:].removeprefix(b" ").rstrip(b"\r"))
    if data:
        yield b"\n".join(data)


class Assembly:
    """The message that a stream of deltas makes. Feed it the data of each event, then ask for `message`."""

    def __init__(self) -> None:
        self._texts: dict[str, list[str]] = {}
        self._extra: dict[str, Any] = {}
        self._details: list[tuple[dict[str, Any], list[str]]] = []
        self._calls: dict[Any, dict[str, Any]] = {}
        self._open: dict[Any, Any] = {}
        self._started = self._whole = False

    def add(self, data: bytes) -> None:
        """Take one event. Raises `Broken` for an error sent in the stream and for what is not a chunk."""
        if data.strip() == b"[DONE]":
            self._whole = self._started
            return
        try:
            chunk = json.loads(data)
        except ValueError:
            raise Broken(f"the stream holds a piece that is not JSON: {data[:200]!r}") from None
        if not isinstance(chunk, dict):
            raise Broken(f"the stream holds a piece that is not an object: {data[:200]!r}")
        if chunk.get("error"):
            raise _stream_error(chunk["error"])
        try:
            for choice in chunk.get("choices") or ():
                self._take(choice)
        except (AttributeError, TypeError, KeyError) as e:
            raise Broken(f"the stream holds a piece of an unknown shape ({e}): {data[:200]!r}") from None

    def message(self) -> dict[str, Any]:
        """The whole message, as it goes into the next request. Raises `Broken` when the stream ended early."""
        if not self._whole:
            raise Broken("the stream ended before the answer was whole")
        texts = {key: "".join(parts) for key, parts in self._texts.items()}
        out: dict[str, Any] = {
            "role": "assistant",
            "content": texts.pop("content", None),
            **texts,
            **self._extra,
        }
        if self._details:
            out["reasoning_details"] = [
                {**detail, "text": "".join(parts)} if parts else detail for detail, parts in self._details
            ]
        if self._calls:
            out["tool_calls"] = [_joined(call) for call in self._calls.values()]
        return out

    def _take(self, choice: dict[str, Any]) -> None:
        if choice.get("index") not in (0, None):
            return
        self._started = True
        self._whole = self._whole or bool(choice.get("finish_reason"))
        self._merge(choice.get("delta") or {})

    def _merge(self, delta: dict[str, Any]) -> None:
        for key, value in delta.items():
            if value is None or key == "role":
                continue
            if key == "tool_calls":
                for piece in value:
                    self._merge_call(piece)
            elif key == "reasoning_details":
                for piece in value:
                    self._merge_detail(piece)
            elif isinstance(value, str):
                self._texts.setdefault(key, []).append(value)
            elif isinstance(value, list):
                self._extra.setdefault(key, []).extend(value)
            else:
                self._extra[key] = value

    def _merge_detail(self, piece: dict[str, Any]) -> None:
        """Reasoning that has to go back as it came; its text comes in pieces, with the signature at the end."""
        text = piece.get("text")
        texts = [text] if isinstance(text, str) else []
        last, parts = self._details[-1] if self._details else ({}, [])
        if piece.get("type") == last.get("type") == "reasoning.text":
            parts += texts
            for name in ("signature", "format"):
                last[name] = last.get(name) or piece.get(name)
        else:
            self._details.append((dict(piece), texts))

    def _merge_call(self, piece: dict[str, Any]) -> None:
        index = piece.get("index", 0)
        ident = piece.get("id")
        key = self._open.get(index)
        function = piece.get("function") or {}
        # Some providers give every parallel call the same index: a new id with a name is a new call.
        other = bool(ident and function.get("name")) and key and self._calls[key]["id"] not in (None, ident)
        if key is None or other:
            key = self._open[index] = (index, len(self._calls))
            self._calls[key] = {"id": None, "name": None, "parts": [], "extra": {}}
        call = self._calls[key]
        call["id"] = call["id"] or ident or None
        call["name"] = call["name"] or function.get("name") or None
        arguments = function.get("arguments")
        if arguments:
            call["parts"].append(arguments if isinstance(arguments, str) else json.dumps(arguments))
        # Providers keep state of their own beside a call and want it back.
        known = ("index", "id", "type", "function")
        call["extra"].update({k: v for k, v in piece.items() if k not in known and v is not None})


def _joined(call: dict[str, Any]) -> dict[str, Any]:
    function = {"name": call["name"] or "", "arguments": "".join(call["parts"])}
    return {"id": call["id"], "type": "function", "function": function, **call["extra"]}


def _stream_error(error: Any) -> Broken:
    """An error that the provider sent inside a stream that had begun well."""
    if not isinstance(error, dict):
        return Broken(str(error))
    code = error.get("code")
    retry = not (isinstance(code, int) and 400 <= code < 500 and code not in (408, 409, 429))
    return Broken(str(error.get("message") or error), retry=retry)
