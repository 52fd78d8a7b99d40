"""The one door for text from outside: no control sequence, no markup, no character of unsteady width."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from textual.content import Content

from doubles.screen_states import hostile
from vf_core.text import one_line
from vf_tui import safe_text
from vf_tui.render import activity, status


@given(st.text(max_size=60))
@settings(max_examples=200)
def test_a_cell_is_one_clean_line(text: str) -> None:
    got = safe_text.cell(text)
    assert all(ch == " " or ch.isprintable() or ord(ch) > 160 for ch in got)
    assert "\n" not in got
    assert got == safe_text.cell(got)


@pytest.mark.parametrize("attack", list(hostile()))
def test_content_holds_the_text_and_no_markup(attack: str) -> None:
    got = safe_text.content(attack)
    assert isinstance(got, Content)
    assert not got.spans
    assert got.plain == safe_text.clean(attack, limit=20_000)
    assert not safe_text.title(attack).spans


def test_a_carriage_return_hides_nothing_but_in_a_programs_output() -> None:
    text = "rm -rf /\recho harmless"
    assert safe_text.cell(text) == one_line(text) == "rm -rf / echo harmless"
    assert safe_text.lines(text) == ["rm -rf /", "echo harmless"]
    assert safe_text.lines("10%\r50%\r\nend", overwrite=True) == ["50%", "end"]


def test_nothing_of_a_tools_arguments_is_hidden() -> None:
    given = json.dumps({"command": "true \x1b]0; rm -rf / ;\x07 \x9b2K echo\rls"})
    assert status.arguments(given) == "true ^[]0; rm -rf / ;^G �2K echo^Mls"
    assert "rm -rf /" in activity.pretty(given)
    assert "rm -rf /" in status.arguments(given[:-1])


def test_markup_is_text() -> None:
    for text in ("[/", "[/x]", "[b +", "[@click=app.quit]x[/]", "[$name]", "\\["):
        assert safe_text.content(text).plain == text
        assert safe_text.cell(text) == text


def test_widths_that_terminals_disagree_on_are_taken_apart() -> None:
    assert safe_text.cell("👩‍👩‍👧") == "👩👩👧"
    assert safe_text.cell("🇩🇪") == "DE"
    assert safe_text.cell("👍🏽❤️") == "👍❤"
    assert safe_text.cell("a\u200bb\ufeff") == "ab"
    assert len(safe_text.cell("z" + "\u0301" * 50)) == 4


def test_lines_are_bounded_and_expanded() -> None:
    assert safe_text.lines("a\tb\nc\n") == ["a   b", "c"]
    assert safe_text.lines("") == [""]
    cut = safe_text.lines("x" * 20 + "\ny", limit=10)
    assert cut == ["xxxxxxxxxx … 10 more characters", "y"]


def test_twenty_megabytes_are_cut_without_reading_all_of_them_twice() -> None:
    got = safe_text.lines("\x1b[2J" + "x" * 20_000_000)
    assert len(got) == 1
    assert len(got[0]) < safe_text.LINE_LIMIT + 60
    assert len(safe_text.cell("\x1b[31m" * 1_000_000)) <= 300


def test_the_quick_look_misses_nothing_that_is_taken_apart() -> None:
    assert all(safe_text._UNSTEADY.search(chr(code)) for code in safe_text._UNSTABLE)
