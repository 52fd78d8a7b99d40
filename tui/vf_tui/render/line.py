"""Lines as tuples of (text, style name), measured in terminal cells.

A style name is looked up in the palette when a line is drawn. It may carry a state after an `@`
(`dim@cursor`): the state's background under the style's foreground.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from rich.cells import cell_len

from vf_tui import glyphs

Segment = tuple[str, str]
Line = tuple[Segment, ...]

EMPTY: Line = ()

# Fewer unchanged cells than this between two changed ones are sent again: moving the cursor costs as much.
JOIN = 7


# Scripts and signs that take one cell a character everywhere: counted without a look at each.
_NARROW = re.compile(
    "[ -~\u00a0-\u00ac\u00ae-\u02ff\u0370-\u0377\u0384-\u0482\u048a-\u0527\u2010-\u2027\u2030-\u205e"
    "\u2190-\u21ff\u2500-\u259f]*"
).fullmatch


class _Sizes(dict[str, int]):
    """Cells of characters, looked up once each."""

    def __missing__(self, ch: str) -> int:
        if len(self) > 20_000:
            self.clear()
        got = self[ch] = cell_len(ch)
        return got


_sizes = _Sizes()
size = _sizes.__getitem__
"""Cells that one character takes."""


def plain(text: str) -> bool:
    """Every character of `text` takes one cell."""
    return text.isascii() or _NARROW(text) is not None


def width(text: str) -> int:
    """Cells that `text` takes."""
    return len(text) if plain(text) else sum(map(size, text))


def line_width(line: Iterable[Segment]) -> int:
    """Cells that `line` takes."""
    return sum(width(text) for text, _ in line)


def cut(text: str, cells: int) -> str:
    """`text` in at most `cells` cells; a cut is marked by an ellipsis."""
    if cells <= 0:
        return ""
    if width(text) <= cells:
        return text
    mark = glyphs.current().ellipsis
    if cells <= len(mark):
        return mark[:cells]
    room = cells - len(mark)
    return (text[:room] if plain(text) else _head(text, room)) + mark


def _head(text: str, cells: int) -> str:
    """The beginning of `text` that fits."""
    used = 0
    for i, ch in enumerate(text):
        used += size(ch)
        if used > cells:
            return text[:i]
    return text


def fit(text: str, cells: int, *, right: bool = False) -> str:
    """`text` in exactly `cells` cells, cut or padded."""
    text = cut(text, cells)
    gap = " " * (cells - width(text))
    return gap + text if right else text + gap


def clip(line: Iterable[Segment], cells: int, style: str = "") -> Line:
    """`line` in exactly `cells` cells: cut at the end with an ellipsis, or padded with `style`."""
    out: list[Segment] = []
    room = cells
    for text, name in line:
        if not text:
            continue
        took = width(text)
        if took > room:
            piece = cut(text, room)
            if piece:
                out.append((piece, name))
                room -= width(piece)
            break
        out.append((text, name))
        room -= took
    if room > 0:
        out.append((" " * room, style))
    return tuple(out)


def split(left: Iterable[Segment], right: Sequence[Segment], cells: int, style: str = "") -> Line:
    """`left` cut or padded, then `right` whole, in exactly `cells` cells; `right` goes when there is no room."""
    need = line_width(right)
    if not need or need + 1 > cells:
        return clip(left, cells, style)
    return (*clip(left, cells - need - 1, style), (" ", style), *right)


_PATH = re.compile(r"(?<![\w.:/])(/[^\s:'\"(),;]+/)([^\s/:'\"(),;]+)")


def squeeze(text: str, cells: int) -> str:
    """`text`; long paths in it give way to their last part where it is wider than `cells`: what is said must not be
    cut off behind where."""
    if width(text) <= cells:
        return text
    mark = glyphs.current().ellipsis
    return _PATH.sub(lambda m: f"{mark}/{m[2]}" if len(m[1]) > 12 else m[0], text)


def ruled(title: str, cells: int) -> Line:
    """A title (one clean line) with a rule behind it, to the last cell but one."""
    title = cut(title, cells - 3)
    rule = glyphs.current().h * (cells - width(title) - 3)
    return clip([(" ", ""), (title, "group"), (" ", ""), (rule, "rule")], cells)


def on(line: Line, state: str) -> Line:
    """`line` with every style in `state` (cursor, marked, …)."""
    return tuple((text, f"{name}@{state}") for text, name in line)


def wrap(text: str, cells: int) -> list[str]:
    """`text` (one line) in pieces of at most `cells` cells, broken at blanks where that wastes little."""
    if cells <= 0:
        return [text]
    if plain(text):
        return _wrap_plain(text, cells) if len(text) > cells else [text]
    out: list[str] = []
    start = used = 0
    blank = -1
    sizes = _sizes
    for i, ch in enumerate(text):
        took = sizes[ch]
        while used + took > cells and i > start:
            end = blank if blank - start >= cells // 2 else i
            out.append(text[start:end])
            used = sum(map(size, text[end:i]))
            start, blank = end, -1
        used += took
        if ch == " ":
            blank = i + 1
    out.append(text[start:])
    return out


def _wrap_plain(text: str, cells: int) -> list[str]:
    out: list[str] = []
    start = 0
    while len(text) - start > cells:
        end = start + cells
        blank = text.rfind(" ", start + cells // 2, end + 1)
        end = blank + 1 if blank > start else end
        out.append(text[start : min(end, start + cells)])
        start = end
    out.append(text[start:])
    return out


def _cells(line: Line) -> tuple[list[str], list[str]]:
    """The characters and styles of `line`, one entry a cell; a wide character's second cell is ""."""
    chars: list[str] = []
    styles: list[str] = []
    for text, name in line:
        before = len(chars)
        if plain(text):
            chars.extend(text)
        else:
            for ch in text:
                took = size(ch)
                if took:
                    chars.append(ch)
                    if took == 2:
                        chars.append("")
                elif chars:
                    chars[-1] += ch
        styles.extend([name] * (len(chars) - before))
    return chars, styles


def changed_spans(old: Line, new: Line) -> list[tuple[int, int]]:
    """Cells [start, end) in which `new` differs from `old`; near ones are joined, wide characters kept whole."""
    if old == new:
        return []
    old_chars, old_styles = _cells(old)
    new_chars, new_styles = _cells(new)
    before = len(old_chars)
    out: list[tuple[int, int]] = []
    for i in range(len(new_chars)):
        if i < before and new_chars[i] == old_chars[i] and new_styles[i] == old_styles[i]:
            continue
        if out and i - out[-1][1] <= JOIN:
            out[-1] = (out[-1][0], i + 1)
        else:
            out.append((i, i + 1))
    return _whole(out, new_chars, old_chars)


def _whole(spans: list[tuple[int, int]], new: list[str], old: list[str]) -> list[tuple[int, int]]:
    """`spans` widened so that none cuts a wide character, neither the new one nor the one it covers."""
    out: list[tuple[int, int]] = []
    for first, last in spans:
        start, end = first, last
        while start > 0 and (not new[start] or (start < len(old) and not old[start])):
            start -= 1
        while end < len(new) and (not new[end] or (end < len(old) and not old[end])):
            end += 1
        if out and start <= out[-1][1]:
            out[-1] = (out[-1][0], max(end, out[-1][1]))
        else:
            out.append((start, end))
    return out
