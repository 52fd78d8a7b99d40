"""Lines: exact widths whatever the characters, and the cells that differ between two of them."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len

from vf_tui.render import line as ln

TEXT = st.text(alphabet="ab 日本🙂é.\u0301", max_size=24)
LINE = st.lists(st.tuples(TEXT, st.sampled_from(["", "dim", "error"])), max_size=5).map(tuple)


@given(TEXT, st.integers(0, 30))
@settings(max_examples=150)
def test_cut_and_fit_have_the_width_they_promise(text: str, cells: int) -> None:
    assert ln.width(ln.cut(text, cells)) <= cells
    assert ln.width(ln.fit(text, cells)) == cells
    assert ln.width(ln.fit(text, cells, right=True)) == cells


def test_a_cut_is_marked() -> None:
    assert ln.cut("abcdef", 4) == "abc…"
    assert ln.cut("日本語", 4) == "日…"
    assert ln.cut("abc", 3) == "abc"
    assert ln.cut("abc", 0) == ""


@given(LINE, LINE, st.integers(1, 40))
@settings(max_examples=150)
def test_clip_and_split_are_exact(left: ln.Line, right: ln.Line, cells: int) -> None:
    assert ln.line_width(ln.clip(left, cells)) == cells
    assert ln.line_width(ln.split(left, right, cells)) == cells


@given(TEXT, st.integers(4, 20))
@settings(max_examples=100)
def test_wrapping_loses_nothing_but_blanks(text: str, cells: int) -> None:
    pieces = ln.wrap(text, cells)
    assert all(ln.width(piece.rstrip()) <= cells for piece in pieces)
    assert "".join(pieces).replace(" ", "") == text.replace(" ", "")


def _drawn(line: ln.Line) -> list[tuple[str, str]]:
    out: list[tuple[str, str]] = []
    for text, style in line:
        for ch in text:
            size = cell_len(ch)
            if size:
                out.append((ch, style))
                out += [("", style)] * (size - 1)
            elif out:
                out[-1] = (out[-1][0] + ch, out[-1][1])
    return out


@given(LINE, LINE, st.integers(1, 40))
@settings(max_examples=300)
def test_spans_cover_every_difference_and_no_half_of_a_wide_character(
    a: ln.Line, b: ln.Line, cells: int
) -> None:
    old, new = ln.clip(a, cells), ln.clip(b, cells)
    spans = ln.changed_spans(old, new)
    cells_old, cells_new = _drawn(old), _drawn(new)
    patched = list(cells_old)
    for start, end in spans:
        assert 0 <= start < end <= cells
        assert cells_new[start][0]
        assert cells_old[start][0]
        for cell_list in (cells_old, cells_new):
            assert end == cells or cell_list[end][0]
        patched[start:end] = cells_new[start:end]
    assert patched == cells_new
    assert spans == sorted(spans)
    assert all(first[1] < second[0] for first, second in itertools.pairwise(spans))


def test_equal_lines_have_no_spans() -> None:
    line = (("abc", ""), ("def", "dim"))
    assert ln.changed_spans(line, (("abc", ""), ("def", "dim"))) == []
    assert ln.changed_spans(line, (("abcd", ""), ("ef", "dim"))) == [(3, 4)]


@pytest.mark.parametrize("cells", [6, 20, 60])
def test_a_ruled_title_ends_in_a_rule(cells: int) -> None:
    line = ln.ruled("group", cells)
    assert ln.line_width(line) == cells
    assert "…" not in "".join(text for text, _ in line if text.strip("─ ")) or cells < 9


def test_what_counts_as_narrow_is_narrow() -> None:
    assert all(cell_len(chr(i)) == 1 for i in range(0x20, 0x3000) if ln.plain(chr(i)) and i != 0x7F)


def test_megabytes_are_wrapped_without_a_second_look_at_every_character() -> None:
    text = "naïve café — “quoted” … " * 40_000
    pieces = ln.wrap(text, 80)
    assert all(ln.width(piece.rstrip()) <= 80 for piece in pieces)
    assert len(pieces) == pytest.approx(len(text) / 78, rel=0.1)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("/a/very/long/way/to/eval.toml: no such file", "…/eval.toml: no such file"),
        ("error: '/a/very/long/way/to/x.log' is full", "error: '…/x.log' is full"),
        ("see https://example.org/a/very/long/way/to/it", "see https://example.org/a/very/long/way/to/it"),
        ("cd /tmp/x; cat /etc/passwd or else it fails", "cd /tmp/x; cat /etc/passwd or else it fails"),
        ("x/y/z/and/more/of/a/relative/path/file.py", "x/y/z/and/more/of/a/relative/path/file.py"),
    ],
)
def test_long_paths_give_way_to_what_is_said(text: str, shown: str) -> None:
    assert ln.squeeze(text, 40) == shown
    assert ln.squeeze(text, 80) == text
