"""Running one command in a sandbox from its start to its proven end."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, Protocol

from vf_core.errors import SandboxError
from vf_core.runtimes import guest
from vf_core.runtimes.base import EXIT_TIMED_OUT, OutputSink, ProgramResult
from vf_core.runtimes.output import Capture
from vf_core.runtimes.prime import commands
from vf_core.runtimes.prime.client import Executed
from vf_core.runtimes.prime.commands import Place, Report
from vf_core.runtimes.prime.sdk import CallError
from vf_core.runtimes.prime.shell import Shell

log = logging.getLogger(__name__)

_KILLED = 137
# How long a command's own report may take after it was ended, beyond the exchange itself.
_LAST_WORDS = 5.0
_KILL_TIME = 12.0

STREAMS = ("stdout", "stderr")


class Spawn(Protocol):
    """Starts a task that somebody holds."""

    def __call__(self, work: Coroutine[Any, Any, Any], what: str) -> asyncio.Task[Any]: ...


class Job:
    """One command. `limit`: how much of each stream its result holds, head and tail; with `sink` the output goes
    there while it comes, and the result holds the tail only. `serving()`: the sandbox is not being stopped."""

    def __init__(
        self,
        shell: Shell,
        argv: Sequence[str],
        env: Mapping[str, str] | None,
        cwd: str,
        *,
        limit: int,
        sink: OutputSink | None = None,
        spawn: Spawn,
        serving: Callable[[], bool],
    ) -> None:
        self.place = Place(shell.new_path(), cwd, guest.new_mark())
        self._shell = shell
        self._pace = shell.pace
        self._argv = commands.starting(argv, shell.ground)
        self._env = dict(env or {})
        self._sink = sink
        self._spawn = spawn
        self._serving = serving
        self._limit = limit
        self._captures = tuple(Capture(limit, head=0 if sink else None) for _ in STREAMS)
        self._polling: asyncio.Task[Report] | None = None
        self._following: asyncio.Task[Report] | None = None
        self._hurry = False

    # ------------------------------------------------------------------ from outside

    async def run(self, timeout: float | None) -> ProgramResult:
        """To its end, its time limit's end or, when cancelled, its being ended."""
        following = self._following = self._spawn(self._follow(), "follow a command in")
        try:
            await asyncio.wait({following}, timeout=timeout)
            timed_out = not following.done()
            if timed_out:
                await self._expire(following)
        except asyncio.CancelledError:
            try:
                if self._serving() and not following.done():
                    await asyncio.shield(self._spawn(self._end(), "end a command in"))
            except SandboxError as e:
                log.warning("a command that was cancelled may go on: %s", e)
            finally:
                following.cancel()
            raise
        if not following.cancelled() and following.exception() is None:
            self._shell.rubbish.append(self.place.directory)
        return self._result(following, timed_out)

    async def launch(self) -> None:
        """Start it and return; nothing follows it. Raises `SandboxError` when it cannot be started."""
        text = commands.streamed(self.place, self._argv, wait=0.1)
        report = await self._shell.insist(
            text, self._env, wait=2, parse=commands.parse, what="starting a program"
        )
        if report.exit in (commands.NO_DIRECTORY, "126", "127"):
            said = b"".join(report.parts[1]).decode(errors="replace").strip()
            raise SandboxError(f"no program can be started in {self.place.cwd}: {said or report.exit}")

    def poke(self) -> None:
        """Something happened to it: look at once."""
        self._hurry = True
        if self._polling is not None:
            self._polling.cancel()

    def abandon(self) -> None:
        """The sandbox is being removed: ask no more."""
        if self._following is not None:
            self._following.cancel()

    async def over(self) -> None:
        """Wait for its end. Never raises what it raised."""
        if self._following is not None:
            await asyncio.wait({self._following})

    # ------------------------------------------------------------------ its end

    async def _expire(self, following: asyncio.Task[Report]) -> None:
        if self._serving():
            await self._end()
        self.poke()
        await asyncio.wait({following}, timeout=self._pace.margin + _LAST_WORDS)
        if not following.done():
            following.cancel()
            await asyncio.wait({following}, timeout=1)

    async def _end(self) -> None:
        """End it with all that it started. Raises `SandboxError` when that cannot be said to be done."""

        def done(executed: Executed) -> None:
            if executed.exit_code != 0:
                raise CallError("garbled", f"exit {executed.exit_code} {executed.stderr.strip()[-200:]}")

        text = commands.end(self.place, guest.kill_argv(self.place.mark, self._pace.grace))
        wait = self._pace.grace + _KILL_TIME
        try:
            await self._shell.insist(text, wait=wait, parse=done, what="ending a command")
        except SandboxError:
            if self._serving():
                raise

    def _result(self, following: asyncio.Task[Report], timed_out: bool) -> ProgramResult:
        failure = None if following.cancelled() else following.exception()
        if failure is not None and self._serving():
            raise failure
        if following.cancelled() or failure is not None:
            code = EXIT_TIMED_OUT if timed_out else _KILLED
        else:
            report = following.result()
            if report.exit == commands.NO_DIRECTORY:
                said = report.parts[1][0].decode(errors="replace").strip() if report.parts[1] else ""
                raise SandboxError(f"no command can be run in {self.place.cwd}: {said}")
            code = EXIT_TIMED_OUT if timed_out else report.code
        out, err = self._captures
        return ProgramResult(code, out.text(), err.text(), out.truncated or err.truncated, timed_out)

    # ------------------------------------------------------------------ following it

    async def _follow(self) -> Report:
        return await (self._follow_stream() if self._sink else self._follow_whole())

    async def _follow_whole(self) -> Report:
        head = self._limit // 2
        argv = self._argv
        while True:
            wait = self._next_wait()
            text = commands.whole(self.place, argv, wait=wait, head=head, tail=self._limit - head)
            report = await self._ask(text, wait, start=bool(argv))
            if report is None:
                continue
            argv = []
            if report.exit is None:
                continue
            for capture, size, parts in zip(self._captures, report.sizes, report.parts, strict=True):
                _fill(capture, size, parts)
            return report

    async def _follow_stream(self) -> Report:
        offsets = [0, 0]
        argv = self._argv
        ended: Report | None = None
        while True:
            wait = self._next_wait()
            text = commands.streamed(self.place, argv, wait=wait, offsets=(offsets[0], offsets[1]))
            report = await self._ask(text, wait, start=bool(argv))
            if report is None:
                continue
            argv = []
            # What its children print after its end is nobody's output.
            ended = ended or (report if report.exit is not None else None)
            self._feed(report, ended, offsets)
            if ended is not None:
                if all(offset >= size for offset, size in zip(offsets, ended.sizes, strict=True)):
                    return report if report.exit == commands.NO_DIRECTORY else ended
            elif not self._hurry:
                await asyncio.sleep(self._pace.gap)

    def _feed(self, report: Report, ended: Report | None, offsets: list[int]) -> None:
        for n, stream in enumerate(STREAMS):
            data = b"".join(report.parts[n])
            if ended is not None:
                data = data[: max(0, ended.sizes[n] - offsets[n])]
            if not data:
                continue
            offsets[n] += len(data)
            self._captures[n].add(data)
            if self._sink is not None and (ended is None or ended.exit != commands.NO_DIRECTORY):
                self._sink(stream, data)

    def _next_wait(self) -> float:
        hurry, self._hurry = self._hurry, False
        return 0.0 if hurry else self._pace.poll

    async def _ask(self, text: str, wait: float, *, start: bool) -> Report | None:
        """One question for its state; None when it is to be asked anew."""
        env = self._env if start else None
        if start:
            text = commands.sweep(self._shell.take_rubbish()) + text
        polling = self._polling = self._spawn(
            self._shell.insist(text, env, wait=wait, parse=commands.parse, what="a command"), "poll"
        )
        try:
            await asyncio.wait({polling})
        except asyncio.CancelledError:
            polling.cancel()
            raise
        finally:
            self._polling = None
        return None if polling.cancelled() else polling.result()


def _fill(capture: Capture, size: int, parts: tuple[bytes, ...]) -> None:
    """Give a capture what is left of `size` bytes: all of it, or its head and its tail."""
    if not parts:
        return
    capture.add(parts[0])
    left_out = size - sum(map(len, parts))
    if len(parts) == 1 and left_out <= 0:
        return
    capture.size += left_out
    for part in parts[1:]:
        capture.add(part)
