"""Times, counts, money and rewards as short texts.

Durations are rounded down, so that 59.6 s is `0:59` and never `:60`; they are never negative; None is blank.
"""

from __future__ import annotations

import math
from typing import Protocol


class Timed(Protocol):
    """What has a start and an end (None: not yet), in Unix seconds."""

    started: float | None
    ended: float | None


def elapsed(view: Timed, now: float) -> float | None:
    """Seconds that `view` took or has taken; None before it started; frozen when it ended; never negative."""
    if view.started is None:
        return None
    end = now if view.ended is None else view.ended
    return max(0.0, end - view.started)


def clock(seconds: float | None) -> str:
    """`0:04`, `12:41`, `1:02:03`, `2d 03h`: for columns."""
    if seconds is None:
        return ""
    s = int(max(0.0, seconds))
    if s < 3600:
        return f"{s // 60}:{s % 60:02}"
    if s < 86_400:
        return f"{s // 3600}:{s // 60 % 60:02}:{s % 60:02}"
    return f"{s // 86_400}d {s // 3600 % 24:02}h"


def short_clock(seconds: float | None) -> str:
    """`0:04`, `99:59`, `1h40`, `27h`, `12d`: as `clock`, in at most five cells."""
    if seconds is None:
        return ""
    s = int(max(0.0, seconds))
    if s < 6000:
        return f"{s // 60}:{s % 60:02}"
    if s < 36_000:
        return f"{s // 3600}h{s // 60 % 60:02}"
    return f"{s // 3600}h" if s < 4 * 86_400 else f"{s // 86_400}d"


def span(seconds: float | None) -> str:
    """`4 s`, `3 m`, `1 h 20 m`, `2 d 3 h`: for words."""
    if seconds is None:
        return ""
    s = int(max(0.0, seconds))
    if s < 60:
        return f"{s} s"
    if s < 3600:
        return f"{s // 60} m"
    if s < 86_400:
        return _two(s // 3600, "h", s // 60 % 60, "m")
    return _two(s // 86_400, "d", s // 3600 % 24, "h")


def _two(major: int, name: str, minor: int, minor_name: str) -> str:
    return f"{major} {name} {minor} {minor_name}" if minor else f"{major} {name}"


def took(seconds: float | None) -> str:
    """`0.2 s`, `9.9 s`, `41 s`, `3:07`: how long a call ran."""
    if seconds is None:
        return ""
    s = max(0.0, seconds)
    if s < 10:
        return f"{int(s * 10) / 10:.1f} s"
    return f"{int(s)} s" if s < 120 else clock(s)


def at(t: float) -> str:
    """Local wall-clock time of a Unix time, `14:03:07`; blank for 0."""
    import time

    return time.strftime("%H:%M:%S", time.localtime(t)) if t else ""


def count(n: float | None) -> str:
    """`7`, `950`, `1.2k`, `13k`, `2.5M`; blank for None."""
    if n is None:
        return ""
    sign, n = ("-", -n) if n < 0 else ("", n)
    for limit, name in ((999.5, ""), (999_500, "k"), (999_500_000, "M")):
        if n < limit:
            scaled = n / {"": 1, "k": 1e3, "M": 1e6}[name]
            digits = 1 if name and scaled < 9.95 else 0
            return f"{sign}{scaled:.{digits}f}{name}"
    return f"{sign}{n / 1e9:.1f}G"


def money(dollars: float | None) -> str:
    """`$0.0042`, `$0.42`, `$12.30`, `$1,204`; blank for None."""
    if dollars is None:
        return ""
    size = abs(dollars)
    digits = 4 if 0 < size < 0.1 else 2 if size < 1000 else 0
    return f"{'-' if dollars < 0 else ''}${size:,.{digits}f}"


def reward(value: float | None) -> str:
    """`0.61`, `-1.00`, `12.5`; blank for None."""
    if value is None:
        return ""
    if not math.isfinite(value):
        return f"{value}"
    size = abs(value)
    return f"{value:.2f}" if size < 10 else f"{value:.1f}" if size < 100 else count(value)
