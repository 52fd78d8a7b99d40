"""The app: its screens, its theme, its keymap, and the pulse that draws what changed."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable, Iterable
from typing import ClassVar

from textual import events
from textual.binding import BindingType
from textual.widgets import Input

from vf_core.config.paths import config_dir, state_dir
from vf_core.config.settings import Settings, load_settings
from vf_core.errors import ConfigError
from vf_core.link.base import Link
from vf_tui import clipboard, glyphs, theme
from vf_tui.acting import Acting
from vf_tui.actions import BY_ID, CLEANUP, RUN, RUNS
from vf_tui.bridge import Bridge
from vf_tui.cleaning import Cleaning
from vf_tui.cli import UNCONFIRMED
from vf_tui.going import Going
from vf_tui.guard import BURST_SECONDS
from vf_tui.inventory_source import InventorySource
from vf_tui.keymap import load_keymap
from vf_tui.open_run import OpenRun
from vf_tui.plain import summary
from vf_tui.runs_source import RunsSource
from vf_tui.screens.base import BaseScreen
from vf_tui.screens.confirm import Dialog
from vf_tui.screens.help import HelpScreen
from vf_tui.screens.palette import PaletteScreen
from vf_tui.terminal import Terminal
from vf_tui.terminal_app import TerminalApp

FPS, SLOW_FPS = 10.0, 4.0


class VfTuiApp(Going, inherit_bindings=False):
    """Shows one run at a time over `link`, or the list of runs when there is none.

    `embedded`: the engine lives in this process and ends with it. `terminal`: the real one, when there is one.
    `clock` gives Unix seconds, `monotonic` seconds for measuring.
    """

    ENABLE_COMMAND_PALETTE = False
    ALLOW_SELECT = False
    TITLE = "vf-tui"
    CSS_PATH = "screens/screens.tcss"
    BINDINGS: ClassVar[list[BindingType]] = []

    def __init__(
        self,
        link: Link | None = None,
        *,
        settings: Settings | None = None,
        runs: RunsSource | None = None,
        inventory: InventorySource | None = None,
        read_only: bool = False,
        embedded: bool = False,
        slow: bool = False,
        terminal: Terminal | None = None,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        TerminalApp.__init__(self, terminal)
        OpenRun.__init__(self, settings=settings, read_only=read_only, embedded=embedded, clock=clock)
        self.runs = runs or RunsSource()
        self.slow, self.monotonic = slow, monotonic
        self.acting = Acting(self)
        self.cleaning = Cleaning(self, inventory)
        self.farewell = ""
        self._first_link = link
        self._pulse = asyncio.Event()
        self._was_live = False
        self._seen_live = False
        self._last_key = self._last_burst = float("-inf")
        self._keys_shown = 0.0

    # -- life

    def get_theme_variable_defaults(self) -> dict[str, str]:
        """Our colours' names, for themes that are not ours."""
        return theme.variable_defaults()

    def on_mount(self) -> None:
        """Theme, keys, first screen, and the tasks that feed them."""
        problems = self._load_settings()
        if self._first_link is not None:
            self.open_link(self._first_link)
        self.go(RUN if self.bridge else RUNS)
        for problem in problems:
            self.call_after_refresh(self.base.say, problem, "error", None)
        self.run_worker(self._beat(), group="pulse")
        # Not before the first paint.
        self.call_after_refresh(self.cleaning.look)

    def _load_settings(self) -> list[str]:
        """Use settings, theme and keys; what is wrong with them, for the user."""
        if self.settings.ascii is not None:
            glyphs.use(glyphs.ASCII if self.settings.ascii else glyphs.UNICODE)
        self.set_class(glyphs.current().ascii, "-ascii")
        problems = theme.install(self, theme.choose(self.settings.theme))
        try:
            self.keymap = load_keymap(config_dir() / "keys.toml")
        except ConfigError as e:
            problems.append(f"keys not loaded: {e}")
        return problems

    def do_app_reload(self) -> None:
        """Read settings, keys and themes again; what can't be read leaves things as they are."""
        problems = []
        try:
            self.settings = load_settings()
        except ConfigError as e:
            problems.append(f"settings not loaded: {e}")
        problems += self._load_settings()
        for screen in self._bases():
            screen.bind_keys(self.keymap)
        self.base.refresh_all()
        self.base.say(
            "; ".join(problems) or "settings, keys and themes read again", "error" if problems else "info"
        )

    def open_link(self, link: Link) -> None:
        """Show another run; the one before is left."""
        if self.bridge is not None:
            self.run_worker(self.bridge.close(), group="closing")
        self.bridge = Bridge(link, clock=self.clock)
        self._watched, self._was_live, self._seen_live = set(), False, False
        self.run_worker(self._follow(self.bridge), group="bridge", exclusive=True)

    async def _follow(self, bridge: Bridge) -> None:
        bridge.on_change = self.wake
        await bridge.run()

    async def on_unmount(self) -> None:
        """Leave the engine alone."""
        if self.bridge is not None:
            await self.bridge.close()

    # -- the pulse

    def wake(self) -> None:
        """Something changed: draw at the next beat."""
        self._pulse.set()

    async def _beat(self) -> None:
        """Draw what changed, so many times a second and no more; nothing is done while nothing changes."""
        period = 1 / (SLOW_FPS if self.slow else FPS)
        while True:
            await self._wait_for_change()
            # A terminal that lags behind gets fewer frames, not a longer queue.
            if not self.behind:
                self._pulse.clear()
                self.draw_changes()
            await asyncio.sleep(period)

    async def _wait_for_change(self) -> None:
        """Until something changed, or a shown age has grown by a second."""
        ticking = self._ticking()
        try:
            async with asyncio.timeout(1.0 - self.now() % 1.0 if ticking else None):
                await self._pulse.wait()
        except TimeoutError:
            pass

    def _ticking(self) -> bool:
        if self.screen_stack and (self.base.said or self.base.ticking):
            return True
        return self.bridge is not None and self.bridge.ticking

    def draw_changes(self) -> None:
        """Draw on the screen that is on top; others do no work."""
        if not self.screen_stack:
            return  # the app is closing
        bridge, now = self.bridge, self.now()
        changed = bridge.take_changed() if bridge else set()
        top = self.screen
        base = self.base
        if bridge is not None:
            for note in bridge.take_news()[-1:]:
                who = f"{note.rollout}: " if note.rollout else ""
                base.mention(f"{who}{note.text}", "error" if note.level == "error" else "warn", note.rollout)
            self._ring_when_over(bridge)
        if isinstance(top, BaseScreen) and top.ready:
            top.flush(changed, now)
            top.tick()
            if self.monotonic() - self._keys_shown >= 0.5 or not changed:
                self._keys_shown = self.monotonic()
                top.show_keys()
        elif isinstance(top, Dialog):
            top.flush(changed, now)

    def _ring_when_over(self, bridge: Bridge) -> None:
        if bridge.ticking:
            self._was_live = self._seen_live = True
        elif self._was_live:
            self._was_live = False
            what = "engine lost" if bridge.lost else bridge.state.status
            self.ring(f"vf-tui: {bridge.state.name} {what}")
            if self.leaving:
                self.leave()

    def ring(self, text: str) -> None:
        """Bell and desktop notification, unless set otherwise."""
        if self.settings.bell:
            self.tell_terminal("\x07" + clipboard.notification(text))

    # -- what screens ask

    def left_changed(self) -> None:
        """What dead runs left is known, or is another."""
        base = self.base
        if base.SCOPE == RUNS:
            base.refresh_all()
        elif self.cleaning.left and base.SCOPE != CLEANUP:
            base.mention(f"{self.cleaning.left}: press {self.keymap.first('go.sandboxes')} twice", "warn")

    def hidden(self, ids: Iterable[str]) -> int:
        """How many of `ids` the list's filter hides."""
        return self._run_screen().view.hidden(ids)

    def neighbour(self, id: str | None, step: int, *, failing: bool = False) -> str | None:
        """The rollout after or before `id` in the list's order; `failing`: that needs attention."""
        run = self._run_screen()
        run.view.refresh(self.state, self.state.rollouts.keys(), self.now())
        return run.view.next_to(id, step, run.needs_attention if failing else lambda _: True)

    # -- doing

    def perform(self, id: str) -> None:
        """Do what the registry calls `id`, or say why not."""
        screen, action = self.base, BY_ID[id]
        if self.screen is not screen or not screen.ready:
            return
        reason = action.enabled(screen.context())
        if reason is not None:
            screen.say(f"{action.label}: {reason}", "warn")
            return
        name = f"do_{id.replace('.', '_')}"
        for owner in (screen, self.acting, self):
            handler = getattr(owner, name, None)
            if handler is not None:
                handler()
                return

    async def on_event(self, event: events.Event) -> None:
        """Keys: when they came, and what is bound to them.

        Textual looks for bindings only once a key has been through its widget, so that keys typed ahead go where
        the focus was. Here the next key already meets what this one opened: a prompt, a dialog.
        """
        if isinstance(event, events.Key) and not event.is_forwarded:
            now = self.monotonic()
            if now - self._last_key < BURST_SECONDS:
                self._last_burst = now
            self._last_key = now
            screen = self.screen if self.screen_stack else None
            if isinstance(screen, BaseScreen) and screen.ready and not isinstance(self.focused, Input):
                screen.key_pressed()
                if await self._check_bindings(event.key):
                    return
        await super().on_event(event)

    def when_alone(self, act: Callable[[], None]) -> None:
        """Do `act` unless the key just pressed turns out to be one of a burst: a paste is no command."""
        began = self.monotonic() - 2 * BURST_SECONDS
        self.set_timer(BURST_SECONDS * 1.4, lambda: act() if self._last_burst < began else None)

    def do_app_help(self) -> None:
        """The keys of this screen."""
        self.push_screen(HelpScreen(self.base.context()))

    def do_app_palette(self) -> None:
        """Every action."""

        def chosen(id: str | None) -> None:
            if id is not None:
                self.perform(id)

        self.push_screen(PaletteScreen(self.base.context()), chosen)

    def do_app_lock(self) -> None:
        """Lock or unlock."""
        self.locked = not self.locked
        self.base.refresh_all()
        self.base.say("read-only: nothing acts on the run" if self.locked else "read-only lock released")

    def do_copy_text(self) -> None:
        """Copy what the screen offers."""
        self.copy(self.base.copy_text())

    def do_copy_command(self) -> None:
        """Copy the command that shows this."""
        self.copy(self.base.copy_command())

    def copy(self, text: str) -> None:
        """Copy `text`, and say how that went."""
        if not text:
            self.base.say("nothing to copy here", "warn")
            return
        copied = clipboard.copy(text, state_dir() / "copies", terminal=self.terminal is not None)
        self.tell_terminal(copied.sequence)
        self.base.say(copied.message)

    # -- leaving

    def leave(self) -> None:
        """End the app; the run goes on if its engine is another process."""
        words = [self.cleaning.farewell] if self.cleaning.farewell else []
        if self.is_live and not self.embedded:
            words.append(f"run continues; come back with `{self.come_back}`")
        elif (
            self.state.over
            and self.bridge is not None
            and (self._seen_live or self.bridge.about.how != "file")
        ):
            words += [*summary(self.state), f"look at it again with `{self.come_back}`"]
        elif self.engine_lost():
            run = self.state.run[:8]
            words.append(f"its engine is gone: `vf-tui resume {run}` takes it up")
            if left := self.left_behind():
                words.append(f"{left}: `vf-tui cleanup {run}` ends what is there")
        self.farewell = "\n".join(words)
        self.exit(self.exit_code or (UNCONFIRMED if self.cleaning.farewell else 0))

    def leave_when_over(self) -> None:
        """Leave once the run has been torn down."""
        self.leaving = True
        self.base.refresh_all()

    def end_by_signal(self, number: signal.Signals) -> None:
        """Told to end from outside, or the terminal hung up."""
        code = 128 + number
        self.ending(code)
        if self.is_live and not self.embedded:
            self.farewell = f"run continues; come back with `{self.come_back}`"
        self.exit(code, return_code=code)
