"""Commands in a live Modal sandbox, from their start to their end or the sandbox's."""

from __future__ import annotations

import asyncio
import logging
import math
import shlex
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from vf_core.errors import SandboxError
from vf_core.runtimes import guest
from vf_core.runtimes.base import (
    EXIT_CANNOT_RUN,
    EXIT_NOT_FOUND,
    EXIT_TIMED_OUT,
    Box,
    Collected,
    OutputSink,
    ProgramResult,
    Runtime,
)
from vf_core.runtimes.lifecycle import State
from vf_core.runtimes.modal import account as at_modal
from vf_core.runtimes.modal import command as commands
from vf_core.runtimes.modal import sdk
from vf_core.runtimes.modal.command import Command
from vf_core.runtimes.modal.config import ModalConfig
from vf_core.runtimes.modal.filesystem import FILE, write_file
from vf_core.runtimes.modal.sdk import bounded

log = logging.getLogger(__name__)

GRACE = 2.0  # seconds between TERM and KILL when a program is ended
_BACKSTOP = 60.0
_KILLED = 137


class Programs(Runtime):
    """Running commands; the lifecycle is in `runtime`."""

    config: ModalConfig
    # Between two looks at whether the sandbox of a running command still lives, and how long Modal may be silent
    # about that before the command is given up; in seconds.
    liveness: ClassVar[float] = 15.0
    silence: ClassVar[float] = 180.0
    # Programs that are asked to end before their sandbox is, at one time.
    _asking: ClassVar[int] = 0

    # ------------------------------------------------------------------ commands

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
        self._work_here()
        where = guest.resolve(cwd, self.config.workdir) if cwd else self.config.workdir
        result = await self._run(argv, env, where, output, timeout, program=program)
        if result.exit_code == EXIT_CANNOT_RUN and cwd and not await self._is_directory(where):
            raise SandboxError(f"{where}: no such directory in the sandbox")
        return result

    async def run_background(
        self, argv: Sequence[str], env: Mapping[str, str] | None = None, log: str = "background.log"
    ) -> None:
        """See `Runtime.run_background`."""
        _check(argv, env)
        wrapped = commands.background_argv(argv, self.config.workdir, log)
        result = await self._run(wrapped, env, self.config.workdir, Collected(4096), FILE)
        if result.exit_code == EXIT_NOT_FOUND:
            raise SandboxError(f"{argv[0]}: there is no such program in the sandbox")
        if result.exit_code != 0:
            raise SandboxError(
                f"{shlex.join(argv)[:200]} could not be started in the background: exit {result.exit_code} "
                f"{result.stderr.strip()[-500:]}"
            )

    async def _run(
        self,
        argv: Sequence[str],
        env: Mapping[str, str] | None,
        where: str,
        output: Collected,
        timeout: float | None,
        *,
        program: bool = False,
    ) -> ProgramResult:
        box, handle = self._box, self._work_here()
        start = self._start(box, argv, env, where=where, output=output, timeout=timeout)
        command = await self._started(box, self._spawn(start, "start a command in"))
        if program:
            handle.programs.add(command)
        timed_out = False
        try:
            timed_out = not await self._until_end(box, command, timeout)
            if not timed_out:
                await command.drained()
        finally:
            handle.programs.discard(command)
            if command.exit_code is None and box.state is State.LIVE:
                await self._end_command(box, command)
            command.close()
        code = EXIT_TIMED_OUT if timed_out else command.exit_code
        if code is None:
            code = await self._end_of_lost(box, command)
        return output.result(code, timed_out=timed_out or code < 0, lost=command.lost_output)

    async def _started(self, box: Box[Any], starting: asyncio.Task[Command]) -> Command:
        """The command, once it is started; ended when its caller is cancelled meanwhile: it may run already."""
        try:
            return await asyncio.shield(starting)
        except asyncio.CancelledError:
            await asyncio.shield(self._spawn(self._end_unwanted(box, starting), "end command in"))
            raise

    async def _end_unwanted(self, box: Box[Any], starting: asyncio.Task[Command]) -> None:
        try:
            command = await starting
        except SandboxError:
            return
        if command.exit_code is None and box.state is State.LIVE:
            await self._kill(box, command, GRACE)
        command.close()

    async def _is_directory(self, path: str) -> bool:
        found = await self._run(["test", "-d", path], None, "/", Collected(1024), FILE)
        return found.exit_code == 0

    async def _start(
        self,
        box: Box[Any],
        argv: Sequence[str],
        env: Mapping[str, str] | None,
        *,
        where: str,
        output: OutputSink,
        timeout: float | None,
    ) -> Command:
        _check(argv, env)
        mark = guest.new_mark()
        if commands.is_long(argv):
            path = f"/tmp/.vf-tui-{mark}.sh"  # noqa: S108 - in the sandbox, under a name that nobody can guess
            await write_file(box.handle.sandbox, path, commands.as_script(argv))
            argv = ["sh", path]
        return await commands.start(
            box.handle.sandbox,
            commands.run_argv(argv, where, mark),
            env,
            sink=output,
            spawn=self._spawn,
            mark=mark,
            limit=None if timeout is None else timeout + GRACE + _BACKSTOP,
        )

    async def _until_end(self, box: Box[Any], command: Command, timeout: float | None) -> bool:
        """Wait for the end of a command, its sandbox's included; False when `timeout` came first.

        Raises `SandboxError` when the sandbox ended by itself, or Modal was silent about both for too long.
        """
        now = asyncio.get_running_loop().time
        deadline = math.inf if timeout is None else now() + timeout
        heard = now()
        stopped = self._spawn(_wait_for(box.handle.ended), "wait for the end of")
        try:
            while not await _any_of(command.ended, stopped, seconds=min(self.liveness, deadline - now())):
                if now() >= deadline:
                    return False
                look = self._spawn(self._still_lives(box, command), "look after")
                await _any_of(command.ended, stopped, look, seconds=deadline - now())
                if not look.done():
                    look.cancel()
                elif look.result():
                    heard = now()
                elif now() - heard > self.silence:
                    self._lose(box, f"Modal has not said for {self.silence:g} s whether it still runs")
        finally:
            stopped.cancel()
        if command.ended.done() and command.ended.exception() is not None:
            await self._check_life(box)
        return True

    async def _still_lives(self, box: Box[Any], command: Command) -> bool:
        """Modal said that the sandbox runs. Notes a command's end that its stream did not tell. Raises `SandboxError`
        when the sandbox has ended."""
        try:
            answer = await at_modal.probe(box.handle.sandbox)
            if (
                not answer.gone
                and (code := await bounded(command.process.poll.aio(), at_modal.CALL)) is not None
            ):
                command.end(code)
        except Exception as e:
            log.info("sandbox %s: %s", box.name, sdk.say(e))
            return False
        if answer.gone:
            self._lose(box, answer.text, ended=True)
        return True

    def _lose(self, box: Box[Any], why: str, *, ended: bool = False) -> None:
        if box is self._box:
            self._lost(why)
        limits = f"timeout {self.config.timeout} s, idle_timeout {self.config.idle_timeout} s, memory "
        raise SandboxError(
            f"sandbox {box.name} ({box.id}) was lost: {why}",
            hint=f"its limits: {limits}{self.config.memory:g} GB" if ended and self.config.memory else None,
        )

    async def _end_of_lost(self, box: Box[Any], command: Command) -> int:
        """The exit code of a command that did not come to its own end: its sandbox is being stopped. Raises
        `SandboxError` when that is not why."""
        if box.state is not State.LIVE:
            await asyncio.wait({command.ended}, timeout=GRACE)
            return command.exit_code if command.exit_code is not None else _KILLED
        await self._check_life(box)
        if command.ended.done() and (error := command.ended.exception()) is not None:
            raise error
        raise SandboxError(f"a command in sandbox {box.name} did not end when it was killed")

    async def _check_life(self, box: Box[Any]) -> None:
        """After a failure: raises `SandboxError` when that is because the sandbox is gone, or cannot be asked."""
        if box.state is not State.LIVE:
            return
        try:
            answer = await at_modal.probe(box.handle.sandbox)
        except SandboxError as e:
            self._lose(box, e.message)
        else:
            if answer.gone:
                self._lose(box, answer.text, ended=True)

    # ------------------------------------------------------------------ ending commands

    async def _end_command(self, box: Box[Any], command: Command) -> None:
        """End one command with all that it started; goes on in the background when the caller is cancelled again."""
        await asyncio.shield(self._spawn(self._kill(box, command, GRACE), "end command in"))

    async def _kill(self, box: Box[Any], command: Command, grace: float) -> None:
        argv = guest.kill_argv(command.mark, grace)
        output = Collected(1024)
        try:
            killer = await commands.start(
                box.handle.sandbox, argv, None, sink=output, spawn=self._spawn, limit=grace + _BACKSTOP
            )
            await asyncio.wait({killer.ended}, timeout=grace + 15)
            if killer.exit_code != 0:
                log.warning("sandbox %s: a command could not be ended: %s", box.name, killer.exit_code)
            killer.close()
        except SandboxError as e:
            log.warning("sandbox %s: a command could not be ended: %s", box.name, e)
        await asyncio.wait({command.ended}, timeout=GRACE)
        await command.drained()

    async def _ask_programs_to_end(self, box: Box[Any]) -> None:
        """Before the sandbox goes, its programs may say how they ended; not when many are stopped at once."""
        programs = [command for command in box.handle.programs if command.exit_code is None]
        if not programs or box.forced.is_set() or Programs._asking >= 16:
            return
        Programs._asking += 1
        work = [
            self._spawn(self._kill(box, command, GRACE), "ask programs to end in") for command in programs
        ]
        forced = self._spawn(_wait_for(box.forced), "wait for the force of")
        ended = self._spawn(_all_of(work), "programs end in")
        try:
            await asyncio.wait({ended, forced}, timeout=2 * GRACE, return_when=asyncio.FIRST_COMPLETED)
        finally:
            Programs._asking -= 1
            for task in (*work, ended, forced):
                task.cancel()


async def _wait_for(event: asyncio.Event) -> None:
    await event.wait()


async def _any_of(*futures: asyncio.Future[Any], seconds: float) -> bool:
    """One of them is done, or `seconds` have passed and none is."""
    limit = None if seconds == math.inf else max(0.0, seconds)
    done, _ = await asyncio.wait(futures, timeout=limit, return_when=asyncio.FIRST_COMPLETED)
    return bool(done)


async def _all_of(tasks: Sequence[asyncio.Task[None]]) -> None:
    await asyncio.wait(tasks)


def _check(argv: Sequence[str], env: Mapping[str, str] | None) -> None:
    if not argv:
        raise SandboxError("no program was named")
    for text in (*argv, *(env or {}), *(env or {}).values()):
        if "\0" in text:
            raise SandboxError(f"{text[:80]!r}: a NUL cannot be passed to a program")
