"""One engine a run directory: the lock that it holds for as long as it lives, however it ends."""

from __future__ import annotations

import errno
import fcntl
import os
import weakref
from pathlib import Path

from vf_core.errors import RunDirError
from vf_core.runs.engine_file import read_engine_info

_TAKEN = (errno.EAGAIN, errno.EACCES)


class RunLock:
    """Holds the run directory of the journal `events`, which is made if missing, until `release`.

    The kernel lets go of it when the process ends, whatever it has forked. Raises `RunDirError` when another engine
    has it. Where the file system knows no locks, nothing is held.
    """

    def __init__(self, events: Path) -> None:
        try:
            self._fd = os.open(events, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as e:
            raise RunDirError(f"cannot write {events}: {e.strerror or e}") from e
        _HELD.add(self)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as e:
            if e.errno in _TAKEN:
                self.release()
                raise RunDirError(
                    f"another engine{_who(events)} is at work in {events.parent}",
                    hint="`vf-tui attach` shows it",
                ) from e

    def release(self) -> None:
        """Let go. Idempotent."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


_HELD: weakref.WeakSet[RunLock] = weakref.WeakSet()


def _drop_inherited() -> None:
    """In a forked child, which may outlive the engine: the lock is the parent's, and stays."""
    for lock in list(_HELD):
        lock.release()


os.register_at_fork(after_in_child=_drop_inherited)


def _who(events: Path) -> str:
    info = read_engine_info(events.with_name("engine.json"))
    return f" (pid {info.pid})" if info is not None and not info.ended else ""
