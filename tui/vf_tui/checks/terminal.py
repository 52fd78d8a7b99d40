"""The terminal that this would be drawn on."""

from __future__ import annotations

import locale
import os
import sys
from collections.abc import Iterator, Mapping

from vf_tui.checks.base import Finding

SECTION = "terminal"


def terminal(environ: Mapping[str, str] | None = None) -> Iterator[Finding]:
    """TERM, colours, encoding, and what lies between us and the user."""
    environ = os.environ if environ is None else environ
    term = environ.get("TERM", "")
    if term in ("", "dumb"):
        todo = "set TERM to what the terminal is (xterm-256color); until then commands print lines"
        yield Finding(SECTION, "TERM", "warn", term or "not set", todo)
    else:
        yield Finding(SECTION, "TERM", "ok", term)
    yield _colours(term, environ)
    yield _encoding()
    if environ.get("SSH_CONNECTION"):
        yield Finding(SECTION, "ssh", "ok", "over SSH: at most 4 repaints a second (`slow` in config.toml)")
    if environ.get("TMUX"):
        todo = "to copy through it: tmux set -g set-clipboard on"
        yield Finding(SECTION, "inside tmux", "ok", term or "yes", todo)
    yield _size()


def _colours(term: str, environ: Mapping[str, str]) -> Finding:
    if environ.get("NO_COLOR"):
        return Finding(SECTION, "colours", "ok", "none (NO_COLOR)")
    if environ.get("COLORTERM", "").lower() in ("truecolor", "24bit"):
        return Finding(SECTION, "colours", "ok", "16 million (COLORTERM)")
    if "256" in term or "kitty" in term or "direct" in term:
        return Finding(SECTION, "colours", "ok", "256")
    todo = "if the terminal can do more, set COLORTERM=truecolor; the theme `ansi` needs 16 only"
    return Finding(SECTION, "colours", "warn" if term not in ("", "dumb") else "ok", "16 or fewer", todo)


def _encoding() -> Finding:
    name = locale.getpreferredencoding(False)
    if name.lower().replace("-", "") in ("utf8", "cp65001"):
        return Finding(SECTION, "encoding", "ok", name)
    todo = "ASCII is drawn; for the rest set LANG to a UTF-8 locale (C.UTF-8)"
    return Finding(SECTION, "encoding", "warn", name, todo)


def _size() -> Finding:
    try:
        columns, rows = os.get_terminal_size(sys.__stdout__.fileno() if sys.__stdout__ else 1)
    except (OSError, ValueError):
        return Finding(SECTION, "size", "ok", "standard output is not a terminal")
    if columns < 40 or rows < 12:
        return Finding(SECTION, "size", "warn", f"{columns}×{rows}", "40×12 is the least that can be used")
    return Finding(SECTION, "size", "ok", f"{columns}×{rows}")
