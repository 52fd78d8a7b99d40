"""Making untrusted text safe to show: what a model, a tool, a sandbox or a provider says is hostile.

`clean` is for everything drawn on a screen or printed on a terminal: no control sequence survives it.
"""

from __future__ import annotations

import re
import unicodedata

ELLIPSIS = "…"

# Whole sequences go first, so that their payload does not stay behind as text. String sequences (OSC, DCS,
# APC, PM, SOS) end at BEL or ST; an unterminated one swallows at most this much, never the rest of a file.
_STRING_LIMIT = 4096
_SEQUENCE = re.compile(
    rf"(?:\x1b[\]PX^_]|[\x90\x98\x9d-\x9f])[^\x07\x1b\x9c]{{0,{_STRING_LIMIT}}}(?:\x07|\x1b\\|\x9c)?"
    r"|(?:\x1b\[|\x9b)[0-?]{0,64}[ -/]{0,8}[@-~]?"
    r"|\x1b[ -/]{0,8}[0-~]?"
)
_SGR = re.compile(r"\x1b\[[0-9;:]{0,64}m")
# Bidirectional overrides reorder what is around them; the rest of category Cf is harmless and kept.
_UNSAFE: dict[int, str] = dict.fromkeys((*range(0x20), *range(0x7F, 0xA0)), "�")
_UNSAFE |= dict.fromkeys((0x061C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A)), "")
_UNSAFE |= {0x2028: " ", 0x2029: " "}
_UNSAFE |= dict.fromkeys(range(0xD800, 0xE000), "�")
for _kept in (0x09, 0x0A):
    del _UNSAFE[_kept]
_NEEDS_CARE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)


def bound(text: str, limit: int, mark: str = ELLIPSIS) -> str:
    """At most `limit` characters of `text`; a cut is marked by `mark` at its end."""
    if len(text) <= limit:
        return text
    return text[: max(0, limit - len(mark))] + mark[:limit]


def bound_middle(text: str, limit: int) -> str:
    """At most about `limit` characters: head and tail of `text`, and between them how much was left out."""
    if len(text) <= limit:
        return text
    head = limit // 2
    tail = limit - head
    return f"{text[:head]}\n[… {len(text) - head - tail} characters left out …]\n{text[-tail:]}"


def clean(text: str, *, limit: int | None = None) -> str:
    """`text` without control sequences or control characters; newlines and tabs stay.

    A carriage return that overwrites a line (a progress bar) leaves the last state of that line. `limit`
    bounds the length in characters before any work is done on the text, and marks the cut.
    """
    if limit is not None:
        text = bound(text, limit)
    if not _NEEDS_CARE.search(text):
        return text
    text = _SEQUENCE.sub("", text)
    if "\r" in text:
        text = "\n".join(_overwrite(line) for line in text.replace("\r\n", "\n").split("\n"))
    return text.translate(_UNSAFE)


def _overwrite(line: str) -> str:
    """What is left on a line after its bare carriage returns."""
    parts = [part for part in line.split("\r") if part]
    return parts[-1] if parts else ""


def one_line(text: str, *, limit: int = 400) -> str:
    """`clean` text on a single line: runs of white space become one space.

    A carriage return is white space here: it must not hide what stands before it.
    """
    return " ".join(clean(bound(text, limit * 4).replace("\r", " ")).split())[:limit]


def keep_colour(text: str, *, limit: int | None = None) -> str:
    """Like `clean`, but SGR sequences (colour, weight) survive for a decoder that reads them."""
    if limit is not None:
        text = bound(text, limit)
    out: list[str] = []
    end = 0
    for match in _SGR.finditer(text):
        out += (clean(text[end : match.start()]), match.group())
        end = match.end()
    out.append(clean(text[end:]))
    return "".join(out)


def slug(text: str, *, limit: int = 48) -> str:
    """A file-system-safe form of `text`: letters, digits, `-`, `_`, `.`; never empty, never a dot file.

    Two texts may share a slug: use it beside a unique id, not as one.
    """
    plain = unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode()
    safe = re.sub(r"[^A-Za-z0-9_.-]+", "-", plain).strip("-.")
    return safe[:limit].rstrip("-.") or "x"
