"""Sockets that dead engines left: a file that nobody listens at, found out by connecting, and whose lock is free."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import shlex
import socket
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import ClassVar

from vf_core.config.paths import APP, find_runtime_dir, state_dir
from vf_core.errors import ConfigError, SandboxError
from vf_core.runtimes.box import Answer
from vf_core.runtimes.liveness import here
from vf_core.runtimes.provider import Listed, Provider

TIMEOUT = 1.0
STALE = "nobody listens there: connection refused"


class SocketProvider(Provider):
    """This user's sockets on this host; an id is a socket's path. Only stale ones are listed."""

    kind: ClassVar[str] = "socket"

    @property
    def account(self) -> str:
        """See `Provider.account`."""
        return here().host

    async def listed(self) -> list[Listed]:
        """See `Provider.listed`."""
        return await asyncio.to_thread(_stale)

    async def find(self, name: str) -> list[Listed]:
        """See `Provider.find`."""
        return [listed for listed in await self.listed() if listed.name == name]

    async def delete(self, id: str) -> None:
        """See `Provider.delete`. Refused when somebody listens, or holds the lock, after all."""
        problem = await asyncio.to_thread(_remove, _checked(id))
        if problem:
            raise SandboxError(f"socket {id} is not removed: {problem}")

    async def probe(self, id: str) -> Answer:
        """See `Provider.probe`."""
        path = _checked(id)
        if await asyncio.to_thread(os.path.lexists, path):
            return Answer(False, f"{path} is still there")
        return Answer(True, f"this host: {path} is not there")

    def delete_command(self, id: str) -> str:
        """See `Provider.delete_command`."""
        path = Path(id)
        return f"rm -f -- {shlex.quote(str(path))} {shlex.quote(str(path.with_suffix('.lock')))}"


def _directories() -> list[Path]:
    """Where engines of this user listen, also those for which the usual place would not do."""
    places = [state_dir() / "sockets"]
    with contextlib.suppress(ConfigError):
        places.append(find_runtime_dir().path)
    if not os.environ.get("XDG_RUNTIME_DIR"):
        for above in dict.fromkeys((tempfile.gettempdir(), "/tmp")):  # noqa: S108 - what is found there is checked
            places += Path(above).glob(f"{APP}-{os.geteuid()}*")
    return [path for path in dict.fromkeys(places) if _is_ours(path, stat.S_ISDIR)]


def _stale() -> list[Listed]:
    found = []
    for directory in _directories():
        for path in sorted(directory.glob("*.sock")):
            with contextlib.suppress(OSError):
                if _is_ours(path, stat.S_ISSOCK) and not _is_locked(path) and not _listener(path):
                    labels = {"run": path.stem, "host": here().host}
                    created = path.lstat().st_mtime
                    found.append(Listed(str(path), path.name, labels, STALE, created=created))
    return found


def _is_locked(path: Path) -> bool:
    """Whether an engine holds the lock beside a socket (it may be about to listen). Without taking it, even for an
    instant: that would turn an engine away which starts just then."""
    try:
        inode = path.with_suffix(".lock").stat().st_ino
        locks = Path("/proc/locks").read_text("ascii", errors="replace")
    except OSError:
        return False
    lines = (line.split() for line in locks.splitlines())
    return any(
        len(fields) > 5 and fields[1] == "FLOCK" and fields[5].rpartition(":")[2] == str(inode)
        for fields in lines
    )


def _remove(path: Path) -> str:
    """Remove a socket and its lock; why not, if that must not be done."""
    try:
        with _unused(path) as why:
            if why:
                return why
            for name in (path, path.with_suffix(".lock")):
                name.unlink(missing_ok=True)
    except FileNotFoundError:
        return ""
    except OSError as e:
        return f"{e.filename or path}: {e.strerror or e}"
    return ""


@contextmanager
def _unused(path: Path) -> Iterator[str]:
    """Hold the lock beside a socket, as an engine that would listen there must; yields who is there (empty: nobody).
    Raises OSError."""
    if not _is_ours(path, stat.S_ISSOCK):
        if os.path.lexists(path):
            yield "it is not a socket of this user"
            return
        raise FileNotFoundError(path)
    lock = path.with_suffix(".lock")
    made = not lock.exists()
    fd = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield "an engine holds its lock"
            return
        try:
            yield _listener(path)
        finally:
            if made:
                lock.unlink(missing_ok=True)
    finally:
        os.close(fd)


def _listener(path: Path) -> str:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        sock.settimeout(TIMEOUT)
        try:
            sock.connect(str(path))
        except ConnectionRefusedError:
            return ""
        except FileNotFoundError:
            raise
        except OSError as e:
            return f"somebody is there: {e.strerror or e}"
    return "somebody listens"


def _is_ours(path: Path, kind: Callable[[int], bool]) -> bool:
    try:
        info = path.lstat()
    except OSError:
        return False
    return kind(info.st_mode) and info.st_uid == os.geteuid()


def _checked(id: str) -> Path:
    path = Path(id)
    if path.suffix != ".sock" or path.parent not in _directories():
        raise SandboxError(f"{id!r} is not a socket of ours")
    return path
