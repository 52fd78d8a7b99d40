"""The rollout list: its cursor sits on a rollout, whatever happens to the rows around it."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from typing import Any

import pytest
from textual.app import App, ComposeResult
from textual.pilot import Pilot

from doubles.screen_states import NOW, T0, gallery
from vf_core.events import types as ev
from vf_core.events.fold import apply, fold
from vf_core.events.state import RunState
from vf_tui.widgets.rollout_list import Heading, RolloutList


class ListApp(App[None]):
    CSS = "RolloutList { width: 1fr; height: 1fr; }"

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[str, str | None]] = []

    def compose(self) -> ComposeResult:
        yield RolloutList()

    def on_mount(self) -> None:
        self.list.focus()

    @property
    def list(self) -> RolloutList:
        return self.query_one(RolloutList)

    def on_rollout_list_highlighted(self, event: RolloutList.Highlighted) -> None:
        assert event.control is self.list
        self.seen.append(("highlighted", event.id))

    def on_rollout_list_opened(self, event: RolloutList.Opened) -> None:
        self.seen.append(("opened", event.id))

    def on_rollout_list_marked(self, event: RolloutList.Marked) -> None:
        self.seen.append(("marked", event.id))


@pytest.fixture
async def pilot() -> AsyncIterator[Pilot[None]]:
    async with ListApp().run_test(size=(60, 12)) as pilot:
        yield pilot


def app_of(pilot: Pilot[None]) -> ListApp:
    assert isinstance(pilot.app, ListApp)
    return pilot.app


def make_state(n: int) -> RunState:
    return fold(
        ev.RolloutQueued(seq=i + 1, t=T0, rollout=f"r{i}", task=i, name=f"task-{i}") for i in range(n)
    )


def show(app: ListApp, state: RunState, order: list[Any], now: float = NOW, **more: Any) -> None:
    app.list.show(state, order, now=now, **more)


def drawn(app: ListApp) -> list[str]:
    """What the compositor would send."""
    return [strip.text for strip in app.screen._compositor.render_strips()]


async def test_the_cursor_keeps_its_rollout_when_rows_come_go_and_move(pilot: Pilot[None]) -> None:
    """K01."""
    app, state = app_of(pilot), make_state(6)
    show(app, state, ["r0", "r1", "r2", "r3", "r4", "r5"])
    assert app.list.cursor_id == "r0"
    assert app.list.move_to("r2")
    show(app, state, ["r2", "r5", "r1"])
    assert app.list.cursor_id == "r2"
    show(app, state, ["r5", "r4", "r3", "r2", "r1", "r0"])
    assert app.list.cursor_id == "r2"
    await pilot.pause()
    await pilot.press("enter")
    assert app.seen[-1] == ("opened", "r2")


async def test_a_cursor_whose_rollout_went_goes_to_a_neighbour_and_says_so(pilot: Pilot[None]) -> None:
    app, state = app_of(pilot), make_state(6)
    show(app, state, ["r0", "r1", "r2", "r3", "r4", "r5"])
    app.list.move_to("r2")
    show(app, state, ["r0", "r1", "r3", "r4"])
    assert app.list.cursor_id == "r3"
    show(app, state, ["r0", "r1"])
    assert app.list.cursor_id == "r1"
    show(app, state, [])
    assert app.list.cursor_id is None
    await pilot.pause()
    assert app.seen[-3:] == [("highlighted", "r3"), ("highlighted", "r1"), ("highlighted", None)]


async def test_the_top_stays_the_top_and_a_lost_cursor_is_found_again(pilot: Pilot[None]) -> None:
    app, state = app_of(pilot), make_state(60)
    ids = [f"r{i}" for i in range(60)]
    show(app, state, ids)
    await pilot.press("down")
    show(app, state, [*(id for id in ids if id != "r1"), "r1"])
    await pilot.pause()
    assert app.list.cursor_id == "r1"
    assert app.list.scroll_offset.y == 0
    await pilot.press("down")
    assert app.list.cursor_id == "r0"
    app.list.move_to("r40")
    await pilot.pause()
    line = app.list._index["r40"] - app.list.scroll_offset.y
    show(app, state, [id for id in ids if int(id[1:]) % 2 == 0])
    await pilot.pause()
    assert app.list._index["r40"] - app.list.scroll_offset.y == line


async def test_keys_on_an_empty_list_do_nothing(pilot: Pilot[None]) -> None:
    """U04."""
    app = app_of(pilot)
    show(app, make_state(0), [])
    await pilot.press("enter", "up", "down", "pageup", "pagedown", "home", "end")
    await pilot.click(RolloutList, offset=(3, 3))
    assert app.seen == []
    show(app, make_state(2), [Heading("nothing below")])
    await pilot.press("enter", "up", "down", "pageup", "pagedown", "home", "end")
    assert app.list.cursor_id is None


async def test_keys_move_over_headings(pilot: Pilot[None]) -> None:
    app, state = app_of(pilot), make_state(30)
    order: list[Any] = [Heading("first"), "r0", "r1", Heading("second"), *(f"r{i}" for i in range(2, 30))]
    show(app, state, order)
    await pilot.press("down", "down")
    assert app.list.cursor_id == "r2"
    await pilot.press("up")
    assert app.list.cursor_id == "r1"
    await pilot.press("end")
    assert app.list.cursor_id == "r29"
    await pilot.press("pageup")
    assert app.list.cursor_id not in ("r29", "r0", None)
    await pilot.press("home")
    assert app.list.cursor_id == "r0"
    await pilot.pause()
    assert "first" in "".join(drawn(app)[:2])
    assert app.list.scroll_offset.y == 0


async def test_the_mouse_moves_marks_and_opens(pilot: Pilot[None]) -> None:
    app = app_of(pilot)
    show(app, make_state(5), [f"r{i}" for i in range(5)])
    await pilot.pause()
    titles = len(app.list.heads())
    await pilot.click(RolloutList, offset=(10, titles + 3))
    assert app.list.cursor_id == "r3"
    await pilot.click(RolloutList, offset=(1, titles + 2))
    await pilot.pause()
    assert ("marked", "r2") in app.seen
    await pilot.double_click(RolloutList, offset=(10, titles + 1))
    await pilot.pause()
    assert app.seen[-1] == ("opened", "r1")


async def test_names_of_every_kind_are_shown_and_can_be_reached(pilot: Pilot[None]) -> None:
    """U05: ids and names are data, never widget ids."""
    app = app_of(pilot)
    names = ["1", "a b", "ü", "x/y", "", "n" * 300, "same-prefix-1", "same-prefix-2", "same", "same"]
    state = fold(
        ev.RolloutQueued(seq=i + 1, t=T0, rollout=name + f"#{i}", task=i, name=name)
        for i, name in enumerate(names)
    )
    show(app, state, list(state.rollouts))
    await pilot.pause()
    for id in state.rollouts:
        assert app.list.move_to(id)
        assert app.list.cursor_id == id
    screen = "\n".join(drawn(app))
    for name in ("a b", "ü", "x/y", "same-prefix-1", "same-prefix-2", "task 4", "nnnn"):
        assert name in screen


async def test_what_is_drawn_equals_the_model_after_any_changes(pilot: Pilot[None]) -> None:
    """U04: adds, removals, updates, sorts, filters and clears, with the cursor moving."""
    app, state, rng = app_of(pilot), gallery(), random.Random(4)
    ids = list(state.rollouts)
    seq, now = state.seq, NOW
    order: list[Any] = list(ids)
    for step in range(150):
        match rng.randrange(6):
            case 0:
                order = rng.sample(ids, len(ids))
            case 1:
                order = [id for id in order if rng.random() < 0.8]
            case 2:
                order = [*order[:2], Heading(f"group {step}"), *order[2:]]
            case 3:
                order = []
            case 4:
                seq += 1
                apply(state, ev.ErrorRaised(seq=seq, t=now, rollout=rng.choice(ids), kind="X", message="y"))
            case _:
                app.list.action_cursor(rng.choice((-1, 1, 5)))
        now += rng.choice((0, 0.4, 2))
        show(app, state, order, now, marks=set(rng.sample(ids, 2)))
        if step % 10 == 0:
            await pilot.pause()
            # Lines kept from before must be what drawing everything anew gives.
            held = drawn(app)
            app.list._cache.clear()
            app.list.redraw()
            await pilot.pause()
            assert drawn(app) == held
    assert app.list.cursor_id is None or app.list.cursor_id in order


async def test_only_rows_in_sight_cost_anything(pilot: Pilot[None]) -> None:
    app, state = app_of(pilot), make_state(20_000)
    order: list[Any] = list(state.rollouts)
    show(app, state, order)
    await pilot.pause()
    assert len(app.list._cache) <= 60
    app.list.move_to("r19999")
    await pilot.pause()
    assert "task-19999" in "\n".join(drawn(app))
    assert len(app.list._cache) <= 120


async def test_a_tick_with_nothing_new_repaints_nothing(pilot: Pilot[None]) -> None:
    app, state = app_of(pilot), gallery()
    order = list(state.rollouts)
    show(app, state, order)
    await pilot.pause()
    asked: list[Any] = []
    app.list.refresh = lambda *regions, **more: asked.append(regions)  # type: ignore[assignment]
    show(app, state, order)
    show(app, state, order, NOW + 0.5)
    assert asked == []
    show(app, state, order, NOW + 1)
    assert asked
    # Only what shows seconds is drawn again, not whole rows.
    assert all(region.width <= 14 for region in asked[0])


async def test_a_new_size_is_a_new_layout(pilot: Pilot[None]) -> None:
    app, state = app_of(pilot), gallery()
    show(app, state, list(state.rollouts))
    app.list.move_to("q2")
    await pilot.resize_terminal(120, 8)
    await pilot.pause()
    assert "rename-module" in "\n".join(drawn(app))
    await pilot.resize_terminal(24, 5)
    await pilot.pause()
    assert app.list.cursor_id == "q2"
    assert all(len(line) <= 24 for line in drawn(app))
