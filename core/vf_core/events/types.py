"""What the engine says: frozen, versioned, small.

*Durable* events go to the journal, numbered by `seq`. *Live* ones are for whoever looks now: they carry
`seq` 0, are coalesced and may be dropped. Times are Unix seconds. Strings that come from a model, a tool or
a sandbox are raw here (bounded in length by the producer): whoever shows them cleans them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeVar

EVENT_VERSION = 1

ARGUMENTS_LIMIT = 4_000
RESULT_LIMIT = 4_000
MESSAGE_LIMIT = 2_000
NAME_LIMIT = 200

TYPES: dict[str, type[Event]] = {}
"""Every type of event by its name in the journal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Base of all events. `type` is the name in the journal."""

    type: ClassVar[str] = ""
    durable: ClassVar[bool] = True
    seq: int = 0
    t: float = 0.0


E = TypeVar("E", bound=Event)


def stamp(event: E, *, seq: int = 0, t: float) -> E:
    """Give `event` its number and time, in place: once, before anybody else sees it."""
    object.__setattr__(event, "seq", seq)
    object.__setattr__(event, "t", t)
    return event


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutEvent(Event):
    """An event of one attempt (counted from 1; 0: the rollout as a whole) of one rollout."""

    rollout: str
    attempt: int = 0


def _register(name: str, *, durable: bool = True) -> Any:
    def add(cls: type[Event]) -> type[Event]:
        cls.type = name
        cls.durable = durable
        TYPES[name] = cls
        return cls

    return add


@_register("run.started")
@dataclass(frozen=True, slots=True, kw_only=True)
class RunStarted(Event):
    """The run began (or began again, on resume). `total` rollouts follow as `RolloutQueued`; on resume those that are
    `owed`, while `kept` of earlier sittings stand."""

    run: str
    name: str
    model: str = ""
    taskset: str = ""
    harness: str = ""
    runtime: str = ""
    concurrency: int = 0
    total: int = 0
    host: str = ""
    pid: int = 0
    version: int = EVENT_VERSION
    caps: Mapping[str, float] = field(default_factory=dict)
    kept: int = 0
    owed: tuple[str, ...] = ()


@_register("run.launching")
@dataclass(frozen=True, slots=True, kw_only=True)
class RunLaunching(Event):
    """Whether new attempts are launched, how many at once, and why not."""

    paused: bool
    concurrency: int
    reason: str = ""


@_register("run.stopping")
@dataclass(frozen=True, slots=True, kw_only=True)
class RunStopping(Event):
    """The run will launch nothing more; what is live is being torn down."""

    reason: str = ""


@_register("run.finished")
@dataclass(frozen=True, slots=True, kw_only=True)
class RunFinished(Event):
    """The last event of a run. `status`: completed, stopped or failed. `unconfirmed`: sandbox names."""

    status: str
    exit_code: int = 0
    unconfirmed: tuple[str, ...] = ()
    message: str = ""


@_register("rollout.queued")
@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutQueued(RolloutEvent):
    """A rollout exists: sample number `sample` of the task at position `task` of the run."""

    task: int
    sample: int = 0
    name: str = ""


@_register("rollout.attempt")
@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptStarted(RolloutEvent):
    """Attempt `attempt` begins; `trace` is its trace's id, `reason`: first, restart, retry or resume."""

    trace: str
    reason: str = "first"


@_register("rollout.phase")
@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseChanged(RolloutEvent):
    """`phase`: boot, setup (then install: the harness is put there, and tools: its servers start), running, finalize,
    scoring, teardown."""

    phase: str


@_register("rollout.done")
@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptFinished(RolloutEvent):
    """The attempt's result stands (its sandbox may still be going).

    `outcome`: completed, declined, stopped or error. `stop_condition` is the trace's. `reward` is None when
    unscored. `final` is False when another attempt follows by itself (a retry, a restart under way).
    """

    outcome: str
    stop_condition: str = ""
    reward: float | None = None
    error_type: str = ""
    error: str = ""
    final: bool = True


@_register("runtime.state")
@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeChanged(RolloutEvent):
    """A sandbox's lifecycle moved. `state` is a value of `runtimes.lifecycle.State`; `proof` says who
    answered and what, set with `gone` only; `detail` is an error or a remark. The state that already held: its id
    became known, or how far it is. `image` is what it is made from, `ends` when its provider ends it (Unix s).
    `serves` names the tool server that it is for, empty for the agent's own; with an empty `rollout` it is one that
    all rollouts share."""

    sandbox: str
    kind: str
    state: str
    id: str = ""
    proof: str = ""
    detail: str = ""
    image: str = ""
    ends: float | None = None
    serves: str = ""


@_register("program.started")
@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramStarted(RolloutEvent):
    """The agent program was launched."""

    program: str = ""


@_register("program.exited")
@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramExited(RolloutEvent):
    """The raw exit code, what the harness says it means (`exit 0`, `declined (4)`, `exit 137 killed`), and
    its `kind`: ok, declined or failed. `seconds` it ran."""

    code: int
    meaning: str
    kind: str
    seconds: float = 0.0


@_register("model.started")
@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCallStarted(RolloutEvent):
    """Call number `call` (from 0) of this attempt went to the provider."""

    call: int
    stream: bool = False


@_register("model.finished")
@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCallFinished(RolloutEvent):
    """The provider's answer is recorded. Token counts are None where the provider gave none.

    `prompt_tokens` excludes cache reads. `error` is set when the call failed.
    """

    call: int
    seconds: float = 0.0
    finish_reason: str = ""
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    completion_tokens: int | None = None
    cost: float | None = None
    text: str = ""
    error: str = ""
    status_code: int | None = None


@_register("tool.called")
@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCalled(RolloutEvent):
    """The model asked for a tool. `id` is unique within the attempt; `server` is the MCP server, if known."""

    call: int
    id: str
    name: str
    arguments: str = ""
    server: str = ""


@_register("tool.returned")
@dataclass(frozen=True, slots=True, kw_only=True)
class ToolReturned(RolloutEvent):
    """The tool's result came back with the harness's next request. `seconds` since the call was answered by
    the model (an upper bound where several calls share a turn), or exactly what its MCP `server` took."""

    id: str
    result: str = ""
    seconds: float = 0.0
    failed: bool = False
    server: str = ""


@_register("tools.served")
@dataclass(frozen=True, slots=True, kw_only=True)
class ToolsServed(RolloutEvent):
    """An MCP server stands ready for the attempt. `tools` are its tools' own names, empty while they are not known;
    `place`: host, sandbox or external; `shared`: one for the whole run."""

    server: str
    tools: tuple[str, ...] = ()
    place: str = "host"
    shared: bool = False


@_register("rollout.scored")
@dataclass(frozen=True, slots=True, kw_only=True)
class Scored(RolloutEvent):
    """Rewards and metrics by name; `reward` is their weighted sum. `judged` is what judges' model calls used, apart
    from the agent's: calls, prompt_tokens, cached_tokens, completion_tokens, cost (absent where unknown)."""

    reward: float | None = None
    rewards: Mapping[str, float] = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)
    judged: Mapping[str, float] = field(default_factory=dict)


@_register("error")
@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorRaised(RolloutEvent):
    """A failure under the boundary it crossed (`kind`: ProviderError, SandboxError, …)."""

    kind: str
    message: str
    status_code: int | None = None


@_register("log")
@dataclass(frozen=True, slots=True, kw_only=True)
class Log(Event):
    """A remark of the engine; `rollout` is empty when it is about the run."""

    level: str
    message: str
    rollout: str = ""


@_register("command.accepted")
@dataclass(frozen=True, slots=True, kw_only=True)
class CommandAccepted(Event):
    """A command came through the one door. `targets` are rollout ids (empty: the run)."""

    command: str
    name: str
    targets: tuple[str, ...] = ()
    by: str = ""


@_register("command.done")
@dataclass(frozen=True, slots=True, kw_only=True)
class CommandDone(Event):
    """A command ended. `changed` are the targets on which it did something."""

    command: str
    name: str
    changed: tuple[str, ...] = ()
    message: str = ""


@_register("command.failed")
@dataclass(frozen=True, slots=True, kw_only=True)
class CommandFailed(Event):
    """A command could not do what it was asked for `targets`; `message` says what and what to do."""

    command: str
    name: str
    message: str
    targets: tuple[str, ...] = ()


@_register("live.text", durable=False)
@dataclass(frozen=True, slots=True, kw_only=True)
class TextDelta(RolloutEvent):
    """More of the text that the model is generating. `reasoning`: it is thought, not answer."""

    call: int
    text: str
    reasoning: bool = False


@_register("live.tool", durable=False)
@dataclass(frozen=True, slots=True, kw_only=True)
class ToolDelta(RolloutEvent):
    """More of a tool call that the model is generating. `index` tells parallel calls of one turn apart."""

    call: int
    index: int
    id: str = ""
    name: str = ""
    arguments: str = ""


@_register("live.now", durable=False)
@dataclass(frozen=True, slots=True, kw_only=True)
class LiveNow(RolloutEvent):
    """All that live events have built up for a rollout so far, in place of what a viewer has of it.

    `tools` are the calls being generated, each with index, id, name, arguments and started. `progress` is the
    time of the last sign of life. Sent to a viewer that begins to look, or that missed something.
    """

    text: str = ""
    reasoning: str = ""
    output: str = ""
    tools: tuple[Mapping[str, Any], ...] = ()
    progress: float = 0.0


@_register("live.output", durable=False)
@dataclass(frozen=True, slots=True, kw_only=True)
class OutputChunk(RolloutEvent):
    """More of the program's output; `stream`: stdout or stderr. The log files hold all of it."""

    stream: str
    text: str
