"""The writer between the app and its terminal: it never makes anyone wait, and notices when nobody reads."""

from __future__ import annotations

import os
import threading
from pathlib import Path

from vf_tui.clipboard import SEQUENCE_LIMIT, copy, notification, wrap
from vf_tui.driver import BACKLOG_LIMIT, Writer


def test_a_terminal_that_does_not_read_costs_frames_and_no_time() -> None:
    read, write = os.pipe()
    drained, dead = threading.Event(), threading.Event()
    writer = Writer(write, drained.set, dead.set)
    writer.start()
    for _ in range(100):
        writer.put("x" * 100_000)
    writer.put("THE END", always=True)
    # Nobody has read: had one of them waited, this line would not be reached.
    assert writer.dropped
    assert writer.backlog <= BACKLOG_LIMIT + 100
    got = b""
    while not got.endswith(b"THE END"):
        got += os.read(read, 1 << 16)
    assert drained.wait(60), "nobody was told to draw anew"
    assert not writer.dropped
    assert len(got) < 100 * 100_000
    assert set(got[:-7]) == {ord("x")}
    assert (len(got) - 7) % 100_000 == 0, "a frame was cut"
    writer.finish()
    writer.join(60)
    assert not writer.is_alive()
    assert not dead.is_set()


def test_a_terminal_that_is_gone_is_noticed_and_ends_the_writer() -> None:
    """N01: writes fail while input stays open."""
    read, write = os.pipe()
    os.close(read)
    dead = threading.Event()
    writer = Writer(write, lambda: None, dead.set)
    writer.start()
    writer.put("frame")
    assert dead.wait(60)
    writer.join(60)
    assert not writer.is_alive()
    writer.put("more", always=True)
    assert not writer.drain(0.1)


def test_copying_goes_through_tmux_and_screen(tmp_path: Path) -> None:
    place = tmp_path
    plain = copy("héllo", place, environ={})
    assert plain.sequence == "\x1b]52;c;aMOpbGxv\x07"
    tmux = copy("x", place, environ={"TMUX": "1"})
    assert "\x1bPtmux;\x1b\x1b]52;c;eA==\x07\x1b\\" in tmux.sequence
    assert wrap("\x1b]9;x\x07", {"STY": "1"}).startswith("\x1bP\x1b]9;x")
    assert notification("a [/] \x1b]0;t\x07 b\nc", {}) == "\x1b]9;a [/] b c\x07"


def test_what_is_too_long_goes_to_a_file_and_no_file_is_no_crash(tmp_path: Path) -> None:
    """K08."""
    long = copy("y" * SEQUENCE_LIMIT, tmp_path / "copies", environ={})
    assert long.file is not None
    assert long.file.read_text() == "y" * SEQUENCE_LIMIT
    assert long.file.stat().st_mode & 0o077 == 0
    blocked = tmp_path / "file"
    blocked.write_text("")
    elsewhere = copy("z", blocked / "below", terminal=False)
    assert elsewhere.file is None or elsewhere.file.read_text() == "z"
    assert elsewhere.message
