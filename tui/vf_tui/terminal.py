"""The terminal, taken and given back: which file descriptors are the screen's, and what becomes of the rest.

While the screen is up, descriptors 0, 1 and 2 are not the terminal any more. Whatever a library, a plugin, a
thread or a child process prints goes to the screen's log file, and nobody but the driver can read keys.
"""

from __future__ import annotations

import os
import sys
import termios
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

LOG_LIMIT = 2_000_000

MODES_ON = (
    "\x1b[?1049h"  # alternate screen
    "\x1b[>1u"  # keys told apart (kitty protocol); unknown to most terminals, and ignored by them
    "\x1b[?25l\x1b[?2004h\x1b[?7l"  # cursor hidden, bracketed paste, no line wrap
)
MOUSE_ON = "\x1b[?1000h\x1b[?1002h\x1b[?1006h"
MOUSE_OFF = "\x1b[?1006l\x1b[?1002l\x1b[?1000l"
MODES_OFF = "\x1b[?7h\x1b[?2004l\x1b[<u\x1b[0m\x1b[?1049l\x1b[?25h"
"""Every mode of `MODES_ON` undone, in the order that leaves the normal screen as it was."""


class NoTerminalError(RuntimeError):
    """Standard input or output is no terminal that a screen could be drawn on."""


@dataclass(slots=True)
class Terminal:
    """The terminal while it is ours: descriptors to read keys from and to draw on, its settings from before.

    `log` is the file that stray output goes to. `clean` tells that the driver has switched every mode off.
    """

    in_fd: int
    out_fd: int
    log: Path | None
    attributes: list[Any] | None
    clean: bool = True

    def size(self) -> tuple[int, int]:
        """Columns and rows; 80 by 24 where the terminal does not know."""
        try:
            columns, rows = os.get_terminal_size(self.out_fd)
        except OSError:
            return 80, 24
        return columns or 80, rows or 24

    def restore(self) -> None:
        """Give settings back, and modes too unless the driver has; never raises, never waits."""
        if not self.clean:
            with suppress(OSError):
                os.set_blocking(self.out_fd, False)
                os.write(self.out_fd, (MOUSE_OFF + MODES_OFF).encode())
            # The flag belongs to the terminal's open file, which the shell shares.
            with suppress(OSError):
                os.set_blocking(self.out_fd, True)
        if self.attributes is not None:
            with suppress(termios.error, OSError):
                termios.tcsetattr(self.in_fd, termios.TCSANOW, self.attributes)


def check() -> None:
    """Raise `NoTerminalError` (saying why) unless a screen can be drawn here."""
    for stream, fd in (("input", 0), ("output", 1)):
        if not os.isatty(fd):
            raise NoTerminalError(f"standard {stream} is not a terminal")
    if os.environ.get("TERM", "") in ("", "dumb"):
        raise NoTerminalError(f"TERM is {os.environ.get('TERM') or 'not set'}")


@contextmanager
def own_terminal(log: Path) -> Iterator[Terminal]:
    """Take the terminal for the length of the block; it is given back however the block ends.

    `log` is appended to (made private, set aside when above 2 MB). Raises `NoTerminalError`.
    """
    check()
    sys.stdout.flush()
    sys.stderr.flush()
    saved = [os.dup(fd) for fd in (0, 1, 2)]
    attributes = None
    with suppress(termios.error):
        attributes = termios.tcgetattr(saved[0])
    log_fd, log_path = _open_log(log)
    null = os.open(os.devnull, os.O_RDWR)
    terminal = Terminal(saved[0], saved[1], log_path, attributes)
    try:
        os.dup2(null, 0)
        os.dup2(log_fd, 1)
        os.dup2(log_fd, 2)
        yield terminal
    finally:
        terminal.restore()
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError):
                stream.flush()
        for fd, old in enumerate(saved):
            os.dup2(old, fd)
        for fd in (*saved, log_fd, null):
            os.close(fd)


def _open_log(path: Path) -> tuple[int, Path | None]:
    """A descriptor of the log file at `path`, and the path; of the null device when it can't be written."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if path.exists() and path.stat().st_size > LOG_LIMIT:
            path.replace(path.with_name(path.name + ".1"))
        return os.open(path, flags, 0o600), path
    except OSError:
        return os.open(os.devnull, os.O_WRONLY), None
