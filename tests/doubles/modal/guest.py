"""What runs "inside" the double's sandboxes: processes of this host in a directory of their own, and file calls.

Their output is kept, so that it can be read again from any offset, as the SDK does after a lost connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import os
import shutil
import signal
import stat
import subprocess
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any

FS_TOOL = "/__modal/.bin/modal-sandbox-fs-tools"
MARK = "VF_MODAL_DOUBLE"


class CannotStart(Exception):
    """There is no such program, or it cannot be run."""


class Output:
    """Two streams, kept whole; readers wait for more until a stream is closed."""

    def __init__(self) -> None:
        self.data = {1: bytearray(), 2: bytearray()}
        self.open = {1, 2}
        self._more = asyncio.Condition()

    async def add(self, fd: int, data: bytes) -> None:
        """More of a stream; nothing closes it."""
        async with self._more:
            self.data[fd] += data
            if not data:
                self.open.discard(fd)
            self._more.notify_all()

    async def read(self, fd: int, offset: int) -> AsyncIterator[bytes]:
        """A stream from `offset` to its end."""
        while True:
            async with self._more:
                while len(self.data[fd]) <= offset and fd in self.open:
                    await self._more.wait()
                data = bytes(self.data[fd][offset : offset + (1 << 20)])
            if not data:
                return
            offset += len(data)
            yield data


class Exec(ABC):
    """One command of a sandbox."""

    def __init__(self) -> None:
        self.output = Output()
        self.over = asyncio.Event()
        self.written, self.closed = 0, False

    @property
    @abstractmethod
    def status(self) -> dict[str, int]:
        """`code` or `signal`; empty while it runs."""

    @abstractmethod
    async def write(self, offset: int, data: bytes, eof: bool) -> None:
        """Standard input; what was already written at that offset is ignored."""

    @abstractmethod
    def kill(self) -> None:
        """End it at once."""

    def close(self) -> None:  # noqa: B027 - most hold nothing
        """Let go of what it holds."""


class Process(Exec):
    """A host process with a session of its own. It is over when it exits, whoever holds its streams then."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        super().__init__()
        self.process = process
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        assert process.stdout is not None
        assert process.stderr is not None
        for fd, pipe in ((1, process.stdout.fileno()), (2, process.stderr.fileno())):
            os.set_blocking(pipe, False)
            self._loop.add_reader(pipe, self._readable, fd, pipe)
        self._pidfd = os.pidfd_open(process.pid)
        self._loop.add_reader(self._pidfd, self._exited)

    @classmethod
    def start(cls, argv: Sequence[str], cwd: str, env: Mapping[str, str], timeout: float = 0) -> Process:
        """Raises `CannotStart`. After `timeout` seconds (0: none) it is killed."""
        pipe = subprocess.PIPE
        try:
            process = subprocess.Popen(
                argv, cwd=cwd, env=dict(env), start_new_session=True, stdin=pipe, stdout=pipe, stderr=pipe
            )
        except (OSError, ValueError) as e:
            raise CannotStart(f"failed to exec: {e}") from e
        made = cls(process)
        if timeout:
            made._loop.call_later(timeout, made.kill)
        return made

    def _readable(self, fd: int, pipe: int) -> None:
        try:
            data = os.read(pipe, 1 << 18)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._loop.remove_reader(pipe)
        task = self._loop.create_task(self.output.add(fd, data))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _exited(self) -> None:
        if self.process.poll() is not None:
            self._loop.remove_reader(self._pidfd)
            os.close(self._pidfd)
            self.over.set()

    @property
    def status(self) -> dict[str, int]:
        code = self.process.returncode
        return {} if code is None else {"code": code} if code >= 0 else {"signal": -code}

    async def write(self, offset: int, data: bytes, eof: bool) -> None:
        assert self.process.stdin is not None
        if offset == self.written and data and not self.closed:
            with contextlib.suppress(OSError):
                await asyncio.to_thread(self._write, data)
            self.written += len(data)
        if eof and not self.closed:
            self.closed = True
            with contextlib.suppress(OSError):
                self.process.stdin.close()

    def _write(self, data: bytes) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(data)
        self.process.stdin.flush()

    def kill(self) -> None:
        # Children may live on in the group after the leader's end.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)

    def close(self) -> None:
        """Let go of its streams; for the end of the double."""
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            if stream is not None and not stream.closed:
                self._loop.remove_reader(stream.fileno())
                with contextlib.suppress(OSError):
                    stream.close()


class KeepAlive(Exec):
    """`sleep` as a sandbox's own program: no process is needed for it."""

    @property
    def status(self) -> dict[str, int]:
        return {"code": 137} if self.over.is_set() else {}

    async def write(self, offset: int, data: bytes, eof: bool) -> None:
        """It does not read."""

    def kill(self) -> None:
        self.over.set()


_KINDS = {
    errno.ENOENT: "NotFound",
    errno.EISDIR: "IsDirectory",
    errno.ENOTDIR: "NotDirectory",
    errno.EACCES: "PermissionDenied",
    errno.EEXIST: "PathAlreadyExists",
    errno.ENOTEMPTY: "DirectoryNotEmpty",
}


class FileCall(Exec):
    """The provider's tool for files: `request` is its argument, decoded, with host paths."""

    def __init__(self, request: Mapping[str, Any]) -> None:
        super().__init__()
        ((self._op, self._asked),) = request.items()
        self._input = bytearray()
        self._code: int | None = None
        self._task: asyncio.Task[None] | None = None
        if self._op != "WriteFile":
            self._task = asyncio.ensure_future(self._run())

    @property
    def status(self) -> dict[str, int]:
        return {} if self._code is None else {"code": self._code}

    async def write(self, offset: int, data: bytes, eof: bool) -> None:
        if offset == self.written and not self.closed:
            self._input += data
            self.written += len(data)
        if eof and not self.closed:
            self.closed = True
            self._task = asyncio.ensure_future(self._run())

    def kill(self) -> None:
        self._code = 137 if self._code is None else self._code
        self.over.set()

    async def _run(self) -> None:
        try:
            said, code = self._do(Path(self._asked["path"])), 0
            await self.output.add(1, said) if said else None
        except OSError as e:
            code = 1
            error = {"error_kind": _KINDS.get(e.errno or 0, "Other"), "message": str(e)}
            await self.output.add(2, json.dumps(error).encode())
        for fd in (1, 2):
            await self.output.add(fd, b"")
        self._code = code
        self.over.set()

    def _do(self, path: Path) -> bytes:
        if self._op == "ReadFile":
            return path.read_bytes()
        if self._op == "WriteFile":
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(self._input)
        elif self._op == "MakeDirectory":
            path.mkdir(parents=self._asked["parents"], exist_ok=self._asked["parents"])
        elif self._op == "Stat":
            return json.dumps(_info(path)).encode()
        elif self._op == "ListFiles":
            return json.dumps([_info(child) for child in sorted(path.iterdir())]).encode()
        elif self._op == "Remove":
            _remove(path, recursive=self._asked["recursive"])
        return b""


def _info(path: Path) -> dict[str, Any]:
    found = path.lstat()
    return {
        "name": path.name,
        "path": str(path),
        "type": "directory" if path.is_dir() else "file",
        "size": found.st_size,
        "mode": found.st_mode,
        "permissions": oct(stat.S_IMODE(found.st_mode)),
        "owner": str(found.st_uid),
        "group": str(found.st_gid),
        "modified_time": int(found.st_mtime),
        "symlink_target": None,
    }


def _remove(path: Path, *, recursive: bool) -> None:
    if not path.is_dir():
        path.unlink()
    elif recursive:
        shutil.rmtree(path)
    else:
        path.rmdir()


def kill_marked(marks: frozenset[str]) -> int:
    """Kill every host process with one of these marks, whatever session it made for itself; how many there were."""
    wanted = {f"{MARK}={mark}".encode() for mark in marks}
    killed = 0
    for place in os.listdir("/proc"):
        if not place.isdigit() or int(place) == os.getpid():
            continue
        try:
            environ = Path("/proc", place, "environ").read_bytes()
        except OSError:
            continue
        if not wanted.isdisjoint(environ.split(b"\0")):
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(place), signal.SIGKILL)
                killed += 1
    return killed
