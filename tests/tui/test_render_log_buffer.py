"""U07, U08: a log holds what fits its bounds, whatever comes in and however it is cut into chunks."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from doubles.screen_states import hostile
from vf_tui.render.line import line_width, wrap
from vf_tui.render.log_buffer import LogBuffer, highlight, slice_runs
from vf_tui.safe_text import LINE_LIMIT


def texts(buffer: LogBuffer) -> list[str]:
    return [e.text for i in range(len(buffer)) if (e := buffer.entry(i)) is not None]


CHUNKS = st.lists(st.text(alphabet="ab\n日 ", max_size=12), max_size=12)


@given(CHUNKS, st.integers(0, 9))
@settings(max_examples=150)
def test_how_output_is_cut_into_chunks_does_not_matter(chunks: list[str], cells: int) -> None:
    buffer = LogBuffer()
    buffer.wrap_at(cells)
    for chunk in chunks:
        buffer.feed(chunk)
    whole = "".join(chunks)
    want = whole.split("\n")
    if not want[-1]:
        want.pop()
    assert texts(buffer) == [line.expandtabs(4) for line in want]
    assert buffer.rows == sum(len(wrap(line, cells)) if cells else 1 for line in want)


@given(CHUNKS, st.integers(1, 6), st.integers(1, 9))
@settings(max_examples=150)
def test_rows_and_lines_agree_while_old_lines_go(chunks: list[str], kept: int, cells: int) -> None:
    buffer = LogBuffer(max_lines=kept)
    buffer.wrap_at(cells)
    added = 0
    for chunk in chunks:
        buffer.feed(chunk)
        assert len(buffer) <= kept
    whole = LogBuffer()
    whole.wrap_at(cells)
    for chunk in chunks:
        whole.feed(chunk)
    assert texts(buffer) == texts(whole)[-kept:]
    assert buffer.dropped == len(whole) - len(buffer)
    assert buffer.first_row + buffer.rows == whole.rows
    for row in range(buffer.rows):
        line, piece = buffer.row(row)
        entry = buffer.entry(line)
        assert entry is not None
        assert buffer.row_of(line) <= row
        assert line_width(buffer.piece(entry, piece)) <= cells + 1
        added += piece == 0
    assert added == len(buffer)


def test_a_progress_bar_is_its_last_state_also_across_chunks() -> None:
    buffer = LogBuffer()
    for chunk in ("10%\r50", "%\r", "80%", "\r100%\nnext\n"):
        buffer.feed(chunk)
    assert texts(buffer) == ["100%", "next"]


def test_crlf_ends_a_line() -> None:
    buffer = LogBuffer()
    buffer.feed("one\r\ntwo\r")
    buffer.feed("\nthree")
    assert texts(buffer) == ["one", "two", "three"]


def test_a_huge_line_is_cut_and_says_so() -> None:
    buffer = LogBuffer()
    for _ in range(64):
        buffer.feed("x" * 65_536)
    buffer.feed("\nafter\n")
    line, after = texts(buffer)
    assert len(line) < LINE_LIMIT + 60
    assert line.endswith(f"… {64 * 65_536 - LINE_LIMIT:,} more characters")
    assert after == "after"


def test_an_unterminated_sequence_does_not_hold_memory() -> None:
    buffer = LogBuffer(colour=True)
    buffer.feed("before\n\x1b]0;")
    for _ in range(50):
        buffer.feed("y" * 100_000)
    buffer.feed("\nafter\n")
    assert texts(buffer)[0] == "before"
    assert texts(buffer)[-1] == "after"
    assert sum(map(len, texts(buffer))) < 2 * LINE_LIMIT


def test_characters_are_bounded_too() -> None:
    buffer = LogBuffer(max_chars=10_000)
    for i in range(100):
        buffer.feed(f"{i} " + "z" * 996 + "\n")
    assert 8 <= len(buffer) <= 10
    assert texts(buffer)[-1].startswith("99 ")


@pytest.mark.parametrize("colour", [False, True])
@pytest.mark.parametrize("attack", list(hostile()))
def test_nothing_hostile_is_kept(attack: str, *, colour: bool) -> None:
    buffer = LogBuffer(colour=colour)
    for cut in range(0, min(len(attack), 40), 3):
        buffer.clear()
        buffer.feed(attack[:cut])
        buffer.feed(attack[cut:])
        buffer.feed("\n")
        for text in texts(buffer):
            assert not any(ord(ch) < 32 or 127 <= ord(ch) < 160 for ch in text)
            assert not set(text) & set("\u202e\u200d\u2028\ud800")


def test_colours_of_output_become_runs() -> None:
    buffer = LogBuffer(colour=True)
    buffer.feed("\x1b[32mok\x1b[0m plain \x1b[1;31mbad\x1b[m\x1b[38;5;208mo\x1b[38;2;1;0;3mt\n")
    entry = buffer.entry(0)
    assert entry is not None
    assert entry.runs == (
        ("ok", "sgr:32"), (" plain ", ""), ("bad", "sgr:1;31"), ("o", "sgr:38;5;208"),
        ("t", "sgr:38;5;208;38;2;1;0;3"),
    )  # fmt: skip


def test_finding_and_highlighting() -> None:
    buffer = LogBuffer()
    buffer.feed("alpha\nbeta\ngamma\nbeta two\n")
    pattern = re.compile("beta")
    assert buffer.count(pattern) == 2
    assert buffer.find(pattern, 0, 1) == 1
    assert buffer.find(pattern, 2, 1) == 3
    assert buffer.find(pattern, 2, -1) == 1
    assert buffer.find(re.compile("delta"), 0, 1) is None
    line = (("al", "dim"), ("pha be", ""), ("ta!", "dim"))
    assert highlight(line, pattern, "match") == (("al", "dim"), ("pha ", ""), ("beta", "match"), ("!", "dim"))
    assert highlight(line, re.compile("x*"), "match") == line
    assert slice_runs(line, 1, 4) == (("l", "dim"), ("ph", ""))
