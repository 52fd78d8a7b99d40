"""Runs under a real terminal with everything real: what reaches the terminal, and what its loss does."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from doubles.command_line import ARGV, Home, wait_for
from doubles.pty_driver import PtyProcess, modes_left_on
from doubles.sandbox_commands import long_sleep

pytestmark = pytest.mark.pty

NOISY = """
import logging, os, subprocess, sys, threading, warnings
from vf_test_tasks import *
from vf_test_tasks import __all__, ScriptTask

def noise(where):
    print(f"NOISE-{where}-out")
    print(f"NOISE-{where}-err", file=sys.stderr)
    sys.__stdout__.write(f"NOISE-{where}-dunder\\n")
    sys.__stdout__.flush()
    os.write(1, f"NOISE-{where}-fd1\\n".encode())
    os.write(2, f"NOISE-{where}-fd2\\n".encode())
    sys.stderr.write(f"\\rNOISE-{where}-bar 10 %\\rNOISE-{where}-bar 20 %\\n")
    subprocess.run(["sh", "-c", f"echo NOISE-{where}-child; echo NOISE-{where}-childerr >&2"])
    warnings.warn(f"NOISE-{where}-warning")
    logging.getLogger("plugin").warning(f"NOISE-{where}-logged")
    logging.getLogger("bare").addHandler(logging.StreamHandler())
    logging.getLogger("bare").error(f"NOISE-{where}-bare")
    thread = threading.Thread(target=lambda: {}[f"NOISE-{where}-thread"])
    thread.start()
    thread.join()
    sys.stdout.flush()

noise("import")

async def setup(self, trace, runtime):
    noise("setup")

ScriptTask.setup = setup
"""
WHAT = (
    "out",
    "err",
    "dunder",
    "fd1",
    "fd2",
    "bar",
    "child",
    "childerr",
    "warning",
    "logged",
    "bare",
    "thread",
)


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    home = Home(tmp_path)
    home.env |= {"TERM": "xterm-256color", "LANG": "C.UTF-8"}
    yield home
    home.stop_all()


@pytest.mark.parametrize("mode", [[], ["--embedded"]], ids=["process", "embedded"])
def test_u10_what_a_plugin_prints_is_in_a_log_and_never_on_the_screen(home: Home, mode: list[str]) -> None:
    (home.work / "noisy_tasks.py").write_text(NOISY)
    home.env["PYTHONPATH"] += f":{home.work}"
    file = home.config(["touch solved"])
    file.write_text(file.read_text().replace("vf_test_tasks", "noisy_tasks"))
    with PtyProcess([*ARGV, "run", str(file), *mode], size=(100, 30), env=home.env, cwd=home.work) as term:
        term.wait_for("1/1 done")
        term.send("q")
        assert term.wait_exit() == 0
        assert b"NOISE" not in bytes(term.raw)
        assert modes_left_on(bytes(term.raw)) == set()
    logs = {path.name: path.read_text() for path in home.path.rglob("*.log")}
    for where in ("import", "setup"):
        for what in WHAT:
            assert any(f"NOISE-{where}-{what}" in text for text in logs.values()), (where, what, list(logs))


ASKS = (
    "read line; echo read-$?; python3; echo python-$?; git init -q . && git commit --allow-empty; echo git-$?; "
    "stty raw; echo stty-$?; (stty raw </dev/tty) 2>/dev/null; echo tty-$?; head -c1 /dev/tty; "
    "bash -i -c 'read line'; echo all-asked; touch solved; exec sleep 600"
)


def test_r14_programs_that_ask_get_nothing_and_every_key_reaches_the_screen(home: Home) -> None:
    home.env |= {"GIT_AUTHOR_NAME": "a", "GIT_AUTHOR_EMAIL": "a", "EDITOR": "cat", "GIT_EDITOR": "cat"}
    argv = [*ARGV, "run", str(home.config([ASKS] * 3)), "--embedded"]
    with PtyProcess(argv, size=(100, 30), env=home.env, cwd=home.work) as term:
        term.wait_for("3 active")
        settings = term.attributes()
        for _ in range(5):
            term.send("?")
            term.wait_for("Keys of the run screen")
            term.send("\x1b")
            term.wait_gone("Keys of the run screen")
        wait_for(lambda: outputs(home).count("all-asked") == 3, "the programs")
        assert term.attributes() == settings
        term.send("/")
        term.send("status:active")
        term.wait_for("status:active")
        out = outputs(home)
    assert out.count("read-1") == out.count("python-0") == 3
    assert [out.count(f"{what}-0") for what in ("git", "stty", "tty")] == [0, 0, 0], out


def outputs(home: Home) -> str:
    """What the programs printed so far."""
    return "".join(path.read_text(errors="replace") for path in home.work.rglob("attempt-*.stdout.log"))


@pytest.mark.parametrize("mode", [[], ["--embedded"]], ids=["process", "embedded"])
def test_n01_a_hang_up_leaves_the_run_alive_or_cleaned_up(home: Home, mode: list[str]) -> None:
    sleep = long_sleep()
    argv = [*ARGV, "run", str(home.config([sleep] * 3)), *mode]
    with PtyProcess(argv, size=(100, 30), env=home.env, cwd=home.work) as term:
        term.wait_for("3 active")
        used = term.cpu_seconds()
        term.close_master()
        wait_for(lambda: term.poll() is not None or spinning(term, used), "the screen's end")
        assert os.waitstatus_to_exitcode(term.poll() or 0) >= 0
    (run,) = home.runs()
    if mode:
        assert (run["status"], run["live"], run["unconfirmed"]) == ("stopped", False, 0)
        assert commands(sleep) == []
        return
    assert (run["status"], run["live"]) == ("running", True)
    assert len(commands(sleep)) == 3
    with PtyProcess([*ARGV, "attach"], env=home.env, cwd=home.work) as again:
        again.wait_for("3 active")
        again.send("q")
        assert again.wait_exit() == 0


@pytest.mark.parametrize("first", ["q", signal.SIGINT])
def test_t01_an_interrupted_screen_cleans_up_whatever_comes_next(home: Home, first: str | int) -> None:
    told = "lambda *_: (time.sleep(1.5), print('trapped', flush=True), os._exit(0))"
    python = f"import os, signal, time; signal.signal(15, {told}); print('up', flush=True); time.sleep(600)"
    script = f'exec python3 -c "{python}"'
    argv = [*ARGV, "run", str(home.config([script] * 3)), "--embedded", "--env.agent.runtime.grace", "20"]
    with PtyProcess(argv, size=(100, 30), env=home.env, cwd=home.work) as term:
        wait_for(lambda: outputs(home).count("up") == 3, "the programs")
        if isinstance(first, int):
            term.kill(first)
        else:
            term.send("qqq")
            term.wait_for("Stop the run and leave")
            confirm(term, "cleaning up, then leaving")
            term.kill(signal.SIGTERM)
        term.wait_for("stopping the run and cleaning up")
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            term.kill(number)
        term.send("\x03\x03")
        term.wait_for("nothing is cut short")
        assert term.wait_exit() == (130 if first == signal.SIGINT else 143)
        assert "Traceback" not in term.text
        assert modes_left_on(bytes(term.raw)) == set()
    (run,) = home.runs()
    assert (run["status"], run["live"], run["unconfirmed"]) == ("stopped", False, 0)
    assert outputs(home).count("trapped") == 3


def confirm(term: PtyProcess, told: str) -> None:
    """Say yes to the dialog as a person would: one key, after a look at it."""
    for _ in range(60):
        term.send("y")
        with suppress(AssertionError):
            return term.wait_for(told, timeout=1.0)
    raise AssertionError(term.text)


def spinning(term: PtyProcess, before: float) -> bool:
    assert term.cpu_seconds() - before < 10, "it spins on a dead terminal"
    return False


def commands(command: str) -> list[str]:
    """The processes whose command line ends in `command`."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if path.read_bytes().endswith(command.replace(" ", "\0").encode() + b"\0"):
                found.append(path.parent.name)
        except OSError:
            continue
    return found


def test_n01_output_that_fails_while_keys_still_come_ends_the_screen(home: Home) -> None:
    keys, keys_end = os.openpty()
    shown, shown_end = os.openpty()
    sleep = long_sleep()
    process = subprocess.Popen(
        [*ARGV, "run", str(home.config([sleep]))],
        stdin=keys_end, stdout=shown_end, stderr=shown_end, cwd=home.work, env=home.env, start_new_session=True,
    )  # fmt: skip
    try:
        os.close(shown_end)
        seen = b""
        while not (b"script 0" in seen and commands(sleep)):
            if select.select([shown], [], [], 0.1)[0]:
                seen += os.read(shown, 65536)
        os.close(shown)
        assert process.wait(60) >= 0
        assert len(commands(sleep)) == 1
    finally:
        process.kill()
        os.close(keys)
        os.close(keys_end)


def test_u16_an_idle_screen_says_next_to_nothing(tmp_path: Path) -> None:
    program = Path(__file__).resolve().parents[1] / "doubles" / "screen_program.py"
    env = {**os.environ, "TERM": "xterm-256color", "LANG": "C.UTF-8"}
    argv = [sys.executable, str(program), "--rollouts", "200", "--still", "2500"]
    with PtyProcess(argv, size=(120, 40), env=env, cwd=tmp_path) as term:
        term.wait_for("? help")
        quiet_for(term, 0.5)
        sent, used, seconds = len(term.raw), term.cpu_seconds(), 3
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            time.sleep(0.1)  # what happens when nothing happens takes its time
        print(len(term.raw) - sent, term.cpu_seconds() - used)
        assert len(term.raw) - sent < 3_000 * seconds
        assert term.cpu_seconds() - used < 0.5 * seconds


def quiet_for(term: PtyProcess, seconds: float) -> None:
    """Wait until the screen has drawn all that there was."""
    sizes = [(time.monotonic(), 0)]
    while time.monotonic() - sizes[-1][0] < seconds and time.monotonic() - sizes[0][0] < 60:
        if len(term.raw) - sizes[-1][1] > 2_000:
            sizes.append((time.monotonic(), len(term.raw)))
        time.sleep(0.05)
