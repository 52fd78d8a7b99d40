"""The ledger's file as such: made private, told from one that was moved away, and its failures put into words."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from vf_core.config.paths import private_dir
from vf_core.errors import ConfigError, SandboxError
from vf_core.sandboxes.locks import holder

_TURNS = 200
ELSEWHERE = "make it writable, or set XDG_STATE_HOME to a directory of yours"


class BusyError(SandboxError):
    """Another process holds the ledger's lock."""


def make_file(path: Path) -> None:
    """The file, private whatever the umask; SQLite gives the files beside it the same mode.

    It is never opened here when it exists: closing it would drop the locks that this process holds on it. What stands
    beside it when it does not is another file's, moved away: that would be taken for this one's.
    """
    try:
        private_dir(path.parent)
    except ConfigError as e:
        raise SandboxError(
            f"the ledger of sandboxes {path} cannot be kept: {e.message}", hint=ELSEWHERE
        ) from e
    if not os.path.lexists(path):
        with _locked(path.parent):
            if not os.path.lexists(path):
                for beside in ("-wal", "-shm"):
                    Path(f"{path}{beside}").unlink(missing_ok=True)
                os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600))
                os.chmod(path, 0o600)
    for name in (path, Path(f"{path}-wal"), Path(f"{path}-shm")):
        with contextlib.suppress(OSError):
            if name.lstat().st_mode & 0o077:
                os.chmod(name, 0o600)


@contextmanager
def _locked(directory: Path) -> Iterator[None]:
    """As far as the filesystem can do that, and nobody holds it for long."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        for _ in range(_TURNS):
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                time.sleep(0.01)
            except OSError:
                break
            else:
                break
        yield
    finally:
        os.close(fd)


def inode(path: Path) -> int:
    """The number of the file that is there; 0: none."""
    try:
        return path.stat().st_ino
    except OSError:
        return 0


def let_go(db: sqlite3.Connection, *, moved: bool) -> None:
    """Close a connection. That of a file which was `moved` away stays open for ever: SQLite would delete, by its
    name, the log of the file that is there now."""
    if moved:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(db))
        return
    with contextlib.suppress(sqlite3.Error):
        db.close()


def error_code(e: sqlite3.Error) -> int:
    """SQLite's primary error code; 0 where there is none."""
    return int(getattr(e, "sqlite_errorcode", 0) or 0) & 0xFF


def explain(path: Path, e: sqlite3.Error) -> SandboxError:
    """What an error of SQLite's means to the user, and what to do."""
    code = error_code(e)
    what = f"the ledger of sandboxes {path}"
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        by, hint = holder(path)
        return BusyError(f"{what} is locked by {by}", hint=hint)
    if code == sqlite3.SQLITE_READONLY:
        return SandboxError(f"{what} is read-only", hint=ELSEWHERE)
    if code == sqlite3.SQLITE_FULL:
        return SandboxError(f"{what} cannot be written: its disk is full", hint="make room there")
    if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
        return SandboxError(
            f"{what} is damaged ({e})",
            hint=f"move it away (mv {path} {path}.damaged); what it knew is then found by the providers' lists only",
        )
    if code == sqlite3.SQLITE_CANTOPEN:
        return SandboxError(f"{what} cannot be opened ({e})", hint=ELSEWHERE)
    if code == sqlite3.SQLITE_IOERR:
        return SandboxError(f"{what} cannot be read or written ({e})", hint="look after its disk")
    return SandboxError(f"{what} failed: {type(e).__name__}: {e}", hint="try again")
