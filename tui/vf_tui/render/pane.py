"""A sandbox's live pane: what it does now, the tail of its tool calls, the text being written, two facts."""

from __future__ import annotations

from vf_core.events.state import RolloutView, ToolView
from vf_tui import glyphs
from vf_tui.attention import STALL_SECONDS
from vf_tui.render import status, timefmt
from vf_tui.render.line import Line, Segment, clip, cut, line_width, split, squeeze, width, wrap
from vf_tui.safe_text import clean

MIN_WIDTH = 38
MIN_HEIGHT = 7


def pane(
    view: RolloutView,
    cells: int,
    height: int,
    now: float,
    *,
    focused: bool = False,
    stall: float = STALL_SECONDS,
) -> list[Line]:
    """`view` as `height` lines of exactly `cells` cells, frame included."""
    why = status.attention(view, now, stall)
    frame = "frame_focus" if focused else "frame_alarm" if why is not None and why.rank < 3 else "frame"
    inner, rows = max(1, cells - 4), max(0, height - 2)
    body = [now_line(view, inner, now), *_trouble(view, inner, max(2, rows // 3))]
    body = [*body, *tail(view, inner, rows - len(body), now)][:rows]
    body += [clip((), inner)] * (rows - len(body))
    v = glyphs.current().v
    out = [_top(view, cells, why, frame, focused)]
    out += [((v, frame), (" ", ""), *line, (" ", ""), (v, frame)) for line in body]
    out.append(_foot(view, cells, frame))
    return out[:height]


def empty(cells: int, height: int, text: str = "") -> list[Line]:
    """A slot that holds no sandbox."""
    middle = height // 2
    note = cut(text, cells)
    left = (cells - width(note)) // 2
    return [
        clip([(" " * left + note, "faint")] if i == middle and note else (), cells) for i in range(height)
    ]


def _top(view: RolloutView, cells: int, why: status.Attention | None, frame: str, focused: bool) -> Line:
    g = glyphs.current()
    left: list[Segment] = [(g.top_left + g.h, frame), (" ", "")]
    if focused:
        left.append((g.focus + " ", "accent"))
    title = "title" if focused else "strong" if not view.ended_status else "text"
    right: list[Segment] = []
    if why is not None:
        right = [(" ", ""), (cut(why.word, cells // 2), why.style), (" ", "")]
    room = cells - line_width(left) - line_width(right) - 3
    name = status.label(view)
    number = f" {status.sample(view)}" if room > 16 else ""
    left.append((cut(name, max(1, room - len(number) - 1)), title))
    if number:
        left.append((number, "faint"))
    left.append((" ", ""))
    fill = cells - line_width(left) - line_width(right) - 2
    return clip([*left, (g.h * fill, frame), *right, (g.h + g.top_right, frame)], cells, frame)


def _foot(view: RolloutView, cells: int, frame: str) -> Line:
    """The bottom of the frame: exit meaning and teardown word at the left, turns and tokens at the right."""
    g = glyphs.current()
    facts: list[Segment] = []
    for text, style in (status.exit_words(view), status.teardown_words(view.sandbox)):
        if text:
            facts += [(f" {g.dot} ", "faint")] if facts else []
            facts.append((text, style))
    if not facts:
        facts = [status.status_word(view)]
    room = cells - 6
    if line_width(facts) > room:
        facts = list(clip(facts, max(1, room)))
    right = _counts(view, room - line_width(facts) - 2)
    left: list[Segment] = [(g.bottom_left + g.h, frame), (" ", ""), *facts, (" ", "")]
    tail_part: list[Segment] = [(" ", ""), *right, (" ", "")] if right else []
    fill = cells - line_width(left) - line_width(tail_part) - 2
    return clip([*left, (g.h * fill, frame), *tail_part, (g.h + g.bottom_right, frame)], cells, frame)


def _counts(view: RolloutView, room: int) -> list[Segment]:
    """Reward, turns and tokens, as many of them as `room` holds."""
    dot = f" {glyphs.current().dot} "
    parts: list[str] = []
    if view.reward is not None:
        parts.append(f"reward {timefmt.reward(view.reward)}")
    if view.turns:
        parts.append(f"{view.turns} turn{'s' if view.turns != 1 else ''}")
    if total := status.tokens(view):
        parts.append(f"{total} tok")
    while parts and len(dot.join(parts)) > room:
        parts.pop()
    return [(dot.join(parts), "dim")] if parts else []


def now_line(view: RolloutView, cells: int, now: float) -> Line:
    """What is being done, and for how long, at the right."""
    doing = status.doing(view)
    if view.status == "queued":
        return clip([("queued", "faint")], cells)
    if view.ended_status:
        took = timefmt.elapsed(view, now)
        words: list[Segment] = [(doing.verb, doing.style)]
        time: Line = ((timefmt.clock(took), "dim"),)
        # What ended it is whole, or left to the tabs.
        if doing.what and line_width(words) + 3 + width(doing.what) + line_width(time) <= cells:
            words += [("  ", ""), (doing.what, "dim")]
        return split(words, time, cells)
    left: list[Segment] = [(doing.verb, "dim" if doing.what else doing.style)]
    if doing.what:
        left += [(" ", ""), (doing.what, "strong")]
    return split(left, [(doing.age(now), "dim")], cells)


def _trouble(view: RolloutView, cells: int, rows: int) -> list[Line]:
    """What went wrong, in at most `rows` lines."""
    text, style = status.trouble(view, limit=1_000)
    if not text:
        return []
    text = squeeze(text, cells * rows - cells // 2)
    pieces = wrap(text, cells)
    if len(pieces) > rows:
        pieces = [*pieces[: rows - 1], text[sum(map(len, pieces[: rows - 1])) :]]
    return [clip([(piece, style)], cells) for piece in pieces]


def tail(view: RolloutView, cells: int, rows: int, now: float) -> list[Line]:
    """The newest tool calls and, below them, the text that is being written; at most `rows` lines.

    They grow downwards and stay where they are until there is no room.
    """
    if rows <= 0:
        return []
    text = _text(view, cells, max(1, rows // 2 if view.tools else rows))
    room = rows - len(text)
    tools = list(view.tools)
    # The call that runs stands in the line above already.
    if view.model_since is None and tools and tools[-1] is status.running_tool(view):
        tools.pop()
    shown = tools[-room:] if room > 0 else []
    out = [tool_line(tool, cells, now) for tool in shown]
    if room > len(out) and (result := _result(shown, cells, room - len(out))):
        out += result
    return out + text


def tool_line(tool: ToolView, cells: int, now: float) -> Line:
    """One tool call: its mark, name, arguments, and how long it ran."""
    g = glyphs.current()
    server, name = status.tool_name(tool)
    given = status.arguments(tool.arguments)
    if tool.partial:
        # The end of what is being generated is the news.
        room = max(4, cells - width(server) - width(name) - 3)
        given = given if width(given) <= room else g.ellipsis + given[-(room - 1) :]
        head: Line = ((g.writing + " ", "accent"), (server, "faint"), (name, "tool"))
        return clip([*head, (" ", ""), (given, "dim")], cells)
    if tool.ended is None:
        mark, style, age = g.pending, "tool", timefmt.span(now - tool.started)
    elif tool.seconds is None:
        mark, style, age = g.pending, "faint", "no result"
    elif tool.failed:
        mark, style, age = g.failed, "error", timefmt.took(tool.seconds)
    else:
        mark, style, age = g.done, "ok", timefmt.took(tool.seconds)
    left = [(mark + " ", style), (server, "faint"), (name, "text"), (" ", ""), (given, "dim")]
    return split(left, [(age, "faint")], cells)


def _result(tools: list[ToolView], cells: int, rows: int) -> list[Line]:
    """The end of the last call's result, where there is room for it."""
    if not tools or tools[-1].ended is None or not tools[-1].result:
        return []
    last = [line for line in clean(tools[-1].result[-1000:]).split("\n") if line.strip()][-rows:]
    return [clip([("  ", ""), (line.expandtabs(4), "faint")], cells) for line in last]


def _text(view: RolloutView, cells: int, rows: int) -> list[Line]:
    """The end of the text (or thought) that is being generated; the last answer while nothing is."""
    source, style = view.text, "text"
    if not source and view.reasoning:
        source, style = view.reasoning, "thought"
    if not source and not view.tools and view.answer:
        source, style = view.answer, "dim"
    if not source:
        return []
    pieces: list[str] = []
    for line in clean(source[-cells * (rows + 2) * 2 :]).expandtabs(4).split("\n"):
        if line.strip():
            pieces += wrap(line, cells)
    return [clip([(piece, style)], cells) for piece in pieces[-rows:]]
