"""The app from start to end on a real terminal. Textual is imported only here, once its environment is set."""

from __future__ import annotations

import asyncio
import faulthandler
import logging
import os
import signal
import sys
import threading
import traceback
from collections.abc import MutableMapping
from contextlib import suppress
from typing import TYPE_CHECKING

from vf_core.config.paths import state_dir
from vf_core.text import one_line
from vf_tui.terminal import NoTerminalError, Terminal, check, own_terminal

if TYPE_CHECKING:
    from vf_core.config.settings import Settings
    from vf_core.link.base import Link
    from vf_tui.app import VfTuiApp
    from vf_tui.runs_source import RunsSource

__all__ = ["NoTerminalError", "check", "run_app", "wants_slow"]

END_SECONDS = 4.0
"""How long a screen that was told to end may take before it is ended."""

log = logging.getLogger(__name__)


def wants_slow(slow: bool | None, environ: MutableMapping[str, str] | None = None) -> bool:
    """Whether to spare the link: as asked for, else over SSH."""
    environ = os.environ if environ is None else environ
    return bool(environ.get("SSH_CONNECTION")) if slow is None else slow


def set_environment(slow: bool, environ: MutableMapping[str, str] | None = None) -> None:
    """What Textual reads when it is imported; a value that the user set stands."""
    environ = os.environ if environ is None else environ
    environ.setdefault("TEXTUAL_ANIMATIONS", "none")
    environ.setdefault("TEXTUAL_SMOOTH_SCROLL", "0")
    environ.setdefault("TEXTUAL_FPS", "10" if slow else "30")


def run_app(
    link: Link | None = None,
    *,
    settings: Settings | None = None,
    runs: RunsSource | None = None,
    read_only: bool = False,
    embedded: bool = False,
    slow: bool | None = None,
) -> int:
    """Show `link`'s run (None: the list of runs) until the user leaves; the exit code.

    0 when the user left a run that goes on, what the run ended with when it is over, 128 + n when a signal (or
    1, a hang-up) ended the screen, 1 when the screen failed. `embedded`: the engine lives in this process; the
    caller stops it when this returns, and no signal ends the process meanwhile. Only the main thread may call this.
    Raises `NoTerminalError`.
    """
    asked = settings.slow if slow is None and settings is not None else slow
    slow = wants_slow(asked)
    set_environment(slow)
    with own_terminal(state_dir() / "screen.log") as terminal:
        faulthandler.enable()
        from vf_tui.app import VfTuiApp

        app = VfTuiApp(
            link,
            settings=settings,
            runs=runs,
            read_only=read_only,
            embedded=embedded,
            slow=slow,
            terminal=terminal,
        )
        code = _run(app, mouse=settings.mouse if settings is not None else True, embedded=embedded)
    _say_goodbye(app, terminal)
    return code


def _run(app: VfTuiApp, *, mouse: bool, embedded: bool) -> int:
    from vf_tui.background import DaemonExecutor
    from vf_tui.driver import remove_signal_handlers

    loop = asyncio.new_event_loop()
    loop.set_default_executor(DaemonExecutor())
    asyncio.set_event_loop(loop)
    last = _LastResort()
    # An engine in this process still has work to do when its screen is gone.
    app.ending = last.begin if not embedded else lambda code: None
    try:
        result = app.run(loop=loop, mouse=mouse)
        return app.return_code or result or 0
    finally:
        last.cancel()
        remove_signal_handlers(loop)
        if embedded:
            _hold_signals()
        _cancel_rest(loop)
        asyncio.set_event_loop(None)
        loop.close()


def _hold_signals() -> None:
    """From here on what would end the process is only answered: an engine in it has yet to clean up."""

    def held(*_: object) -> None:
        with suppress(OSError):
            os.write(2, b"still cleaning up; nothing is cut short\n")

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, held)


class _LastResort:
    """Ends the process if a screen that was told to end has not in time: its terminal is gone, nobody waits."""

    def __init__(self) -> None:
        self._timer: threading.Timer | None = None

    def begin(self, code: int) -> None:
        """The screen has been told to end with `code`."""
        if self._timer is None:
            self._timer = threading.Timer(END_SECONDS, self._end, (code,))
            self._timer.daemon = True
            self._timer.start()

    def cancel(self) -> None:
        """It has ended."""
        if self._timer is not None:
            self._timer.cancel()

    @staticmethod
    def _end(code: int) -> None:
        with suppress(Exception):
            print("vf-tui: the screen did not end in time; ended", file=sys.stderr, flush=True)  # noqa: T201
        os._exit(code)


def _cancel_rest(loop: asyncio.AbstractEventLoop) -> None:
    """Cancel what still runs on `loop`, without waiting for what does not end."""
    tasks = asyncio.all_tasks(loop)
    for task in tasks:
        task.cancel()
    if tasks:
        loop.run_until_complete(asyncio.wait(tasks, timeout=1.0))
    loop.run_until_complete(loop.shutdown_asyncgens())


def _say_goodbye(app: VfTuiApp, terminal: Terminal) -> None:
    """What the user should know once the normal screen is back."""
    from vf_tui.commands.console import say

    error = app.failure
    with suppress(OSError):
        if error is not None:
            where = f"; details in {terminal.log}" if terminal.log else ""
            text = one_line("".join(traceback.format_exception_only(error)))
            print(f"vf-tui: the screen failed: {text}{where}", file=sys.stderr)  # noqa: T201
        if app.farewell:
            say(app.farewell)
