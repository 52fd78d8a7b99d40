"""Tool calls as foldable rows: heads, and what is below an open one."""

from __future__ import annotations

import json
from collections.abc import Sequence

from vf_core.events.state import RolloutView, ToolView
from vf_tui import glyphs
from vf_tui.render import status, timefmt
from vf_tui.render.line import Line, Segment, clip, split, wrap
from vf_tui.safe_text import lines, visible

ROWS_OF_ONE = 400
"""Rows of one part (arguments, result) of an open call; what is beyond is counted."""
TROUBLE = 4_000
"""Characters of a failure's own words."""


def key(tool: ToolView, position: int) -> str:
    """What an open call is remembered by."""
    return tool.id or f"{tool.name}#{position}"


def head(tool: ToolView, cells: int, now: float, *, unfolded: bool) -> Line:
    """A call in one line: fold mark, outcome, server and name, arguments, time, duration."""
    g = glyphs.current()
    if tool.partial:
        mark, style, age = g.writing, "accent", "writing"
    elif tool.ended is None:
        mark, style, age = g.pending, "tool", timefmt.span(now - tool.started)
    elif tool.seconds is None:
        mark, style, age = g.pending, "faint", "no result"
    elif tool.failed:
        mark, style, age = g.failed, "error", timefmt.took(tool.seconds)
    else:
        mark, style, age = g.done, "ok", timefmt.took(tool.seconds)
    server, name = status.tool_name(tool, 60)
    left: list[Segment] = [
        (f" {g.unfolded if unfolded else g.folded} ", "faint"), (mark + " ", style), (server, "faint"),
        (name, "strong"), ("  ", ""), (status.arguments(tool.arguments), "dim"),
    ]  # fmt: skip
    right: list[Segment] = []
    if tool.started:
        right.append((f"{timefmt.at(tool.started)}  ", "faint"))
    right.append((f"{age:>7}", "dim"))
    if cells < 60:
        right = right[-1:]
    return split(left, [*right, (" ", "")], cells)


def body(tool: ToolView, cells: int) -> list[Line]:
    """What is below an open call: its arguments, then its result."""
    out: list[Line] = []
    for name, text in (("arguments", pretty(tool.arguments)), ("result", tool.result)):
        if text:
            out.append(clip([("     ", ""), (name, "faint")], cells))
            out += block(text, cells, overwrite=name == "result")
    if not out:
        out.append(clip([("     ", ""), ("nothing yet", "faint")], cells))
    return out


def trouble(view: RolloutView, cells: int) -> list[Line]:
    """What went wrong, in its own words and whole, below the calls; empty when nothing did."""
    text, style = status.trouble(view, limit=TROUBLE)
    return block(text, cells, indent=3, style=style) if text else []


def pretty(text: str) -> str:
    """JSON arguments one key a line, long strings as text of their own; anything else as it is."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return visible(text)
    if not isinstance(value, dict):
        return visible(text)
    parts: list[str] = []
    for name, item in value.items():
        shown = item if isinstance(item, str) else json.dumps(item, ensure_ascii=False)
        parts.append(f"{name}: {shown}" if "\n" not in shown else f"{name}:\n{shown}")
    return visible("\n".join(parts))


def block(
    text: str,
    cells: int,
    *,
    indent: int = 7,
    rows: int = ROWS_OF_ONE,
    style: str = "text",
    overwrite: bool = False,
) -> list[Line]:
    """`text` wrapped and indented; at most `rows` lines and then how many are left."""
    room = max(8, cells - indent - 1)
    out: list[Line] = []
    all_lines = lines(text, overwrite=overwrite)
    for i, line in enumerate(all_lines):
        out += [clip([(" " * indent, ""), (piece, style)], cells) for piece in wrap(line, room)]
        if len(out) >= rows and i + 1 < len(all_lines):
            out = out[:rows]
            left = len(all_lines) - i - 1
            out.append(clip([(" " * indent, ""), (f"… {left:,} more lines", "faint")], cells))
            break
    return out


def unknown_before(count: int, shown: Sequence[ToolView]) -> str:
    """A remark when there were more calls than are kept."""
    earlier = count - sum(1 for tool in shown if not tool.partial)
    return f"{earlier:,} earlier calls are in the transcript" if earlier > 0 else ""
