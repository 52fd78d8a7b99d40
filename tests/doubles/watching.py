"""The app under a pilot, watching a `FakeEngine` that tells only what the test has it tell."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from textual import events
from textual.pilot import Pilot

from doubles.fake_engine import FakeEngine
from doubles.inventories import FakeInventory
from vf_core.config.settings import Settings
from vf_core.events.state import RolloutView
from vf_tui.app import VfTuiApp
from vf_tui.guard import QUIET_SECONDS
from vf_tui.screens.confirm import Dialog


class Hands:
    """A clock for keys, ahead of the real one by `t` seconds: each press of a person comes a second after the one
    before. It stands still until a key was pressed, and from a burst on, however slow the machine is."""

    def __init__(self) -> None:
        self.t = 0.0
        self._held: float | None = time.monotonic()

    def __call__(self) -> float:
        return self.t + (time.monotonic() if self._held is None else self._held)

    def hold(self) -> None:
        """No time passes by itself."""
        if self._held is None:
            self._held = time.monotonic()

    def flow(self) -> None:
        """Time passes: a key may be handled only now, and what it begins takes its time."""
        if self._held is not None:
            self.t += self._held - time.monotonic()
            self._held = None


@dataclass
class Watching:
    """An app, its pilot, its engine, and the clock of whoever sits before it."""

    app: VfTuiApp
    pilot: Pilot[int]
    engine: FakeEngine
    hands: Hands

    async def until(self, holds: Callable[[], Any], what: str = "", seconds: float = 60.0) -> Any:
        """Wait until `holds`."""
        deadline = time.monotonic() + seconds
        while not (got := holds()):
            if time.monotonic() > deadline:
                raise AssertionError(f"waited {seconds} s for {what or holds}; on {self.app.screen}")
            await self.pilot.pause(0.01)
        return got

    async def press(self, *keys: str) -> None:
        """Press keys as a person does, one a second; a dialog's answer has time to be given."""
        for key in keys:
            self.hands.t += 1.0
            await self.pilot.press(key)
            self.hands.t += 1.0
            self.hands.flow()
            await self.pilot.pause()

    async def burst(self, *keys: str) -> None:
        """Keys at once, as an unbracketed paste sends them."""
        self.hands.hold()
        for key in keys:
            self.app.post_message(events.Key(key, key if len(key) == 1 else None))
        await self.pilot.pause()

    async def settle(self) -> None:
        """Everything told so far has been drawn."""
        bridge = self.app.bridge
        assert bridge is not None
        seq = self.engine.state.seq
        await self.until(
            lambda: bridge.state.seq >= seq and not bridge.state.changed, "the events to be drawn"
        )
        await self.pilot.pause()

    async def dialog(self) -> Dialog:
        """The dialog that is up, once it listens."""
        got = await self.until(lambda: isinstance(self.app.screen, Dialog) and self.app.screen.is_mounted)
        assert got
        assert isinstance(self.app.screen, Dialog)
        self.hands.t += QUIET_SECONDS * 2
        return self.app.screen

    async def no_dialog(self) -> None:
        """No dialog is up."""
        await self.until(lambda: not isinstance(self.app.screen, Dialog), "the dialog to close")

    def rollout(self, id: str) -> RolloutView:
        """A rollout as the engine has it."""
        return self.engine.state.rollouts[id]

    @property
    def sent(self) -> list[tuple[str, tuple[str, ...], dict[str, Any]]]:
        """The commands that reached the engine."""
        return [(name, targets, args) for name, targets, args, _ in self.engine.received]


@asynccontextmanager
async def watching(
    engine: FakeEngine | None = None,
    *,
    size: tuple[int, int] = (120, 40),
    settings: Settings | None = None,
    **options: Any,
) -> AsyncIterator[Watching]:
    """The app on a run of `engine` (default: 12 rollouts, 6 at once, a few of them begun)."""
    engine = engine or started()
    engine.bus.bind(asyncio.get_running_loop())
    hands = Hands()
    options.setdefault("inventory", FakeInventory())
    app = VfTuiApp(engine.link(), settings=settings or Settings(), monotonic=hands, **options)
    async with app.run_test(size=size) as pilot:
        w = Watching(app, pilot, engine, hands)
        await w.until(lambda: app.bridge is not None and app.bridge.connected, "the link")
        await w.settle()
        yield w


def started(rollouts: int = 12, *, concurrency: int = 6, events: int = 60, seed: int = 1) -> FakeEngine:
    """An engine that has told the beginning of its stories."""
    engine = FakeEngine(rollouts, seed=seed, concurrency=concurrency)
    engine.step(events)
    return engine
