"""A rollout as one line of a list: columns that come and go with the width."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from vf_core.events.state import RolloutView
from vf_tui import glyphs
from vf_tui.attention import STALL_SECONDS
from vf_tui.render import status, timefmt
from vf_tui.render.line import Line, Segment, clip, cut, fit, ruled
from vf_tui.render.line import width as width_of
from vf_tui.safe_text import cell


@dataclass(frozen=True, slots=True)
class Columns:
    """Widths in cells, 0: not shown. `name` takes what the others leave."""

    name: int
    sample: int = 0
    word: int = 0
    doing: int = 0
    turns: int = 0
    tokens: int = 0
    reward: int = 0
    exit: int = 0
    teardown: int = 0
    elapsed: int = 0


MARGIN = 2
"""The cells before the first column: cursor bar and mark."""

# From the widest down: (least width, {column: width}).
_LAYOUTS: tuple[tuple[int, dict[str, int]], ...] = (
    (140, {"sample": 7, "word": 12, "doing": 28, "turns": 5, "tokens": 6, "reward": 7, "exit": 18,
           "teardown": 9, "elapsed": 8}),
    (110, {"word": 12, "doing": 22, "turns": 4, "tokens": 6, "reward": 6, "exit": 14, "teardown": 9,
           "elapsed": 7}),
    (94, {"word": 12, "doing": 20, "turns": 4, "tokens": 6, "reward": 6, "teardown": 9, "elapsed": 7}),
    (74, {"word": 12, "doing": 16, "turns": 4, "reward": 5, "teardown": 9, "elapsed": 7}),
    (60, {"word": 12, "reward": 5, "teardown": 9, "elapsed": 5}),
    (36, {"word": 12, "reward": 5, "elapsed": 5}),
    (26, {"word": 12}),
    (0, {"word": 9}),
)  # fmt: skip

_TITLES = {
    "sample": "task", "name": "rollout", "word": "state", "doing": "now", "turns": "turn", "tokens": "tok",
    "reward": "rew", "exit": "exit", "teardown": "sandbox", "elapsed": "time",
}  # fmt: skip
_RIGHT = frozenset({"turns", "tokens", "reward", "elapsed"})
_ORDER = ("sample", "name", "word", "doing", "turns", "tokens", "reward", "exit", "teardown", "elapsed")


@lru_cache(maxsize=64)
def columns(width: int) -> Columns:
    """The columns that a list of `width` cells has room for."""
    sizes = next(sizes for least, sizes in _LAYOUTS if width >= least or not least)
    used = MARGIN + sum(size + 1 for size in sizes.values())
    return Columns(name=max(4, width - used), **sizes)


def titles(width: int) -> Line:
    """The line above the list."""
    cols = columns(width)
    out: list[Segment] = [(" " * MARGIN, "head")]
    for name in _ORDER:
        size = getattr(cols, name)
        if size:
            out += [(fit(_TITLES[name], size, right=name in _RIGHT), "head"), (" ", "head")]
    return clip(out[:-1], width, "head")


def heading(text: str, width: int) -> Line:
    """A group's heading between rows."""
    return ruled(cell(text), width)


def rollout_row(
    view: RolloutView,
    width: int,
    now: float,
    *,
    marked: bool = False,
    cursor: bool = False,
    stall: float = STALL_SECONDS,
) -> Line:
    """`view` as a line of exactly `width` cells."""
    g = glyphs.current()
    cols = columns(width)
    out: list[Segment] = [
        (g.cursor if cursor else " ", "accent"),
        (g.mark if marked else " ", "mark"),
    ]
    ended = view.ended_status
    base = "dim" if ended or view.status == "queued" else "text"
    if cols.sample:
        out += [(fit(status.sample(view), cols.sample), "faint"), (" ", "")]
    out += [*_name(view, cols, base), (" ", "")]
    word, style = _word(view, now, stall, combined=not cols.doing, room=cols.word)
    out += [(shown := cut(word, cols.word), style), (" " * (cols.word - width_of(shown) + 1), "")]
    if cols.doing:
        out += [*_doing(view, now, cols.doing), (" ", "")]
    out += _numbers(view, cols)
    if cols.exit:
        text, style = status.exit_words(view)
        out += [(fit(text, cols.exit), "dim" if style in ("run", "text") else style), (" ", "")]
    if cols.teardown:
        text, style = status.teardown_words(view.sandbox)
        out += [(fit(text, cols.teardown), "dim" if style == "run" else style), (" ", "")]
    if cols.elapsed:
        took = timefmt.elapsed(view, now)
        text = timefmt.clock(took) if cols.elapsed > 6 else timefmt.short_clock(took)
        out.append((fit(text, cols.elapsed, right=True), "faint" if ended else "dim"))
    return clip(out, width)


def _name(view: RolloutView, cols: Columns, style: str) -> list[Segment]:
    """The name; behind it which sample it is, where that has no column of its own."""
    if cols.sample or not view.sample:
        return [(fit(status.label(view), cols.name), style)]
    number = f".{view.sample}"
    name = cut(status.label(view), cols.name - len(number))
    return [(name, style), (fit(number, cols.name - width_of(name)), "faint")]


def _numbers(view: RolloutView, cols: Columns) -> list[Segment]:
    out: list[Segment] = []
    if cols.turns:
        out += [(fit(str(view.turns or ""), cols.turns, right=True), "dim"), (" ", "")]
    if cols.tokens:
        out += [(fit(status.tokens(view), cols.tokens, right=True), "dim"), (" ", "")]
    if cols.reward:
        text = timefmt.reward(view.reward)
        out += [(fit(text, cols.reward, right=True), _reward_style(view)), (" ", "")]
    return out


def _reward_style(view: RolloutView) -> str:
    return "text" if (view.reward or 0.0) > 0 else "dim"


def _word(view: RolloutView, now: float, stall: float, *, combined: bool, room: int) -> tuple[str, str]:
    """The attention word where there is one, else the status; `combined`: with what is done now, in `room` cells."""
    why = status.attention(view, now, stall)
    if why is not None:
        return why.word, why.style
    if view.command and not view.ended_status:
        return view.command.replace("_", " "), "warn"
    if view.status != "active":
        return status.status_word(view)
    if not combined:
        return cell(view.phase, 12) or "boot", "dim"
    doing = status.doing(view)
    text = f"{doing.verb} {doing.age(now)}".rstrip()
    # The age is what can be done without: the row's own time is beside it.
    return (text if width_of(text) <= room else doing.verb), doing.style


def _doing(view: RolloutView, now: float, width: int) -> Line:
    if view.status == "queued":
        return ((" " * width, ""),)
    doing = status.doing(view)
    if view.ended_status:
        # A word that stands in the column before is not said again.
        text = doing.what if view.status in (doing.verb, "declined") else doing.verb
        if width_of(text) > width and status.unscored(view):
            # That it is unscored stands in the column before.
            text = cell(view.error_type, 40)
        return ((fit(text, width), "dim" if view.status != "error" else "error"),)
    age = doing.age(now)
    room = width - len(age) - 1
    if doing.what:
        what = doing.what if room < 14 else f"{doing.verb} {doing.what}"
        return ((fit(what, max(0, room)), doing.style), (f" {age}"[-width:], "dim"))
    return ((fit(f"{doing.verb} {age}", width), doing.style),)
