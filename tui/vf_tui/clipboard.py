"""Copying, and telling the terminal things: OSC sequences, wrapped so that they get through tmux and screen."""

from __future__ import annotations

import base64
import os
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from vf_core.text import one_line

SEQUENCE_LIMIT = 74_000
"""Base64 characters that common terminals take in one clipboard sequence."""
_SCREEN_CHUNK = 700


@dataclass(frozen=True, slots=True)
class Copied:
    """What came of a copy: `sequence` is to be written to the terminal (empty: the text went to `file`)."""

    message: str
    sequence: str = ""
    file: Path | None = None


def copy(
    text: str, directory: Path, *, terminal: bool = True, environ: Mapping[str, str] | None = None
) -> Copied:
    """Copy `text` by terminal sequence, or into a private file below `directory` when it is too long for one or
    there is no terminal. Never raises: a message says what could not be done."""
    environ = os.environ if environ is None else environ
    data = base64.b64encode(text.encode("utf-8", "replace")).decode()
    if terminal and len(data) <= SEQUENCE_LIMIT:
        hint = (
            " (tmux passes it on with set-clipboard or allow-passthrough on)" if environ.get("TMUX") else ""
        )
        return Copied(f"copied {len(text):,} characters{hint}", clipboard_sequence(data, environ))
    why = "too long for the terminal's clipboard" if terminal else "no terminal to copy through"
    for place in (directory, Path(tempfile.gettempdir())):
        with suppress(OSError):
            path = _write(text, place)
            return Copied(f"{why}: {len(text):,} characters are in {path}", file=path)
    return Copied(
        f"not copied: {why}, and no file could be written in {directory} or the temporary directory"
    )


def clipboard_sequence(data: str, environ: Mapping[str, str]) -> str:
    """OSC 52 for base64 `data`. Inside tmux both ways that tmux may be set up for are served."""
    plain = f"\x1b]52;c;{data}\x07"
    wrapped = wrap(plain, environ)
    return plain + wrapped if environ.get("TMUX") else wrapped


def notification(text: str, environ: Mapping[str, str] | None = None) -> str:
    """OSC 9, a desktop notification, with `text` on one line."""
    environ = os.environ if environ is None else environ
    return wrap(f"\x1b]9;{one_line(text, limit=200)}\x07", environ)


def wrap(sequence: str, environ: Mapping[str, str]) -> str:
    """`sequence` so that a multiplexer hands it to the terminal outside."""
    if environ.get("TMUX"):
        doubled = sequence.replace("\x1b", "\x1b\x1b")
        return f"\x1bPtmux;{doubled}\x1b\\"
    if environ.get("STY"):
        chunks = [sequence[i : i + _SCREEN_CHUNK] for i in range(0, len(sequence), _SCREEN_CHUNK)]
        return "".join(f"\x1bP{chunk}\x1b\\" for chunk in chunks)
    return sequence


def _write(text: str, directory: Path) -> Path:
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    stamp = time.strftime("%Y%m%d-%H%M%S")
    fd, name = tempfile.mkstemp(prefix=f"vf-tui-copy-{stamp}-", suffix=".txt", dir=directory)
    with os.fdopen(fd, "w", encoding="utf-8", errors="replace") as f:
        f.write(text)
    return Path(name)
