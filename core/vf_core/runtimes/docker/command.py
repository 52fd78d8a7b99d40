"""One command in a container: its output as it comes, its exit code, and what became of it when neither does."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

from vf_core.errors import SandboxError
from vf_core.runtimes.base import OutputSink
from vf_core.runtimes.docker import wrapper
from vf_core.runtimes.docker.client import Engine, EngineError

if TYPE_CHECKING:
    from aiodocker.execs import Exec
    from aiodocker.stream import Message, Stream

log = logging.getLogger(__name__)

_NAMES: Final = {1: "stdout", 2: "stderr"}
_CHUNK: Final = 1 << 16
# A stream's own closing mark, after that of the other one.
_OTHER_MARK = 2.0
# How long an engine may take to notice that a container died, after its commands did.
_NOTICE = 2.0
_LOOK = 0.1
_LOOKS = 2
EXIT_KILLED = 137
_BY_SIGNAL = 128


class LostError(SandboxError):
    """The container is not there any more, or its engine is not: what was done in it cannot be known."""


class Command:
    """A command, to be run once. `user`: whose it is in the container; empty: the image's."""

    def __init__(
        self,
        engine: Engine,
        container: str,
        argv: Sequence[str],
        *,
        env: Mapping[str, str],
        workdir: str,
        user: str = "",
        stdin: bytes | None = None,
    ) -> None:
        self._engine = engine
        self._container = container
        self._argv = argv
        self._env = env
        self._workdir = workdir
        self._user = user
        self._stdin = stdin
        self._token = wrapper.new_token()
        self._marks = {name: wrapper.Closing(self._token) for name in _NAMES.values()}
        self._heard = 0
        self.started = asyncio.Event()
        # Somebody is ending it: that its end goes untold is no riddle. `ended`: its shell told its end.
        self.being_ended = False
        self.ended = False

    async def run(self, sink: OutputSink) -> int:
        """Start it and follow it to its end; its exit code, as shells give it.

        Raises `LostError` when the container ended first, `SandboxError` when there is no such directory or the
        engine refuses. When cancelled, the command runs on.
        """
        argv = wrapper.wrap(self._argv, self._token, cwd=self._workdir, stdin=self._stdin is not None)
        return await self._run(argv, sink)

    async def run_background(self, log: str, sink: OutputSink) -> int:
        """Start it and leave it: 0, or another exit code when it cannot be started."""
        return await self._run(wrapper.wrap_background(self._argv, self._token, log, cwd=self._workdir), sink)

    async def _run(self, argv: Sequence[str], sink: OutputSink) -> int:
        async with self._started(argv) as (started, stream):
            feeding = asyncio.create_task(self._feed(stream))
            reading = asyncio.create_task(self._read(stream, sink))
            try:
                await self._follow(started, reading)
            finally:
                for task in (feeding, reading):
                    task.cancel()
                await asyncio.wait({feeding, reading})
            said = next((mark.said for mark in self._marks.values() if mark.said is not None), None)
            if said is None:
                return await self._untold(started)
            self.ended = True
        if not said.lstrip("-").isdigit():
            raise SandboxError(f"there is no such {said} in the sandbox: {self._workdir}")
        return int(said)

    @asynccontextmanager
    async def _started(self, argv: Sequence[str]) -> AsyncIterator[tuple[Exec, Stream]]:
        opening = self._engine.exec(
            self._container, argv, env=self._env, user=self._user, stdin=self._stdin is not None
        )
        try:
            found = await opening.__aenter__()
        except EngineError as e:
            if (gone := await self._gone()) is not None:
                raise LostError(gone) from e
            raise
        self.started.set()
        try:
            yield found
        finally:
            await opening.__aexit__(None, None, None)

    # ------------------------------------------------------------------ the stream

    async def _feed(self, stream: Stream) -> None:
        data = memoryview(self._stdin or b"")
        with suppress(OSError, AssertionError):  # the reader tells what happened
            while data:
                await stream.write_in(bytes(data[:_CHUNK]))
                data = data[_CHUNK:]

    async def _read(self, stream: Stream, sink: OutputSink) -> None:
        """Pass output on until the command's end, or the stream's."""
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(None) as limit:
                while (message := await self._message(stream)) is not None:
                    self._heard += 1
                    name = _NAMES.get(message.stream, "stdout")
                    mark = self._marks[name]
                    if data := mark.feed(message.data):
                        sink(name, data)
                    if mark.said is not None:
                        if all(other.said is not None for other in self._marks.values()):
                            return
                        if limit.when() is None:
                            limit.reschedule(loop.time() + _OTHER_MARK)
        except TimeoutError:
            return
        for name, mark in self._marks.items():
            if data := mark.rest():
                sink(name, data)

    async def _message(self, stream: Stream) -> Message | None:
        """The next one; None at the end of the stream, also one that broke: what became of the command is asked."""
        from aiohttp import ClientError

        try:
            return await stream.read_out()
        except (ClientError, OSError, ValueError, AssertionError) as e:
            log.info("container %s: the output of a command broke off: %r", self._container[:12], e)
            return None

    async def _follow(self, started: Exec, reading: asyncio.Task[None]) -> None:
        """Wait for the end of `reading`; look whether there is still something to wait for when it is silent."""
        while True:
            heard = self._heard
            await asyncio.wait({reading}, timeout=self._engine.silence)
            if reading.done():
                return reading.result()
            if heard == self._heard:
                await self._still_there(started, reading)

    async def _still_there(self, started: Exec, reading: asyncio.Task[None]) -> None:
        """Return when the command runs, or what it said came meanwhile; raise `LostError` else."""
        for tries in range(_LOOKS):
            try:
                gone = await self._gone()
                if gone is None:
                    running, _ = await self._engine.exec_state(started.id)
                    if running:
                        return
                    gone = "the engine stopped passing on a command's output before its end"
            except EngineError as e:
                gone, hint = f"its engine does not answer any more: {e.message}", e.hint
                if tries + 1 < _LOOKS:
                    await asyncio.wait({reading}, timeout=_NOTICE)
                    continue
                raise LostError(gone, hint=hint) from e
            # The end may have come while we asked.
            await asyncio.wait({reading}, timeout=_NOTICE)
            if not reading.done():
                raise LostError(gone)
            return

    # ------------------------------------------------------------------ the end that was not told

    async def _untold(self, started: Exec) -> int:
        """The exit code of a command whose output ended without a mark: its shell was killed, or all was."""
        if self.being_ended:
            return EXIT_KILLED
        loop = asyncio.get_running_loop()
        deadline = loop.time() + _NOTICE
        running, code = True, None
        while loop.time() < deadline:
            try:
                if (gone := await self._gone()) is not None:
                    raise LostError(gone)
                running, code = await self._engine.exec_state(started.id)
            except EngineError as e:
                if (gone := await self._gone_or_silent(e)) is not None:
                    raise LostError(gone, hint=e.hint) from e
            await asyncio.sleep(_LOOK)
        if running or code is None or 0 <= code < _BY_SIGNAL:
            # Its shell said how it ended, and that was not passed on: who knows what else was not.
            raise SandboxError(f"docker engine {self._engine.account} broke off the output of a command")
        return code if code > 0 else EXIT_KILLED

    async def _gone_or_silent(self, e: EngineError) -> str | None:
        try:
            return await self._gone()
        except EngineError:
            return f"its engine does not answer any more: {e.message}"

    async def _gone(self) -> str | None:
        """Why nothing can run in the container any more; None while something can."""
        found = await self._engine.inspect(self._container)
        return gone_because(found, self._engine.account)


def gone_because(found: Mapping[str, Any] | None, account: str) -> str | None:
    """Why nothing can run in a container with this description (None: there is none); None when something can."""
    if found is None:
        return f"docker engine {account} has no such container: somebody removed it"
    state = found.get("State") or {}
    if not isinstance(state, Mapping) or state.get("Running", True) is not False:
        return None
    word, code = state.get("Status", "stopped"), state.get("ExitCode")
    why = f"its container ended (it is {word}{'' if word == 'stopping' else f', exit code {code}'})"
    if state.get("OOMKilled"):
        return f"{why}: it ran out of memory"
    return why
