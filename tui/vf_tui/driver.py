"""The Textual driver of this app: like the stock one for Linux, but it can lose its terminal.

* It draws on a descriptor of its own (see `terminal`), so that 1 and 2 may be the log.
* A terminal that is not read never blocks the event loop: frames beyond a bound are dropped, and when it reads
  again everything is drawn anew.
* A terminal that hangs up ends the app instead of spinning on it.
* Signals are handled on the event loop, never in the middle of other code.
"""

from __future__ import annotations

import asyncio
import os
import select
import signal
import termios
import tty
from codecs import getincrementaldecoder
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from threading import Condition, Thread
from typing import TYPE_CHECKING, Any

from textual import events
from textual._xterm_parser import XTermParser
from textual.driver import Driver
from textual.geometry import Size

from vf_tui.terminal import MODES_OFF, MODES_ON, MOUSE_OFF, MOUSE_ON, Terminal

if TYPE_CHECKING:
    from textual.app import App

BACKLOG_LIMIT = 1_000_000
"""Bytes that wait for the terminal before frames are dropped."""
DRAIN_SECONDS = 2.0
"""How long a last frame may take before the terminal is given up."""
ESCAPE_TICKS = 3

_EXIT_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class Writer(Thread):
    """Writes to the terminal in the order given; never makes its caller wait. `on_drained` and `on_dead` are
    called on the writer's thread."""

    def __init__(self, fd: int, on_drained: Callable[[], None], on_dead: Callable[[], None]) -> None:
        super().__init__(name="vf-tui-writer", daemon=True)
        self._fd = fd
        self._on_drained, self._on_dead = on_drained, on_dead
        self._queue: deque[bytes] = deque()
        self._changed = Condition()
        self._stopping = False
        self.backlog = 0
        self.dropped = False
        self.dead = False

    def put(self, text: str, *, always: bool = False) -> None:
        """Queue `text`; a frame (not `always`) is dropped whole while too much is waiting."""
        data = text.encode("utf-8", "replace")
        with self._changed:
            if self.dead:
                return
            if self.dropped or self.backlog + len(data) > BACKLOG_LIMIT:
                self.dropped = self.dropped or not always
                if not always:
                    return
            self._queue.append(data)
            self.backlog += len(data)
            self._changed.notify_all()

    def run(self) -> None:
        while True:
            with self._changed:
                while not self._queue and not self._stopping:
                    self._changed.wait()
                if not self._queue:
                    return
                data = b"".join(self._queue)
                self._queue.clear()
            if not self._write(data):
                return
            with self._changed:
                self.backlog -= len(data)
                drained = self.dropped and not self._queue
                if drained:
                    self.dropped = False
                self._changed.notify_all()
            if drained:
                self._on_drained()

    def _write(self, data: bytes) -> bool:
        view = memoryview(data)
        try:
            while view:
                try:
                    view = view[os.write(self._fd, view) :]
                except BlockingIOError:
                    select.select([], [self._fd], [], 0.5)
        except OSError:
            with self._changed:
                self.dead, self.backlog = True, 0
                self._queue.clear()
                self._changed.notify_all()
            self._on_dead()
            return False
        return True

    def drain(self, seconds: float) -> bool:
        """Wait until everything is written; False when it was not in `seconds`, or the terminal is gone."""
        with self._changed:
            return self._changed.wait_for(lambda: self.dead or not self.backlog, seconds) and not self.dead

    def finish(self) -> None:
        """Let the thread end once its queue is empty."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()


class TerminalDriver(Driver):
    """Draws on `terminal`; use `driver_for(terminal)` as an app's driver class."""

    terminal: Terminal

    def __init__(
        self, app: App[Any], *, debug: bool = False, mouse: bool = True, size: tuple[int, int] | None = None
    ) -> None:
        super().__init__(app, debug=debug, mouse=mouse, size=size)
        self._writer: Writer | None = None
        self._reader: Thread | None = None
        self._wake_read, self._wake_write = -1, -1
        self._suspended = False
        self._loop.add_signal_handler(signal.SIGWINCH, self._send_size)
        self._loop.add_signal_handler(signal.SIGTSTP, self._suspend)
        self._loop.add_signal_handler(signal.SIGCONT, self._continued)
        for number in _EXIT_SIGNALS:
            self._loop.add_signal_handler(number, self._told_to_end, number)

    @property
    def can_suspend(self) -> bool:
        """The terminal can be handed to another program and taken back."""
        return True

    @property
    def behind(self) -> bool:
        """The terminal has not yet taken what was drawn: drawing more now would only pile up."""
        return self._writer is not None and self._writer.backlog > 0

    def write(self, data: str) -> None:
        """Queue a frame for the terminal."""
        if self._writer is not None:
            self._writer.put(data)

    def start_application_mode(self) -> None:
        """Switch the terminal's modes on, begin to read keys and tell the app its size."""
        terminal = self.terminal
        self._writer = Writer(
            terminal.out_fd, self._threadsafe(self._drained), self._threadsafe(self._hung_up)
        )
        self._writer.start()
        terminal.clean = False
        self._set_raw()
        self._writer.put(MODES_ON + (MOUSE_ON if self._mouse else ""), always=True)
        if os.environ.get("TERM_PROGRAM", "") != "Apple_Terminal":
            # Asks whether frames may be sent as one; that terminal prints the question.
            self._writer.put("\x1b[?2026$p", always=True)
        self._wake_read, self._wake_write = os.pipe()
        self._reader = Thread(target=self._read_keys, name="vf-tui-keys", daemon=True)
        self._reader.start()
        self._send_size()

    def disable_input(self) -> None:
        """Stop reading keys."""
        if self._reader is None:
            return
        os.write(self._wake_write, b"x")
        self._reader.join(timeout=1.0)
        self._reader = None
        for fd in (self._wake_read, self._wake_write):
            os.close(fd)
        with suppress(termios.error):
            termios.tcflush(self.terminal.in_fd, termios.TCIFLUSH)

    def stop_application_mode(self) -> None:
        """Switch every mode off again and restore the terminal's settings."""
        writer = self._writer
        if writer is not None:
            writer.put((MOUSE_OFF if self._mouse else "") + MODES_OFF, always=True)
            self.terminal.clean = writer.drain(DRAIN_SECONDS)
        self.disable_input()
        self.terminal.restore()

    def close(self) -> None:
        """Let the writer go."""
        if self._writer is not None:
            self._writer.finish()
            self._writer = None

    def _threadsafe(self, call: Callable[[], None]) -> Callable[[], None]:
        def later() -> None:
            with suppress(RuntimeError):  # the loop is closed: nobody is left to tell
                self._loop.call_soon_threadsafe(call)

        return later

    def _set_raw(self) -> None:
        """Keys one by one, unechoed and without signals or flow control."""
        if self.terminal.attributes is None:
            return
        attributes = list(self.terminal.attributes)
        attributes[tty.IFLAG] &= ~(
            termios.IXON | termios.IXOFF | termios.ICRNL | termios.INLCR | termios.IGNCR
        )
        attributes[tty.LFLAG] &= ~(termios.ECHO | termios.ICANON | termios.IEXTEN | termios.ISIG)
        attributes[tty.CC] = list(attributes[tty.CC])
        attributes[tty.CC][termios.VMIN] = 1
        attributes[tty.CC][termios.VTIME] = 0
        with suppress(termios.error):
            termios.tcsetattr(self.terminal.in_fd, termios.TCSANOW, attributes)

    def _read_keys(self) -> None:
        """Reads until told to stop or until the terminal hangs up; runs on its own thread."""
        fd, wake = self.terminal.in_fd, self._wake_read
        parser = XTermParser(self._debug)
        decode = getincrementaldecoder("utf-8")("replace").decode
        ticks = 0
        while True:
            ready, _, _ = select.select([fd, wake], [], [], 0.1 if ticks else None)
            if wake in ready:
                return
            if fd in ready:
                try:
                    data = os.read(fd, 4096)
                except BlockingIOError:
                    continue
                except OSError:
                    data = b""
                if not data:
                    self._threadsafe(self._hung_up)()
                    return
                for message in parser.feed(decode(data)):
                    self.process_message(message)
                # A lone escape is told from a sequence by waiting a little.
                ticks = ESCAPE_TICKS
            elif ticks:
                ticks -= 1
            for message in parser.tick():
                self.process_message(message)

    def _send_size(self) -> None:
        size = Size(*self.terminal.size())
        self._app.post_message(events.Resize(size, size))

    def _drained(self) -> None:
        """The terminal is read again after frames were dropped."""
        self._redraw()

    def _redraw(self) -> None:
        if self._app.is_running and self._app.screen_stack:
            self._app.screen.refresh(layout=True)

    def _hung_up(self) -> None:
        self._told_to_end(signal.SIGHUP)

    def _told_to_end(self, number: signal.Signals) -> None:
        end = getattr(self._app, "end_by_signal", None)
        if end is not None:
            end(number)
        else:
            self._app.exit(return_code=128 + number)

    def _suspend(self) -> None:
        """SIGTSTP from outside: give the terminal back, stop, and take it again when continued."""
        self._suspended = True
        self.suspend_application_mode()
        os.kill(os.getpid(), signal.SIGSTOP)
        self._resume()

    def _continued(self) -> None:
        """SIGCONT: after a stop that we were not asked about, the shell has changed the terminal."""
        if self._suspended:
            self._resume()
        elif self._writer is not None:
            self._set_raw()
            # Keyboard modes are a stack: what is pushed again is popped first.
            self._writer.put("\x1b[<u" + MODES_ON + (MOUSE_ON if self._mouse else ""), always=True)
            self._redraw()

    def _resume(self) -> None:
        if self._suspended:
            self._suspended = False
            self.start_application_mode()
            self._redraw()


def driver_for(terminal: Terminal) -> type[TerminalDriver]:
    """A driver class bound to `terminal`, for an app's `driver_class`."""
    return type("BoundTerminalDriver", (TerminalDriver,), {"terminal": terminal})


def remove_signal_handlers(loop: asyncio.AbstractEventLoop) -> None:
    """Forget the handlers that a driver put on `loop`."""
    for number in (signal.SIGWINCH, signal.SIGTSTP, signal.SIGCONT, *_EXIT_SIGNALS):
        with suppress(ValueError, RuntimeError):
            loop.remove_signal_handler(number)
