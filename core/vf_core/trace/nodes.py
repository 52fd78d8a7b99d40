"""What a trace is made of: message nodes, model calls, errors, and the branches that the nodes form."""

from __future__ import annotations

import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import Field

from vf_core.errors import ProviderError
from vf_core.trace.timing import TimeSpan
from vf_core.trace.types import FinishReason, Message, RecordModel, SamplingConfig, Usage

TRACEBACK_LIMIT = 8_000


class MessageNode(RecordModel):
    """One message of the graph.

    `parent` is the index of the message before it (None: it opens a conversation). `sampled`: a model call
    produced it; False for everything a prompt brought, assistant messages included. `timestamp`: Unix
    seconds of its recording.
    """

    parent: int | None = None
    message: Message
    sampled: bool = False
    timestamp: float = Field(default_factory=time.time)


class Error(RecordModel):
    """A failure under the boundary it crossed (`type`); `status_code` is the provider's HTTP status, if any.

    `unreachable` (while the rollout runs, not in the record): the provider gave no answer at all.
    """

    type: str
    message: str
    status_code: int | None = None
    traceback: str | None = None
    unreachable: bool = Field(False, exclude=True, repr=False)

    @classmethod
    def of(cls, error: BaseException) -> Error:
        """The record of `error`. A provider's failure needs no traceback: its message says it all."""
        trace = None
        if not isinstance(error, ProviderError):
            trace = "".join(traceback.format_exception(error))[-TRACEBACK_LIMIT:]
        return cls(
            type=type(error).__name__,
            message=str(error),
            status_code=getattr(error, "status_code", None),
            traceback=trace,
            unreachable=getattr(error, "unreachable", False),
        )


class ModelCall(RecordModel):
    """One exchange with the provider, recorded when it is over.

    `node` is the index of the assistant message it produced, None when it produced none. `sampling` is what the
    request asked for, `endpoint` the path it went to. A failed call has its `error`, and its `usage` where
    the provider billed it.
    """

    node: int | None = None
    model: str | None = None
    sampling: SamplingConfig | None = None
    endpoint: str | None = None
    finish_reason: FinishReason = None
    usage: Usage | None = None
    time: TimeSpan = Field(default_factory=TimeSpan)
    error: Error | None = None


@dataclass(frozen=True, slots=True)
class Branch:
    """A path from a root to a leaf of the graph, and the calls that produced messages on it, in order."""

    index: int
    nodes: Sequence[MessageNode]
    calls: Sequence[ModelCall] = field(default=())

    @property
    def messages(self) -> list[Message]:
        """The conversation, oldest first."""
        return [node.message for node in self.nodes]

    @property
    def num_turns(self) -> int:
        """Messages that a model call produced."""
        return sum(node.sampled for node in self.nodes)

    @property
    def usage(self) -> Usage | None:
        """What its calls reported, summed; None when unknown."""
        return Usage.aggregate(call.usage for call in self.calls)

    @property
    def last_usage(self) -> Usage | None:
        """What the last call that reported usage said: the context it saw and what it added."""
        return next((call.usage for call in reversed(self.calls) if call.usage is not None), None)

    @property
    def num_total_tokens(self) -> int:
        """The length of the whole conversation as the last call saw and left it."""
        last = self.last_usage
        return last.total_tokens if last is not None else 0

    @property
    def num_output_tokens(self) -> int:
        """Tokens that the model generated."""
        return sum(call.usage.completion_tokens for call in self.calls if call.usage is not None)

    @property
    def num_input_tokens(self) -> int:
        """Tokens fed in, counted once: the whole less what was generated, never negative."""
        return max(0, self.num_total_tokens - self.num_output_tokens)


class Tally:
    """Running counts over a trace's nodes and calls: each is looked at once, however often a limit is checked.

    A call adds what it generated, and of its prompt what the call before it on the branch had not seen. A call
    that produced no message was billed all the same and counts whole, as does one whose prompt did not grow:
    it can't contain the one before.
    """

    __slots__ = ("_by_node", "_calls", "_nodes", "input", "output", "turns")

    def __init__(self) -> None:
        self._reset()

    def _reset(self) -> None:
        self._nodes = 0
        self._calls = 0
        self._by_node: dict[int, Usage] = {}
        self.turns = 0
        self.input = 0
        self.output = 0

    def update(self, nodes: Sequence[MessageNode], calls: Sequence[ModelCall]) -> Tally:
        """Count what was added since; start again when something was taken away."""
        if len(nodes) < self._nodes or len(calls) < self._calls:
            self._reset()
        while self._nodes < len(nodes):
            self.turns += nodes[self._nodes].sampled
            self._nodes += 1
        while self._calls < len(calls):
            self._count(calls[self._calls], nodes)
            self._calls += 1
        return self

    def _count(self, call: ModelCall, nodes: Sequence[MessageNode]) -> None:
        usage = call.usage
        if usage is None:
            return
        before = None if call.node is None else self._before(call.node, nodes)
        new = usage.input_tokens
        if before is not None and new > before.input_tokens:
            new = max(0, new - before.total_tokens)
        self.input += new
        self.output += usage.completion_tokens
        if call.node is not None:
            self._by_node[call.node] = usage

    def _before(self, node: int, nodes: Sequence[MessageNode]) -> Usage | None:
        """Usage of the nearest call above `node`."""
        at = parent_of(nodes, node)
        while at is not None:
            if (usage := self._by_node.get(at)) is not None:
                return usage
            at = parent_of(nodes, at)
        return None


def parent_of(nodes: Sequence[MessageNode], node: int) -> int | None:
    """The index of the message before `node`; None for a root (and where a damaged record points nowhere)."""
    parent = nodes[node].parent if 0 <= node < len(nodes) else None
    # A parent stands before its children, always: so no walk can go in circles.
    return parent if parent is not None and 0 <= parent < node else None


def paths(nodes: Sequence[MessageNode]) -> list[list[int]]:
    """The node indices of every branch, root first; branches in the order of their leaves."""
    parents = {node.parent for node in nodes if node.parent is not None}
    out: list[list[int]] = []
    for leaf in range(len(nodes)):
        if leaf in parents:
            continue
        path: list[int] = []
        at: int | None = leaf
        while at is not None:
            path.append(at)
            at = parent_of(nodes, at)
        out.append(path[::-1])
    return out


def branches(nodes: Sequence[MessageNode], calls: Sequence[ModelCall]) -> list[Branch]:
    """Every branch with its calls."""
    by_node: dict[Any, ModelCall] = {call.node: call for call in calls if call.node is not None}
    return [
        Branch(i, [nodes[n] for n in path], [by_node[n] for n in path if n in by_node])
        for i, path in enumerate(paths(nodes))
    ]
