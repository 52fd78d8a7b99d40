"""A Textual app that owns its terminal: whatever would write to it in some other way goes to the log."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable
from typing import Any

from textual.app import App
from textual.worker import WorkerFailed

from vf_tui.terminal import Terminal


class TerminalApp(App[int], inherit_bindings=False):
    """`terminal`: the real one; None without one (tests). `failure` is the exception that ended the app.

    `ending` is called with the exit code when the app has been told to end from outside.
    """

    def __init__(self, terminal: Terminal | None) -> None:
        super().__init__(**({"driver_class": _driver_for(terminal)} if terminal is not None else {}))
        self.terminal = terminal
        self.failure: BaseException | None = None
        self.ending: Callable[[int], None] = lambda code: None

    @property
    def behind(self) -> bool:
        """The terminal has not yet taken what was drawn."""
        return bool(getattr(self._driver, "behind", False))

    def tell_terminal(self, sequence: str) -> None:
        """Write a control sequence of our own to the terminal; without a terminal it is dropped."""
        if sequence and self.terminal is not None and self._driver is not None:
            self._driver.write(sequence)

    # -- Textual's own ways of writing to the terminal, which go to the log instead

    def _handle_exception(self, error: Exception) -> None:
        """Textual's hook: an exception that nobody caught ends the app, and is told once it is over."""
        if self.failure is None:
            self.failure = error.error if isinstance(error, WorkerFailed) else error
            traceback.print_exception(self.failure, file=sys.__stderr__)
        super()._handle_exception(error)

    def _fatal_error(self) -> None:
        """Textual's hook: its own report shows every local variable, secrets too."""
        if self.is_headless:
            super()._fatal_error()
        else:
            self._close_messages_no_wait()

    def _print_error_renderables(self) -> None:
        """Textual's hook: what it would print at the end is in the log already."""
        self._exit_renderables.clear()

    def _print(self, text: str, stderr: bool = False) -> None:
        """Textual's hook: what anybody prints while the screen is up; it would be dropped."""
        stream = sys.__stderr__ if stderr else sys.__stdout__
        if stream is not None:
            stream.write(text)
            stream.flush()


def _driver_for(terminal: Terminal) -> Any:
    from vf_tui.driver import driver_for

    return driver_for(terminal)
