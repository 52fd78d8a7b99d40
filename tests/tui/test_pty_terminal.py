"""The terminal is taken whole and given back whole, however it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from doubles.pty_driver import PtyProcess, modes_left_on
from doubles.screen_program import STRAY

pytestmark = pytest.mark.pty

PROGRAM = [sys.executable, str(Path(__file__).resolve().parents[1] / "doubles" / "screen_program.py")]
READY = "help"


@pytest.fixture
def start(tmp_path: Path) -> Callable[..., PtyProcess]:
    """Start the program in a pty of its own."""

    def start(*options: str, size: tuple[int, int] = (80, 24), ready: str = READY) -> PtyProcess:
        env = {k: v for k, v in os.environ.items() if k not in ("TMUX", "STY", "SSH_CONNECTION", "NO_COLOR")}
        env |= {"TERM": "xterm-256color", "LANG": "C.UTF-8", "PYTHONFAULTHANDLER": "1"}
        term = PtyProcess([*PROGRAM, *options], size=size, env=env, cwd=tmp_path)
        if ready:
            term.wait_for(ready)
        return term

    return start


def log_of(tmp_path: Path) -> str:
    return (tmp_path / "state" / "vf-tui" / "screen.log").read_text()


def assert_given_back(term: PtyProcess, before: list[object]) -> None:
    term.wait(lambda: term._closed or not modes_left_on(bytes(term.raw)), "the modes to be switched off", 5)
    assert modes_left_on(bytes(term.raw)) == set()


def leave_by_key(term: PtyProcess) -> None:
    term.send("q")


def leave_by(number: int) -> Callable[[PtyProcess], None]:
    return lambda term: term.kill(number)


@pytest.mark.parametrize(
    ("way", "leave", "code"),
    [
        ("quit", leave_by_key, 0),
        ("SIGTERM", leave_by(signal.SIGTERM), 143),
        ("SIGINT", leave_by(signal.SIGINT), 130),
        ("SIGHUP", leave_by(signal.SIGHUP), 129),
    ],
)
def test_the_terminal_is_given_back(
    start: Callable[..., PtyProcess], way: str, leave: Callable[[PtyProcess], None], code: int
) -> None:
    """N02."""
    with start() as term:
        settings = term.attributes()
        leave(term)
        term.wait_for(f"left with {code}; run alive")
        after = term.attributes()
        assert term.wait_exit() == code
        assert modes_left_on(bytes(term.raw)) == set()
        assert after == term.before
        assert settings != term.before
        assert "run continues; come back with `vf-tui attach 9a1d`" in term.text
        assert "Traceback" not in term.text


@pytest.mark.parametrize("when", ["crash", "crash-early"])
def test_after_a_crash_too(start: Callable[..., PtyProcess], tmp_path: Path, when: str) -> None:
    """N02: an exception while drawing, and one before the first paint; the fault is told and logged."""
    with start("--mischief", when, ready="") as term:
        term.wait_for("left with 1")
        assert term.wait_exit() == 1
        assert modes_left_on(bytes(term.raw)) == set()
        assert "the screen failed: RuntimeError: a fault of ours" in term.text.replace("\n", "")
        assert "Traceback" in log_of(tmp_path)
        assert b"\x1b[2J" not in bytes(term.raw).split(b"the screen failed")[1]


def test_a_hang_up_ends_the_screen_and_not_the_run(start: Callable[..., PtyProcess]) -> None:
    """N01: the master is closed; no spinning, and gone by itself."""
    with start() as term:
        before = term.cpu_seconds()
        term.close_master()
        deadline = time.monotonic() + 60
        while term.poll() is None and time.monotonic() < deadline:
            used = term.cpu_seconds() - before
            assert used < 10.0, "spinning on a dead terminal"
            time.sleep(0.02)  # nothing tells when a process that is not waited for has ended
        assert term.poll() is not None, "still there long after the hang-up"


def test_nothing_but_frames_reaches_the_terminal(start: Callable[..., PtyProcess], tmp_path: Path) -> None:
    """U10: prints, descriptors, warnings, loggers, children, threads; and all of it is in the log."""
    with start("--mischief", "prints") as term:
        term.wait(lambda: f"{STRAY}end" in log_of(tmp_path), "the stray output to be logged")
        term.send("q")
        term.wait_exit()
        assert STRAY.encode() not in bytes(term.raw)
        log = log_of(tmp_path)
        for what in (
            "print", "stderr-print", "fd1", "fd2", "warning", "logged", "dunder", "progress", "child",
            "child-err", "eof", "thread",
        ):  # fmt: skip
            assert f"{STRAY}{what}" in log, what
        assert "ZeroDivisionError" in log
        assert (tmp_path / "state" / "vf-tui" / "screen.log").stat().st_mode & 0o077 == 0


def test_suspended_and_continued(start: Callable[..., PtyProcess]) -> None:
    """N10: SIGTSTP gives the terminal back and takes it again; SIGSTOP from outside ends in a full redraw.

    ctrl+z is left alone.
    """
    with start() as term:
        term.send("\x1a")
        for _ in range(2):
            term.kill(signal.SIGTSTP)
            term.wait(term.stopped, "the stop")
            term.wait(lambda: not modes_left_on(bytes(term.raw)), "the modes to be switched off")
            assert term.attributes() == term.before
            term.screen.reset()
            term.kill(signal.SIGCONT)
            term.wait_for(READY)
        term.kill(signal.SIGSTOP)
        term.wait(term.stopped, "the stop")
        term.screen.reset()
        term.kill(signal.SIGCONT)
        term.wait_for(READY)
        term.wait_for("demo--gpt")
        term.send("q")
        term.wait_for("left with 0")
        assert term.wait_exit() == 0
        assert modes_left_on(bytes(term.raw)) == set()


def test_a_terminal_that_is_not_read_does_not_stop_the_screen(start: Callable[..., PtyProcess]) -> None:
    """P2, N08: once it reads again all is drawn anew, and keys typed meanwhile have been obeyed.

    U02: and what models and tools said reached it as text only.
    """
    with start("--rate", "2000", "--rollouts", "60", size=(120, 40)) as term:
        term.wait_for("hostile")
        term.pause_reading()
        term.send("?")
        deadline = time.monotonic() + 1.5
        while time.monotonic() < deadline:
            time.sleep(0.05)  # the point is to let it draw into the void for a while
        term.resume_reading()
        term.wait_for("Keys of the run screen")
        term.send("q")
        term.wait_gone("Keys of the run screen")
        term.wait_for("demo--gpt")
        raw = bytes(term.raw)
        assert len(raw) > 20_000
        for sequence in (b"\x1b]0;", b"\x1b]52", b"owned\x07", b"\x00"):
            assert sequence not in raw
        assert raw.count(b"\x1b[?1049h") == 1


def test_no_thread_keeps_the_process(start: Callable[..., PtyProcess]) -> None:
    """T14."""
    with start("--mischief", "stuck-threads") as term:
        term.send("q")
        term.wait_for("left with 0")
        assert term.wait_exit() == 0


def test_pasted_lines_confirm_nothing(start: Callable[..., PtyProcess]) -> None:
    """K04: bracketed and not, on the main screen, in the filter and in a dialog."""
    lines = "xXKrRPaueoOnNfwtz\ny\nxyXy\n"
    with start("--still", "150", size=(100, 30)) as term:
        term.paste(lines)
        term.send(lines)
        term.wait(lambda: "Cancel" in term.text, "a dialog that the typed lines opened")
        term.paste(lines)
        term.send("yyy\ryyy\r")
        term.send("\x1b")
        term.wait(lambda: _dialogs_gone(term), "the dialogs to be closed")
        term.send("/")
        term.wait(
            lambda: "/" in term.lines[-3] or any(line.startswith(" /") for line in term.lines), "the prompt"
        )
        term.paste("status:active")
        term.wait_for("filter status:active")
        term.send("\x1b")
        term.wait_gone("filter status:active")
        while "left with" not in term.text:
            term.send("q")
            time.sleep(0.1)
        assert "commands []" in term.text


def _dialogs_gone(term: PtyProcess) -> bool:
    if "Cancel" in term.text:
        time.sleep(0.4)  # a person waits, too, before the next key
        term.send("\x1b")
        return False
    return True


def test_without_a_terminal_it_is_refused(tmp_path: Path) -> None:
    """N11: no hang, a reason, an exit code."""
    for env in ({}, {"TERM": "dumb"}):
        done = subprocess.run(
            PROGRAM,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
            cwd=tmp_path,
            env={**os.environ, **env},
            check=False,
        )
        assert done.returncode == 2
        assert "not a terminal" in done.stderr
