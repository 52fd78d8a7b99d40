"""The local runtime: programs of this host, in a private directory, found and ended as one.

It keeps a task's programs from getting in each other's way and from outliving their rollout. It is no security
boundary: what runs here can do what the user can.
"""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import ClassVar, Literal

from pydantic import Field

from vf_core.errors import SandboxError
from vf_core.runtimes import census, ending, environment, files, processes, records, scripts, tree, watchdog
from vf_core.runtimes.base import (
    EXIT_TIMED_OUT,
    Answer,
    Box,
    Collected,
    OutputSink,
    ProgramResult,
    Runtime,
    RuntimeConfig,
)
from vf_core.runtimes.census import REGISTRY, Count
from vf_core.runtimes.lifecycle import Observer, State
from vf_core.runtimes.processes import CannotRunError, Process
from vf_core.runtimes.tree import Proc
from vf_core.text import slug

GRACE = 2.0


class SubprocessConfig(RuntimeConfig):
    """`grace`: seconds between SIGTERM and SIGKILL when a program is ended."""

    type: Literal["subprocess"] = "subprocess"
    grace: float = Field(GRACE, ge=0, le=300)


@dataclass(eq=False, slots=True)
class Handle:
    """What is known of one local sandbox. `clean`: no process of it was left after its programs were ended."""

    id: str
    record: records.Record | None = None
    environment: dict[str, str] = field(default_factory=dict)
    commands: int = 0
    processes: set[Process] = field(default_factory=set)
    opened: bool = False
    clean: bool = False

    @property
    def directory(self) -> str:
        """The working directory; empty when none was made."""
        return self.record.directory if self.record else ""

    def members(self, count: Count) -> list[Proc]:
        """The processes in it."""
        return count.of(self.id)


class SubprocessRuntime(Runtime):
    """A sandbox of local processes."""

    kind: ClassVar[str] = "subprocess"
    is_local: ClassVar[bool] = True
    cleanup_asks: ClassVar[bool] = False
    config: SubprocessConfig

    def __init__(
        self,
        config: SubprocessConfig,
        *,
        name: str,
        labels: Mapping[str, str] | None = None,
        observer: Observer | None = None,
    ) -> None:
        super().__init__(config, name=name, labels=labels, observer=observer)

    def info(self) -> dict[str, str]:
        """See `Runtime.info`: the record's format knows these two fields only."""
        return {"type": self.kind, "id": self.sandbox_id} if self.sandbox_id else {"type": self.kind}

    @property
    def directory(self) -> str:
        """The sandbox's working directory on this host. Raises `SandboxError` unless `live`."""
        return self._here().directory

    # ------------------------------------------------------------------ lifecycle

    def _new_handle(self) -> Handle:
        return Handle(f"{slug(self._name, limit=40)}-{secrets.token_hex(4)}")

    def _foreseen_id(self, handle: Handle) -> str:
        return handle.id

    async def _create(self, box: Box[Handle]) -> None:
        handle = box.handle
        _prepare_host()
        watchdog.ensure()
        handle.record = records.create(handle.id, box.name, self.labels)
        REGISTRY.directories[handle.directory] = handle.id
        handle.environment = environment.host_environment()
        census.census().opened()
        handle.opened = True

    async def _terminate(self, box: Box[Handle]) -> None:
        handle = box.handle
        handle.clean = False
        left = await ending.end(
            list(handle.processes), handle.members, grace=self.config.grace, forced=box.forced
        )
        handle.clean = not left

    async def _probe(self, box: Box[Handle]) -> Answer:
        handle = box.handle
        if not handle.clean:
            left = await ending.kill(list(handle.processes), handle.members)
            if left:
                return Answer(False, ending.still_there(left))
            handle.clean = True
        for process in handle.processes:
            process.close()
        if handle.directory:
            problem = await asyncio.to_thread(records.remove_tree, handle.directory)
            if problem:
                return Answer(False, f"its directory is still there: {problem}")
        return Answer(True, _proof(handle))

    def _release(self, box: Box[Handle]) -> None:
        handle = box.handle
        if handle.record is not None:
            records.forget(handle.record)
        REGISTRY.forget(handle.id)
        if handle.opened:
            handle.opened = False
            census.census().closed()

    def _cleanup(self, box: Box[Handle]) -> Answer:
        handle = box.handle
        left = ending.kill_now(handle.processes, handle.members)
        for process in handle.processes:
            process.abandon()
        if left:
            return Answer(False, ending.still_there(left))
        problem = records.remove_tree(handle.directory) if handle.directory else ""
        if problem:
            return Answer(False, f"its directory is still there: {problem}")
        if handle.record is not None:
            records.forget(handle.record)
        REGISTRY.forget(handle.id)
        return Answer(True, _proof(handle))

    # ------------------------------------------------------------------ programs

    async def run_background(
        self, argv: Sequence[str], env: Mapping[str, str] | None = None, log: str = "background.log"
    ) -> None:
        """See `Runtime.run_background`."""
        handle = self._here()
        path = os.path.join(handle.directory, log)
        try:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOCTTY, 0o600)
        except OSError as e:
            raise SandboxError(f"{path}: {e.strerror or e}") from e
        try:
            self._start(handle, argv, env, cwd=handle.directory, log_fd=fd)
        except CannotRunError as e:
            raise SandboxError(str(e)) from e
        finally:
            os.close(fd)

    async def _collect(
        self,
        argv: Sequence[str],
        env: Mapping[str, str] | None,
        output: Collected,
        *,
        cwd: str | None = None,
        timeout: float | None = None,
        program: bool = False,
    ) -> ProgramResult:
        handle, box = self._here(), self._box

        where = os.path.join(handle.directory, cwd) if cwd else handle.directory
        try:
            process = self._start(handle, argv, env, cwd=where, sink=output)
        except CannotRunError as e:
            return ProgramResult(e.code, "", str(e))
        timed_out = False
        try:
            await asyncio.wait({process.finished}, timeout=timeout)
            timed_out = process.exit_code is None and process.failure is None
        finally:
            if process.exit_code is None:
                await self._end_command(box, process)
        if process.failure is not None:
            raise process.failure
        # None: not even SIGKILL ended it.
        code = EXIT_TIMED_OUT if timed_out or process.exit_code is None else process.exit_code
        return output.result(code, timed_out=timed_out)

    def _start(
        self,
        handle: Handle,
        argv: Sequence[str],
        env: Mapping[str, str] | None,
        *,
        cwd: str,
        sink: OutputSink | None = None,
        log_fd: int | None = None,
    ) -> Process:
        if not argv:
            raise SandboxError("no program was named")
        handle.commands += 1
        mark = (handle.id, handle.commands)
        # Marks come first, so that they are found soon, and last, so that they hold.
        marks = environment.markers(tree.mark_text(mark), self.labels.get("run", ""))
        full = {**marks, **handle.environment, "PWD": cwd, **(env or {}), **marks}
        process = processes.start(argv, env=full, cwd=cwd, mark=mark, sink=sink, log_fd=log_fd)
        watchdog.note_group(process.pid)
        handle.processes.add(process)
        process.finished.add_done_callback(lambda _: self._finished(handle, process))
        return process

    @staticmethod
    def _finished(handle: Handle, process: Process) -> None:
        watchdog.note_group(process.pid, over=True)
        if not process.reading:
            handle.processes.discard(process)

    def _here(self) -> Handle:
        handle = self._work_here()
        assert isinstance(handle, Handle)  # noqa: S101 - for the type checker
        return handle

    # ------------------------------------------------------------------ ending processes

    async def _end_command(self, box: Box[Handle], process: Process) -> None:
        """End one command with all that it started; goes on in the background when the caller is cancelled again."""
        if box.state is not State.LIVE:
            # The whole sandbox is being ended; that includes this.
            await asyncio.wait({process.finished}, timeout=self.config.grace + ending.KILL_PATIENCE)
            return
        mark = process.mark or (box.handle.id, 0)
        work = ending.end(
            [process], lambda count: count.of_command(mark), grace=self.config.grace, forced=box.forced
        )
        await asyncio.shield(self._spawn(work, "end command in"))
        await asyncio.wait({process.finished}, timeout=ending.KILL_PATIENCE)

    # ------------------------------------------------------------------ scripts, files, network

    async def prepare_script(self, source: str, requires: Sequence[str] = ()) -> list[str]:
        """See `Runtime.prepare_script`: this interpreter when it has what is required, else uv's."""
        self._here()
        return await scripts.prepare(source, requires, records.private_root)

    async def read(self, path: str) -> bytes:
        """See `Runtime.read`."""
        return await files.read(self._path(path))

    async def read_bounded(self, path: str, limit: int) -> bytes:
        """See `Runtime.read_bounded`."""
        return await files.read(self._path(path), limit)

    async def write(self, path: str, data: bytes) -> None:
        """See `Runtime.write`."""
        await files.write(self._path(path), data)

    def _path(self, path: str) -> str:
        return os.path.join(self._here().directory, path)

    async def expose(self, port: int) -> str:
        """See `Runtime.expose`: the host's own loopback."""
        return f"http://127.0.0.1:{port}"

    def host_url(self, url: str) -> str:
        """See `Runtime.host_url`: the same."""
        return url


@lru_cache(maxsize=1)
def _prepare_host() -> None:
    """Once a process, before its first local sandbox."""
    REGISTRY.ready()
    processes.raise_fd_limit()
    environment.hide_own_secrets()


def _proof(handle: Handle) -> str:
    if not handle.directory:
        return f"this host: nothing was made for {handle.id}"
    return f"this host: no process with mark {handle.id}, directory removed"
