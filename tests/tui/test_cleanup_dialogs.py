"""Deleting leftovers: exactly what was named, only with its number typed, and only when it was meant."""

from __future__ import annotations

import pytest
from textual.screen import ModalScreen

from doubles.inventories import FakeInventory, alive, elsewhere, item
from doubles.inventory_screen import on_inventory, screen_of, screen_text, shows
from doubles.watching import Watching
from vf_tui.screens.cleanup_dialogs import ClaimDialog, EndDialog
from vf_tui.screens.confirm import Dialog


def words(dialog: Dialog) -> str:
    assert isinstance(dialog, EndDialog)
    named = ["".join(text for text, _ in line) for line in dialog.listed()]
    return "\n".join([str(dialog.heading()), *map(str, dialog.content()), *named])


async def open_on_all(w: Watching) -> EndDialog:
    await w.press("a", "X")
    dialog = await w.dialog()
    assert isinstance(dialog, EndDialog)
    return dialog


async def ended(w: Watching) -> None:
    await w.no_dialog()
    await w.until(lambda: not w.app.cleaning.ending, "the end of the cleanup")
    await w.pilot.pause()


async def test_the_count_is_typed_and_results_come_with_their_proofs() -> None:
    source = FakeInventory([item(0), item(1), item(2), alive(3)])
    source.results = {"box-1": "SURVIVED", "box-2": "UNKNOWN"}
    async with on_inventory(source) as w:
        dialog = await open_on_all(w)
        assert "Type 3 to confirm" in words(dialog)
        assert all(f"{n:012x}c0ffee" in words(dialog) for n in range(3))
        await w.press("y")
        assert dialog.is_current
        await w.press("3", "y")
        await ended(w)
        assert [sorted(keys) for keys, _ in source.took] == [["box-0", "box-1", "box-2"]]
        assert source.took[0][1] == ()
        await shows(w, "docker: no such")
        for word in ("GONE", "SURVIVED", "UNKNOWN"):
            assert word in screen_text(w)
        assert "1 GONE, 1 SURVIVED, 1 UNKNOWN" in w.app.base.said


@pytest.mark.parametrize(
    "keys", [["enter"], ["escape"], ["n"], ["ctrl+c"], ["X", "n"], ["2", "enter"], ["tab", "tab", "enter"]]
)
async def test_what_is_not_a_plain_yes_deletes_nothing(keys: list[str]) -> None:
    """K02."""
    source = FakeInventory([item(0), item(1)])
    async with on_inventory(source) as w:
        await open_on_all(w)
        await w.press(*keys)
        await w.no_dialog()
        assert source.took == []


async def test_a_wrong_number_is_refused() -> None:
    source = FakeInventory([item(0), item(1)])
    async with on_inventory(source) as w:
        dialog = await open_on_all(w)
        for wrong in (["1", "y"], ["2", "2", "y"], ["tab", "enter"]):
            await w.press(*wrong)
            await w.until(lambda: "Type 2 first" in str(dialog.query_one("#remark").render()), "the refusal")
            dialog.remark("")
        await w.press("2", "y")
        await ended(w)
        assert len(source.took) == 1


async def test_a_set_that_changed_is_asked_again_and_never_grows() -> None:
    """K01: one comes alive, another is proven gone, a new one turns up while the dialog is open."""
    source = FakeInventory([item(0), item(1), item(2)])
    async with on_inventory(source) as w:
        dialog = await open_on_all(w)
        await w.press("3")
        source.items = [item(0), item(1, leftover=False, owner="live", why="its run is alive again"), item(9)]
        w.app.cleaning.ask()
        await w.until(lambda: dialog.keys == ["box-0"], "the smaller set")
        await w.until(lambda: "left out" in str(dialog.query_one("#remark").render()), "the remark")
        await w.press("y")
        assert dialog.is_current
        w.hands.t += 1
        await w.press("1", "y")
        await ended(w)
        assert source.took == [(("box-0",), ())]


async def test_nothing_is_left_of_what_was_asked_for() -> None:
    source = FakeInventory([item(0)])
    async with on_inventory(source) as w:
        dialog = await open_on_all(w)
        source.items = []
        w.app.cleaning.ask()
        await w.until(lambda: not dialog.keys, "the empty set")
        await w.press("1", "y")
        assert dialog.is_current
        await w.press("escape")
        await w.no_dialog()
        assert source.took == []


async def test_a_change_right_before_the_answer_counts() -> None:
    source = FakeInventory([item(0), item(1)])
    async with on_inventory(source) as w:
        dialog = await open_on_all(w)
        await w.press("2")
        w.hands.hold()
        screen_of(w).view.take([item(0)], (), 0.0)
        await w.pilot.press("y")
        await w.pilot.pause(0.2)
        assert dialog.is_current
        assert source.took == []


async def test_what_was_confirmed_is_done_though_the_inventory_was_old_or_was_being_asked_for() -> None:
    source = FakeInventory([item(0), item(1)])
    async with on_inventory(source) as w:
        await open_on_all(w)
        w.app.cleaning.view.taken = 0.0
        source.hold()
        w.app.cleaning.ask()
        await w.press("2", "y")
        await w.no_dialog()
        await w.until(lambda: source.took, "the cleanup")
        source.let_go()
        await ended(w)
        await shows(w, "2 GONE")
        assert source.asked == 2


async def test_hidden_ones_are_counted() -> None:
    source = FakeInventory([item(0), item(1, kind="prime")])
    async with on_inventory(source) as w:
        await w.press("a", "slash", *"prime", "enter", "X")
        dialog = await w.dialog()
        assert "1 of them is hidden by the filter" in words(dialog)
        await w.press("2", "y")
        await ended(w)
        assert sorted(source.took[0][0]) == ["box-0", "box-1"]


async def test_without_marks_it_is_the_one_under_the_cursor() -> None:
    source = FakeInventory([item(0), item(1)])
    async with on_inventory(source) as w:
        screen_of(w).rows.move_to("box-1")
        await w.press("x")
        dialog = await w.dialog()
        assert "Delete the leftover" in words(dialog)
        await w.press("1", "y")
        await ended(w)
        assert source.took == [(("box-1",), ())]


@pytest.mark.parametrize("paste", ["2y", "y2yy", "X2y\n", "aXxC2y\nyy"])
async def test_what_is_pasted_deletes_nothing(paste: str) -> None:
    """K04: unbracketed, on the list and in the dialog."""
    source = FakeInventory([item(0), item(1)])
    async with on_inventory(source) as w:
        await w.burst(*("enter" if c == "\n" else c for c in paste))
        w.hands.t += 1
        while isinstance(w.app.screen, ModalScreen):
            await w.press("escape")
        w.app.go("cleanup")
        await w.press("u")
        await open_on_all(w)
        await w.burst(*("enter" if c == "\n" else c for c in paste))
        await w.pilot.pause(0.2)
        assert source.took == []


async def test_a_key_held_down_opens_one_dialog() -> None:
    """K05."""
    source = FakeInventory([item(0)])
    async with on_inventory(source) as w:
        await w.burst("X", "X", "X", "X", "X")
        await w.dialog()
        assert sum(isinstance(screen, Dialog) for screen in w.app.screen_stack) == 1


async def test_a_claim_names_the_owner_and_what_is_not_known() -> None:
    source = FakeInventory([item(0), elsewhere(1)])
    async with on_inventory(source, (80, 24)) as w:
        screen_of(w).rows.move_to("box-1")
        await w.press("C")
        dialog = await w.dialog()
        assert isinstance(dialog, ClaimDialog)
        for part in ("host farm-7, pid 4242", "made 1 h ago", "which cannot be asked from devbox", "RUNNING"):
            assert part in " ".join(words(dialog).split())
        await w.press("y")
        assert dialog.is_current
        await w.press("1", "y")
        await ended(w)
        assert source.took == [(("box-1",), ("box-1",))]


@pytest.mark.parametrize("key", ["box-0", "box-2"])
async def test_a_claim_is_for_what_cannot_be_marked_and_is_not_alive(key: str) -> None:
    source = FakeInventory([item(0), elsewhere(1), alive(2)])
    async with on_inventory(source) as w:
        screen_of(w).rows.move_to(key)
        await w.press("C")
        assert not isinstance(w.app.screen, Dialog)
        assert w.app.base.said.startswith("Claim: ")


async def test_while_it_cleans_up_keys_work_and_no_second_one_begins() -> None:
    source = FakeInventory([item(n) for n in range(30)])
    async with on_inventory(source) as w:
        await open_on_all(w)
        source.hold()
        await w.press("3", "0", "y")
        await shows(w, "cleaning up: 0 of 30")
        await w.press("down", "X")
        assert "a cleanup is under way" in w.app.base.said
        await w.press("r", "1", "4", "slash", *"docker", "enter")
        assert source.asked == 1
        await w.press("q")
        assert "cleanup was left: 30 sandboxes were asked to go" in w.app.farewell
        source.let_go()


async def test_an_unexpected_failure_is_told_and_nothing_counts_as_gone() -> None:
    class Failing(FakeInventory):
        async def clean(self, *_: object) -> list[object]:  # type: ignore[override]
            raise RuntimeError("boom")

    source = Failing([item(0)])
    async with on_inventory(source) as w:
        await open_on_all(w)
        await w.press("1", "y")
        await ended(w)
        assert "of 1 nothing is known: RuntimeError: boom" in w.app.base.said
        assert "GONE" not in screen_text(w).replace("cleanup", "")


async def test_results_stay_until_asked_again() -> None:
    source = FakeInventory([item(0), item(1)])
    async with on_inventory(source) as w:
        screen_of(w).rows.move_to("box-0")
        await w.press("X")
        await w.dialog()
        await w.press("1", "y")
        await ended(w)
        await w.press("1", "4")
        await shows(w, "GONE")
        await w.press("r")
        await w.until(lambda: list(screen_of(w).view.items) == ["box-1"], "the new inventory")
