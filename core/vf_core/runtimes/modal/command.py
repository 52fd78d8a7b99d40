"""One command in a Modal sandbox: started, its output streamed as bytes, its end known even when a stream hangs."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from vf_core.errors import SandboxError
from vf_core.runtimes.base import OutputSink
from vf_core.runtimes.guest import marked_env, new_mark
from vf_core.runtimes.modal import sdk
from vf_core.runtimes.modal.sdk import bounded

log = logging.getLogger(__name__)

START = (
    120.0  # seconds for a command to be started; Modal's own tries may take longer when its router is down
)
DRAIN_QUIET = 2.0  # seconds without output after which no more is expected of a command that ended
DRAIN = 10.0
# What the SDK takes in all arguments together is 65,536 characters; more goes by file.
ARGV_LIMIT = 60_000

# $1: the directory; $2: what is printed to both streams when the command has ended, since a child that it left
# behind may hold them open. The shell outlives what is asked to end, so that the command's own exit code comes back.
_RUN: Final = r"""
cd -- "$1" || exit 126
end=$2; shift 2
trap : TERM HUP INT
exec 3>&2 2>/dev/null
"$@" 2>&3 3>&- </dev/null
code=$?
printf '\000%s\000' "$end"
printf '\000%s\000' "$end" >&3
exit $code
"""

# $1: the directory; $2: the log. Exit 127: there is no such program.
_BACKGROUND: Final = r"""
cd -- "$1" || exit 126
mkdir -p -- "$(dirname -- "$2")" && : >>"$2" || exit 125
log=$2; shift 2
command -v -- "$1" >/dev/null || exit 127
nohup "$@" >>"$log" 2>&1 </dev/null &
"""


def run_argv(argv: Sequence[str], cwd: str, mark: str) -> list[str]:
    """`argv` in a directory, without input, its end marked in its output by `end_of(mark)`."""
    return ["sh", "-c", _RUN, "vf-run", cwd, f"vf-end-{mark}", *argv]


def background_argv(argv: Sequence[str], cwd: str, log: str) -> list[str]:
    """`argv` in a directory, going on by itself, its output appended to `log`."""
    return ["sh", "-c", _BACKGROUND, "vf-background", cwd, log, *argv]


def end_of(mark: str) -> bytes:
    """What both streams of a `run_argv` command end with."""
    return b"\0vf-end-%b\0" % mark.encode()


def as_script(argv: Sequence[str]) -> bytes:
    """A shell script that removes itself and becomes `argv`, for arguments that are too long for a request."""
    return f'rm -f -- "$0"\nexec {shlex.join(argv)}\n'.encode(errors="surrogateescape")


def is_long(argv: Sequence[str]) -> bool:
    """`argv` does not fit into a request."""
    return sum(len(text.encode(errors="surrogateescape")) for text in argv) > ARGV_LIMIT


class EndCutter:
    """Passes a stream on up to the mark of its end, which may come in pieces."""

    def __init__(self, end: bytes) -> None:
        self._end = end
        self._held = b""

    def feed(self, data: bytes) -> tuple[bytes, bool]:
        """What of the stream so far can be passed on, and whether its end was met."""
        data = self._held + data
        at = data.find(self._end)
        if at >= 0:
            self._held = b""
            return data[:at], True
        # A mark has its first byte at both ends only: the last one is where a part of it may begin.
        at = data.rfind(self._end[:1], max(0, len(data) - len(self._end) + 1))
        cut = at if at >= 0 and self._end.startswith(data[at:]) else len(data)
        self._held = data[cut:]
        return data[:cut], False

    def rest(self) -> bytes:
        """What was held back, when the stream ended without the mark."""
        held, self._held = self._held, b""
        return held


@dataclass(eq=False, slots=True)
class Command:
    """A running command. `ended` gives its exit code, or the error with which it was lost; `lost_output` says why
    part of its output did not arrive."""

    process: Any
    mark: str
    sink: OutputSink
    ended: asyncio.Future[int]
    lost_output: str = ""
    readers: list[asyncio.Task[None]] = field(default_factory=list)
    waiter: asyncio.Task[None] | None = None
    heard: float = 0.0

    @property
    def exit_code(self) -> int | None:
        """Its exit code as shells give it; None while it runs or when it was lost."""
        done = self.ended.done() and not self.ended.cancelled() and self.ended.exception() is None
        return self.ended.result() if done else None

    def end(self, code: int) -> None:
        """It has ended."""
        if not self.ended.done():
            self.ended.set_result(code)

    def lose(self, error: SandboxError) -> None:
        """It will never be known how it ended."""
        if not self.ended.done():
            self.ended.set_exception(error)
            self.ended.exception()  # whoever waits has it; nobody may

    async def drained(self) -> None:
        """Wait for what it still has to say: until its streams end, or nothing came for a while."""
        now = asyncio.get_running_loop().time
        deadline = now() + DRAIN
        self.heard = now()
        while now() < deadline and any(not reader.done() for reader in self.readers):
            quiet = DRAIN_QUIET - (now() - self.heard)
            if quiet <= 0:
                break
            await asyncio.wait(self.readers, timeout=quiet)

    def close(self) -> None:
        """Stop listening to it."""
        for task in (*self.readers, *([self.waiter] if self.waiter else [])):
            task.cancel()


async def start(
    sandbox: Any,
    argv: Sequence[str],
    env: Mapping[str, str] | None,
    *,
    sink: OutputSink,
    spawn: Callable[..., asyncio.Task[None]],
    mark: str = "",
    limit: float | None = None,
    patience: float = START,
) -> Command:
    """Start a command that was made by `run_argv` with `mark`, or any other. `limit`: seconds after which Modal ends
    it, should this engine be gone by then; `patience`: seconds for it to be started. Raises `SandboxError`."""
    mark = mark or new_mark()
    try:
        process = await bounded(
            sandbox.exec.aio(
                *argv,
                env=marked_env(env, mark),
                text=False,
                timeout=None if limit is None else max(1, round(limit)),
            ),
            patience,
        )
    except Exception as e:
        raise sdk.trouble(f"a command could not be started in sandbox {sandbox.object_id}", e) from e
    loop = asyncio.get_running_loop()
    command = Command(process, mark, sink, loop.create_future(), heard=loop.time())
    for name in ("stdout", "stderr"):
        command.readers.append(spawn(_read(command, name), f"{name} of a command in"))
    command.waiter = spawn(_wait(command), "end of a command in")
    return command


async def _read(command: Command, name: str) -> None:
    cutter = EndCutter(end_of(command.mark))
    loop = asyncio.get_running_loop()
    stream = getattr(command.process, name)
    try:
        async with contextlib.aclosing(aiter(stream)) as chunks:
            async for chunk in chunks:
                data, ended = cutter.feed(chunk)
                command.heard = loop.time()
                if data:
                    command.sink(name, data)
                if ended:
                    return
        if data := cutter.rest():
            command.sink(name, data)
    except Exception as e:
        # How the command ended is still to be learnt.
        command.lost_output = f"{name} was cut off: {sdk.say(e)}"
        log.info("a command's %s", command.lost_output)


async def _wait(command: Command) -> None:
    try:
        code = await command.process.wait.aio()
    except Exception as e:
        command.lose(sdk.trouble("a command's end did not become known", e))
    else:
        command.end(code)
