"""The taskset `demo`: eight small tasks of different kinds, again and again with other names and numbers.

Nothing is staged here: the files are real, the agent works on them with real commands, and each reward looks at what
is there afterwards. `scripted/demo.toml` is a model that does these tasks; any other may try.
"""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Callable, Iterator
from typing import Any

from pydantic import Field

from vf_core.errors import SandboxFileNotFoundError
from vf_core.runtimes.base import Runtime
from vf_core.tasks import (
    State,
    Task,
    TaskConfig,
    TaskData,
    Taskset,
    TasksetConfig,
    TaskTimeout,
    metric,
    reward,
)
from vf_core.tasksets._demo_kinds import KINDS, Made
from vf_core.trace.record import Trace
from vf_core.trace.types import AssistantMessage

_NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?")


class DemoConfig(TasksetConfig):
    """`pace` stretches what takes time (1: all eight at once take about a minute); `variety` picks other
    names and numbers."""

    pace: float = Field(1.0, gt=0, le=60)
    variety: int = 0


class DemoData(TaskData):
    """A task of one `kind`. `files` are there before the agent; what is right afterwards: `expected` files (path to
    content), `answer` (the last number of the reply), `check` (a command that must print `check_output`), `goal`
    (lines that `expected_lines` should have in the end) or, with `declines`, that the agent declined."""

    kind: str
    files: dict[str, str] = Field(default_factory=dict)
    expected: dict[str, str] = Field(default_factory=dict)
    answer: float | None = None
    check: str | None = None
    check_output: str = ""
    goal: int | None = None
    counted: str = ""
    declines: bool = False


class DemoTask(Task[DemoData, State, TaskConfig]):
    """Writes a task's files, and judges what the agent left."""

    async def setup(self, trace: Trace[DemoData, State], runtime: Runtime) -> None:
        """Put the task's files in the sandbox."""
        for path, text in self.data.files.items():
            await runtime.write(path, text.encode())

    @reward
    async def solved(self, trace: Trace[DemoData, State], runtime: Runtime) -> float:
        """The share of what was asked for that is there: 1.0 is all of it."""
        data = self.data
        parts = [float(await _text(runtime, path) == text) for path, text in data.expected.items()]
        if data.answer is not None:
            parts.append(float(_last_number(trace.last_reply) == data.answer))
        if data.check is not None:
            result = await runtime.run(["sh", "-c", data.check], timeout=30)
            parts.append(float(result.exit_code == 0 and result.stdout.strip() == data.check_output))
        if data.goal:
            lines = (await _text(runtime, data.counted) or "").splitlines()
            parts.append(min(len(lines) / data.goal, 1.0))
        if data.declines:
            parts.append(float(trace.stop_condition == "agent_declined"))
        return sum(parts) / len(parts)

    @metric
    def tool_calls(self, trace: Trace[DemoData, State]) -> int:
        """How many tool calls the model made."""
        said = (node.message for node in trace.nodes)
        return sum(len(m.tool_calls or ()) for m in said if isinstance(m, AssistantMessage))

    @metric
    def declined(self, trace: Trace[DemoData, State]) -> int:
        """1 when the agent declined the task."""
        return int(trace.stop_condition == "agent_declined")


class DemoTaskset(Taskset[DemoTask, DemoConfig]):
    """Task number n is of kind n modulo eight; there is no end to them."""

    INFINITE = True

    def load(self) -> Iterator[DemoTask]:
        """The tasks, without end."""
        names = list(KINDS)
        for idx in itertools.count():
            kind = names[idx % len(names)]
            data = _data(idx, kind, KINDS[kind], self.config)
            yield DemoTask(data, self.config.task)

    def select(self, num_tasks: int | None = None, shuffle: bool = False, seed: int = 0) -> list[DemoTask]:
        """One of each kind unless more (or fewer) are asked for."""
        tasks = super().select(len(KINDS) if num_tasks is None else num_tasks)
        if shuffle:
            random.Random(seed).shuffle(tasks)  # noqa: S311
        return tasks


def _data(idx: int, kind: str, make: Callable[[random.Random, float], Made], config: DemoConfig) -> DemoData:
    chance = random.Random(f"{config.variety}|{idx}")  # noqa: S311
    made: dict[str, Any] = dict(make(chance, config.pace))
    seconds = made.pop("seconds", None)
    return DemoData(
        idx=idx,
        kind=kind,
        name=f"{kind} {idx // len(KINDS) + 1}",
        timeout=TaskTimeout(harness=seconds),
        **made,
    )


async def _text(runtime: Runtime, path: str) -> str | None:
    """A file's text; None when there is none."""
    try:
        return (await runtime.read_bounded(path, 1 << 20)).decode(errors="replace")
    except SandboxFileNotFoundError:
        return None


def _last_number(text: str) -> float | None:
    found = _NUMBER.findall(text)
    return float(found[-1].replace(",", "")) if found else None


__all__ = ["DemoTaskset"]
