"""Starting a run under a screen: drawn at once, left at will, and failures told where they can be read."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from doubles.command_line import ARGV, Home, alive
from doubles.pty_driver import PtyProcess

pytestmark = pytest.mark.pty


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    """A user's home; whatever still runs at the end is stopped."""
    home = Home(tmp_path)
    yield home
    home.stop_all()


def screen(home: Home, *args: str | Path) -> PtyProcess:
    return PtyProcess([*ARGV, *map(str, args)], size=(100, 30), env=home.env, cwd=home.work)


def test_leaving_leaves_the_run_alive(home: Home) -> None:
    with screen(home, "run", home.config(["sleep 600"])) as term:
        term.wait_for("script 0")
        term.wait_for("live")
        term.send("q")
        assert term.wait_exit() == 0
        assert "vf-tui attach" in term.text
    (run,) = home.runs()
    assert run["live"]
    with screen(home, "attach") as term:
        term.wait_for("script 0")
        term.send("q")
        assert term.wait_exit() == 0
    assert alive(run["pid"])


def test_a_key_that_comes_too_early_still_starts_what_was_asked_for(home: Home) -> None:
    with screen(home, "run", home.config(["sleep 600"])) as term:
        term.send("q")
        term.wait(lambda: bool(term.text.strip()), "the first paint")
        term.send("q")
        assert term.wait_exit() == 0
    (run,) = home.runs()
    assert run["live"]


def test_what_the_engine_refuses_is_told_and_is_exit_code_2(home: Home) -> None:
    with screen(home, "run", home.config([])) as term:
        term.wait_for("has no tasks")
        term.send("q")
        assert term.wait_exit() == 2
        assert "error: env.taskset: taskset 'vf_test_tasks' has no tasks" in term.text
    assert home.runs() == []


def test_embedded_the_run_ends_with_the_screen(home: Home) -> None:
    with screen(home, "run", home.config(["sleep 600"]), "--embedded") as term:
        term.wait_for("live")
        term.send("q")
        term.wait_for("Stop the run and leave")
        for _ in range(60):  # a dialog that has just opened takes no keys
            term.send("y")
            try:
                assert term.wait_exit(timeout=1.0) in (0, 130)
                break
            except AssertionError:
                continue
    (run,) = home.runs()
    assert (run["status"], run["live"], run["unconfirmed"]) == ("stopped", False, 0)


def test_a_dumb_terminal_gets_plain_lines(home: Home) -> None:
    home.env["TERM"] = "dumb"
    with screen(home, "run", home.config(["touch solved"])) as term:
        assert term.wait_exit() == 0
        assert b"\x1b" not in bytes(term.raw)
        assert "TERM is dumb" in term.text
        assert "reward: 1.000 (1 scored)" in term.text
