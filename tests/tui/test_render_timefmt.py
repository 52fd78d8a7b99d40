"""U11: times are never negative, never `:60`, blank before a start and frozen after an end."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vf_tui.render import timefmt


@dataclass
class Span:
    started: float | None = None
    ended: float | None = None


@pytest.mark.parametrize(
    ("seconds", "clock", "short", "span"),
    [
        (0, "0:00", "0:00", "0 s"),
        (59.6, "0:59", "0:59", "59 s"),
        (60, "1:00", "1:00", "1 m"),
        (3599.7, "59:59", "59:59", "59 m"),
        (3600, "1:00:00", "60:00", "1 h"),
        (4801, "1:20:01", "80:01", "1 h 20 m"),
        (6000, "1:40:00", "1h40", "1 h 40 m"),
        (86399.9, "23:59:59", "23h", "23 h 59 m"),
        (86400, "1d 00h", "24h", "1 d"),
        (10 * 86400, "10d 00h", "10d", "10 d"),
        (-3600, "0:00", "0:00", "0 s"),
        (None, "", "", ""),
    ],
)
def test_durations(seconds: float | None, clock: str, short: str, span: str) -> None:
    assert timefmt.clock(seconds) == clock
    assert timefmt.short_clock(seconds) == short
    assert timefmt.span(seconds) == span


def test_elapsed_is_blank_running_frozen_and_never_negative() -> None:
    assert timefmt.elapsed(Span(), 1_000.0) is None
    assert timefmt.elapsed(Span(started=10.0), 15.0) == 5.0
    assert timefmt.elapsed(Span(started=10.0, ended=12.0), 9_999.0) == 2.0
    # The clock was moved back an hour.
    assert timefmt.elapsed(Span(started=4_000.0), 400.0) == 0.0
    assert timefmt.elapsed(Span(started=4_000.0, ended=400.0), 400.0) == 0.0


@given(st.floats(min_value=-1e6, max_value=1e9, allow_nan=False))
def test_no_unit_ever_reads_sixty(seconds: float) -> None:
    for text in (timefmt.clock(seconds), timefmt.short_clock(seconds), timefmt.took(seconds)):
        assert "-" not in text
        assert not any(part.strip("s ").startswith("60") for part in text.split(":")[1:])
    assert len(timefmt.short_clock(seconds)) <= 6


@pytest.mark.parametrize(
    ("n", "text"),
    [
        (0, "0"), (7, "7"), (999, "999"), (1000, "1.0k"), (1234, "1.2k"), (9949, "9.9k"), (9999, "10k"),
        (12345, "12k"), (999_499, "999k"), (999_501, "1.0M"), (2_500_000, "2.5M"), (3e9, "3.0G"), (None, ""),
        (-1500, "-1.5k"),
    ],
)  # fmt: skip
def test_counts(n: float | None, text: str) -> None:
    assert timefmt.count(n) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, ""), (0.0, "$0.00"), (0.0042, "$0.0042"), (0.42, "$0.42"), (12.3, "$12.30"), (1204, "$1,204")],
)
def test_money(value: float | None, text: str) -> None:
    assert timefmt.money(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, ""), (1.0, "1.00"), (-0.5, "-0.50"), (12.345, "12.3"), (1234.0, "1.2k"), (float("nan"), "nan")],
)
def test_rewards(value: float | None, text: str) -> None:
    assert timefmt.reward(value) == text


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.04, "0.0 s"), (9.99, "9.9 s"), (41.7, "41 s"), (187, "3:07"), (None, "")]
)
def test_how_long_a_call_ran(seconds: float | None, text: str) -> None:
    assert timefmt.took(seconds) == text
