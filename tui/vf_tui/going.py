"""From screen to screen: which is on top, and what escape comes back to."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from vf_tui.actions import CLEANUP, EVENTS, FOCUS, RUN, RUNS, SANDBOXES, SCOPES
from vf_tui.open_run import OpenRun
from vf_tui.screens.base import BaseScreen
from vf_tui.screens.factory import make_screen
from vf_tui.terminal_app import TerminalApp
from vf_tui.widgets.tight import TightDisplay

if TYPE_CHECKING:
    from vf_tui.screens.focus import FocusScreen
    from vf_tui.screens.run import RunScreen


class Going(OpenRun, TightDisplay, TerminalApp, inherit_bindings=False):
    """An app of several screens, each made when it is first looked at. `_history`: where escape goes back to."""

    _history: tuple[str, ...] = ()

    @property
    def base(self) -> BaseScreen:
        """The screen below any dialog."""
        for screen in reversed(self.screen_stack):
            if isinstance(screen, BaseScreen):
                return screen
        return self._screen(RUNS)

    def _screen(self, name: str) -> BaseScreen:
        if not self.is_screen_installed(name):
            self.install_screen(make_screen(name), name)
        return cast("BaseScreen", self.get_screen(name))

    def _run_screen(self) -> RunScreen:
        return cast("RunScreen", self._screen(RUN))

    def _bases(self) -> list[BaseScreen]:
        return [self._screen(n) for n in SCOPES if self.is_screen_installed(n)]

    def go(self, name: str, *, remember: bool = True) -> None:
        """Put a screen on top."""
        now = self.base.SCOPE if any(isinstance(s, BaseScreen) for s in self.screen_stack) else ""
        if name == now:
            return
        screen = self._screen(name)
        if now:
            if remember:
                self._history = (*self._history[-8:], now)
            self.switch_screen(name)
        else:
            self.push_screen(name)
        screen.arrived()
        self.call_after_refresh(screen.refresh_all)

    def go_run(self, remark: str) -> None:
        """To the run, saying why."""
        self.go(RUN)
        self.call_after_refresh(self._screen(RUN).say, remark, "warn")

    def do_app_back(self) -> None:
        """Escape."""
        if self.base.back():
            return
        if self._history:
            *rest, last = self._history
            self._history = tuple(rest)
            self.go(last, remember=False)
        elif self.base.SCOPE in (FOCUS, SANDBOXES, EVENTS, CLEANUP) and self.bridge is not None:
            self.go(RUN, remember=False)
        elif self.base.SCOPE != RUNS:
            self.go(RUNS, remember=False)

    def do_go_runs(self) -> None:
        """The runs."""
        self.go(RUNS)

    def do_go_run(self) -> None:
        """The open run."""
        self.go(RUN)

    def do_go_sandboxes(self) -> None:
        """Its sandboxes; from there, or without a run, all there are. Both are one place for `esc`."""
        now = self.base.SCOPE
        there = CLEANUP if self.bridge is None or now == SANDBOXES else SANDBOXES
        self.go(there, remember=now not in (SANDBOXES, CLEANUP))

    do_view_boxes = do_go_sandboxes

    def do_go_events(self) -> None:
        """Its events."""
        self.go(EVENTS)

    def do_go_focus(self) -> None:
        """The rollout under the cursor."""
        self._focus_on_target(None)

    def do_open_output(self) -> None:
        """What its program wrote."""
        self._focus_on_target("output")

    def do_open_details(self) -> None:
        """Its sandbox."""
        self._focus_on_target("sandbox")

    def do_open_raw(self) -> None:
        """Its trace."""
        self._focus_on_target("trace")

    def _focus_on_target(self, tab: str | None) -> None:
        id = self.base.current_id()
        if id:
            self.focus_on(id, tab)

    def focus_on(self, id: str, tab: str | None = None) -> None:
        """Look at one rollout."""
        screen = cast("FocusScreen", self._screen(FOCUS))
        screen.look_at(id, tab)
        self.go(FOCUS)
