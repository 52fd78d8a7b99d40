"""Running a command of the agent's: combined output, no terminal, no input, bounded in time and memory."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections.abc import Callable
from typing import IO, Any

COMMAND_TIMEOUT = 3600.0
"""Seconds that a command may take."""
RESULT_LIMIT = 100 * 1024
"""Bytes of a command's output that reach the model, half from its beginning and half from its end."""
_ARGUMENT_LIMIT = 100 * 1024
_CHUNK = 64 * 1024
_KILL_PATIENCE = 5.0
_DRAIN_PATIENCE = 1.0


class BoundedOutput:
    """Head and tail of a byte stream of any length, in bounded memory."""

    def __init__(self, limit: int = RESULT_LIMIT) -> None:
        self._half = limit // 2
        self._head = bytearray()
        self._tail = bytearray()
        self._cut = 0
        self._lock = threading.Lock()

    def add(self, data: bytes) -> None:
        """Take more output."""
        with self._lock:
            room = self._half - len(self._head)
            if room > 0:
                self._head += data[:room]
                data = data[room:]
            self._tail += data
            if len(self._tail) > 2 * self._half:
                self._drop(len(self._tail) - self._half)

    def text(self) -> str:
        """What was kept, with a mark where something was left out; bytes that are not UTF-8 are replaced."""
        with self._lock:
            if len(self._tail) > self._half:
                self._drop(len(self._tail) - self._half)
            if not self._cut:
                return (self._head + self._tail).decode(errors="replace")
            head, tail = bytes(self._head), bytes(self._tail)
        # The cut may have gone through a character.
        shown_head = head.decode(errors="ignore") if _ends_inside(head) else head.decode(errors="replace")
        while tail and tail[0] & 0xC0 == 0x80:
            tail = tail[1:]
        mark = f"\n[… {self._cut:,} bytes left out …]\n"
        return shown_head + mark + tail.decode(errors="replace")

    def _drop(self, count: int) -> None:
        del self._tail[:count]
        self._cut += count


def _ends_inside(data: bytes) -> bool:
    """Whether `data` ends in the middle of a UTF-8 character, and is UTF-8 before."""
    try:
        data.decode()
    except UnicodeDecodeError as e:
        return e.end == len(data) and e.reason == "unexpected end of data"
    return False


def run_command(
    command: str,
    *,
    seconds: float = COMMAND_TIMEOUT,
    echo: Callable[[bytes], None] | None = None,
) -> str:
    """What `bash -c command` printed, with a note where it failed or was cut off. Never raises for the command.

    `echo` gets the output as it comes. What the command leaves running in the background goes on without being
    waited for.
    """
    script = None
    try:
        argv = ["bash", "-c", command]
        if len(command) > _ARGUMENT_LIMIT // 4:
            encoded = os.fsencode(command)
            if len(encoded) > _ARGUMENT_LIMIT:
                script = _to_file(encoded)
                argv = ["bash", "-c", 'eval "$(cat "$0"; rm -f "$0")"', script]
        process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    except (OSError, ValueError) as e:
        if script is not None:
            os.unlink(script)
        return f"error: the command could not be started: {e}"
    return _watched(process, seconds, echo)


def _to_file(command: bytes) -> str:
    """A file with a command that is too long for an argument; the command's shell deletes it."""
    import tempfile

    with tempfile.NamedTemporaryFile(prefix="vf-command-", delete=False) as file:
        file.write(command)
        return file.name


def _watched(process: subprocess.Popen[bytes], seconds: float, echo: Callable[[bytes], None] | None) -> str:
    output = BoundedOutput()
    assert process.stdout is not None  # noqa: S101
    returned = threading.Event()
    # The reader outlives the command when that left something running: a closed pipe would kill it.
    reader = threading.Thread(target=_read, args=(process.stdout, output, echo, returned), daemon=True)
    waiter = threading.Thread(target=process.wait, daemon=True)
    reader.start()
    waiter.start()
    waiter.join(seconds)
    timed_out = waiter.is_alive()
    if timed_out:
        _kill_group(process)
        waiter.join(_KILL_PATIENCE)
    reader.join(_DRAIN_PATIENCE)
    returned.set()
    text = output.text()
    if timed_out:
        return _noted(text, f"timed out after {seconds:g} s; the command and its process group were killed")
    if process.returncode:
        return _noted(text, _status(process.returncode))
    return text


def _read(
    pipe: IO[bytes], output: BoundedOutput, echo: Callable[[bytes], None] | None, returned: threading.Event
) -> None:
    descriptor = pipe.fileno()
    while data := os.read(descriptor, _CHUNK):
        if not returned.is_set():
            output.add(data)
            if echo is not None:
                try:
                    echo(data)
                except OSError:
                    # Nobody listens any more; the command must not wait for that.
                    echo = None
    pipe.close()


def _kill_group(process: subprocess.Popen[Any]) -> None:
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        process.kill()


def _status(code: int) -> str:
    return f"exit code {code}" if code > 0 else f"killed by signal {-code}"


def _noted(text: str, note: str) -> str:
    gap = "" if not text or text.endswith("\n") else "\n"
    return f"{text}{gap}[{note}]"
