"""The harness contract: an agent program, how it is given a task, and what its exit code means."""

from __future__ import annotations

import difflib
import os
import signal
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, TypeVar

from pydantic import Field

from vf_core.config.base import StrictModel
from vf_core.errors import ConfigError
from vf_core.trace.task import TaskData
from vf_core.trace.types import Messages, SamplingConfig

if TYPE_CHECKING:
    from vf_core.runtimes.base import OutputSink, ProgramResult, Runtime
    from vf_core.trace.record import Trace


class HarnessConfig(StrictModel):
    """Options that every harness has.

    `env` are extra variables of the program, `forward_env` names of host variables to hand on (for values that
    must not stand in a file); `env` wins. `disabled_tools` are not offered to the model.
    """

    id: str = "bash"
    env: dict[str, str] = Field(default_factory=dict)
    forward_env: list[str] = Field(default_factory=list)
    disabled_tools: list[str] = Field(default_factory=list)

    @property
    def resolved_env(self) -> dict[str, str]:
        """The variables that the config asks for, read from the host where it says so."""
        forwarded = {name: os.environ[name] for name in self.forward_env if name in os.environ}
        return {**forwarded, **self.env}


ConfigT = TypeVar("ConfigT", bound=HarnessConfig)


@dataclass(frozen=True, slots=True)
class ModelContext:
    """The model that a rollout is to use. The interception server imposes both; a program only names the model."""

    model: str
    sampling: SamplingConfig = field(default_factory=SamplingConfig)


@dataclass(frozen=True, slots=True)
class ExitMeaning:
    """What an exit code says: `text` is what a screen shows, and tells the raw code.

    `declined`: the agent ended well without doing the task; the rollout is not failed.
    """

    kind: Literal["ok", "declined", "failed"]
    text: str


_SIGNAL_WORDS = {
    "SIGKILL": "killed",
    "SIGTERM": "terminated",
    "SIGINT": "interrupted",
    "SIGHUP": "hung up",
    "SIGSEGV": "segmentation fault",
    "SIGABRT": "aborted",
    "SIGBUS": "bus error",
    "SIGILL": "illegal instruction",
    "SIGFPE": "arithmetic error",
    "SIGPIPE": "broken pipe",
    "SIGXCPU": "CPU time limit",
    "SIGXFSZ": "file size limit",
}
_SHELL_WORDS = {124: "timed out", 126: "cannot be executed", 127: "command not found"}


def describe_exit(code: int) -> str:
    """An exit code with its plain meaning: `exit 0`, `exit 137 killed`, `exit -15 terminated`, `exit 3`.

    A process that a signal ended has the code -N here, 128+N when a shell or a container reports it.
    """
    number = -code if code < 0 else code - 128 if code > 128 else 0
    word = _SHELL_WORDS.get(code, "")
    if number:
        try:
            name = signal.Signals(number).name
        except ValueError:
            name = ""
        word = _SIGNAL_WORDS.get(name, name)
    return f"exit {code} {word}".rstrip()


class Harness(ABC, Generic[ConfigT]):
    """An agent program. A subclass names its config type in brackets: `class Mine(Harness[MineConfig])`."""

    SUPPORTS_MCP: ClassVar[bool] = False
    """It can use the tools of MCP servers."""
    SUPPORTS_MESSAGE_PROMPT: ClassVar[bool] = False
    """It takes a prompt that is a list of messages, not only text."""
    APPENDS_SYSTEM_PROMPT: ClassVar[bool] = False
    """It sends a task's system prompt in the system role. One that can't refuses such a task."""
    EXIT_DECLINED: ClassVar[int | None] = None
    """The exit code by which its program says that the agent declined the task."""

    def __init__(self, config: ConfigT) -> None:
        self.config = config

    def validate(self) -> None:
        """Check what can be checked before anything starts. Raises `ConfigError`."""

    def resolve_prompt(self, task: TaskData) -> tuple[str | None, str | Messages]:
        """The system prompt and the prompt that the program is to be given.

        Raises ValueError for a task that this harness can't be given as it is; nothing is moved to another role.
        """
        prompt, harness = task.prompt, f"harness {self.config.id!r}"
        if prompt is None:
            raise ValueError(f"it has no prompt, and {harness} needs one")
        if not prompt:
            raise ValueError("its prompt is empty")
        if not isinstance(prompt, str) and not self.SUPPORTS_MESSAGE_PROMPT:
            raise ValueError(f"its prompt is a list of messages, and {harness} takes text only")
        if task.system_prompt is not None and not self.APPENDS_SYSTEM_PROMPT:
            raise ValueError(f"it has a system prompt, and {harness} can't send one in the system role")
        return task.system_prompt or None, prompt

    async def setup(self, runtime: Runtime) -> None:
        """Install what the program needs in the sandbox; before its time limit starts."""

    @abstractmethod
    async def launch(  # noqa: PLR0917
        self,
        ctx: ModelContext,
        trace: Trace,
        runtime: Runtime,
        endpoint: str,
        secret: str,
        mcp_urls: Mapping[str, str],
        on_output: OutputSink,
    ) -> ProgramResult:
        """Run the program on `trace.task.data` to its end.

        Its model calls go to `endpoint` with `secret` as bearer token; `mcp_urls` are the task's tool servers, name
        to URL. Called once an attempt: what it raises is recorded as a `HarnessError`, never tried again here.
        """

    def exit_meaning(self, code: int) -> ExitMeaning:
        """What the program's exit code says. Override it for a program with codes of its own."""
        if code == 0:
            return ExitMeaning("ok", "exit 0")
        if code == self.EXIT_DECLINED:
            return ExitMeaning("declined", f"declined ({code})")
        return ExitMeaning("failed", describe_exit(code))


def check_names(what: str, given: Iterable[str], known: Iterable[str], *, key: str) -> None:
    """Raise `ConfigError` for the first of `given` that is not `known`, naming the nearest that is."""
    known = list(known)
    for name in given:
        if name not in known:
            near = difflib.get_close_matches(name, known, 1)
            hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(known) or 'none'}"
            raise ConfigError(f"unknown {what} {name!r}", key=key, hint=hint)


def wire_messages(system: str | None, prompt: str | Messages) -> list[dict[str, Any]]:
    """A resolved prompt as chat-completions messages, with one system message at most in front."""
    from vf_core.trace.wire import message_to_wire

    if isinstance(prompt, str):
        rest: list[dict[str, Any]] = [{"role": "user", "content": prompt}]
    else:
        rest = [message_to_wire(message) for message in prompt]
    if not system:
        return rest
    # Many models' chat templates take a single system message.
    if rest[0]["role"] == "system" and isinstance(rest[0]["content"], str):
        system = f"{system}\n\n{rest.pop(0)['content']}"
    return [{"role": "system", "content": system}, *rest]
