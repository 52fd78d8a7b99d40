"""What commands print: facts on stdout, notices on stderr, everything else in a log file.

Every line passes `clean` first: names, errors and output come from models, tasks and sandboxes.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

from vf_core.config.paths import private_dir, state_dir
from vf_core.errors import ConfigError
from vf_core.text import clean

LOG_LIMIT = 2_000_000
"""Bytes after which a log file begins anew (the old one is kept as `.old`)."""


_ASCII = str.maketrans({"±": "+-", "·": "-", "…": "...", "×": "x", "→": "->", "–": "-"})


class _Own:
    """Our streams where 1 and 2 belong to others' code for a while (see `apart`)."""

    out: TextIO | None = None
    err: TextIO | None = None


def _out() -> TextIO:
    return _Own.out or sys.stdout


def _err() -> TextIO:
    return _Own.err or sys.stderr


def fit(text: str, stream: Any) -> str:
    """`text` without control sequences, and without our own marks where the stream can't hold them."""
    plain = os.environ.get("VF_TUI_ASCII") or "utf" not in (getattr(stream, "encoding", "") or "").lower()
    return clean(text).translate(_ASCII) if plain else clean(text)


def say(text: str = "") -> None:
    """A line, or several, for stdout."""
    _out().write(fit(text, _out()) + "\n")
    _out().flush()


def say_file(text: str) -> None:
    """A file's text for stdout: UTF-8 whatever the locale, as whoever reads it back expects."""
    _out().flush()
    raw = getattr(_out(), "buffer", None)
    if raw is None:
        say(text)
    else:
        raw.write(clean(text).encode() + b"\n")
        raw.flush()


def emit(record: Any) -> None:
    """One line of JSON for stdout: ASCII, so that it survives every locale."""
    _out().write(json.dumps(record, allow_nan=False) + "\n")
    _out().flush()


def notice(text: str) -> None:
    """A line for stderr: what a script need not read. Never raises: stderr may be gone."""
    with contextlib.suppress(OSError, ValueError):
        _err().write(fit(text, _err()) + "\n")
        _err().flush()


def plain_reason() -> str:
    """Why no screen can be drawn here; empty when one can."""
    for stream, what in ((0, "standard input"), (1, "standard output")):
        if not os.isatty(stream):
            return f"{what} is not a terminal"
    term = os.environ.get("TERM", "")
    return f"TERM is {term or 'not set'}" if term in ("", "dumb") else ""


def log_file() -> Path:
    """Where the log of commands is."""
    return state_dir() / "logs" / "vf-tui.log"


class _LogFile(logging.FileHandler):
    """The log file, made when there is something to log; without a place for it nothing is logged."""

    def __init__(self) -> None:
        super().__init__(log_file(), delay=True, encoding="utf-8", errors="backslashreplace")

    def _open(self) -> Any:
        try:
            path = private_dir(log_file().parent) / log_file().name
            if path.exists() and path.stat().st_size > LOG_LIMIT:
                os.replace(path, path.with_suffix(".log.old"))
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        except (OSError, ConfigError):
            fd = os.open(os.devnull, os.O_WRONLY)
        return os.fdopen(fd, "a", encoding="utf-8", errors="backslashreplace")

    def handleError(self, record: logging.LogRecord) -> None:
        """A full disk is told by whoever needs it for more than a log."""


class _Notices(logging.Handler):
    """Records of ours on stderr; warnings unless told otherwise."""

    def emit(self, record: logging.LogRecord) -> None:
        if record.name.startswith(("vf_core", "vf_tui")) and not record.exc_info:
            notice(f"{record.levelname.lower()}: {record.getMessage()}")


def log_to_file() -> None:
    """Send log records to the log file, and our own warnings to stderr too."""
    root = logging.getLogger()
    if any(isinstance(handler, _LogFile) for handler in root.handlers):
        return
    handler = _LogFile()
    handler.setFormatter(logging.Formatter("%(asctime)s %(process)d %(levelname)s %(name)s: %(message)s"))
    root.addHandler(handler)
    root.setLevel(logging.INFO)
    warnings = _Notices(logging.WARNING)
    root.addHandler(warnings)
    logging.captureWarnings(True)


def log_debug(*, stderr: bool) -> None:
    """Log debug records of ours too: in the log file, in the logs of engines that are started from now on, and on
    stderr. Not those of libraries: an SDK's may hold a whole request."""
    os.environ["VF_TUI_VERBOSE"] = "1"
    for name in ("vf_core", "vf_tui"):
        logging.getLogger(name).setLevel(logging.DEBUG)
    for handler in logging.getLogger().handlers:
        if stderr and isinstance(handler, _Notices):
            handler.setLevel(logging.DEBUG)


def silence_notices() -> None:
    """Warnings go to the file only: a screen is being drawn."""
    root = logging.getLogger()
    for handler in [handler for handler in root.handlers if isinstance(handler, _Notices)]:
        root.removeHandler(handler)


@contextlib.contextmanager
def apart() -> Iterator[None]:
    """As `quiet`, while what we say ourselves goes on reaching our streams: an engine works in this process."""
    with contextlib.ExitStack() as stack:
        own = [
            stack.enter_context(open(os.dup(fd), "w", encoding=stream.encoding, errors=stream.errors))
            for fd, stream in ((1, sys.stdout), (2, sys.stderr))
        ]
        with quiet():
            _Own.out, _Own.err = own
            try:
                yield
            finally:
                _Own.out = _Own.err = None


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Whatever plugins, libraries or child processes print inside goes to the log file, not to our streams."""
    sys.stdout.flush()
    sys.stderr.flush()
    saved = [(fd, os.dup(fd)) for fd in (1, 2)]
    try:
        with _LogFile()._open() as log:
            for fd, _ in saved:
                os.dup2(log.fileno(), fd)
        yield
    finally:
        # What is still buffered was printed inside.
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
        for fd, copy in saved:
            os.dup2(copy, fd)
            os.close(copy)
