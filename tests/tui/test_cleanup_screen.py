"""The screen of all sandboxes: what it shows while providers answer, and that nothing waits for them."""

from __future__ import annotations

import time

import pytest

from doubles.inventories import FakeInventory, alive, elsewhere, foreign, item
from doubles.inventory_screen import at_home, on_inventory, screen_of, screen_text, shows
from doubles.screen_states import hostile
from doubles.watching import watching
from vf_core.sandboxes.items import ProviderReport
from vf_tui import glyphs
from vf_tui.screens.cleanup import CleanupScreen
from vf_tui.screens.cleanup_dialogs import CommandsSheet, EndDialog
from vf_tui.screens.confirm import Dialog
from vf_tui.screens.sandboxes import SandboxesScreen

SIZES = [(120, 40), (80, 24), (40, 12)]


@pytest.mark.parametrize("size", SIZES)
async def test_home_tells_what_dead_runs_left_and_the_key_that_shows_it(size: tuple[int, int]) -> None:
    source = FakeInventory([item(0), item(1), item(2, kind="prime"), alive(3)])
    async with at_home(source, size) as w:
        await shows(w, "3 sandboxes of dead runs are left")
        await w.press("4")
        await shows(w, "4 sandboxes, 3 left over")


async def test_nothing_left_is_no_news() -> None:
    async with at_home(FakeInventory([alive(0)])) as w:
        await w.until(lambda: w.app.cleaning._looked > 0, "the look into the ledger")
        assert "left" not in screen_text(w)


async def test_a_ledger_that_cannot_be_read_is_told_and_nothing_breaks() -> None:
    class Broken(FakeInventory):
        def leftover_kinds(self) -> list[str]:
            raise OSError("disk gone")

    async with at_home(Broken()) as w:
        await shows(w, "the ledger of sandboxes can't be read: OSError: disk gone")


async def test_a_run_tells_it_once_and_both_lists_are_two_keys_away() -> None:
    source = FakeInventory([item(0)])
    async with watching(inventory=source) as w:
        await shows(w, "1 sandbox of a dead run is left")
        await w.press("4")
        assert isinstance(w.app.base, SandboxesScreen)
        await w.press("tab")
        screen_of(w)
        await w.press("tab")
        assert isinstance(w.app.base, SandboxesScreen)
        await w.press("4")
        screen_of(w)
        await w.press("escape")
        assert w.app.base.SCOPE == "run"


async def test_each_answer_is_shown_as_it_comes_and_keys_work_meanwhile() -> None:
    reports = [
        ProviderReport("docker", "", True, 0.4, time.time(), "", 12),
        ProviderReport("modal", "", False, 0.1, time.time(), "no token (set MODAL_TOKEN_ID)"),
    ]
    source = FakeInventory([item(0)], reports=reports)
    source.hold()
    async with at_home(source) as w:
        await w.press("4")
        await shows(w, "docker: 12 in 0.4 s")
        await shows(w, "modal: asking")
        await w.press("slash", *"x", "escape", "1", "4")
        source.let_go()
        await shows(w, "modal: could not be asked: no token (set MODAL_TOKEN_ID)")
        await shows(w, "1 sandbox, 1 left over")
        assert source.asked == 1
        await w.press("r")
        await w.until(lambda: source.asked == 2 and not w.app.cleaning.asking, "the second answer")


async def test_an_inventory_that_fails_says_why_and_can_be_asked_again() -> None:
    source = FakeInventory([item(0)])
    source.failure = "the ledger [/x] is locked"
    async with at_home(source) as w:
        await w.press("4")
        await shows(w, "could not be listed: the ledger [/x] is locked")
        source.failure = ""
        await w.press("r")
        await shows(w, "1 sandbox, 1 left over")


@pytest.mark.parametrize("size", SIZES)
async def test_hostile_names_are_shown_as_text_everywhere(size: tuple[int, int]) -> None:
    """U01, U02, U05: in rows, details, reports, dialogs and commands."""
    fields = ("id", "name", "run", "rollout", "host", "owner_proof", "status", "command")
    items = [item(n, **dict.fromkeys(fields, text), key=f"{n} {text}") for n, text in enumerate(hostile())]
    reports = [
        ProviderReport("docker", "[/x] \x1b]0;a\x07", False, 0.1, 1.0, "[@click=app.quit]x[/] \x1b[2J")
    ]
    async with on_inventory(FakeInventory(items, reports=reports), size) as w:
        for key in ("a", "down", "enter", "down", "escape", "c"):
            await w.press(key)
            assert "\x1b" not in screen_text(w)
        assert isinstance(w.app.screen, CommandsSheet)
        await w.press("pagedown", "end", "escape", "X")
        dialog = await w.dialog()
        assert isinstance(dialog, EndDialog)
        assert len(dialog.listed()) == len(items)
        await w.press("pagedown", "escape")
        assert isinstance(w.app.base, CleanupScreen)


async def test_marks_are_for_leftovers_only_and_the_help_says_why() -> None:
    """T05."""
    source = FakeInventory([item(0), item(1), alive(2), elsewhere(3), foreign(4)])
    async with on_inventory(source) as w:
        screen = screen_of(w)
        await w.press("a")
        assert screen.view.marks == {"box-0", "box-1"}
        await w.press("u")
        for key in source.items:
            screen.rows.move_to(key.key)
            await w.press("space")
        assert screen.view.marks == {"box-0", "box-1"}
        screen.rows.move_to("box-2")
        await w.press("u", "question_mark")
        await shows(w, "not now: its owner is alive")
        await w.press("escape", "X", "space")
        assert not isinstance(w.app.screen, Dialog)
        assert "its owner is alive" in screen.said


async def test_filter_sort_and_attention_as_in_other_lists() -> None:
    async with on_inventory(FakeInventory([item(0), alive(1), elsewhere(2), foreign(3)])) as w:
        screen = screen_of(w)
        await w.press("slash", *"owner:dead", "enter")
        await shows(w, "filter owner:dead: 1 shown")
        await w.press("escape", "slash", *"ovner:x")
        await shows(w, "did you mean owner:")
        await w.press("escape")
        assert not screen.view.filter
        await w.press("e")
        await shows(w, "only leftovers and doubtful: 2 shown")
        await w.press("escape", "o", "O")
        await shows(w, "sorted by age reversed")


async def test_an_empty_list_takes_every_key() -> None:
    """U04: Enter on an empty table."""
    async with on_inventory(FakeInventory([])) as w:
        await shows(w, "no sandbox is known, and nothing is left over")
        await w.press(
            "enter",
            "space",
            "a",
            "u",
            "X",
            "C",
            "c",
            "down",
            "up",
            "end",
            "y",
            "Y",
            "o",
            "e",
            "slash",
            "escape",
        )
        assert isinstance(w.app.base, CleanupScreen)


async def test_hundreds_of_rows_that_come_and_go_under_the_cursor() -> None:
    """U04: the cursor stays with its sandbox, the list is the model."""
    source = FakeInventory([item(n) for n in range(400)])
    async with on_inventory(source, (80, 24)) as w:
        screen = screen_of(w)
        screen.rows.move_to("box-200")
        for round in range(4):
            source.items = [item(n) for n in range(round * 40, 400)]
            await w.press("r", "down", "up")
            await w.until(lambda: not w.app.cleaning.asking, "the answer")
            await w.pilot.pause()
            assert screen.rows.cursor == "box-200"
            assert len(screen.view.shown()) == len(source.items)
        source.items = []
        await w.press("r")
        await w.until(lambda: screen.rows.cursor is None, "an empty list")
        await w.press("enter")


async def test_details_come_and_go_and_on_a_low_screen_take_the_place_of_the_rows() -> None:
    """U13: and they go when what they are about is gone."""
    source = FakeInventory([item(0)])
    async with on_inventory(source, (40, 12)) as w:
        screen = screen_of(w)
        await w.press("enter")
        await shows(w, "owner is")
        assert not screen.rows.display
        source.items = []
        w.app.cleaning.ask()
        await w.until(lambda: not w.app.cleaning.asking and screen.item() is None, "the empty inventory")
        await w.pilot.pause()
        await w.press("escape")
        assert screen.rows.display
        await shows(w, "no sandbox is known")


async def test_the_dry_run_shows_the_providers_own_commands_and_copies_them() -> None:
    source = FakeInventory([item(0), item(1, command="prime sandbox delete --yes x1")])
    async with on_inventory(source) as w:
        await w.press("a", "c")
        await shows(w, "Dry run: 2 leftovers, nothing is executed")
        await shows(w, "prime sandbox delete --yes x1")
        assert isinstance(w.app.screen, CommandsSheet)
        assert w.app.screen.text.count("docker rm --force vf-0") == 1
        await w.press("y")
        await w.until(lambda: w.app.base.said, "the notice")
        assert "cop" in w.app.base.said
        assert source.took == []


async def test_the_read_only_lock_refuses_to_delete_and_to_claim() -> None:
    source = FakeInventory([item(0), elsewhere(1)])
    async with on_inventory(source, read_only=True) as w:
        await w.press("a", "X")
        assert "read-only lock" in w.app.base.said
        screen_of(w).rows.move_to("box-1")
        await w.press("C")
        assert not isinstance(w.app.screen, Dialog)
        await w.press("exclamation_mark", "C")
        await w.dialog()


async def test_borders_of_dialogs_are_ascii_where_only_that_can_be_drawn() -> None:
    try:
        glyphs.use(glyphs.ASCII)
        async with on_inventory(FakeInventory([item(0)]), (80, 24)) as w:
            await w.press("X")
            await w.dialog()
            await w.pilot.pause()
            assert screen_text(w).isascii()
            await w.press("escape", "question_mark")
            await w.pilot.pause()
            assert not any(c in screen_text(w) for c in "╭│╰┃┏─━")
    finally:
        glyphs.use(None)
