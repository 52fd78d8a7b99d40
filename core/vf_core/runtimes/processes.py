"""Starting programs and watching them without a thread each: end by pidfd, output by the event loop's own polling.

Every program leads a session and a process group of its own, reads from /dev/null, and inherits no descriptor but
its output. On Linux it goes before the engine when memory runs out, and by that its descendants, also dead ones, are
told from other code's children (see `tree.Sacrifice`).
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import resource
import signal
import subprocess
from collections.abc import Mapping, Sequence

from vf_core.errors import SandboxError
from vf_core.runtimes.base import EXIT_CANNOT_RUN, EXIT_NOT_FOUND, OutputSink
from vf_core.runtimes.census import REGISTRY
from vf_core.runtimes.tree import Mark

log = logging.getLogger(__name__)

CHUNK = 1 << 16
# After a program's exit, output that its children still hold open is waited for this long (seconds).
_DRAIN = 0.1
# What can be in a pipe at the moment of exit: the largest size an unprivileged process can give it.
_DRAIN_LIMIT = 1 << 20
# Where the system has no pidfd, children are asked this often (seconds) whether they ended.
_POLL = 0.02
# The first that the system grants.
_WANTED_FDS = (16_384, 10_240, 4_096)
_EXIT_UNKNOWN = 255


class CannotRunError(Exception):
    """There is no such program, or it may not be run. `code` is what a shell would exit with."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


class Process:
    """A running program. `exit_code` is None until it ended, then as in `ProgramResult`.

    `ended`: it exited. `finished`: and its output was read, as far as it will be. Output that background children
    write later is read and dropped, so that they never block or break on it.
    """

    def __init__(self, popen: subprocess.Popen[bytes], mark: Mark | None, sink: OutputSink | None) -> None:
        self._loop = asyncio.get_running_loop()
        self._popen = popen
        self._sink = sink
        self._pipes: dict[int, str] = {}
        self._pidfd = -1
        self._timer: asyncio.TimerHandle | None = None
        self.pid = popen.pid
        self.mark = mark
        self.exit_code: int | None = None
        self.ended: asyncio.Future[None] = self._loop.create_future()
        self.finished: asyncio.Future[None] = self._loop.create_future()
        self.failure: Exception | None = None

    def watch(self, pipes: Mapping[int, str]) -> None:
        """Take over the read ends of its output, and wait for its end. Raises OSError when out of descriptors."""
        if hasattr(os, "pidfd_open"):
            try:
                self._pidfd = os.pidfd_open(self.pid)
            except OSError as e:
                if e.errno not in (errno.ENOSYS, errno.EPERM):
                    raise
        self._pipes.update(pipes)
        for fd in pipes:
            os.set_blocking(fd, False)
            self._loop.add_reader(fd, self._readable, fd)
        if self._pidfd >= 0:
            self._loop.add_reader(self._pidfd, self._exited)
        else:
            self._timer = self._loop.call_later(_POLL, self._poll)

    @property
    def reading(self) -> bool:
        """Its output is still open: something that it started holds it."""
        return bool(self._pipes)

    def signal_group(self, signum: int) -> None:
        """Signal its process group. Does nothing once it exited: its number may be another's by then."""
        if self.exit_code is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signum)

    def close(self) -> None:
        """Read no more of its output."""
        for fd in list(self._pipes):
            self._close(fd)
        if self.ended.done():
            self._finish()

    def abandon(self) -> None:
        """The event loop is over: let go of what belongs to it, without waiting for anything."""
        with contextlib.suppress(Exception):
            self.close()
        if self._pidfd >= 0:
            with contextlib.suppress(Exception):
                self._loop.remove_reader(self._pidfd)
            os.close(self._pidfd)
            self._pidfd = -1

    # ------------------------------------------------------------------ its output

    def _readable(self, fd: int) -> None:
        self._read(fd)
        if not self._pipes and self.ended.done():
            self._finish()

    def _read(self, fd: int) -> int:
        """Read once; the number of bytes, 0 when there is nothing (or the end, which closes it)."""
        try:
            data = os.read(fd, CHUNK)
        except BlockingIOError:
            return 0
        except OSError:
            data = b""
        if not data:
            self._close(fd)
        elif self._sink is not None:
            try:
                self._sink(self._pipes[fd], data)
            except Exception as e:
                # Its caller gets this; nobody is left who wants the output, and nothing to run it for.
                self.failure, self._sink = e, None
                self.signal_group(signal.SIGKILL)
        return len(data)

    def _close(self, fd: int) -> None:
        if self._pipes.pop(fd, None) is not None:
            self._loop.remove_reader(fd)
            os.close(fd)

    # ------------------------------------------------------------------ its end

    def _poll(self) -> None:
        self._timer = None
        if self._popen.poll() is None:
            self._timer = self._loop.call_later(_POLL, self._poll)
        else:
            self._exited()

    def _exited(self) -> None:
        try:
            pid, status = (
                os.waitpid(self.pid, os.WNOHANG) if self._popen.returncode is None else (self.pid, None)
            )
        except ChildProcessError:
            # Somebody in this process waits for any child at all.
            log.warning("the exit code of process %d was taken by other code", self.pid)
            pid, status = self.pid, _EXIT_UNKNOWN << 8
        if pid == 0:
            return
        if status is not None:
            self._popen.returncode = os.waitstatus_to_exitcode(status)
        code = self._popen.returncode
        self.exit_code = 128 - code if code < 0 else code
        REGISTRY.children.discard(self.pid)
        if not _group_exists(self.pid):
            REGISTRY.groups.pop(self.pid, None)
        if self._pidfd >= 0:
            self._loop.remove_reader(self._pidfd)
            os.close(self._pidfd)
            self._pidfd = -1
        self._drain()
        self.ended.set_result(None)
        if self._pipes:
            self._timer = self._loop.call_later(_DRAIN, self._finish)
        else:
            self._finish()

    def _drain(self) -> None:
        """All that it wrote itself is in the pipes by now."""
        for fd in list(self._pipes):
            drained = 0
            while drained < _DRAIN_LIMIT and (got := self._read(fd)):
                drained += got

    def _finish(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._sink = None
        if not self.finished.done():
            self.finished.set_result(None)


def start(
    argv: Sequence[str],
    *,
    env: Mapping[str, str],
    cwd: str,
    mark: Mark | None = None,
    sink: OutputSink | None = None,
    log_fd: int | None = None,
) -> Process:
    """Start a program. Its output goes to `sink`, or both streams to the open file `log_fd`.

    Blocks for the fraction of a millisecond that starting takes. Raises `CannotRunError` when there is no such
    program, `SandboxError` for what the host lacks.
    """
    pipes: dict[int, str] = {}
    ends: list[int] = []
    try:
        if log_fd is None:
            for stream in ("stdout", "stderr"):
                read_end, write_end = os.pipe()
                pipes[read_end] = stream
                ends.append(write_end)
        out, err = ends if ends else (log_fd, log_fd)
        popen = subprocess.Popen(
            list(argv),
            env=env,
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            start_new_session=True,
        )
        # From here on it exists: known as ours before anything else can fail.
        REGISTRY.children.add(popen.pid)
        if mark is not None:
            REGISTRY.groups[popen.pid] = mark
            REGISTRY.sacrifice.mark(popen.pid)
        _restore_fd_limit(popen.pid)
        process = Process(popen, mark, sink)
        try:
            process.watch(pipes)
        except OSError:
            process.abandon()
            os.killpg(popen.pid, signal.SIGKILL)
            popen.wait()
            REGISTRY.children.discard(popen.pid)
            raise
        pipes = {}
        return process
    except (OSError, ValueError) as e:
        raise _explain(e, argv, cwd) from e
    finally:
        for fd in (*ends, *pipes):
            with contextlib.suppress(OSError):
                os.close(fd)


def _explain(e: OSError | ValueError, argv: Sequence[str], cwd: str) -> Exception:
    program = argv[0] if argv else ""
    if isinstance(e, ValueError):
        return SandboxError(f"{program!r} cannot be started: its arguments or environment hold {e}")
    if e.errno in (errno.EMFILE, errno.ENFILE):
        return SandboxError(
            f"{program!r} cannot be started: no file descriptor is left",
            hint="raise the limit (`ulimit -n`) or lower max_concurrent",
        )
    if e.errno == errno.E2BIG:
        return SandboxError(
            f"{program!r} cannot be started: its arguments and environment are too long",
            hint="pass long texts in a file",
        )
    if e.errno in (errno.EAGAIN, errno.ENOMEM):
        return SandboxError(
            f"{program!r} cannot be started: {e.strerror}",
            hint="the host has no room for more processes: lower max_concurrent",
        )
    if not os.path.isdir(cwd):
        return SandboxError(f"{program!r} cannot be started: there is no directory {cwd}")
    if isinstance(e, FileNotFoundError):
        return CannotRunError(EXIT_NOT_FOUND, f"{program}: not found")
    return CannotRunError(EXIT_CANNOT_RUN, f"{program}: {e.strerror}")


def _group_exists(pid: int) -> bool:
    """Some process is left in the group that `pid` led."""
    try:
        os.killpg(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


# ---------------------------------------------------------------------- what children do not inherit


_user_limit: tuple[int, int] | None = None


def raise_fd_limit() -> None:
    """Let this process have as many descriptors as hundreds of live sandboxes need, if the hard limit allows.

    The programs that it starts get the user's own limit back (on Linux).
    """
    global _user_limit  # noqa: PLW0603 - a property of the process
    if _user_limit is not None:
        return
    _user_limit = soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    unlimited = resource.RLIM_INFINITY
    for most in _WANTED_FDS:
        wanted = most if hard == unlimited else min(most, hard)
        if soft == unlimited or soft >= wanted:
            return
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
            return


def _restore_fd_limit(pid: int) -> None:
    if _user_limit is not None and hasattr(resource, "prlimit"):
        with contextlib.suppress(OSError, ValueError):
            resource.prlimit(pid, resource.RLIMIT_NOFILE, _user_limit)
