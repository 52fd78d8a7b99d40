"""Commands in one container: run to their end, ended with all that they started, or left running."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, Final, TypeVar

from vf_core.errors import SandboxError
from vf_core.runtimes import guest
from vf_core.runtimes.base import EXIT_TIMED_OUT, OutputSink
from vf_core.runtimes.docker.client import Engine, EngineError
from vf_core.runtimes.docker.command import Command, LostError

log = logging.getLogger(__name__)

T = TypeVar("T")
Spawn = Callable[[Coroutine[Any, Any, Any], str], asyncio.Task[Any]]

ROOT: Final = "0"
# Between TERM and KILL.
GRACE: Final = 2.0
# What ends a command inside may take longer than its grace, on a busy machine.
_KILL_PATIENCE: Final = 30.0
# How long a stop waits for programs beyond their grace: the container's removal ends them as well.
_PATIENCE: Final = 4.0
# For output that was on its way when its command was ended.
_DRAIN: Final = 2.0


class Shell:
    """A container's commands. `spawn` runs what must go on when its caller is cancelled."""

    def __init__(self, engine: Engine, container: str, workdir: str, spawn: Spawn) -> None:
        self._engine = engine
        self._container = container
        self._workdir = workdir
        self._spawn = spawn
        self._running: dict[str, asyncio.Task[int]] = {}

    async def follow(
        self,
        argv: Sequence[str],
        env: Mapping[str, str] | None,
        sink: OutputSink,
        *,
        cwd: str | None = None,
        timeout: float | None = None,
        user: str = "",
        stdin: bytes | None = None,
    ) -> tuple[int, bool]:
        """Run a command; its exit code, and whether `timeout` ended it. Cancelled or timed out, it is ended with all
        that it started. Raises `LostError` when the container ended first, `SandboxError` otherwise."""
        mark = guest.new_mark()
        command = self._command(argv, env, cwd, mark=mark, user=user, stdin=stdin)
        task: asyncio.Task[int] = self._spawn(command.run(sink), "command in")
        self._running[mark] = task
        task.add_done_callback(lambda _: self._running.pop(mark, None))
        try:
            await asyncio.wait({task}, timeout=timeout)
        except asyncio.CancelledError:
            # Whatever comes of its end, the caller was cancelled.
            await self._shielded_end(mark, command, task, raises=False)
            raise
        if not task.done():
            await self._shielded_end(mark, command, task, raises=True)
            return EXIT_TIMED_OUT, True
        if (e := task.exception()) is not None and not command.ended and not _over(e):
            await self._shielded_end(mark, command, task, raises=False)
        return task.result(), False

    async def collect(
        self,
        argv: Sequence[str],
        *,
        cwd: str | None = None,
        user: str = "",
        stdin: bytes | None = None,
        timeout: float = 600.0,
    ) -> tuple[int, bytes, str]:
        """Run a command of our own: its exit code, all of its output, and its complaints."""
        streams = {"stdout": bytearray(), "stderr": bytearray()}

        def sink(stream: str, data: bytes) -> None:
            streams[stream] += data

        code, timed_out = await self.follow(
            argv, None, sink, cwd=cwd, timeout=timeout, user=user, stdin=stdin
        )
        if timed_out:
            raise SandboxError(f"a command of vf-tui's own took longer than {timeout:g} s in the sandbox")
        return code, bytes(streams["stdout"]), streams["stderr"].decode(errors="replace")

    async def background(self, argv: Sequence[str], env: Mapping[str, str] | None, log: str) -> int:
        """Start a command and leave it; 0, or an exit code when it cannot be started."""
        return await self._command(argv, env, None, mark=guest.new_mark()).run_background(log, _ignore)

    async def end_all(self, forced: asyncio.Event) -> None:
        """Ask what is being run to end, and wait for that for its grace time, unless `forced`."""
        running = dict(self._running)
        if not running or forced.is_set():
            return
        hurry = asyncio.create_task(forced.wait())
        kills = [self._spawn(self._kill(mark, GRACE), "end programs in") for mark in running]
        waiting = asyncio.ensure_future(asyncio.wait(kills))
        try:
            await asyncio.wait(
                [waiting, hurry], return_when=asyncio.FIRST_COMPLETED, timeout=GRACE + _PATIENCE
            )
            if not hurry.done():
                await asyncio.wait(running.values(), timeout=_DRAIN)
        finally:
            hurry.cancel()
            waiting.cancel()

    # ------------------------------------------------------------------ ending

    async def _shielded_end(
        self, mark: str, command: Command, task: asyncio.Task[int], *, raises: bool
    ) -> None:
        """End a command; that goes on in the background when the caller is cancelled (again)."""
        ending = self._spawn(self._end(mark, command, task), "end command in")
        try:
            await asyncio.shield(ending)
        except SandboxError as e:
            if raises:
                raise
            log.warning("container %s: a cancelled command was not ended: %s", self._container[:12], e)

    async def _end(self, mark: str, command: Command, task: asyncio.Task[int]) -> None:
        """End a command, which may not have begun yet."""
        began = asyncio.create_task(command.started.wait())
        try:
            await asyncio.wait({began, task}, return_when=asyncio.FIRST_COMPLETED)
            command.being_ended = True
            for grace in (GRACE, 0.0, 0.0):
                if command.ended:
                    return
                if not await self._kill(mark, grace):
                    log.warning("container %s: a command's processes are still there", self._container[:12])
                await asyncio.wait({task}, timeout=_DRAIN)
                if task.done():
                    return
                # The engine had yet to run it when its processes were looked for.
        finally:
            began.cancel()
            task.cancel()

    async def _kill(self, mark: str, grace: float) -> bool:
        """End the processes with a mark, whosever they are in the container; whether none is left."""
        killing = self._command(guest.kill_argv(mark, grace), None, "/", user=ROOT)
        try:
            async with asyncio.timeout(grace + _KILL_PATIENCE):
                return await killing.run(_ignore) == 0
        except TimeoutError as e:
            raise SandboxError("the processes of a command could not be ended in time") from e

    def _command(
        self,
        argv: Sequence[str],
        env: Mapping[str, str] | None,
        cwd: str | None,
        *,
        mark: str = "",
        user: str = "",
        stdin: bytes | None = None,
    ) -> Command:
        return Command(
            self._engine,
            self._container,
            argv,
            env=guest.marked_env(env, mark) if mark else dict(env or {}),
            workdir=guest.resolve(cwd or ".", self._workdir),
            user=user,
            stdin=stdin,
        )


def _over(e: BaseException) -> bool:
    """Nothing of a command that failed like this is running."""
    return isinstance(e, LostError) or (isinstance(e, EngineError) and e.certain)


def _ignore(stream: str, data: bytes) -> None:
    pass
