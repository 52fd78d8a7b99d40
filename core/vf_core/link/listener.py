"""The place an engine listens at: a private socket that a dead engine's leftovers can't block, and that is never
taken from a live one."""

from __future__ import annotations

import fcntl
import os
import socket
import time
from pathlib import Path
from typing import Literal

from vf_core.config.paths import SOCKET_PATH_LIMIT, runtime_dir
from vf_core.errors import LinkError
from vf_core.link.wire import check_path

PROBE_TIMEOUT = 1.0
LEFT_SECONDS = 3600.0
"""What a killed engine left is removed by a later one when it is older than this."""
Probe = Literal["none", "live", "busy", "stale", "foreign"]


def socket_path(run_id: str) -> Path:
    """Where the engine of run `run_id` listens: short, whatever the length of homes and output directories."""
    return runtime_dir() / f"{''.join(c for c in run_id if c.isalnum())[:20]}.sock"


def probe(path: Path, *, timeout: float = PROBE_TIMEOUT) -> Probe:
    """Whether anybody listens at `path`: found out by connecting, not by the file's being there.

    `busy`: something holds it but takes no connection now. `foreign`: it is not a socket of ours. Blocks for at
    most `timeout` seconds.
    """
    try:
        check_path(path)
    except LinkError:
        return "foreign" if os.path.lexists(path) else "none"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        sock.settimeout(timeout)
        try:
            sock.connect(str(path))
        except ConnectionRefusedError:
            return "stale"
        except FileNotFoundError:
            return "none"
        except OSError:
            # A full backlog, a time-out: there is somebody, who is paused or overloaded.
            return "busy"
    return "live"


class Listener:
    """A listening socket at `path` (0600), and the lock beside it that says it is taken.

    The lock goes with the process, however it ends; so of two engines that start at once, one is refused.
    """

    def __init__(self, path: Path) -> None:
        """Raises `LinkError` when the place is taken, or can't be used."""
        self.path = path
        if len(os.fsencode(path)) > SOCKET_PATH_LIMIT:
            raise LinkError(
                f"{path} is longer than the {SOCKET_PATH_LIMIT} bytes a socket's path may have",
                hint="set XDG_RUNTIME_DIR to a short directory of yours with mode 0700",
            )
        self._lock: int | None = self._take_lock()
        try:
            self._clear()
            self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            self._bind()
        except BaseException:
            os.close(self._lock)
            raise
        remove_leftovers(path.parent)

    def _take_lock(self) -> int:
        try:
            fd = os.open(self.path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        except OSError as e:
            raise LinkError(f"cannot listen at {self.path}: {e.strerror or e}") from e
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as e:
            os.close(fd)
            raise LinkError(
                f"another engine listens at {self.path}",
                hint="`vf-tui attach` reaches it; `vf-tui ls` shows it",
            ) from e
        return fd

    def _clear(self) -> None:
        found = probe(self.path)
        if found in ("live", "busy"):
            raise LinkError(f"another engine listens at {self.path}", hint="`vf-tui ls` shows which")
        if found == "foreign":
            raise LinkError(f"{self.path} is there already and is no socket of ours", hint="remove it")
        if found == "stale":
            self.path.unlink(missing_ok=True)

    def _bind(self) -> None:
        try:
            self.socket.bind(str(self.path))
            os.chmod(self.path, 0o600)
            self.socket.listen(64)
            self.socket.setblocking(False)
        except OSError as e:
            self.socket.close()
            raise LinkError(f"cannot listen at {self.path}: {e.strerror or e}") from e

    def close(self) -> None:
        """Give the place up: the socket's file goes, and the lock. Idempotent."""
        if self._lock is None:
            return
        self.socket.close()
        # While the lock is held, the file can only be ours.
        for path in (self.path, self.path.with_suffix(".lock")):
            path.unlink(missing_ok=True)
        os.close(self._lock)
        self._lock = None


def remove_leftovers(directory: Path) -> None:
    """Remove old sockets that killed engines left in `directory`: those whose lock nobody holds."""
    for lock in directory.glob("*.lock"):
        try:
            if time.time() - lock.lstat().st_mtime < LEFT_SECONDS:
                continue
            fd = os.open(lock, os.O_RDWR | os.O_NOFOLLOW)
        except OSError:
            continue
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            for path in (lock.with_suffix(".sock"), lock):
                path.unlink(missing_ok=True)
        except OSError:
            continue  # its engine lives
        finally:
            os.close(fd)
