"""Files in a live Modal sandbox, and what is made ready in it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from vf_core.errors import SandboxError
from vf_core.runtimes import guest
from vf_core.runtimes.base import Box, Collected
from vf_core.runtimes.modal import command as commands
from vf_core.runtimes.modal.filesystem import FILE, RATE, write_file
from vf_core.runtimes.modal.programs import Programs

READ_LIMIT = 1 << 30

# $1: an absolute path. 43: a directory; 45: something else that is no file.
_WRITABLE = '[ -d "$1" ] && exit 43; [ -e "$1" ] && [ ! -f "$1" ] && exit 45; exit 0'


class Files(Programs):
    """Reading and writing, by commands where their errors tell more than the SDK's calls."""

    async def prepare_script(self, source: str, requires: Sequence[str] = ()) -> list[str]:
        """See `Runtime.prepare_script`."""
        self._work_here()
        return await guest.prepare_script(self, self.config.image, source, requires)

    async def read(self, path: str) -> bytes:
        """See `Runtime.read`."""
        return await self._read(path, None)

    async def read_bounded(self, path: str, limit: int) -> bytes:
        """See `Runtime.read_bounded`."""
        return await self._read(path, limit)

    async def _read(self, path: str, limit: int | None) -> bytes:
        handle, box = self._work_here(), self._box
        where = self._path(path)
        kept = {"stdout": bytearray(), "stderr": bytearray()}

        def sink(stream: str, data: bytes) -> None:
            kept[stream] += data

        argv = guest.read_argv(where, limit)
        command = await commands.start(
            handle.sandbox, argv, None, sink=sink, spawn=self._spawn, limit=READ_LIMIT / RATE
        )
        try:
            if not await self._until_end(box, command, READ_LIMIT / RATE):
                raise SandboxError(f"{path} could not be read in time")
            code = command.exit_code
            if code is None:
                code = await self._end_of_lost(box, command)
            if code == 0:
                # All of it matters here: the streams end with the command, which leaves nothing behind.
                await asyncio.wait(command.readers, timeout=FILE)
        finally:
            command.close()
        if code != 0:
            await command.drained()
            raise guest.read_failed(code, path, kept["stderr"].decode(errors="replace"))
        if command.lost_output or not command.readers[0].done():
            raise SandboxError(
                f"{path} was read in part only: {command.lost_output or 'its end did not come'}"
            )
        return bytes(kept["stdout"])

    async def write(self, path: str, data: bytes) -> None:
        """See `Runtime.write`."""
        self._work_here()
        box, where = self._box, self._path(path)
        check = await self._run(["sh", "-c", _WRITABLE, "vf-write", where], None, "/", Collected(1024), FILE)
        if check.exit_code != 0:
            raise guest.read_failed(check.exit_code, path, check.stderr)
        try:
            await write_file(box.handle.sandbox, where, data)
        except SandboxError:
            await self._check_life(box)
            raise

    def _path(self, path: str) -> str:
        if "\0" in path or not path:
            raise SandboxError(f"{path!r} is no path")
        return guest.resolve(path, self.config.workdir)

    async def _make_workdir(self, box: Box[Any], patience: float) -> None:
        """The first command: it waits until the sandbox is up, for at most `patience` seconds."""
        output, path = Collected(4096), self.config.workdir
        argv = ["mkdir", "-p", "--", path]
        command = await commands.start(
            box.handle.sandbox, argv, None, sink=output, spawn=self._spawn, patience=patience
        )
        try:
            await asyncio.wait({command.ended}, timeout=FILE)
            code = command.ended.result() if command.ended.done() else None
            await command.drained()
        finally:
            command.close()
        if code != 0:
            why = output.result(0).stderr.strip()[-500:]
            raise SandboxError(
                f"the working directory {path} could not be made in sandbox {box.name}: exit {code} {why}",
                hint="the image needs a POSIX shell and mkdir; `workdir` must be a place that its user may write to",
            )
