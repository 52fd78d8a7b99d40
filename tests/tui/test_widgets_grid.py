"""The pane grid: slots stay where they are, pages turn, one pane may have it all."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

import pytest
from textual.app import App, ComposeResult
from textual.pilot import Pilot

from doubles.screen_states import NOW, gallery
from vf_core.events.state import RunState
from vf_tui.widgets.pane_grid import PaneGrid


class GridApp(App[None]):
    CSS = "PaneGrid { width: 1fr; height: 1fr; }"

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[str, str]] = []
        self.state: RunState = gallery()

    def compose(self) -> ComposeResult:
        yield PaneGrid()

    def on_mount(self) -> None:
        self.grid.focus()

    @property
    def grid(self) -> PaneGrid:
        return self.query_one(PaneGrid)

    def on_pane_grid_highlighted(self, event: PaneGrid.Highlighted) -> None:
        self.seen.append(("highlighted", event.id))

    def on_pane_grid_opened(self, event: PaneGrid.Opened) -> None:
        self.seen.append(("opened", event.id))

    def show(self, slots: Sequence[str | None], focus: str | None = None, now: float = NOW) -> None:
        self.grid.show(self.state, slots, focus, None, now)

    def drawn(self) -> str:
        return "\n".join(strip.text for strip in self.screen._compositor.render_strips())


@pytest.fixture
async def pilot() -> AsyncIterator[Pilot[None]]:
    async with GridApp().run_test(size=(82, 21)) as pilot:
        yield pilot


def app_of(pilot: Pilot[None]) -> GridApp:
    assert isinstance(pilot.app, GridApp)
    return pilot.app


IDS = ["a1", "a2", "a3", "a4", "a5", "a6"]


async def test_as_many_panes_as_fit_and_a_page_more(pilot: Pilot[None]) -> None:
    app = app_of(pilot)
    app.show([*IDS, "e1", "e2"])
    await pilot.pause()
    assert app.grid.capacity() == 6
    assert app.grid.visible_ids() == IDS
    screen = app.drawn()
    for name in ("fix-off-by-one", "flaky-network-test", "race-in-cache", "STALLED 6 m"):
        assert name in screen
    assert "parse-dates" not in screen
    await pilot.press("pagedown")
    await pilot.pause()
    assert app.grid.visible_ids() == ["e1", "e2"]
    assert "parse-dates" in app.drawn()


async def test_slots_do_not_move(pilot: Pilot[None]) -> None:
    app = app_of(pilot)
    app.show(IDS)
    await pilot.pause()

    def place(name: str) -> tuple[int, int]:
        lines = app.drawn().split("\n")
        return next((y, line.index(name)) for y, line in enumerate(lines) if name in line)

    before = place("sort-stability")
    app.show(["a1", None, "a3", "e1", None, "a6"], focus="a3")
    await pilot.pause()
    assert place("sort-stability")[0] == before[0]
    assert abs(place("sort-stability")[1] - before[1]) <= 2
    assert "flaky-network-test" not in app.drawn()


async def test_keys_go_from_pane_to_pane_over_empty_slots(pilot: Pilot[None]) -> None:
    app = app_of(pilot)
    app.show(["a1", None, "a3", None, "a5", "a6"], focus="a1")
    await pilot.pause()
    await pilot.press("down")
    assert app.grid.focus_id == "a3"
    await pilot.press("right")
    assert app.grid.focus_id == "a5"
    await pilot.press("enter")
    await pilot.press("left", "left", "left", "left")
    assert app.grid.focus_id == "a1"
    assert ("opened", "a5") in app.seen


async def test_forty_by_twelve_is_one_pane(pilot: Pilot[None]) -> None:
    app = app_of(pilot)
    await pilot.resize_terminal(40, 12)
    await pilot.pause()
    app.show(IDS, focus="a5")
    await pilot.pause()
    assert app.grid.capacity() == 1
    assert app.grid.visible_ids() == ["a5"]
    assert "STALLED" in app.drawn()
    await pilot.press("down")
    await pilot.pause()
    assert app.grid.visible_ids() == ["a6"]


async def test_zoom_gives_one_pane_everything(pilot: Pilot[None]) -> None:
    app = app_of(pilot)
    app.show(IDS, focus="a2")
    app.grid.zoom(True)
    await pilot.pause()
    screen = app.drawn()
    assert app.grid.visible_ids() == ["a2"]
    assert screen.count("╭") == 1
    assert "import time" in screen
    app.grid.zoom(False)
    await pilot.pause()
    assert app.drawn().count("╭") == 6


async def test_clicks_light_and_open(pilot: Pilot[None]) -> None:
    app = app_of(pilot)
    app.show(IDS, focus="a1")
    await pilot.pause()
    await pilot.click(PaneGrid, offset=(60, 10))
    assert app.grid.focus_id == "a4"
    await pilot.double_click(PaneGrid, offset=(5, 18))
    await pilot.pause()
    assert app.seen[-1] == ("opened", "a5")
    await pilot.click(PaneGrid, offset=(81, 20))


async def test_empty_grids_and_gone_rollouts_are_drawn(pilot: Pilot[None]) -> None:
    """U13."""
    app = app_of(pilot)
    app.show([])
    await pilot.pause()
    assert "nothing is running" in app.drawn()
    await pilot.press("enter", "up", "down", "left", "right", "pageup", "pagedown")
    app.show(["a1", "no such rollout"], focus="no such rollout")
    await pilot.press("enter", "right", "left")
    app.state = RunState()
    app.show(["a1"], focus="a1")
    await pilot.pause()
    assert app.seen[-1][0] == "highlighted"


async def test_a_tick_with_nothing_new_repaints_nothing(pilot: Pilot[None]) -> None:
    app = app_of(pilot)
    app.show(["e1", "e2", "e3"], focus="e1")
    await pilot.pause()
    asked: list[object] = []
    app.grid.refresh = lambda *regions, **more: asked.append(regions)  # type: ignore[assignment]
    app.show(["e1", "e2", "e3"], focus="e1", now=NOW + 5)
    assert asked == []
    app.show(["a2", "e2", "e3"], focus="e1", now=NOW + 5)
    assert asked
