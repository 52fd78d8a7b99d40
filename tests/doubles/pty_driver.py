"""A real pseudo-terminal with a command in it: send keys, read the screen, and keep every byte it was sent.

with PtyProcess([sys.executable, "-m", "vf_tui"], size=(80, 24)) as term:
    term.wait_for("rollouts")
    term.send("q")
    assert term.wait_exit() == 0
"""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import termios
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import pyte

DEADLINE = 60.0


class PtyProcess:
    """A command under a pty of `size` (columns, rows). `raw` holds all bytes it wrote so far.

    The child is the leader of its own session, with the pty as its controlling terminal, as under a shell.
    """

    def __init__(
        self,
        argv: Sequence[str],
        *,
        size: tuple[int, int] = (80, 24),
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
    ) -> None:
        self.columns, self.rows = size
        self.screen = pyte.Screen(*size)
        self._stream = pyte.ByteStream(self.screen)
        self.raw = bytearray()
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._reading = threading.Event()
        self._reading.set()
        self._closed = False
        full = {"TERM": "xterm-256color", "LANG": "C.UTF-8", **(env if env is not None else os.environ)}
        self.pid, self.master = pty.fork()
        if self.pid == 0:
            self._child(argv, full, cwd)
        self._set_size(*size)
        self.before = termios.tcgetattr(self.master)
        self._status: int | None = None
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    @staticmethod
    def _child(argv: Sequence[str], env: Mapping[str, str], cwd: Path | None) -> None:
        try:
            if cwd is not None:
                os.chdir(cwd)
            os.execvpe(argv[0], list(argv), dict(env))
        finally:
            os._exit(127)

    def __enter__(self) -> PtyProcess:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None
    ) -> None:
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)
            os.kill(self.pid, signal.SIGCONT)
            self.wait_exit()
        self.close_master()

    def _set_size(self, columns: int, rows: int) -> None:
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def resize(self, columns: int, rows: int) -> None:
        """Change the terminal's size, as a window manager would."""
        with self._lock:
            self.columns, self.rows = columns, rows
            self.screen.resize(rows, columns)
        self._set_size(columns, rows)

    def _read(self) -> None:
        while not self._closed:
            self._reading.wait()
            try:
                if not select.select([self.master], [], [], 0.05)[0]:
                    continue
                data = os.read(self.master, 65536)
            except (OSError, ValueError):
                data = b""
            with self._changed:
                if not data:
                    self._closed = True
                else:
                    self.raw += data
                    self._feed(data)
                self._changed.notify_all()

    def _feed(self, data: bytes) -> None:
        # Private sequences that pyte would print: keyboard protocol, mode questions.
        self._stream.feed(re.sub(rb"\x1b\[[<>=][0-9;]*u|\x1b\[\?[0-9;]*\$p", b"", data))

    def pause_reading(self) -> None:
        """Stop reading what the child writes, like a terminal whose link hangs."""
        self._reading.clear()

    def resume_reading(self) -> None:
        """Read again."""
        self._reading.set()

    def send(self, text: str | bytes) -> None:
        """Type `text` into the terminal, all at once."""
        os.write(self.master, text.encode() if isinstance(text, str) else text)

    def paste(self, text: str) -> None:
        """Paste `text` the bracketed way."""
        self.send(f"\x1b[200~{text}\x1b[201~")

    @property
    def lines(self) -> list[str]:
        """The screen as text."""
        with self._lock:
            return list(self.screen.display)

    @property
    def text(self) -> str:
        """The screen as one text, trailing blanks removed."""
        return "\n".join(line.rstrip() for line in self.lines)

    def wait(self, condition: Callable[[], Any], what: str = "", timeout: float = DEADLINE) -> Any:
        """Wait until `condition` holds, looked at whenever the screen changes; fails showing the screen."""
        deadline = time.monotonic() + timeout
        while True:
            got = condition()
            if got:
                return got
            left = deadline - time.monotonic()
            if left <= 0:
                raise AssertionError(f"waited {timeout} s for {what or condition}; the screen:\n{self.text}")
            with self._changed:
                self._changed.wait(min(left, 0.05))

    def wait_for(self, text: str, timeout: float = DEADLINE) -> None:
        """Wait until `text` is on the screen."""
        self.wait(lambda: text in self.text, repr(text), timeout)

    def wait_gone(self, text: str, timeout: float = DEADLINE) -> None:
        """Wait until `text` is no longer on the screen."""
        self.wait(lambda: text not in self.text, f"{text!r} to go", timeout)

    def wait_exit(self, timeout: float = DEADLINE) -> int:
        """The exit code once the child has ended; a signal as 128 + its number."""
        self.wait(lambda: self.poll() is not None, "the end of the process", timeout)
        assert self._status is not None
        code = os.waitstatus_to_exitcode(self._status)
        return code if code >= 0 else 128 - code

    def poll(self) -> int | None:
        """The raw wait status, or None while the child lives."""
        if self._status is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self._status = status
        return self._status

    def stopped(self) -> bool:
        """The child is stopped by a signal."""
        state = Path(f"/proc/{self.pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
        return state == "T"

    def kill(self, number: int) -> None:
        """Send the child a signal."""
        os.kill(self.pid, number)

    def close_master(self) -> None:
        """Hang up: the terminal is gone."""
        if self._closed and self.master < 0:
            return
        self._closed = True
        self._reading.set()
        if threading.current_thread() is not self._thread:
            self._thread.join(timeout=2)
        if self.master >= 0:
            os.close(self.master)
            self.master = -1

    def attributes(self) -> list[Any]:
        """The terminal's settings now."""
        return termios.tcgetattr(self.master)

    def cpu_seconds(self) -> float:
        """CPU time that the child has used."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def modes_left_on(raw: bytes) -> set[str]:
    """Private terminal modes that `raw` switches and does not leave as a fresh terminal has them.

    Modes are named by number; `kbd` is a keyboard protocol level left on its stack.
    """
    initial = {"25": True, "7": True}
    now: dict[str, bool] = {}
    for numbers, letter in re.findall(rb"\x1b\[\?([0-9;]+)([hl])", raw):
        for number in numbers.decode().split(";"):
            now[number] = letter == b"h"
    left = {n for n, on in now.items() if on != initial.get(n, False)}
    depth = 0
    for kind in re.findall(rb"\x1b\[([<>])[0-9;]*u", raw):
        depth = depth + 1 if kind == b">" else max(0, depth - 1)
    return left | ({"kbd"} if depth else set())
