"""What reaches the terminal: exactly what the widgets hold, and nothing that acts on the terminal."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from rich.cells import cell_len

from doubles.pty_driver import PtyProcess

SIZE = (150, 40)
ROOT = Path(__file__).parents[1]


def run_stress(out: Path, seed: int, *flags: str) -> PtyProcess:
    env = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "VF_TUI_ASCII")}
    env |= {"TERM": "xterm-256color", "COLORTERM": "truecolor", "LANG": "C.UTF-8", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "doubles.widget_stress", str(out), str(seed), *flags]
    return PtyProcess(command, size=SIZE, env=env, cwd=ROOT)


def difference(term: PtyProcess, want: list[list[list[Any]]]) -> str:
    """The first cell in which the terminal is not as the widgets have it; blank when there is none."""
    for y, line in enumerate(want):
        x = 0
        row = term.screen.buffer[y]
        for ch, foreground, background, bold, reverse in line:
            size = cell_len(ch)
            if not size:
                continue
            cell = row[x]
            got = (cell.data[:1], cell.bg, cell.bold, cell.reverse)
            looks = (ch, background, bold, reverse)
            if got != looks or (ch != " " and cell.fg != foreground):
                return f"line {y} cell {x}: {got} {cell.fg}, wanted {looks} {foreground}"
            x += size
    return ""


def settled(term: PtyProcess, want: list[list[list[Any]]]) -> bool:
    found = difference(term, want)
    if found:
        print(found)
    return not found


@pytest.mark.pty
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_after_any_changes_the_terminal_shows_what_the_widgets_hold(seed: int, tmp_path: Path) -> None:
    """U04, and that no cell is left behind when only differences are sent."""
    out = tmp_path / "want.json"
    with run_stress(out, seed) as term:
        term.wait(out.exists, "the end of the changes", 60)
        want = json.loads(out.read_text())
        term.wait(lambda: not difference(term, want), "the screen to settle", 10) if difference(
            term, want
        ) else None
        assert difference(term, want) == ""
        term.send("q")
        assert term.wait_exit() == 0


ALLOWED = re.compile(
    rb"\x1b\[[0-9;]*[mH]"  # styles, cursor
    rb"|\x1b\[\?(2026|1049|1000|1002|1003|1004|1006|1015|2004|2048|25|7)[hl]|\x1b\[\?[0-9]+\$p"
    rb"|\x1b\[[<>=][0-9]*u|\x1b\[[<>=]u|\x1b\[c"
    rb"|\x1b\]22;[a-z]*\x1b\\|\x1b\]22;[a-z]*\x07|\x1b\[[0-9]*[ABCDJK]|\x1b[78]"
)


@pytest.mark.pty
def test_hostile_text_through_every_widget_leaves_only_frames(tmp_path: Path) -> None:
    """U01, U02."""
    out = tmp_path / "want.json"
    with run_stress(out, 5, "hostile") as term:
        term.wait(out.exists, "the end of the changes", 60)
        begun = bytes(term.raw)
        first = begun.find(b"help")
        frames = begun[first:]
        assert first > 0
        left = ALLOWED.sub(b"", frames)
        assert not re.search(rb"[\x00-\x09\x0b-\x1f\x7f]", left), re.search(
            rb".{0,80}[\x00-\x09\x0b-\x1f\x7f].{0,40}", left
        )
        assert not re.search("[\u0080-\u009f\u202a-\u202e\u2066-\u2069]", left.decode())
        for mode in (b"?1049", b"?1003", b"2J", b"\x1b]0;", b"\x1b]52"):
            assert mode not in frames
        assert b"[@click=app.quit]x[/]" in left
        term.send("q")
        assert term.wait_exit() == 0


@pytest.mark.pty
def test_nothing_changed_nothing_sent(tmp_path: Path) -> None:
    """U16: an idle screen is silent."""
    out = tmp_path / "want.json"
    with run_stress(out, 7) as term:
        term.wait(out.exists, "the end of the changes", 60)
        want = json.loads(out.read_text())
        term.wait(lambda: settled(term, want), "the screen to settle", 10)
        sent, used = len(term.raw), term.cpu_seconds()
        with pytest.raises(AssertionError, match="waited"):
            term.wait(lambda: len(term.raw) > sent, "bytes", 2.0)
        assert len(term.raw) == sent
        assert term.cpu_seconds() - used < 0.3
