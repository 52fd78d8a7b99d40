"""Tight frames: on the terminal they look like Textual's own, and cost less."""

from __future__ import annotations

from typing import Any

import pyte
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.color import ColorSystem
from rich.console import Console
from rich.segment import Segment
from rich.style import Style
from textual._compositor import ChopsUpdate, LayoutUpdate
from textual.app import App, ComposeResult
from textual.geometry import Region
from textual.strip import Strip

from doubles.screen_states import NOW, gallery
from vf_tui import theme
from vf_tui.widgets.rollout_list import RolloutList
from vf_tui.widgets.tight import TightLayout, TightUpdate, look, tighten, transition

WIDTH, HEIGHT = 24, 3
CONSOLE = Console(color_system="truecolor", force_terminal=True)

STYLE = st.builds(
    Style,
    color=st.sampled_from([None, "#102030", "red", "color(200)"]),
    bgcolor=st.sampled_from([None, "#405060", "blue"]),
    bold=st.booleans(),
    italic=st.booleans(),
    underline=st.booleans(),
    reverse=st.booleans(),
)
TEXT = st.text(alphabet="ab 日é", min_size=1, max_size=6)
SEGMENT = st.tuples(TEXT, st.none() | STYLE).map(lambda pair: Segment(*pair))
STRIP = st.lists(SEGMENT, max_size=6).map(lambda s: Strip(s).adjust_cell_length(WIDTH))
SPAN = st.tuples(st.integers(0, HEIGHT - 1), st.integers(0, WIDTH - 1), st.integers(1, WIDTH))


def cells(data: str, onto: pyte.Screen | None = None) -> list[list[Any]]:
    screen = onto or pyte.Screen(WIDTH, HEIGHT)
    pyte.Stream(screen).feed(data)
    return [[_look(screen.buffer[y][x]) for x in range(WIDTH)] for y in range(HEIGHT)]


def _look(cell: Any) -> tuple[Any, ...]:
    return (cell.data, cell.fg, cell.bg, cell.bold, cell.italics, cell.underscore, cell.reverse)


def whole(strips: list[Strip]) -> str:
    update = LayoutUpdate([[strip] for strip in strips], Region(0, 0, WIDTH, HEIGHT))
    return TightLayout(update).render_segments(CONSOLE)


@given(st.lists(STRIP, min_size=HEIGHT, max_size=HEIGHT))
@settings(max_examples=100)
def test_a_whole_screen_looks_the_same(strips: list[Strip]) -> None:
    update = LayoutUpdate([[strip] for strip in strips], Region(0, 0, WIDTH, HEIGHT))
    stock = "\r".join(update.render_segments(CONSOLE).split("\n"))
    assert cells(TightLayout(update).render_segments(CONSOLE)) == cells(stock.replace("\r", "\r\n"))


@given(
    st.lists(STRIP, min_size=HEIGHT, max_size=HEIGHT), st.lists(STRIP, min_size=HEIGHT, max_size=HEIGHT),
    st.lists(SPAN, max_size=4, unique_by=lambda span: span[0]), st.integers(1, WIDTH - 1),
)  # fmt: skip
@settings(max_examples=150)
def test_spans_change_exactly_their_cells(
    old: list[Strip], new: list[Strip], wanted: list[tuple[int, int, int]], cut: int
) -> None:
    screen = pyte.Screen(WIDTH, HEIGHT)
    before = cells(whole(old), screen)
    after = cells(whole(new))
    spans = sorted((y, x, max(x + 1, end)) for y, x, end in wanted)
    # A span that would cut a wide character is the painter's fault, not the frame's.
    spans = [s for s in spans if all(_whole(line[s[0]], x) for line in (old, new) for x in (*s[1:], cut))]
    if not spans:
        return
    left_right = [{0: s.crop(0, cut), cut: s.crop(cut, WIDTH)} for s in new]
    update = ChopsUpdate(left_right, spans, [[cut, WIDTH]] * HEIGHT)
    got = cells(TightUpdate(update).render_segments(CONSOLE), screen)
    for y in range(HEIGHT):
        inside = {x for row, start, end in spans if row == y for x in range(start, end)}
        for x in range(WIDTH):
            assert got[y][x] == (after if x in inside else before)[y][x], (y, x, spans)


def _whole(strip: Strip, x: int) -> bool:
    at = 0
    for ch in strip.text:
        if at == x:
            return True
        at += cell_len(ch)
    return at == x


def test_only_what_differs_is_said() -> None:
    plain = look(Style(), ColorSystem.TRUECOLOR)
    red = look(Style(color="#ff0000", bgcolor="#000001", bold=True), ColorSystem.TRUECOLOR)
    green = look(Style(color="#00ff00", bgcolor="#000001"), ColorSystem.TRUECOLOR)
    assert transition(plain, red) == "\x1b[1;38;2;255;0;0;48;2;0;0;1m"
    assert transition(red, green) == "\x1b[22;38;2;0;255;0m"
    assert transition(green, green) == ""


def test_what_is_not_known_passes_as_it_is() -> None:
    assert tighten(None) is None
    assert tighten("text") == "text"


class ThemedApp(App[None]):
    def get_theme_variable_defaults(self) -> dict[str, str]:
        return theme.variable_defaults()

    def compose(self) -> ComposeResult:
        yield RolloutList()


async def test_widgets_follow_a_change_of_theme() -> None:
    app = ThemedApp()
    async with app.run_test(size=(60, 12)) as pilot:
        state = gallery()
        app.query_one(RolloutList).show(state, list(state.rollouts), now=NOW)
        seen = []
        for name in ("dark", "light", "ansi"):
            theme.install(app, name)
            await pilot.pause()
            strip = app.screen._compositor.render_strips()[9]
            seen.append({(s.color, s.bgcolor) for _, s, _ in strip if s is not None})
        assert not seen[0] & seen[1]
        assert not seen[1] & seen[2]
