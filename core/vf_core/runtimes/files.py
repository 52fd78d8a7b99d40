"""Reading and writing files of a local sandbox, with the contract's errors."""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import Callable
from typing import TypeVar

from vf_core.errors import SandboxError, SandboxFileNotFoundError, SandboxIsADirectoryError

T = TypeVar("T")

# Below this, a thread costs more than the file.
_AT_ONCE = 1 << 18
_CHUNK = 1 << 20


async def read(path: str, limit: int | None = None) -> bytes:
    """A regular file, or its first `limit` bytes. Raises `SandboxError` and its kinds."""
    with _Errors(path):
        # Without O_NONBLOCK, a FIFO that the agent put there would hold us for ever.
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY)
        size = _check(fd, path)
        return await _off_loop(size if limit is None else min(size, limit), fd, lambda: _read_all(fd, limit))


async def write(path: str, data: bytes) -> None:
    """Make or replace a file, and the directories above it. Raises `SandboxError` and its kinds."""
    with _Errors(path):
        if path.endswith("/"):
            raise IsADirectoryError
        try:
            fd = _open_to_write(path)
        except FileNotFoundError:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            fd = _open_to_write(path)
        _check(fd, path)
        await _off_loop(len(data), fd, lambda: _write_all(fd, data))


def _check(fd: int, path: str) -> int:
    """The size of a regular file; closes `fd` and raises for anything else."""
    info = os.fstat(fd)
    if stat.S_ISREG(info.st_mode):
        return info.st_size
    os.close(fd)
    if stat.S_ISDIR(info.st_mode):
        raise IsADirectoryError
    raise SandboxError(f"{path} is not a regular file")


def _open_to_write(path: str) -> int:
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NONBLOCK | os.O_NOCTTY, 0o666)


def _read_all(fd: int, limit: int | None) -> bytes:
    parts = []
    room = limit
    while room is None or room > 0:
        data = os.read(fd, _CHUNK if room is None else min(room, _CHUNK))
        if not data:
            break
        parts.append(data)
        if room is not None:
            room -= len(data)
    return b"".join(parts)


def _write_all(fd: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(fd, rest) :]


async def _off_loop(size: int, fd: int, work: Callable[[], T]) -> T:
    """Do `work` on `fd`, then close it: in a thread when that pays."""

    def closing() -> T:
        try:
            return work()
        finally:
            os.close(fd)

    if size <= _AT_ONCE:
        return closing()
    # Shielded: the thread goes on when the caller is cancelled, and the descriptor is its own.
    return await asyncio.shield(asyncio.ensure_future(asyncio.to_thread(closing)))


class _Errors:
    """Turns the system's errors into the contract's."""

    def __init__(self, path: str) -> None:
        self._path = path

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, e: BaseException | None, trace: object) -> None:
        path = self._path
        if isinstance(e, IsADirectoryError):
            raise SandboxIsADirectoryError(f"{path} is a directory") from e
        if isinstance(e, FileNotFoundError):
            raise SandboxFileNotFoundError(f"there is no file {path}") from e
        if isinstance(e, NotADirectoryError | FileExistsError):
            raise SandboxFileNotFoundError(
                f"there is no file {path}: a file stands where a directory should"
            ) from e
        if isinstance(e, OSError):
            raise SandboxError(f"{path}: {e.strerror or e}") from e
        if isinstance(e, ValueError):
            raise SandboxError(f"{path!r} is not a path: {e}") from e
