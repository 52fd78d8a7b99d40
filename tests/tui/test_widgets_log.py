"""The log pane: follows until the reader looks back, stays where he reads, and holds only so much."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from textual.app import App, ComposeResult
from textual.pilot import Pilot

from vf_core.events.state import RolloutView
from vf_core.runs.layout import RunDir
from vf_tui.filter import FilterError, of_lines
from vf_tui.screens.follower import OutputFollower
from vf_tui.widgets.log_pane import LogPane


class LogApp(App[None]):
    CSS = "LogPane { width: 1fr; height: 1fr; }"

    def compose(self) -> ComposeResult:
        yield LogPane(max_lines=500, empty_text="nothing yet")

    def on_mount(self) -> None:
        self.log_pane.focus()

    @property
    def log_pane(self) -> LogPane:
        return self.query_one(LogPane)

    def drawn(self) -> list[str]:
        return [strip.text[:39].rstrip() for strip in self.screen._compositor.render_strips()]


@pytest.fixture
async def pilot() -> AsyncIterator[Pilot[None]]:
    async with LogApp().run_test(size=(40, 10)) as pilot:
        yield pilot


def app_of(pilot: Pilot[None]) -> LogApp:
    assert isinstance(pilot.app, LogApp)
    return pilot.app


def fill(app: LogApp, first: int, last: int) -> None:
    app.log_pane.append("".join(f"line {i}\n" for i in range(first, last)), 1000.0)


async def test_it_follows_its_end(pilot: Pilot[None]) -> None:
    app = app_of(pilot)
    assert app.drawn()[0] == "nothing yet"
    fill(app, 0, 100)
    await pilot.pause()
    assert "line 99" in app.drawn()[-1]
    app.log_pane.append("half")
    await pilot.pause()
    assert "half" in app.drawn()[-1]
    app.log_pane.append(" a line\n")
    await pilot.pause()
    assert "half a line" in app.drawn()[-1]


async def test_looking_back_pauses_and_counts_and_end_resumes(pilot: Pilot[None]) -> None:
    app = app_of(pilot)
    fill(app, 0, 100)
    await pilot.pause()
    await pilot.press("pageup")
    assert not app.log_pane.following
    before = app.drawn()
    fill(app, 100, 242)
    await pilot.pause()
    assert app.drawn()[:-1] == before[:-1]
    assert "142 new" in app.drawn()[-1]
    await pilot.press("end")
    await pilot.pause()
    assert app.log_pane.following
    assert "line 241" in app.drawn()[-1]
    assert "new" not in app.drawn()[-1]


async def test_what_is_read_stays_while_old_lines_go(pilot: Pilot[None]) -> None:
    app = app_of(pilot)
    fill(app, 0, 500)
    await pilot.pause()
    await pilot.press("pageup")
    before = app.drawn()
    fill(app, 500, 900)
    await pilot.pause()
    assert app.drawn()[:-1] == before[:-1]
    assert len(app.log_pane.buffer) == 500


async def test_scrolling_to_the_end_follows_again(pilot: Pilot[None]) -> None:
    app = app_of(pilot)
    fill(app, 0, 100)
    await pilot.pause()
    await pilot.press("up", "up")
    assert not app.log_pane.following
    await pilot.press("down", "down", "down")
    assert app.log_pane.following


async def test_wrap_and_timestamps_keep_the_place(pilot: Pilot[None]) -> None:
    app = app_of(pilot)
    app.log_pane.append("".join(f"{i} {'word ' * 12}\n" for i in range(60)), 1000.0)
    await pilot.pause()
    await pilot.press("home", "down", "down", "down", "down", "down", "down")
    await pilot.pause()
    top = app.drawn()[0]
    number = top.split()[0]
    assert number.isdigit()
    assert app.log_pane.toggle_wrap() is False
    await pilot.pause()
    assert app.drawn()[0].startswith(number)
    assert app.drawn()[0].endswith("…")
    await pilot.press("right")
    assert not app.drawn()[0].startswith(number)
    app.log_pane.toggle_timestamps()
    await pilot.pause()
    assert app.drawn()[0][2] == app.drawn()[0][5] == ":"


async def test_matches_are_found_round_the_end(pilot: Pilot[None]) -> None:
    app = app_of(pilot)
    fill(app, 0, 100)
    assert app.log_pane.search("line 9") == 11
    assert app.log_pane.next_match()
    await pilot.pause()
    assert not app.log_pane.following
    assert app.log_pane.next_match(-1)
    assert app.log_pane.search("(") == 0
    assert not app.log_pane.next_match()
    assert app.log_pane.search(None) == 0
    app.log_pane.clear()
    assert not app.log_pane.next_match()


async def test_a_filter_hides_lines_and_goes_on_as_they_come(pilot: Pilot[None]) -> None:
    app = app_of(pilot)
    fill(app, 0, 100)
    wanted, light = of_lines("line !/[0-8]$/")
    assert app.log_pane.only(wanted, light) == 10
    await pilot.pause()
    assert [row.split()[1] for row in app.drawn() if row.strip()][-3:] == ["79", "89", "99"]
    for piece, last in (
        ("a li", ["89", "99"]),
        ("ne that goes on: 9", ["99", "line"]),
        (", 8\n", ["89", "99"]),
    ):
        app.log_pane.append(piece)
        await pilot.pause()
        assert [row.split()[1] for row in app.drawn() if row.strip()][-2:] == last
    app.log_pane.append("line 9\n" * 800)
    assert len(app.log_pane.buffer) == app.log_pane.held == 500
    assert app.log_pane.only(*of_lines("nowhere")) == 0
    await pilot.pause()
    assert "none of 500 lines matches" in app.drawn()[0]
    app.log_pane.only(None)
    await pilot.pause()
    assert "line 9" in app.drawn()[-1]
    with pytest.raises(FilterError):
        of_lines("/(/")


@pytest.mark.parametrize("colour", [False, True])
async def test_megabytes_are_shown_at_once_and_cut(pilot: Pilot[None], *, colour: bool) -> None:
    """U07."""
    app = app_of(pilot)
    app.log_pane.buffer.colour = colour
    app.log_pane.append("x" * 1_000_000 + "\n")
    app.log_pane.append("\x1b[31m" + "y" * 20_000_000)
    app.log_pane.append("\nlast\n")
    await pilot.pause()
    assert "last" in app.drawn()[-1]
    assert "more characters" in "".join(app.drawn())
    assert sum(len(app.log_pane.buffer.entry(i).text) for i in range(len(app.log_pane.buffer))) < 50_000  # type: ignore[union-attr]


async def test_other_lines_may_be_set_and_keep_the_place(pilot: Pilot[None]) -> None:
    app = app_of(pilot)
    app.log_pane.set_lines([f"a{i}" for i in range(50)])
    await pilot.pause()
    await pilot.press("home", "down", "down")
    app.log_pane.set_lines([f"b{i}" for i in range(50)])
    await pilot.pause()
    assert app.drawn()[0] == "b2"
    app.log_pane.set_lines([(("styled", "error"),)])
    await pilot.pause()
    assert app.drawn()[0] == "styled"


def test_only_output_that_came_while_it_was_shown_has_a_time(tmp_path: Path) -> None:
    """A file does not say when its lines came, and the time at which they are read would be a wrong one."""

    class Pane:
        def __init__(self) -> None:
            self.taken: list[tuple[str, float]] = []

        def clear(self) -> None:
            self.taken.clear()

        def append(self, text: str, t: float) -> None:
            self.taken.append((text, t))

    pane: Any = Pane()
    follower, view = OutputFollower(), RolloutView(id="a")
    log = RunDir(tmp_path).output_logs("a", 1)["stdout"]
    log.parent.mkdir(parents=True)
    log.write_text("before\n")
    follower.follow(pane, view, tmp_path, 100.0)
    with log.open("a") as file:
        file.write("after\n")
    follower.follow(pane, view, tmp_path, 101.0)
    assert pane.taken == [("before\n", 0.0), ("after\n", 101.0)]
