"""A taskset of shell scripts, with hooks that behave as its config says."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterable
from typing import Any

from vf_core.runtimes.base import Runtime
from vf_core.tasks import Task, TaskConfig, TaskData, Taskset, TasksetConfig, group_reward, reward
from vf_core.trace.record import Trace

__all__ = ["ScriptTaskset"]


class ScriptTask(Task[TaskData]):
    """Reward 1 when the script left a file `solved`, else 0; `hook` makes a hook misbehave."""

    async def setup(self, trace: Trace[Any, Any], runtime: Runtime) -> None:
        hook = self.data.description
        if hook == "setup raises":
            raise ValueError("the data set is not there")
        if hook == "setup swallows":
            while True:
                try:
                    await asyncio.sleep(3600)
                except BaseException:
                    continue

    async def finalize(self, trace: Trace[Any, Any], runtime: Runtime) -> None:
        if self.data.description == "finalize hangs":
            await asyncio.Event().wait()

    @reward
    async def solved(self, runtime: Runtime) -> float:
        if self.data.description == "reward raises":
            raise ValueError("no verdict")
        return float((await runtime.run(["test", "-e", "solved"])).exit_code == 0)


class GroupTask(ScriptTask):
    """The rollouts of a task share one reward; with the hook `shared by the best`, those that solved it do."""

    @group_reward
    def share(self, traces: list[Trace[Any, Any]]) -> list[float]:
        if self.data.description == "shared by the best":
            solved = [trace.rewards["solved"] for trace in traces]
            return [one / max(1.0, sum(solved)) for one in solved]
        return [1 / len(traces)] * len(traces)


class ScriptTasksetConfig(TasksetConfig):
    """`scripts`: one task each. `hook`: see `ScriptTask`. `group`: with a group reward."""

    scripts: list[str] = []
    hook: str = ""
    group: bool = False
    task: TaskConfig = TaskConfig()


class ScriptTaskset(Taskset[ScriptTask, ScriptTasksetConfig]):
    def load(self) -> Iterable[ScriptTask]:
        if self.config.hook == "load exits":
            raise SystemExit(3)
        if self.config.hook == "load kills":
            os._exit(7)
        if self.config.hook == "load hangs":
            time.sleep(600)
        kind = GroupTask if self.config.group else ScriptTask
        return [
            kind(
                TaskData(idx=i, name=f"script {i}", prompt=script, description=self.config.hook),
                self.config.task,
            )
            for i, script in enumerate(self.config.scripts)
        ]
