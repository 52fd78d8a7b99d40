"""The characters that frames and marks are drawn with: one table, in Unicode and in ASCII.

ASCII is used when `VF_TUI_ASCII` is set (to anything but 0) or when the terminal's encoding is not UTF-8.
"""

from __future__ import annotations

import locale
import os
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Glyphs:
    """Every entry is one cell wide unless its name ends in `s`; `ascii` tells which table this is."""

    ascii: bool
    ellipsis: str
    dot: str
    dash: str
    pm: str
    mark: str
    cursor: str
    focus: str
    folded: str
    unfolded: str
    done: str
    failed: str
    pending: str
    writing: str
    thinking: str
    down: str
    up: str
    h: str
    v: str
    top_left: str
    top_right: str
    bottom_left: str
    bottom_right: str
    heavy: str
    bar_done: str
    bar_active: str
    bar_left: str
    track: str
    thumb: str
    cut: str


UNICODE = Glyphs(
    ascii=False, ellipsis="…", dot="·", dash="–", pm="±", mark="●", cursor="▌", focus="▸", folded="▸", unfolded="▾",
    done="✓", failed="✗", pending="›", writing="»", thinking="∴", down="↓", up="↑", h="─", v="│",
    top_left="╭", top_right="╮", bottom_left="╰", bottom_right="╯", heavy="━", bar_done="━", bar_active="╍",
    bar_left="─", track="│", thumb="┃", cut="⋯",
)  # fmt: skip

ASCII = Glyphs(
    ascii=True, ellipsis="~", dot="|", dash="-", pm="+-", mark="*", cursor=">", focus=">", folded="+", unfolded="-",
    done="v", failed="x", pending=">", writing="}", thinking=":", down="v", up="^", h="-", v="|",
    top_left="+", top_right="+", bottom_left="+", bottom_right="+", heavy="=", bar_done="#", bar_active="=",
    bar_left=".", track="|", thumb="#", cut="~",
)  # fmt: skip


def pick(environ: Mapping[str, str] | None = None, encoding: str | None = None) -> Glyphs:
    """The table that `environ` and the locale's `encoding` ask for."""
    environ = os.environ if environ is None else environ
    asked = environ.get("VF_TUI_ASCII", "")
    if asked:
        return UNICODE if asked == "0" else ASCII
    name = (encoding or locale.getpreferredencoding(False)).lower().replace("-", "")
    return UNICODE if name in ("utf8", "cp65001") else ASCII


_current: Glyphs | None = None


def current() -> Glyphs:
    """The table in use; picked on first use."""
    global _current  # noqa: PLW0603  one terminal, one table
    if _current is None:
        _current = pick()
    return _current


def between() -> str:
    """What stands between two facts of a line."""
    return f" {current().dot} "


def use(glyphs: Glyphs | None) -> None:
    """Set the table in use (from settings, or a test); None: pick again."""
    global _current  # noqa: PLW0603
    _current = glyphs
