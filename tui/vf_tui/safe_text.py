"""The one door through which text of models, tools, sandboxes and providers reaches the screen.

Two dangers are dealt with here: control sequences (removed) and markup (never parsed: what Textual gets is a
`Content`, or plain segments drawn by a Line-API widget). A third is width: characters whose width depends on
the terminal (joined emoji, flags, skin tones) are taken apart, so that columns stay aligned everywhere.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING

from vf_core.text import clean as clean_controls
from vf_core.text import keep_colour

if TYPE_CHECKING:
    from textual.content import Content

TAB = 4
LINE_LIMIT = 8_192
"""Characters of one line that are shown; the rest of a longer one is counted, not drawn."""

# Joiners, variation selectors and modifiers glue characters into one whose width terminals disagree on.
_UNSTABLE: dict[int, str] = dict.fromkeys((0x200B, 0x200C, 0x200D, 0x2060, 0xFEFF, 0x00AD, 0x034F), "")
_UNSTABLE |= dict.fromkeys((*range(0xFE00, 0xFE10), *range(0x1F3FB, 0x1F400)), "")
_UNSTABLE |= dict.fromkeys((*range(0xE0000, 0xE0080), *range(0xE0100, 0xE01F0)), "")
_UNSTABLE |= {0x1F1E6 + i: chr(0x41 + i) for i in range(26)}
_UNSTEADY = re.compile(
    "[\u00ad\u034f\u200b-\u200d\u2060\ufe00-\ufe0f\ufeff"
    "\U0001f1e6-\U0001f1ff\U0001f3fb-\U0001f3ff\U000e0000-\U000e007f\U000e0100-\U000e01ef]"
)
# A base letter can carry any number of marks; more than a few are an attack on the line above.
_MARKS = re.compile(r"([\u0300-\u036f\u0483-\u0489\u1ab0-\u1aff\u1dc0-\u1dff\u20d0-\u20ff]{3})[\u0300-\u036f"
                    r"\u0483-\u0489\u1ab0-\u1aff\u1dc0-\u1dff\u20d0-\u20ff]+")  # fmt: skip
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_SGR = re.compile(r"\x1b\[([0-9;:]{0,64})m")


def clean(text: str, *, limit: int | None = None) -> str:
    """`text` without control sequences, of stable width; newlines and tabs stay."""
    if limit is None and text.isascii() and text.isprintable():
        return text
    return steady(clean_controls(text, limit=limit))


def visible(text: str) -> str:
    """`text` with control characters spelled out (`^[`, `^M`): for what is executed, where nothing may be hidden."""
    return _CONTROL.sub(lambda m: f"^{chr(ord(m[0]) ^ 0x40)}" if m[0] < "\x80" else "�", text)


def steady(text: str) -> str:
    """`text` with only characters whose width every terminal agrees on."""
    if text.isascii():
        return text
    if _UNSTEADY.search(text):
        text = text.translate(_UNSTABLE)
    return _MARKS.sub(r"\1", text)


def cell(text: str, limit: int = 300) -> str:
    """`text` for a table cell, a title or a label: one line, white space collapsed, at most `limit` long.

    A carriage return is white space here: it must not hide what stands before it.
    """
    if len(text) <= limit:
        return _cell(text, limit)
    return _cell(text[: limit * 2], limit)


@lru_cache(maxsize=4096)
def _cell(text: str, limit: int) -> str:
    if not (text.isascii() and text.isprintable()):
        text = clean(text.replace("\r", " "))
    return " ".join(text.split())[:limit]


def lines(text: str, *, limit: int = LINE_LIMIT, overwrite: bool = False) -> list[str]:
    """`text` as cleaned lines, tabs expanded; a line longer than `limit` is cut and says how much is left.

    A bare carriage return begins a new line; with `overwrite` (what a program printed) it begins the line anew, and
    the last state stays.
    """
    if not overwrite and "\r" in text:
        text = text.replace("\r\n", "\n").replace("\r", "\n")
    return [whole_line(line, limit=limit) for line in _bounded(text, limit)]


def whole_line(line: str, *, limit: int = LINE_LIMIT) -> str:
    """One line (no newline in it) cleaned, tabs expanded, cut at `limit` characters with a mark."""
    left = len(line) - limit
    if left > 0:
        line = line[:limit]
    line = clean(line).replace("\n", " ").expandtabs(TAB)
    return f"{line} … {left:,} more characters" if left > 0 else line


def _bounded(text: str, limit: int) -> list[str]:
    """Lines of `text`. Sequences may span lines, so a short text is cleaned as a whole first."""
    if len(text) <= limit * 64 and not (text.isascii() and text.isprintable()):
        text = clean_controls(text)
    out = text.split("\n")
    if len(out) > 1 and not out[-1]:
        out.pop()
    return out


def coloured(line: str, *, limit: int = LINE_LIMIT) -> tuple[tuple[str, str], ...]:
    """One line of program output as (text, style) runs; a style is "" or "sgr:" with SGR parameters.

    Only SGR is read; every other sequence is removed. The colour does not carry over to the next line.
    """
    if "\x1b" not in line:
        text = whole_line(line, limit=limit)
        return ((text, ""),) if text else ()
    kept = keep_colour(line, limit=limit)
    out: list[tuple[str, str]] = []
    style, end = "", 0
    for match in _SGR.finditer(kept):
        _run(out, kept[end : match.start()], style)
        style, end = _sgr(style, match.group(1)), match.end()
    _run(out, kept[end:], style)
    return tuple(out)


def _run(out: list[tuple[str, str]], text: str, style: str) -> None:
    text = steady(text).replace("\n", " ").expandtabs(TAB)
    if text:
        out.append((text, style))


def _sgr(style: str, codes: str) -> str:
    """The style after SGR parameters `codes`: a reset forgets what was before it."""
    parts = codes.replace(":", ";").split(";")
    have = style.removeprefix("sgr:").split(";") if style else []
    for i, part in enumerate(parts):
        if part.strip("0") == "" and (i == 0 or parts[i - 1] not in ("2", "5")) and "38" not in parts[:i]:
            have = []
        else:
            have.append(part)
    have = have[-16:]
    return "sgr:" + ";".join(have) if have else ""


def content(text: str, *, limit: int | None = 20_000) -> Content:
    """`text` as Textual content: what widgets with markup (Static, Label, titles, …) are to be given."""
    from textual.content import Content

    return Content(clean(text, limit=limit))


def title(text: str, limit: int = 120) -> Content:
    """One line of `text` as content, for border titles, tabs and labels."""
    from textual.content import Content

    return Content(cell(text, limit))
