"""What runs "inside" a sandbox of the double: processes of this host, in a private directory, ended with it.

Commands see the paths of a sandbox; those that must not be the host's own are rewritten into its directory.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

MARK = "PRIME_DOUBLE_SANDBOX"
# Directories of the guest that are made in the sandbox's own.
_MAPPED = re.compile(r"(?<![\w./~+-])/(app|var/tmp|tmp/job_)(?![\w.+-])|(?<![\w./~+-])/tmp/job_")


class Root:
    """A sandbox's directory, which stands for its file system."""

    def __init__(self, id: str) -> None:
        self.id = id
        self.path = Path(tempfile.mkdtemp(prefix=f"prime-{id}-"))
        for name in ("home", "tmp", "var/tmp"):
            (self.path / name).mkdir(parents=True)

    def host(self, text: str) -> str:
        """Text with the guest's paths replaced by the host's."""
        return _MAPPED.sub(lambda match: f"{self.path}{match.group()}", text)

    def file(self, path: str) -> Path:
        """Where a file of the guest is; relative to its root."""
        return Path(self.host(path)) if path.startswith("/") else self.path / path

    def environment(self, *more: Mapping[str, str]) -> dict[str, str]:
        """What an image and its sandbox give a command: an interpreter with our dependencies, no host variables."""
        own = {
            "PATH": f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin",
            "HOME": str(self.path / "home"),
            "TMPDIR": str(self.path / "tmp"),
            "LANG": "C.UTF-8",
        }
        for variables in more:
            own |= {key: self.host(value) for key, value in variables.items()}
        return {MARK: self.id, **own, f"{MARK}_": self.id}


class Process:
    """One command of a guest. `chunks` gets (stream, bytes), then None at its end; then `code` is set."""

    def __init__(
        self,
        argv: Sequence[str],
        *,
        cwd: str,
        env: Mapping[str, str],
        stdin: bool,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._loop = loop
        self._popen = subprocess.Popen(
            argv,
            cwd=cwd,
            env=env,
            stdin=subprocess.PIPE if stdin else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            bufsize=0,
        )
        self.pid = self._popen.pid
        self.code: int | None = None
        self.chunks: asyncio.Queue[tuple[str, bytes] | None] = asyncio.Queue()
        assert self._popen.stdout
        assert self._popen.stderr
        self._pipes = {"stdout": self._popen.stdout, "stderr": self._popen.stderr}
        for name, pipe in self._pipes.items():
            os.set_blocking(pipe.fileno(), False)
            loop.add_reader(pipe.fileno(), self._read, name)
        self._pidfd = os.pidfd_open(self.pid)
        loop.add_reader(self._pidfd, self._exited)

    def _read(self, name: str) -> bool:
        try:
            data = os.read(self._pipes[name].fileno(), 65536)
        except BlockingIOError:
            return False
        if data:
            self.chunks.put_nowait((name, data))
        else:
            self._loop.remove_reader(self._pipes[name].fileno())
        return bool(data)

    def _exited(self) -> None:
        self._loop.remove_reader(self._pidfd)
        os.close(self._pidfd)
        code = self._popen.wait()
        self.code = code if code >= 0 else 128 - code
        for name, pipe in self._pipes.items():
            while self._read(name):
                pass
            self._loop.remove_reader(pipe.fileno())
            pipe.close()
        self.chunks.put_nowait(None)

    def write(self, data: bytes) -> None:
        """Give it input."""
        assert self._popen.stdin
        self._popen.stdin.write(data)

    def signal(self, number: int) -> None:
        """Signal its process group."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, number)


class Reaper:
    """Ends all processes of sandboxes, whatever sessions they made; one look at the host serves all that wait."""

    def __init__(self) -> None:
        self._doomed: set[str] = set()
        self._task: asyncio.Task[None] | None = None

    async def reap(self, id: str) -> None:
        """Returns when no process of the sandbox is left."""
        self._doomed.add(id)
        while id in self._doomed:
            if self._task is None or self._task.done():
                self._task = asyncio.ensure_future(self._round())
            await asyncio.shield(self._task)

    async def _round(self) -> None:
        await asyncio.sleep(0.01)
        ids = set(self._doomed)
        await asyncio.to_thread(kill_marked, ids)
        self._doomed -= ids


def kill_marked(ids: set[str]) -> None:
    """End every process of this user that carries one of these sandboxes' marks."""
    wanted = {f"{MARK}={id}".encode() for id in ids}
    for _ in range(100):
        found = False
        for name in os.listdir("/proc"):
            if not name.isdigit():
                continue
            try:
                environ = Path("/proc", name, "environ").read_bytes()
            except OSError:
                continue
            if MARK.encode() in environ and not wanted.isdisjoint(environ.split(b"\0")):
                found = True
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(name), signal.SIGKILL)
        if not found:
            return
