"""The sandbox contract: what every runtime can do, with the same results and the same errors.

A runtime object stands for one sandbox at a time. Its lifecycle (`start`, `stop`, `stop_confirmed`, `force`,
`cleanup`) is in `machine`; this is the work that is done in it.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self

from vf_core.config.base import StrictModel
from vf_core.errors import SandboxError
from vf_core.runtimes.box import Answer, Box
from vf_core.runtimes.lifecycle import Observer, State
from vf_core.runtimes.machine import Machine
from vf_core.runtimes.output import Capture

if TYPE_CHECKING:
    from vf_core.trace.task import TaskData

__all__ = ["Answer", "Box", "Collected", "OutputSink", "ProgramResult", "Runtime", "RuntimeConfig"]

RUN_LIMIT = 1 << 20
TAIL_LIMIT = 1 << 16

OutputSink = Callable[[str, bytes], None]
"""Gets a program's output as it comes: the stream ("stdout" or "stderr") and raw bytes, cut anywhere, also inside
a character. Called on the event loop: it must not block."""

EXIT_TIMED_OUT = 124
EXIT_CANNOT_RUN = 126
EXIT_NOT_FOUND = 127


@dataclass(frozen=True, slots=True)
class ProgramResult:
    """How a program ended. `exit_code` is as shells give it: 128 + n when signal n ended it, 127 when there is no
    such program, 126 when it cannot be run, 124 when it was ended for its time limit (`timed_out`).

    `stdout` and `stderr` are bounded text, whatever the bytes were; a cut is marked in them and `truncated` is set.
    """

    exit_code: int
    stdout: str
    stderr: str
    truncated: bool = False
    timed_out: bool = False


class Collected:
    """A command's output, kept in bounds of `limit` bytes a stream, its head and its tail (`head=0`: only that), and
    passed on to `on_output` as it comes."""

    def __init__(self, limit: int, head: int | None = None, on_output: OutputSink | None = None) -> None:
        self.limit = limit
        self.on_output = on_output
        self.streams = {name: Capture(limit, head=head) for name in ("stdout", "stderr")}

    def __call__(self, stream: str, data: bytes) -> None:
        self.streams[stream].add(data)
        if self.on_output is not None:
            self.on_output(stream, data)

    def result(self, code: int, *, timed_out: bool = False, lost: str = "") -> ProgramResult:
        """The result of a command that ended with `code`; `lost` says what of its output did not arrive."""
        out, err = self.streams["stdout"], self.streams["stderr"]
        text = err.text() + (f"\n[… {lost} …]\n" if lost else "")
        return ProgramResult(code, out.text(), text, out.truncated or err.truncated or bool(lost), timed_out)


class RuntimeConfig(StrictModel):
    """What all runtimes' configs have: `type`, the kind of runtime."""

    type: str

    @property
    def lifetime(self) -> float | None:
        """Seconds after which the provider ends a sandbox, whatever happens; None: it does not."""
        return None

    def for_task(self, data: TaskData) -> Self:
        """This config with what the task asks of its sandbox, where the config itself says nothing of it.

        Raises `ValueError` for a wish that the kind cannot meet.
        """
        return self

    def validate_here(self) -> None:
        """Refuse, without a network, what this machine or the installed SDK cannot do: a missing extra, missing
        credentials, an option that would be dropped. Raises `ConfigError` whose `key` is relative to the runtime."""


class Runtime(Machine[Any]):
    """One sandbox. All operations but the lifecycle's raise `SandboxError` unless it is `live`.

    Paths are relative to the sandbox's working directory, or absolute inside it. A path that is missing raises
    `SandboxFileNotFoundError`, a directory in place of a file `SandboxIsADirectoryError`.
    """

    kind: ClassVar[str]
    # Programs in it reach this host's loopback, and the other way round.
    is_local: ClassVar[bool] = False

    def __init__(
        self,
        config: RuntimeConfig,
        *,
        name: str,
        labels: Mapping[str, str] | None = None,
        observer: Observer | None = None,
    ) -> None:
        self.config = config
        self.labels: dict[str, str] = dict(labels or {})
        super().__init__(name=name, observer=observer)

    @property
    def account(self) -> str:
        """Where it is made, as its kind's `Provider.account` says it; empty where there is one place only."""
        return ""

    def info(self) -> dict[str, Any]:
        """The `runtime` of the trace record: the config's fields and the sandbox's `id`, nulls left out."""
        out = self.config.model_dump(mode="json", exclude_none=True)
        if self.sandbox_id:
            out["id"] = self.sandbox_id
        return out

    # ------------------------------------------------------------------ programs

    async def run(
        self,
        argv: Sequence[str],
        env: Mapping[str, str] | None = None,
        *,
        cwd: str | None = None,
        timeout: float | None = None,
        limit: int = RUN_LIMIT,
    ) -> ProgramResult:
        """Run a short command to its exit: infrastructure, not the agent.

        `env` is added to the sandbox's environment, `cwd` is a directory in it. `limit` bounds each stream's text,
        in bytes: its head and its tail are kept. After `timeout` seconds, or when cancelled, the command and all
        that it started are ended; a timeout is not an exception but a result with `timed_out`, and what was
        printed so far is in it, under the same bound.
        """
        return await self._collect(argv, env, Collected(limit), cwd=cwd, timeout=timeout)

    async def run_program(
        self,
        argv: Sequence[str],
        env: Mapping[str, str] | None = None,
        *,
        on_output: OutputSink,
        timeout: float | None = None,
    ) -> ProgramResult:
        """Run the agent's program: as `run`, but its output goes to `on_output` while it comes, and the result
        holds only a bounded tail of each stream. Never replayed: a second run would be another rollout.

        When the sandbox is stopped meanwhile, it returns the program's own end.
        """
        output = Collected(TAIL_LIMIT, 0, on_output)
        return await self._collect(argv, env, output, timeout=timeout, program=True)

    @abstractmethod
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
        """Run a command to its end, its output into `output`; `program`: it is the agent's."""

    @abstractmethod
    async def run_background(
        self, argv: Sequence[str], env: Mapping[str, str] | None = None, log: str = "background.log"
    ) -> None:
        """Start a program and return; it runs until the sandbox is stopped. `log`: where its output is appended."""

    @abstractmethod
    async def prepare_script(self, source: str, requires: Sequence[str] = ()) -> list[str]:
        """The argv prefix that runs `source`, a Python program with a PEP 723 header, in this sandbox.

        `requires` are requirements beside those of the header. Prepared once a program and sandbox image. Raises
        `HarnessError` when the requirements cannot be met.
        """

    # ------------------------------------------------------------------ files

    @abstractmethod
    async def read(self, path: str) -> bytes:
        """All of a regular file."""

    @abstractmethod
    async def read_bounded(self, path: str, limit: int) -> bytes:
        """The first `limit` bytes of a regular file (all of it when it is shorter), however long it is."""

    @abstractmethod
    async def write(self, path: str, data: bytes) -> None:
        """Make or replace a file; missing directories above it are made."""

    # ------------------------------------------------------------------ network

    @abstractmethod
    async def expose(self, port: int) -> str:
        """The URL at which a port that is served inside the sandbox is reached from outside."""

    async def check_reach(self, url: str) -> None:
        """Raise `SandboxError`, with why and what to do, when programs in the sandbox get no answer from `url`.

        Only where that can differ from one machine to the next; says nothing when it cannot be found out."""
        return

    @abstractmethod
    def host_url(self, url: str) -> str:
        """The URL at which a program inside the sandbox reaches `url`, which is served on this host."""

    # ------------------------------------------------------------------ for subclasses

    def _work_here(self) -> Any:
        """The live sandbox's handle. Raises `SandboxError` in any other state."""
        if self.state is not State.LIVE:
            raise SandboxError(
                f"sandbox {self.name} is {self.state.word}: nothing can be done in it",
                hint=self._box.life.detail or None,
            )
        return self._box.handle
