"""The screens under a pilot: every one of them, in every size, whatever the run is up to."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest
from textual.widgets import Input

from doubles.fake_engine import FakeEngine
from doubles.watching import Watching, started, watching
from vf_core.config.paths import config_dir, state_dir
from vf_core.errors import EngineSilentError
from vf_core.events import types as ev
from vf_core.events.state import RunState
from vf_core.link.base import Link, Lost, Silent
from vf_core.runs.engine_file import Standing
from vf_core.runs.find import RunSummary
from vf_tui.actions import ACTIONS, SCOPES, in_scope
from vf_tui.runs_source import RunsSource
from vf_tui.screens.base import BaseScreen
from vf_tui.screens.confirm import Dialog
from vf_tui.screens.focus import NAMES, FocusScreen
from vf_tui.screens.help import HelpScreen
from vf_tui.screens.run import RunScreen
from vf_tui.screens.runs import RunsScreen
from vf_tui.screens.tabs import TabRow

HOSTILE = "[/foo] [$x] [@click=app.quit]x[/] \x1b]0;owned\x07 \\["


def screen_text(w: Watching) -> str:
    """What the top screen shows, as text."""
    width = w.app.size.width
    strips = w.app.screen._compositor.render_strips()
    return "\n".join(strip.text.ljust(width) for strip in strips)


def run_screen(w: Watching) -> RunScreen:
    screen = w.app.base
    assert isinstance(screen, RunScreen)
    return screen


def focus_screen(w: Watching) -> FocusScreen:
    screen = w.app.base
    assert isinstance(screen, FocusScreen)
    return screen


async def shows(w: Watching, text: str) -> None:
    await w.until(lambda: text in screen_text(w), f"{text!r} on the screen")


@pytest.mark.parametrize("size", [(120, 40), (80, 24), (40, 12)])
async def test_every_screen_and_tab_shows_hostile_text_as_text(size: tuple[int, int]) -> None:
    """U01, U05: names, prompts, errors, logs with brackets and control sequences, in every place."""
    engine = started(events=300)
    for id in ("", " ", "a b", "ü", "x/y", "t0-s0 ", "z" * 300, HOSTILE):
        engine.bus.publish(ev.RolloutQueued(rollout=id, task=99, name=HOSTILE))
        engine.bus.publish(ev.AttemptStarted(rollout=id, attempt=1, trace="t"))
        engine.bus.publish(
            ev.AttemptFinished(rollout=id, attempt=1, outcome="error", error_type=HOSTILE, error=HOSTILE)
        )
    engine.bus.publish(ev.Log(level="error", message=HOSTILE))
    async with watching(engine, size=size) as w:
        await shows(w, "[/foo] [$x]" if size[0] > 40 else "[/foo]")
        for key in ("tab", "z", "z", "tab", "e", "o", "b", "space", "shift+down", "escape", "escape"):
            await w.press(key)
        run_screen(w).rollout_list.move_to(HOSTILE)
        run_screen(w).key_pressed()
        await w.press("enter")
        assert focus_screen(w).rollout_id == HOSTILE
        for _ in NAMES:
            await w.press("tab")
        for key in ("4", "5", "1", "2", "question_mark"):
            await w.press(key)
        assert isinstance(w.app.screen, HelpScreen)
        await w.press("escape", "slash", *"[/x]", "enter")
        assert run_screen(w).view.filter.text == "[/x]"
        assert "\x1b" not in screen_text(w)


async def test_the_layout_fits_the_size() -> None:
    async with watching(size=(120, 40)) as w:
        screen = run_screen(w)
        assert screen.rollout_list.region.y == screen.grid.region.y
        await w.pilot.resize_terminal(80, 24)
        await w.until(lambda: screen.grid.region.y > screen.rollout_list.region.y, "the list over the grid")
        assert screen.grid.region.height >= 6
        await w.pilot.resize_terminal(40, 12)
        await w.until(lambda: not screen.grid.display, "only the list")
        await w.press("tab")
        await w.until(lambda: screen.grid.display and not screen.rollout_list.display, "only the grid")
        await w.press("tab")
        await w.until(lambda: screen.rollout_list.display, "the list again")
        assert screen.rollout_list.has_focus


async def test_the_filter_shows_while_typed_and_escape_brings_the_old_one_back() -> None:
    async with watching() as w:
        screen = run_screen(w)
        everyone = len(screen.view.ids)
        await w.press("slash", *"status:queued")
        queued = w.engine.state.totals.queued
        await w.until(lambda: len(screen.view.ids) == queued, "the queued ones")
        await w.press("escape")
        assert len(screen.view.ids) == everyone
        await w.press("slash", *"/[/", "enter")
        assert "regular expression" in screen_text(w)
        await w.press("escape", "slash", *"!status:queued", "enter")
        assert len(screen.view.ids) == everyone - queued
        await shows(w, "shown")
        await w.press("escape")
        assert len(screen.view.ids) == everyone


async def test_what_is_typed_ahead_goes_to_what_was_opened() -> None:
    """K05: all at once, as over a slow line."""
    async with watching() as w:
        await w.burst("slash", *"!status:queued axX")
        await w.until(lambda: w.app.screen.query_one("#filter Input", Input).value == "!status:queued axX")
        await w.press("escape")
        w.hands.t += 1
        await w.burst("down", "5", "2", "enter")
        await w.pilot.pause()
        assert w.app.base.SCOPE in ("run", "focus")
        assert w.sent == []


async def test_an_input_gets_a_paste_once_and_a_list_none() -> None:
    """K04, bracketed."""
    from textual import events

    async with watching() as w:
        w.app.post_message(events.Paste("xXKrRPq\ny"))
        await w.pilot.pause()
        assert not isinstance(w.app.screen, Dialog)
        await w.press("slash")
        w.app.post_message(events.Paste("status:active"))
        await w.pilot.pause()
        assert w.app.screen.query_one("#filter Input", Input).value == "status:active"
        assert w.sent == []


async def test_the_focus_screen_stays_with_its_rollout_through_a_restart() -> None:
    """U13."""
    async with watching() as w:
        r = next(r for r in w.engine.state.rollouts.values() if r.status == "active")
        run_screen(w).rollout_list.move_to(r.id)
        run_screen(w).key_pressed()
        await w.press("enter", "r")
        await w.dialog()
        await w.press("y")
        await w.until(lambda: w.sent, "the command")
        await w.until(lambda: w.engine.step(20) == 0 or r.attempt == 2, "the second attempt")
        await w.settle()
        assert focus_screen(w).rollout_id == r.id
        await shows(w, "attempt 2")
        await w.press("d")
        await shows(w, "GONE")


@pytest.mark.parametrize(
    ("key", "tab"), [("enter", "activity"), ("l", "output"), ("d", "sandbox"), ("i", "trace")]
)
async def test_what_a_rollout_is_opened_with_has_the_keys_at_once(key: str, tab: str) -> None:
    async with watching() as w:
        await w.press(key)
        screen = focus_screen(w)
        await w.until(lambda: screen.pane().has_focus, "the keys")
        assert screen.pane().id == screen.query_one(TabRow)._chosen == tab


async def test_a_rollout_that_is_no_more_is_left_with_a_remark() -> None:
    """U13: the state was replaced under the screen."""
    async with watching() as w:
        await w.press("enter")
        bridge = w.app.bridge
        assert bridge is not None
        fresh = FakeEngine(0)
        fresh.begin()
        bridge._take(fresh.state)
        w.app.wake()
        await w.until(lambda: isinstance(w.app.base, RunScreen), "the run screen")
        await w.until(lambda: "is not in this run" in w.app.base.said, "the remark")


async def test_the_transcript_and_the_trace_grow_with_the_rollout() -> None:
    async with watching() as w:
        r = next(r for r in w.engine.state.rollouts.values() if r.status == "active")
        run_screen(w).rollout_list.move_to(r.id)
        run_screen(w).key_pressed()
        await w.press("i")
        assert focus_screen(w).tab == "trace"
        await shows(w, "nodes:")
        focus_screen(w).choose("transcript")
        await shows(w, "user #0")
        before = r.tool_count
        await w.until(lambda: w.engine.step(20) == 0 or r.tool_count > before, "another tool call")
        await w.settle()
        await shows(w, f"assistant #{r.tool_count}")


async def test_output_follows_the_log_files(tmp_path: Path) -> None:
    from vf_core.runs.layout import RunDir

    async with watching() as w:
        r = next(r for r in w.engine.state.rollouts.values() if r.status == "active")
        link = w.app.bridge.link  # type: ignore[union-attr]
        about = replace(link.describe(), dir=str(tmp_path))
        link.describe = lambda: about  # type: ignore[method-assign]
        log = RunDir(tmp_path).stdout_log(r.id, 1)
        log.parent.mkdir(parents=True)
        log.write_text("first line [/x]\n\x1b[31mred\x1b[0m \x1b[2Jcleared\n")
        run_screen(w).rollout_list.move_to(r.id)
        run_screen(w).key_pressed()
        await w.press("l")
        await shows(w, "first line [/x]")
        await shows(w, "red cleared")
        with log.open("a") as f:
            f.write("a later line\n")
        w.engine.bus.publish(ev.OutputChunk(rollout=r.id, attempt=1, stream="stdout", text="a later line\n"))
        await shows(w, "a later line")
        await w.press("slash", "exclamation_mark", *"later", "enter")
        await shows(w, "2 of 3 lines match !later")
        await w.until(lambda: "a later line" not in screen_text(w), "a line that the filter hides")
        await w.press("escape")
        await shows(w, "a later line")


@pytest.mark.parametrize("state", ["live", "over", "none"])
async def test_every_palette_entry_in_every_state(state: str) -> None:
    """K10: no entry crashes, and none stops anything by itself."""
    leaving = {"app.quit", "app.interrupt"}
    async with watching() as w:
        if state == "over":
            w.engine.play()
            w.engine.finish()
            await w.until(lambda: w.app.state.over)
        if state == "none":
            w.app.bridge = None
        for scope in SCOPES if state == "live" else ("run", "focus"):
            w.app.go(scope)
            await w.pilot.pause()
            for action in in_scope(scope):
                if action.id in leaving:
                    continue
                w.app.perform(action.id)
                base = w.app.base
                if w.app.screen is not base or scope != base.SCOPE:
                    await w.pilot.pause()
                while not isinstance(w.app.screen, BaseScreen):
                    w.app.pop_screen()
                w.app.go(scope)
            await w.pilot.pause()
        assert [name for name, *_ in w.sent if name not in ("pause", "unpause")] == []


async def test_the_palette_finds_what_is_typed_and_does_it() -> None:
    async with watching() as w:
        await w.press("colon", *"revers", "enter")
        assert run_screen(w).view.reverse
        await w.press("ctrl+p", "down", "up", "escape")
        assert w.app.screen is w.app.base
        await w.press("colon", *"no such thing", "enter", "escape")
        assert w.app.screen is w.app.base


@pytest.mark.parametrize("how", ["local", "file"])
async def test_a_finished_run_says_so_and_its_code_is_the_exit_code(
    how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with watching() as w:
        w.engine.play()
        w.engine.finish()
        await w.until(lambda: w.app.state.over)
        # Once its engine has gone, it is read from its files.
        assert w.app.bridge is not None
        about = replace(w.app.bridge.about, how=how)
        monkeypatch.setattr(w.app.bridge.link, "describe", lambda: about)
        await shows(w, "completed")
        assert w.app.exit_code == w.engine.state.exit_code
        await w.press("q")
        await w.until(lambda: w.app.return_value is not None)
        assert w.app.return_value == w.engine.state.exit_code
        told = w.app.farewell.splitlines()
        assert told[0].startswith("completed: ")
        assert told[-1] == f"look at it again with `{w.app.come_back}`"


class LosingLink:
    """A link over another whose engine dies when told to."""

    def __init__(self, inner: Link) -> None:
        self._inner = inner
        self.read_only = False
        self.die = False

    def __getattr__(self, name: str) -> object:
        return getattr(self._inner, name)

    async def batches(self) -> object:
        async for batch in self._inner.batches():
            yield batch
            if self.die:
                yield Lost("engine pid 4242 on devbox died at 14:03:07")
                return


class SilentLink(LosingLink):
    """A link whose engine does not answer at first, then does, and falls silent again when told to."""

    tries = 0
    silent = False

    async def connect(self) -> RunState:
        self.tries += 1
        if self.tries < 3:
            await asyncio.sleep(0.2)
            raise EngineSilentError("nobody answers")
        return await self._inner.connect()

    async def batches(self) -> object:
        async for batch in self._inner.batches():
            yield batch
            yield Silent(over=not self.silent)


async def test_a_silent_engine_is_told_and_waited_for() -> None:
    engine = started()
    async with watching(engine) as w:
        link = SilentLink(engine.link())
        w.app.open_link(link)  # type: ignore[arg-type]
        await shows(w, "ENGINE SILENT")
        await shows(w, "still trying")
        await w.until(lambda: w.app.bridge is not None and w.app.bridge.connected)
        await w.until(lambda: "SILENT" not in screen_text(w))
        link.silent = True
        engine.step(3)
        await shows(w, "what is shown is as it was then")
        link.silent = False
        engine.step(3)
        await w.until(lambda: "SILENT" not in screen_text(w))


async def test_a_lost_engine_is_told_and_nothing_more_can_be_asked() -> None:
    engine = started()
    async with watching(engine) as w:
        link = LosingLink(engine.link())
        w.app.open_link(link)  # type: ignore[arg-type]
        await w.until(lambda: w.app.bridge is not None and w.app.bridge.connected)
        link.die = True
        engine.step(3)
        await shows(w, "ENGINE LOST")
        await shows(w, "pid 4242")
        await w.press("x")
        assert not isinstance(w.app.screen, Dialog)
        assert "the engine is lost" in w.app.base.said
        await w.press("down", "enter")
        assert isinstance(w.app.base, FocusScreen)
        await w.press("q")
        await w.until(lambda: w.app.return_value is not None)
        assert "its engine is gone: `vf-tui resume " in w.app.farewell
        assert "not proven gone: `vf-tui cleanup " in w.app.farewell


async def test_read_only_refuses_and_says_why() -> None:
    async with watching() as w:
        await w.press("exclamation_mark", "x")
        assert not isinstance(w.app.screen, Dialog)
        assert "read-only" in w.app.base.said
        await shows(w, "read-only lock")
        await w.press("P", "exclamation_mark")
        assert w.app.base.context().read_only == ""
        assert w.sent == []


async def test_pause_is_sent_once_and_not_out_of_a_burst() -> None:
    async with watching() as w:
        w.hands.t += 1
        await w.burst("P", "O")
        await w.pilot.pause(0.15)
        assert w.sent == []
        await w.press("P")
        await w.until(lambda: w.sent == [("pause", (), {})], "the pause")
        await w.until(lambda: w.app.state.paused and not w.app.busy)
        await w.press("P")
        await w.until(lambda: len(w.sent) == 2, "the unpause")
        assert w.sent[1][0] == "unpause"


async def test_reloading_keeps_what_worked_when_a_file_is_broken() -> None:
    """C08: three times unchanged, then broken, then mended."""
    config_dir().mkdir(parents=True)
    keys = config_dir() / "keys.toml"
    keys.write_text('"list.sort" = "s"\n')
    async with watching() as w:
        before = w.app.keymap.keys
        for _ in range(3):
            w.app.perform("app.reload")
            assert w.app.keymap.keys == before
        keys.write_text('"list.sort" = "x"\n')
        w.app.perform("app.reload")
        assert w.app.keymap.keys == before
        assert "rollout.stop" in w.app.base.said
        assert "list.sort" in w.app.base.said
        (config_dir() / "config.toml").write_text("thme = 3\n")
        w.app.perform("app.reload")
        assert "thme" in w.app.base.said
        (config_dir() / "config.toml").write_text('theme = "light"\n')
        keys.write_text('"list.sort" = "S"\n')
        w.app.perform("app.reload")
        assert w.app.theme == "light"
        await w.press("S")
        assert run_screen(w).view.sort == "task"


async def test_a_broken_keymap_at_start_is_told_and_the_defaults_hold() -> None:
    config_dir().mkdir(parents=True)
    (config_dir() / "keys.toml").write_text("[broken")
    async with watching() as w:
        await w.until(lambda: "keys.toml" in w.app.base.said)
        await w.press("o")
        assert run_screen(w).view.sort == "task"


async def test_a_screen_that_is_not_on_top_does_no_work(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[str] = []
    flush = RunScreen.flush
    monkeypatch.setattr(RunScreen, "flush", lambda *a: (drawn.append("run"), flush(*a))[1])
    async with watching() as w:
        await w.press("5")
        drawn.clear()
        w.engine.step(50)
        await w.settle()
        assert drawn == []
        await w.press("2")
        await w.until(lambda: drawn, "the run screen to be drawn again")


async def test_only_what_is_in_sight_is_watched() -> None:
    async with watching() as w:
        link = w.app.bridge.link  # type: ignore[union-attr]
        asked: list[set[str]] = []
        link.watch = asked.append  # type: ignore[method-assign]
        await w.press("enter")
        assert asked[-1] == {focus_screen(w).rollout_id}
        await w.press("5")
        assert asked[-1] == set()
        await w.press("2")
        await w.until(lambda: asked[-1] == set(run_screen(w).grid.visible_ids()))


async def test_copying_without_a_terminal_goes_to_a_private_file() -> None:
    """K08."""
    async with watching() as w:
        await w.press("y")
        files = list((state_dir() / "copies").iterdir())
        assert len(files) == 1
        assert files[0].stat().st_mode & 0o077 == 0
        assert run_screen(w).current_id() in files[0].read_text()
        assert str(files[0]) in w.app.base.said
        await w.press("Y")
        texts = {f.read_text() for f in (state_dir() / "copies").iterdir()}
        assert "vf-tui attach 9a1d" in texts


class Shelf(RunsSource):
    """Runs that need no directories."""

    def __init__(self, engine: FakeEngine, runs: list[RunSummary]) -> None:
        super().__init__(())
        self._engine, self.runs = engine, runs
        self.opened: list[RunSummary] = []

    def list(self) -> list[RunSummary]:
        return self.runs

    def open(self, run: RunSummary) -> Link:
        self.opened.append(run)
        return self._engine.link()


def summary(n: int, **fields: object) -> RunSummary:
    known: dict[str, object] = {
        "dir": Path(f"/runs/{n}"), "id": f"{n}aaa-{n}", "name": f"run {n} [/x]", "producer": "vf-tui",
        "liveness": "live" if n % 2 else "dead", "changed": 1.0,
        "standing": Standing(total=10, done=n, started=1.0, reward=0.5, unconfirmed=n),
    }  # fmt: skip
    return RunSummary(**{**known, **fields})  # type: ignore[arg-type]


@pytest.mark.parametrize("size", [(120, 40), (40, 12)])
async def test_home_lists_runs_filters_and_opens_them(size: tuple[int, int]) -> None:
    engine = started()
    shelf = Shelf(engine, [summary(n) for n in range(5)])
    async with watching(engine, size=size, runs=shelf) as w:
        await w.press("1")
        screen = w.app.base
        assert isinstance(screen, RunsScreen)
        await shows(w, "run 0")
        await w.press("slash", *"3aaa", "enter")
        assert [run.id for run in screen.shown] == ["3aaa-3"]
        await w.press("enter")
        await w.until(lambda: isinstance(w.app.base, RunScreen))
        assert [run.id for run in shelf.opened] == ["3aaa-3"]
        await w.until(lambda: w.app.bridge is not None and w.app.bridge.connected)
        shelf.runs = []
        await w.press("1", "escape")
        await screen.look()
        await w.press("enter")
        assert isinstance(w.app.base, RunsScreen)


async def test_notes_are_not_told_twice_after_a_fresh_snapshot() -> None:
    async with watching() as w:
        bridge = w.app.bridge
        assert bridge is not None
        w.engine.bus.publish(ev.Log(level="error", message="disk is nearly full"))
        await w.settle()
        assert sum("nearly full" in note.text for note in bridge.notes) == 1
        bridge._take(w.engine.state)
        assert sum("nearly full" in note.text for note in bridge.notes) == 1


def test_every_action_has_someone_who_does_it() -> None:
    """A key that does nothing is a lie."""
    from vf_tui.acting import Acting
    from vf_tui.app import VfTuiApp
    from vf_tui.screens.factory import make_screen

    for action in ACTIONS:
        name = f"do_{action.id.replace('.', '_')}"
        for scope in action.scopes:
            owners = (type(make_screen(scope)), Acting, VfTuiApp)
            assert any(hasattr(owner, name) for owner in owners), (action.id, scope)
