"""A trace record as lines: its messages for reading, and the whole of it as a JSON tree.

Both are bounded whatever the record holds: a text is cut in its middle, a tree has at most so many lines.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from vf_core.text import bound_middle
from vf_tui import glyphs
from vf_tui.render.line import Line
from vf_tui.safe_text import cell, lines, visible

MESSAGE_LIMIT = 60_000
"""Characters of one message that are shown."""
LINES_LIMIT = 9_000
"""Lines in all: no more than a pane keeps."""
VALUE_LIMIT = 2_000
DEPTH_LIMIT = 40

_ROLES = {"system": "dim", "user": "accent", "assistant": "strong", "tool": "tool"}


def transcript(record: Mapping[str, Any]) -> list[Line]:
    """The messages of `record` (a trace record version 2), each under a line that says whose it is."""
    out: list[Line] = []
    nodes = record.get("nodes")
    for index, node in enumerate(nodes if isinstance(nodes, list) else []):
        if not isinstance(node, dict) or not isinstance(message := node.get("message"), dict):
            continue
        parent = node.get("parent")
        if index and isinstance(parent, int) and parent != index - 1:
            out.append(((f"   branches off message {parent}", "warn"),))
        out.append(_head(index, message))
        out += _body(message)
        out.append(())
        if len(out) > LINES_LIMIT:
            out.append(((f"… {len(nodes or ()) - index - 1} more messages: see the Trace tab", "warn"),))
            break
    for error in record.get("errors") or ():
        if isinstance(error, dict):
            text = f"{error.get('type', 'error')}: {error.get('message', '')}"
            out += [((line, "error"),) for line in lines(bound_middle(text, VALUE_LIMIT))]
    return out


def _head(index: int, message: Mapping[str, Any]) -> Line:
    role = str(message.get("role", "?"))
    g = glyphs.current()
    name = f" {cell(str(message['name']), 60)}" if message.get("name") else ""
    return (
        (f"{g.h}{g.h} ", "rule"),
        (cell(role, 20), _ROLES.get(role, "warn")),
        (name, "dim"),
        (f" #{index}", "faint"),
    )


def _body(message: Mapping[str, Any]) -> Iterator[Line]:
    thought = message.get("reasoning_content")
    if isinstance(thought, str) and thought:
        yield from _text(thought, "thought")
    yield from _content(message.get("content"), overwrite=message.get("role") == "tool")
    for call in message.get("tool_calls") or ():
        if isinstance(call, dict):
            g = glyphs.current()
            yield ((f"  {g.pending} ", "accent"), (cell(str(call.get("name", "tool")), 80), "tool"))
            for line in _text(visible(_arguments(call.get("arguments"))), "dim"):
                yield (("    ", ""), *line)


def _content(content: Any, *, overwrite: bool) -> Iterator[Line]:
    if isinstance(content, str):
        yield from _text(content, "text", overwrite=overwrite)
    elif isinstance(content, list):
        for part in content:
            if isinstance(part, dict) and isinstance(part.get("text"), str):
                yield from _text(part["text"], "text", overwrite=overwrite)
            elif isinstance(part, dict):
                yield ((f"  [{cell(_placeholder(part), 200)}]", "faint"),)


def _placeholder(part: Mapping[str, Any]) -> str:
    """What stands for a part that is no text: its kind, and of an image where it comes from and how big it is."""
    kind = str(part.get("type", "part")).removesuffix("_url")
    source = part.get("image_url")
    url = source.get("url") if isinstance(source, dict) else None
    if not isinstance(url, str):
        return kind
    if url.startswith("data:"):
        return f"{kind} {url[5:].partition(';')[0]}, {len(url) * 3 // 4:,} bytes"
    return f"{kind} {url}"


def _arguments(text: Any) -> str:
    """A tool call's arguments, laid out when they are JSON; a lone string is shown as it is."""
    if not isinstance(text, str):
        return json.dumps(text, ensure_ascii=False) if text is not None else ""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return text
    if isinstance(value, dict) and len(value) == 1 and isinstance(only := next(iter(value.values())), str):
        return only
    return json.dumps(value, indent=2, ensure_ascii=False)


def _text(text: str, style: str, *, overwrite: bool = False) -> Iterator[Line]:
    for line in lines(bound_middle(text, MESSAGE_LIMIT), overwrite=overwrite):
        yield ((f"  {line}", style),)


def json_tree(value: Any) -> list[Line]:
    """`value` (JSON-able) as indented lines: a line a key; long texts and deep nests cut with a mark."""
    out: list[Line] = []
    for line in _tree(value, "", 0):
        out.append(line)
        if len(out) >= LINES_LIMIT:
            out.append((("… cut here: the rest is in traces.jsonl", "warn"),))
            break
    return out


def _tree(value: Any, name: str, depth: int) -> Iterator[Line]:
    indent = ("  " * depth, "")
    key = ((f"{name}: ", "accent"),) if name else ()
    if isinstance(value, (Mapping, list, tuple)) and value:
        size = len(value)
        brackets = f"{{{size}}}" if isinstance(value, Mapping) else f"[{size}]"
        yield (indent, *key, (brackets, "faint"))
        if depth >= DEPTH_LIMIT:
            yield (("  " * (depth + 1), ""), ("…", "warn"))
            return
        for label, item in _items(value):
            yield from _tree(item, label, depth + 1)
    elif isinstance(value, str):
        yield from _string(value, indent, key)
    else:
        text = "{}" if isinstance(value, Mapping) else json.dumps(value)
        yield (indent, *key, (text, "ok"))


def _items(value: Mapping[str, Any] | Sequence[Any]) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for name, item in value.items():
            yield cell(str(name), 120), item
    else:
        for n, item in enumerate(value):
            yield f"[{n}]", item


def _string(text: str, indent: tuple[str, str], key: Line) -> Iterator[Line]:
    parts = lines(bound_middle(text, VALUE_LIMIT))
    if len(parts) <= 1:
        yield (indent, *key, (json.dumps(parts[0] if parts else "", ensure_ascii=False), "text"))
        return
    yield (indent, *key, ("|", "faint"))
    for part in parts:
        yield ((f"{indent[0]}  ", ""), (part, "text"))
