"""Untrusted text: nothing that a terminal would act on survives, and ordinary text stays as it is."""

from __future__ import annotations

import re
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vf_core.text import bound, bound_middle, clean, keep_colour, one_line, slug

HOSTILE = [
    "\x1b]0;title\x07",
    "\x1b]52;c;aGk=\x1b\\",
    "\x1b[2J\x1b[H",
    "\x1b[?1049h",
    "\x1b[?1000h",
    "\x9b31m",
    "\x1b",
    "\x1b]0;never ends",
    "\x1bP1$r\x1b\\",
    "\x07\x00\x08\x7f",
    "\x90payload\x9c",
]

pieces = st.lists(st.one_of(st.text(), st.sampled_from(HOSTILE)), max_size=12).map("".join)


@given(pieces)
def test_nothing_that_moves_a_terminal_survives(text: str) -> None:
    safe = clean(text)
    assert not [c for c in safe if unicodedata.category(c) in ("Cc", "Cs") and c not in "\n\t"]
    assert not re.search("[\u202a-\u202e\u2066-\u2069\u2028\u2029]", safe)
    safe.encode("utf-8")


@given(pieces)
def test_cleaning_twice_changes_nothing(text: str) -> None:
    assert clean(clean(text)) == clean(text)


@given(pieces)
def test_colour_is_the_only_sequence_kept(text: str) -> None:
    rest = re.sub("\x1b\\[[0-9;:]*m", "", keep_colour(text))
    assert "\x1b" not in rest
    assert "\x9b" not in rest


def test_a_payload_does_not_stay_behind() -> None:
    assert clean("a\x1b]52;c;SECRET\x07b") == "ab"
    assert clean("a\x1b[31mred\x1b[0m") == "ared"


def test_an_unterminated_sequence_swallows_a_bounded_part() -> None:
    text = "\x1b]0;" + "x" * 10_000 + "end"
    assert clean(text).endswith("end")


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        ("10%\r50%\r100%\n", "100%\n"),
        ("line\r\nnext", "line\nnext"),
        ("[/x] [b +[@click=app.quit]", "[/x] [b +[@click=app.quit]"),
        ("tab\tand\nnewline", "tab\tand\nnewline"),
        ("日本語 🎉 e\u0301", "日本語 🎉 e\u0301"),
    ],
)
def test_ordinary_text(raw: str, shown: str) -> None:
    assert clean(raw) == shown


@given(st.text(), st.integers(0, 50))
def test_bounds_hold(text: str, limit: int) -> None:
    assert len(bound(text, limit)) <= limit
    assert bound(text, len(text)) == text


def test_the_middle_says_how_much_is_missing() -> None:
    cut = bound_middle("a" * 50 + "b" * 1000 + "c" * 50, 100)
    assert cut.startswith("a" * 50)
    assert cut.endswith("c" * 50)
    assert "1000 characters left out" in cut


@given(st.text())
def test_one_line_is_one_line(text: str) -> None:
    assert len(one_line(text, limit=40).splitlines()) <= 1
    assert len(one_line(text, limit=40)) <= 40


@given(st.text())
def test_a_slug_is_a_safe_file_name(text: str) -> None:
    assert re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]*", slug(text))
    assert ".." not in slug("../../x")
