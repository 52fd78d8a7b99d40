"""The bench's tasks: a short prompt, and a reward that looks at the last reply."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Any

from vf_core.tasks import Task, TaskData, Taskset, TasksetConfig, reward
from vf_core.trace.record import Trace

__all__ = ["BenchTaskset"]


class BenchTask(Task[TaskData]):
    @reward
    async def done(self, trace: Trace[Any, Any]) -> float:
        return float("done" in trace.last_reply)


class BenchTaskset(Taskset[BenchTask, TasksetConfig]):
    INFINITE = True

    def load(self) -> Iterable[BenchTask]:
        for i in itertools.count():
            yield BenchTask(TaskData(idx=i, name=f"bench {i}", prompt=f"task {i}: do what is needed"))
