"""The trace: one rollout from its task to its reward, as verifiers' trace record version 2 (see `layouts`)."""

from __future__ import annotations

import logging
import math
import time
import uuid
from collections.abc import Mapping
from functools import cached_property
from typing import Any, Generic, Literal

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, ValidationInfo, field_validator

from vf_core import __version__
from vf_core.config.secrets import is_secret_entry
from vf_core.trace import layouts
from vf_core.trace.graph import Graph
from vf_core.trace.nodes import Branch, Error, MessageNode, ModelCall, Tally, branches
from vf_core.trace.task import DataT, State, StateT, WireTaskData
from vf_core.trace.timing import Timing
from vf_core.trace.types import (
    AssistantMessage,
    Message,
    RecordModel,
    SamplingConfig,
    Tool,
    ToolMessage,
    Usage,
    content_text,
)

logger = logging.getLogger(__name__)

RECORD_VERSION = 2
RECORD_RELEASE = "0.2.1.dev64"
"""The verifiers release whose record format this project writes."""

EXTRA = "vf_tui"
"""Where in `info` stands what the record format has no place for."""

TRUNCATING = frozenset(
    (
        "max_turns",
        "max_input_tokens",
        "max_output_tokens",
        "max_total_tokens",
        "context_length",
        "harness_timeout",
    )
)


class VersionInfo(RecordModel):
    """The release whose record format the trace follows; which vf-tui wrote it stands in `info`."""

    version: str
    commit: str | None = None


class EvalRunInfo(RecordModel):
    """The run that a trace belongs to."""

    type: Literal["eval", "train"] = "eval"
    id: str | None = None
    step: int | None = None


class HarnessInfo(RecordModel):
    """The harness's config as recorded; its own options are kept beside the common ones."""

    id: str = ""
    env: dict[str, str] = Field(default_factory=dict)
    forward_env: list[str] = Field(default_factory=list)
    disabled_tools: list[str] | None = None

    @field_validator("env")
    @classmethod
    def _mask(cls, env: dict[str, str]) -> dict[str, str]:
        """People share traces: what may be a secret is told by its name only."""
        return {name: "***" if is_secret_entry(name, value) else value for name, value in env.items()}


class AgentInfo(RecordModel):
    """The model and the program that drove it."""

    model: str
    sampling: SamplingConfig | None = None
    harness: HarnessInfo | None = None

    @classmethod
    def of(cls, model: str, sampling: SamplingConfig | None, harness: BaseModel) -> AgentInfo:
        """From a run's config; `harness` is the harness's config model."""
        dumped = harness.model_dump(mode="json", exclude_none=True)
        return cls(model=model, sampling=sampling, harness=HarnessInfo.model_validate(dumped))


class TraceTask(RecordModel, Generic[DataT]):
    """The name of the task's class, and its row."""

    type: str
    data: DataT

    @field_validator("data", mode="before")
    @classmethod
    def _keep_fields(cls, value: Any, info: ValidationInfo) -> Any:
        # A row read from a file, and nobody said what class it is: its own fields stay readable.
        untyped = not cls.__pydantic_generic_metadata__["args"]
        return WireTaskData.model_validate(value) if untyped and isinstance(value, Mapping) else value


def _state() -> Any:
    return State()


class Trace(RecordModel, Generic[DataT, StateT]):
    """One rollout. Fields and properties are those of verifiers' `Trace` that hooks use.

    `rewards` holds weighted contributions, `metrics` plain numbers, `info` anything that is JSON, `state` what the
    hooks share (never written). `errors` are oldest first. `runtime` is the sandbox's description.
    """

    model_config = ConfigDict(extra="allow")

    id: str = Field(default_factory=lambda: uuid.uuid4().hex)
    task: TraceTask[DataT]
    runtime: dict[str, Any] | None = None
    version: int = RECORD_VERSION
    verifiers: VersionInfo | None = None
    run: EvalRunInfo | None = None
    agent: AgentInfo | None = None
    nodes: list[MessageNode] = Field(default_factory=list)
    tools: list[Tool] | None = None
    calls: list[ModelCall] = Field(default_factory=list)
    rewards: dict[str, float] = Field(default_factory=dict)
    metrics: dict[str, float] = Field(default_factory=dict)
    info: dict[str, Any] = Field(default_factory=dict)
    state: StateT = Field(default_factory=_state, exclude=True)
    extra_usage: list[Usage] = Field(default_factory=list)
    is_completed: bool = False
    stop_condition: str | None = None
    errors: list[Error] = Field(default_factory=list)
    timing: Timing = Field(default_factory=Timing)

    # Cached properties, not private attributes: those cost 2 µs each time they are read.
    @cached_property
    def _graph(self) -> Graph:
        return Graph(self.nodes)

    @cached_property
    def _tally(self) -> Tally:
        return Tally()

    _captured: list[BaseException] = PrivateAttr(default_factory=list)
    _task: Any = PrivateAttr(default=None)

    def own_task(self, task: Any) -> Any:
        """`task` for this rollout alone: a copy, made once, that has this trace's row. Tasks are shared by rollouts,
        and what hooks change on one must not reach the next."""
        if self._task is None or self._task[0] is not task:
            self._task = (task, task.copy_for(self.task.data))
        return self._task[1]

    # -- recording ---------------------------------------------------------------------------------------------

    @property
    def graph(self) -> Graph:
        """The finder of known prefixes, made when first asked for (`trace.graph.prepare_turn` is its door)."""
        if self._graph.nodes is not self.nodes:
            del self._graph
        return self._graph

    @property
    def extra(self) -> dict[str, Any]:
        """`info["vf_tui"]`, made when first asked for."""
        found: dict[str, Any] = self.info.setdefault(EXTRA, {})
        return found

    def record_call(self, call: ModelCall) -> int:
        """Add a call that is over, failed or not; its index."""
        self.calls.append(call)
        return len(self.calls) - 1

    def record_reward(self, name: str, value: float, weight: float = 1.0) -> None:
        """Record `value * weight` under `name`. Raises ValueError when that is not a finite number."""
        contribution = finite("reward", name, finite("reward", name, value) * weight)
        if name in self.rewards:
            logger.warning("reward %r recorded twice: %s, now %s", name, self.rewards[name], contribution)
        self.rewards[name] = contribution

    def record_metric(self, name: str, value: float) -> None:
        """Record `value` under `name`. Raises ValueError when it is not a finite number."""
        number = finite("metric", name, value)
        if name in self.metrics:
            logger.warning("metric %r recorded twice: %s, now %s", name, self.metrics[name], number)
        self.metrics[name] = number

    def record_metrics(self, values: Mapping[str, float]) -> None:
        """Record several metrics."""
        for name, value in values.items():
            self.record_metric(name, value)

    def capture_error(self, error: BaseException) -> None:
        """Record a failure and stop; one that is recorded already changes nothing."""
        if not any(known is error for known in self._captured):
            self._captured.append(error)
            self.errors.append(Error.of(error))
        self.stop("error")

    def stop(self, condition: str = "done") -> None:
        """The agent's run is over; the first condition stands."""
        self.is_completed = True
        if self.stop_condition is None:
            self.stop_condition = condition

    def finish(self) -> None:
        """Close what is open: nothing more will be recorded by the rollout itself."""
        self.is_completed = True
        self.timing.close(time.time())
        self.split_generation()

    def split_generation(self) -> None:
        """Attribute the closed generation span to model calls and to what is outside them."""
        span = self.timing.generation
        if span.end:
            span.model.duration = min(sum(call.time.duration for call in self.calls), span.duration)
            span.harness.duration = span.duration - span.model.duration

    def stamp(self, run: EvalRunInfo | None = None, **info: Any) -> None:
        """Set the run, and entries of `info`."""
        if run is not None:
            self.run = run
        self.info.update(info)

    # -- what it says ------------------------------------------------------------------------------------------

    @property
    def reward(self) -> float:
        """The sum of the weighted rewards; 0 when there is none: `score` tells that apart."""
        return sum(self.rewards.values())

    @property
    def score(self) -> float | None:
        """The reward, or None while the rollout is unscored (not yet, or its scoring failed)."""
        return self.reward if self.rewards else None

    def reward_values(self) -> dict[str, float]:
        """The weighted rewards by name."""
        return dict(self.rewards)

    @property
    def error(self) -> Error | None:
        """The latest error."""
        return self.errors[-1] if self.errors else None

    @property
    def has_error(self) -> bool:
        """Anything failed."""
        return bool(self.errors)

    @property
    def branches(self) -> list[Branch]:
        """Every path from a root to a leaf, in the order of their leaves; the last one is the main branch."""
        return branches(self.nodes, self.calls)

    @property
    def num_branches(self) -> int:
        """Leaves of the graph."""
        parents = {node.parent for node in self.nodes}
        return sum(i not in parents for i in range(len(self.nodes)))

    @property
    def messages(self) -> list[Message]:
        """The conversation of the main branch: the one that was last added to."""
        found = self.branches
        return found[-1].messages if found else []

    @property
    def assistant_messages(self) -> list[AssistantMessage]:
        """Every reply of the model, whatever its branch; what a prompt brought does not count."""
        return [n.message for n in self.nodes if n.sampled and isinstance(n.message, AssistantMessage)]

    @property
    def tool_messages(self) -> list[ToolMessage]:
        """The tool results of the main branch."""
        return [message for message in self.messages if isinstance(message, ToolMessage)]

    @property
    def last_reply(self) -> str:
        """The text of the model's last reply, stripped; empty when it had none."""
        for node in reversed(self.nodes):
            if node.sampled and isinstance(node.message, AssistantMessage):
                return (node.message.content or "").strip()
        return ""

    @property
    def has_response(self) -> bool:
        """The last reply has text."""
        return bool(self.last_reply)

    @property
    def transcript(self) -> str:
        """The main branch as text with its tool calls, for a judge; reasoning and images are left out."""
        return "\n\n".join(_block(message) for message in self.messages)

    @property
    def is_truncated(self) -> bool:
        """A limit ended the run, or the last reply was cut for length."""
        if self.stop_condition in TRUNCATING:
            return True
        last = next((call for call in reversed(self.calls) if call.error is None), None)
        return last is not None and last.finish_reason == "length"

    # -- counts: constant time, so that limits may be checked on each request -------------------------------------

    @property
    def tally(self) -> Tally:
        """Turns and tokens up to now."""
        return self._tally.update(self.nodes, self.calls)

    @property
    def num_turns(self) -> int:
        """Replies of the model, whatever their branch."""
        return self.tally.turns

    @property
    def num_input_tokens(self) -> int:
        """Tokens fed in, a context that is sent again counted once; whole for calls that produced nothing."""
        return self.tally.input

    @property
    def num_output_tokens(self) -> int:
        """Tokens generated by all calls, failed ones included."""
        return self.tally.output

    @property
    def num_total_tokens(self) -> int:
        """Both."""
        tally = self.tally
        return tally.input + tally.output

    @property
    def usage(self) -> Usage | None:
        """What the provider reported, summed over all calls, failed ones included; None when it reported nothing."""
        return Usage.aggregate(call.usage for call in self.calls)

    # -- records -----------------------------------------------------------------------------------------------

    def to_record(self) -> dict[str, Any]:
        """The trace as a JSON-able dict that the release's own `Trace` loads; nulls are left out."""
        return layouts.write(layouts.dump(self))

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Trace[Any, Any]:
        """The trace of a record, of this project's or of verifiers', the later layout included.

        Raises ValueError (pydantic's) when it is no trace record.
        """
        return cls.model_validate(layouts.read(record))


def new_trace(
    *,
    task_type: str,
    data: Any,
    model: str = "",
    sampling: SamplingConfig | None = None,
    harness: BaseModel | None = None,
    run: str | None = None,
) -> Trace[Any, Any]:
    """The trace of a new rollout: of a task (its class name, and its row, of which it gets a copy of its own) by an
    agent (a model with its sampling, and the harness's config) in the run whose id is `run`."""
    own = data.model_copy(deep=True)
    return Trace(
        task=TraceTask[Any](type=task_type, data=own),
        verifiers=VersionInfo(version=RECORD_RELEASE),
        agent=None if harness is None else AgentInfo.of(model, sampling, harness),
        run=None if run is None else EvalRunInfo(id=run),
        info={EXTRA: {"version": __version__}},
    )


def finite(what: str, name: str, value: Any) -> float:
    """`value` as a float. Raises ValueError, naming `what` (a reward, a metric), when it is no finite number."""
    if isinstance(value, str | bytes) or not hasattr(value, "__float__"):
        raise ValueError(f"{what} {name!r} is {value!r}, not a number")
    number = float(value)
    if not math.isfinite(number):
        raise ValueError(f"{what} {name!r} is {number}, not a finite number")
    return number


def _block(message: Message) -> str:
    head = f"[{message.role}]"
    if isinstance(message, AssistantMessage):
        calls = (f"[tool_call {call.name}({call.arguments})]" for call in message.tool_calls or ())
        return "\n".join([head, *([message.content] if message.content else []), *calls])
    if isinstance(message, ToolMessage) and message.name:
        head = f"[{message.role} {message.name}]"
    text = content_text(message.content)
    return f"{head}\n{text}" if text else head
