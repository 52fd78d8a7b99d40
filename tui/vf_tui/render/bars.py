"""The bottom lines: the keys of a screen, and what it has to say."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from vf_tui.render.line import Line, Segment, clip, squeeze, width
from vf_tui.safe_text import cell


@dataclass(frozen=True, slots=True)
class KeyHint:
    """A key as it is written, what it does, and whether it can be done now."""

    key: str
    label: str
    enabled: bool = True


def key_bar(keys: Sequence[KeyHint | tuple[str, str, bool]], cells: int) -> Line:
    """As many whole hints as fit, in order; the last (help, by custom) is always kept."""
    hints = [hint if isinstance(hint, KeyHint) else KeyHint(*hint) for hint in keys]
    sizes = [width(hint.key) + width(cell(hint.label, 30)) + 3 for hint in hints]
    out: list[Segment] = [(" ", "")]
    room = cells - 1 - (sizes[-1] if sizes else 0)
    for i, hint in enumerate(hints):
        last = i == len(hints) - 1
        if not last:
            if sizes[i] > room:
                continue
            room -= sizes[i]
        key, label = ("key", "dim") if hint.enabled else ("key_off", "key_off")
        out += [(hint.key, key), (" ", ""), (cell(hint.label, 30), label), ("  ", "")]
    return clip(out, cells)


def notice(text: str, kind: str, cells: int) -> Line:
    """A remark: `kind` is info, warn or error."""
    style = {"warn": "notice_warn", "error": "notice_error"}.get(kind, "notice")
    return clip([(" ", style), (squeeze(cell(text, 600), cells - 1), style)], cells, style)
