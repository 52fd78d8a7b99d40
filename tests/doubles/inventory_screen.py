"""The app on its screen of all sandboxes, with an inventory that a test makes up."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from doubles.inventories import FakeInventory
from doubles.watching import Hands, Watching, started
from vf_core.config.settings import Settings
from vf_tui.app import VfTuiApp
from vf_tui.screens.cleanup import CleanupScreen


def screen_text(w: Watching) -> str:
    return "\n".join(strip.text for strip in w.app.screen._compositor.render_strips())


def screen_of(w: Watching) -> CleanupScreen:
    screen = w.app.base
    assert isinstance(screen, CleanupScreen)
    return screen


async def shows(w: Watching, text: str) -> None:
    await w.until(lambda: text in screen_text(w), f"{text!r} on the screen")


@asynccontextmanager
async def at_home(
    source: FakeInventory, size: tuple[int, int] = (120, 40), **options: Any
) -> AsyncIterator[Watching]:
    """The app without a run."""
    hands = Hands()
    app = VfTuiApp(inventory=source, settings=Settings(), monotonic=hands, **options)
    async with app.run_test(size=size) as pilot:
        w = Watching(app, pilot, started(), hands)
        await w.until(lambda: app.base.ready, "the home screen")
        yield w


@asynccontextmanager
async def on_inventory(
    source: FakeInventory, size: tuple[int, int] = (120, 40), **options: Any
) -> AsyncIterator[Watching]:
    """The app on the screen of all sandboxes, once everybody has answered."""
    async with at_home(source, size, **options) as w:
        await w.press("4")
        await w.until(lambda: w.app.cleaning.view.taken is not None, "the inventory")
        await w.pilot.pause()
        yield w
