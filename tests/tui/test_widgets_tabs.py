"""Activity, facts, bars and notices; and that no widget is ever given markup."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from textual.app import App, ComposeResult

import vf_tui
from doubles.screen_states import NOW, gallery, hostile
from vf_core.runtimes.lifecycle import State
from vf_tui.render import facts
from vf_tui.widgets.activity_view import ActivityView
from vf_tui.widgets.bars import KeyBar, Notice
from vf_tui.widgets.facts_view import FactsView, PhaseBar
from vf_tui.widgets.run_header import RunHeader

KEYS = [("x", "stop", True), ("?", "help", True)]


class TabApp(App[None]):
    CSS = "ActivityView, FactsView { height: 1fr; width: 1fr; }"

    def compose(self) -> ComposeResult:
        yield RunHeader()
        yield PhaseBar()
        yield ActivityView()
        yield FactsView()
        yield Notice()
        yield KeyBar(KEYS)

    def drawn(self) -> str:
        return "\n".join(strip.text for strip in self.screen._compositor.render_strips())


async def test_calls_open_and_close_under_the_cursor() -> None:
    app, state = TabApp(), gallery()
    async with app.run_test(size=(90, 30)) as pilot:
        view = app.query_one(ActivityView)
        view.focus()
        view.show(state.rollouts["a2"], NOW)
        await pilot.pause()
        assert "pytest -x tests/unit" in app.drawn()
        assert "def retry" not in app.drawn()
        await pilot.press("up", "enter")
        await pilot.pause()
        assert "def retry" in app.drawn()
        view.show(state.rollouts["a2"], NOW + 1)
        await pilot.pause()
        assert "def retry" in app.drawn()
        await pilot.press("enter", "plus", "minus", "home", "pagedown", "pageup", "end")
        await pilot.pause()
        assert "def retry" not in app.drawn()


async def test_a_failure_is_told_in_its_own_words_below_the_calls() -> None:
    app, state = TabApp(), gallery()
    async with app.run_test(size=(90, 30)) as pilot:
        failed = next(r for r in state.rollouts.values() if r.error.startswith("the program was killed"))
        app.query_one(ActivityView).show(failed, NOW)
        await pilot.pause()
        assert failed.error in app.drawn()


async def test_another_rollout_or_attempt_starts_folded() -> None:
    app, state = TabApp(), gallery()
    async with app.run_test(size=(90, 30)) as pilot:
        view = app.query_one(ActivityView)
        view.focus()
        for id in ("a2", "q0", "e1", "l3", "a4"):
            view.show(state.rollouts[id], NOW)
            await pilot.press("plus")
            await pilot.pause()
        view.show(state.rollouts["a2"], NOW)
        await pilot.pause()
        assert "def retry" not in app.drawn()


async def test_facts_keep_their_place_and_follow_the_width() -> None:
    app, state = TabApp(), gallery()
    async with app.run_test(size=(90, 24)) as pilot:
        view = app.query_one(FactsView)
        view.focus()
        rollout = state.rollouts["e1"]
        sections = [*facts.sandbox_sections(rollout, state, NOW), *facts.overview_sections(rollout, NOW)]
        view.show(sections)
        await pilot.pause()
        assert "docker" in app.drawn()
        await pilot.press("down", "down", "pagedown", "pageup", "end", "home", "down")
        before = view.scroll_offset.y
        view.show(sections)
        await pilot.pause()
        assert view.scroll_offset.y == before == 1
        await pilot.resize_terminal(40, 24)
        await pilot.pause()
        assert all(len(line) <= 40 for line in app.drawn().split("\n"))


async def test_a_notice_comes_and_goes() -> None:
    app = TabApp()
    async with app.run_test(size=(60, 20)) as pilot:
        notice = app.query_one(Notice)
        assert not notice.display
        notice.show("stopped 3 rollouts", until=100.0)
        await pilot.pause()
        assert "stopped 3 rollouts" in app.drawn()
        notice.tick(99.0)
        assert notice.text
        notice.tick(100.0)
        await pilot.pause()
        assert "stopped 3 rollouts" not in app.drawn()


async def test_the_header_is_one_line_when_narrow() -> None:
    app = TabApp()
    async with app.run_test(size=(100, 30)) as pilot:
        header = app.query_one(RunHeader)
        header.show(gallery(), NOW)
        assert header.size.height == 3
        await pilot.resize_terminal(40, 12)
        await pilot.pause()
        assert header.size.height == 1
        assert "6/16" in app.drawn()


async def test_the_header_has_the_last_word_when_the_run_ends_within_a_second() -> None:
    app = TabApp()
    state = gallery()
    async with app.run_test(size=(120, 30)) as pilot:
        header = app.query_one(RunHeader)
        header.show(state, NOW)
        await pilot.pause()
        assert "3 unconfirmed" in app.drawn()
        for name in ("vf-l1-1", "vf-l2-1"):
            state.sandboxes[name].state = State.GONE
            state.unconfirmed.discard(name)
        state.revision += 1
        state.finished, state.status = NOW, "completed"
        header.show(state, NOW)
        await pilot.pause()
        assert "stopping" not in app.drawn()
        assert "1 unconfirmed" in app.drawn()


@pytest.mark.parametrize("attack", list(hostile()))
async def test_hostile_words_in_bars_and_notices(attack: str) -> None:
    """U01: shown literally, never as markup."""
    app = TabApp()
    async with app.run_test(size=(80, 20)) as pilot:
        app.query_one(Notice).show(attack, "error")
        app.query_one(KeyBar).show([("x", attack, True), ("?", attack, False)])
        app.query_one(RunHeader).show(gallery(), NOW, attack)
        await pilot.pause()
        if attack.isascii() and attack.isprintable() and len(attack) < 30:
            assert attack in app.drawn()


SINKS = {
    "Static",
    "Label",
    "Button",
    "notify",
    "Option",
    "add_row",
    "add_column",
    "Tooltip",
    "Checkbox",
    "update",
}
TITLES = {"border_title", "border_subtitle", "tooltip"}


def test_no_computed_string_is_ever_given_to_a_widget_that_reads_markup() -> None:
    """U01: text reaches such widgets as `Content` (from `safe_text`), or as a literal."""
    bad: list[str] = []
    for file in sorted(Path(vf_tui.__file__).parent.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            where = f"{file.name}:{getattr(node, 'lineno', 0)}"
            if isinstance(node, ast.Call):
                name = getattr(node.func, "attr", getattr(node.func, "id", ""))
                if name in SINKS and any(isinstance(arg, ast.JoinedStr | ast.BinOp) for arg in node.args):
                    bad.append(where)
                if name in ("from_markup", "from_text") or any(
                    k.arg == "markup" and getattr(k.value, "value", None) is True for k in node.keywords
                ):
                    bad.append(where)
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.JoinedStr):
                bad += [where for t in node.targets if getattr(t, "attr", "") in TITLES]
    assert bad == []
