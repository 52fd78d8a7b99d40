"""Confirm dialogs: exactly what they name, and only when it was meant."""

from __future__ import annotations

import pytest

from doubles.fake_engine import FakeEngine
from doubles.inventory_screen import screen_text
from doubles.watching import Watching, started, watching
from vf_core.events import types as ev
from vf_core.runtimes.lifecycle import State
from vf_tui.actions import can_confirm, can_kill, can_restart, can_stop
from vf_tui.screens.confirm import ConfirmScreen, Dialog
from vf_tui.screens.run import RunScreen


def run_screen(w: Watching) -> RunScreen:
    screen = w.app.base
    assert isinstance(screen, RunScreen)
    return screen


def active(w: Watching) -> list[str]:
    return [r.id for r in w.engine.state.rollouts.values() if r.status == "active"]


def end(engine: FakeEngine, id: str, outcome: str = "completed") -> None:
    r = engine.state.rollouts[id]
    engine.bus.publish(ev.AttemptFinished(rollout=id, attempt=r.attempt, outcome=outcome))


async def point_at(w: Watching, id: str) -> None:
    run_screen(w).rollout_list.move_to(id)
    run_screen(w).key_pressed()
    await w.pilot.pause()


def shown(dialog: Dialog) -> str:
    return "\n".join(str(line) for line in (dialog.heading(), *dialog.content()))


async def test_stop_hits_the_one_that_was_named_though_the_list_moved() -> None:
    """K01."""
    async with watching() as w:
        a, b = active(w)[:2]
        await point_at(w, b)
        await w.press("x")
        dialog = await w.dialog()
        assert isinstance(dialog, ConfirmScreen)
        assert b in dialog.review.title
        end(w.engine, a)
        for id in active(w)[2:4]:
            w.engine.bus.publish(ev.ErrorRaised(rollout=id, attempt=1, kind="ProviderError", message="429"))
        await w.settle()
        await w.press("y")
        await w.until(lambda: w.sent, "the command")
        assert w.sent == [("stop", (b,), {})]


async def test_marked_ones_that_finish_leave_the_selection() -> None:
    """K01: mark three, let two finish, stop a fourth."""
    async with watching() as w:
        first, second, third, fourth = active(w)[:4]
        for id in (first, second, third):
            await point_at(w, id)
            await w.press("space")
        for id in (first, second):
            end(w.engine, id)
        await w.settle()
        assert run_screen(w).view.marks.ids == {third}
        await point_at(w, fourth)
        await w.press("space", "x")
        dialog = await w.dialog()
        assert "2 rollouts" in dialog._heading
        await w.press("y")
        await w.until(lambda: w.sent, "the command")
        name, targets, _ = w.sent[0]
        assert (name, set(targets)) == ("stop", {third, fourth})


async def test_the_named_one_ends_under_the_dialog() -> None:
    """K01: it says so, and nothing is sent."""
    async with watching() as w:
        id = active(w)[0]
        await point_at(w, id)
        await w.press("x")
        dialog = await w.dialog()
        end(w.engine, id)
        await w.settle()
        await w.until(lambda: "left out" in str(dialog.query_one("#remark").render()), "the remark")
        await w.press("y", "tab", "enter")
        await w.press("escape")
        await w.no_dialog()
        assert w.sent == []


async def test_a_changed_set_is_asked_again() -> None:
    async with watching() as w:
        ids = active(w)[:3]
        for id in ids:
            await point_at(w, id)
            await w.press("space")
        await w.press("x")
        dialog = await w.dialog()
        assert isinstance(dialog, ConfirmScreen)
        # It ends after the user decided, and before the key is handled.
        w.hands.hold()
        end(w.engine, ids[0])
        await w.settle()
        await w.pilot.press("y")
        assert w.sent == []
        assert dialog.is_current
        await w.press("y")
        await w.until(lambda: w.sent, "the command")
        assert set(w.sent[0][1]) == set(ids[1:])


ASKING = {
    "rollout.stop": ("x", can_stop),
    "rollout.confirm_stop": ("X", can_confirm),
    "rollout.kill": ("K", can_kill),
    "rollout.restart": ("r", can_restart),
    "run.retry_failed": ("R", lambda r: r.status == "error"),
}


async def open_dialog(w: Watching, action: str) -> Dialog:
    key, fits = ASKING[action]
    if action == "rollout.kill":
        r = w.rollout(active(w)[0])
        assert r.sandbox is not None
        w.engine.bus.publish(
            ev.RuntimeChanged(
                rollout=r.id, attempt=1, sandbox=r.sandbox.name, kind="subprocess", state="stopping"
            )
        )
    if action == "run.retry_failed" and not w.engine.state.totals.error:
        end(w.engine, active(w)[0], "error")
    await w.settle()
    await point_at(w, next(r.id for r in w.engine.state.rollouts.values() if fits(r)))
    await w.press(key)
    return await w.dialog()


@pytest.mark.parametrize("action", list(ASKING))
async def test_every_dialog_is_safe_by_default_and_does_what_its_label_says(action: str) -> None:
    """K02."""
    key = ASKING[action][0]
    async with watching() as w:
        safe_keys = [["enter"], ["escape"], [key, "n"]]
        if action == "rollout.stop":
            safe_keys += [["ctrl+c"], ["tab", "tab", "enter"], ["shift+tab", "left", "enter"]]
        for safe in safe_keys:
            dialog = await open_dialog(w, action)
            assert dialog.focused is not None
            assert dialog.focused.id == "answer-0"
            assert dialog._answers[0][1] == "Cancel"
            await w.press(*safe)
            await w.no_dialog()
            assert w.sent == [], safe
        dialog = await open_dialog(w, action)
        await w.pilot.click("#answer-0")
        await w.no_dialog()
        assert w.sent == []
        for sure in (["y"], ["tab", "enter"]):
            dialog = await open_dialog(w, action)
            assert isinstance(dialog, ConfirmScreen)
            ids = dialog.review.ids
            if dialog.review.typed is not None:
                await w.press("y")
                await w.pilot.pause(0.1)
                assert dialog.is_current, "the count was not typed"
                await w.press(*str(dialog.review.typed))
            await w.press(*sure)
            await w.until(lambda: w.sent, "the command")
            assert w.sent[-1][1] == ids
            await w.no_dialog()
            w.engine.received.clear()
            w.engine.step(30)
            await w.settle()


async def test_the_opening_key_pressed_again_and_again_opens_one_dialog() -> None:
    """K05."""
    async with watching() as w:
        await point_at(w, active(w)[0])
        w.hands.t += 1
        await w.burst("x", "x", "x", "x", "x")
        await w.pilot.pause()
        assert sum(isinstance(s, Dialog) for s in w.app.screen_stack) == 1
        await w.dialog()
        await w.press("escape")
        await w.no_dialog()
        await w.press("r")
        await w.dialog()
        await w.burst(*"rrrrrrrrrr")
        assert sum(isinstance(s, Dialog) for s in w.app.screen_stack) == 1
        assert w.sent == []


async def test_pasted_keys_confirm_nothing() -> None:
    """K04, unbracketed: every bound letter and newlines, on the main screen and in a dialog."""
    letters = "xXKrRPaueoOnNfwtyY123456" + "y\ny\n"
    keys = ["enter" if c == "\n" else c for c in letters]
    async with watching() as w:
        await point_at(w, active(w)[0])
        await w.burst(*keys)
        await w.pilot.pause(0.3)
        assert w.sent == []
        while isinstance(w.app.screen, Dialog):
            await w.dialog()
            await w.press("escape")
            await w.pilot.pause()
        w.app.go("run")
        await w.pilot.pause()
        run_screen(w).view.marks.clear()
        await point_at(w, active(w)[0])
        await w.press("x")
        await w.dialog()
        await w.burst(*"yes please\n".replace("\n", "y"))
        await w.pilot.pause(0.3)
        assert w.sent == []


async def test_a_clicked_answer_counts_only_once_the_dialog_listens() -> None:
    async with watching() as w:
        await point_at(w, active(w)[0])
        w.hands.t += 1
        await w.pilot.press("x")
        await w.until(lambda: isinstance(w.app.screen, Dialog) and w.app.screen.is_mounted)
        await w.pilot.click("#answer-1")
        dialog = await w.dialog()
        # Textual takes no click on a button that still shows the one before.
        await w.until(lambda: not dialog.query_one("#answer-1").has_class("-active"))
        await w.pilot.click("#answer-1")
        await w.until(lambda: w.sent, "the command")
        assert w.sent[0][0] == "stop"


@pytest.mark.parametrize("size", [(80, 24), (40, 12)])
async def test_the_question_and_its_answers_are_seen_whatever_the_height(size: tuple[int, int]) -> None:
    async with watching(started(concurrency=8, events=200), size=size) as w:
        await w.press("a", "x")
        dialog = await w.dialog()
        assert isinstance(dialog, ConfirmScreen)
        await w.until(lambda: "y Stop" in screen_text(w), "the answers")
        for text in (dialog.review.title, f"Type {dialog.review.typed} to confirm", "n Cancel"):
            assert text in screen_text(w)
        last = "later."
        for _ in range(0 if last in screen_text(w) else 8):
            await w.press("pagedown")
        await w.until(lambda: last in screen_text(w), "the end of what is to be known")
        dialog.remark("something that is long enough to need more than one line, however wide it is " * 2)
        await w.until(lambda: "something" in screen_text(w) and "y Stop" in screen_text(w), "both")


async def test_many_sandboxes_need_their_count_typed() -> None:
    async with watching(started(concurrency=8, events=200)) as w:
        await w.press("a", "x")
        dialog = await w.dialog()
        assert isinstance(dialog, ConfirmScreen)
        typed = dialog.review.typed
        assert typed is not None
        assert f"Type {typed}" in shown(dialog)
        await w.press("y")
        await w.pilot.pause(0.1)
        assert w.sent == []
        await w.press("9", "9", "backspace", "backspace", *str(typed), "y")
        await w.until(lambda: w.sent, "the command")
        assert len(w.sent[0][1]) == typed


async def test_a_busy_run_can_be_stopped_though_its_rollouts_end_meanwhile() -> None:
    """Too many to name: those that end are counted and left out, and what was typed stands."""
    async with watching(started(concurrency=8, events=200)) as w:
        await w.press("a", "x")
        dialog = await w.dialog()
        assert isinstance(dialog, ConfirmScreen)
        typed, ids = dialog.review.typed, dialog.review.ids
        assert typed is not None
        await w.press(*str(typed))
        gone = active(w)[:2]
        for id in gone:
            end(w.engine, id)
        await w.settle()
        await w.until(lambda: "2 ended" in shown(dialog), "the count of those left out")
        await w.press("y")
        await w.until(lambda: w.sent, "the command")
        assert set(w.sent[0][1]) == set(ids) - set(gone)


async def test_restart_beside_a_sandbox_that_may_exist_is_forced_with_the_count() -> None:
    async with watching() as w:
        r = w.rollout(active(w)[0])
        assert r.sandbox is not None
        for state in ("stopping", "sent", "checking", "survived"):
            w.engine.bus.publish(
                ev.RuntimeChanged(
                    rollout=r.id, attempt=r.attempt, sandbox=r.sandbox.name, kind="subprocess", state=state
                )
            )
        end(w.engine, r.id, "error")
        await w.settle()
        assert r.sandbox.state is State.SURVIVED
        await point_at(w, r.id)
        await w.press("r")
        dialog = await w.dialog()
        assert "proven gone" in shown(dialog)
        await w.press("f", "y")
        await w.pilot.pause(0.1)
        assert w.sent == []
        await w.press("1", "y")
        await w.until(lambda: w.sent, "the command")
        assert w.sent == [("restart", (r.id,), {"force": True})]


async def test_stopping_the_run_names_no_rollout_and_waits_for_proof_unless_told() -> None:
    async with watching() as w:
        await w.press("ctrl+c")
        dialog = await w.dialog()
        assert [label for _, label, _ in dialog._answers] == ["Detach", "Stop the run…", "Cancel"]
        await w.press("s")
        await w.until(lambda: isinstance(w.app.screen, ConfirmScreen), "the second question")
        confirm = await w.dialog()
        assert isinstance(confirm, ConfirmScreen)
        if confirm.review.typed is not None:
            await w.press(*str(confirm.review.typed))
        await w.press("y")
        await w.until(lambda: w.sent, "the command")
        assert w.sent == [("stop_all", (), {"confirm": True})]


async def test_ctrl_c_cancelled_or_detached_stops_nothing() -> None:
    async with watching() as w:
        for keys in (["escape"], ["n"], ["ctrl+c"]):
            await w.press("ctrl+c")
            await w.dialog()
            await w.press(*keys)
            await w.no_dialog()
        await w.press("ctrl+c")
        await w.dialog()
        await w.press("enter")
        await w.until(lambda: w.app.farewell, "leaving")
        assert "vf-tui attach 9a1d" in w.app.farewell
        assert w.sent == []


async def test_leaving_an_embedded_run_asks_and_waits_for_its_end() -> None:
    async with watching(embedded=True) as w:
        await w.press("q")
        confirm = await w.dialog()
        assert isinstance(confirm, ConfirmScreen)
        assert "leaving stops every rollout" in shown(confirm)
        if confirm.review.typed is not None:
            await w.press(*str(confirm.review.typed))
        await w.press("y")
        await w.until(lambda: w.app.leaving and w.sent, "the command")
        w.engine.step(500)
        w.engine.finish("stopped")
        await w.until(lambda: w.app.return_value is not None, "the app to leave by itself")
