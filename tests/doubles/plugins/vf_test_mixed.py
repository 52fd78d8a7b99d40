"""A taskset with tools of each rollout's own and shared ones, whose rollouts end in every way, for tests."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from vf_test_toolset import Lookup, LookupConfig, NotesState

from vf_core.tasks import (
    Task,
    TaskConfig,
    TaskData,
    Taskset,
    TasksetConfig,
    Toolset,
    ToolsetConfig,
    reward,
    tool,
)

__all__ = ["MixedTaskset"]

_MARK = "VF_TUI_SANDBOX"


class Desk(Toolset[ToolsetConfig, NotesState]):
    """A rollout's own tools."""

    @tool
    def note(self, text: str) -> str:
        """Note a text, and say it again."""
        self.state.notes = [*self.state.notes, text]
        return text

    @tool
    def fail(self, why: str) -> str:
        """Always fails."""
        raise ValueError(why)

    @tool
    def strike(self) -> str:
        """Kill the agent's program, for programs that can't do it themselves. Local sandboxes only."""
        # The agent's sandbox is called as this server's, without what tells the server.
        mark = f"\0{_MARK}={os.environ[_MARK].rpartition('-t')[0]}-".encode()
        for place in Path("/proc").glob("[0-9]*"):
            try:
                found = b"\0" + (place / "environ").read_bytes()
            except OSError:
                continue
            if mark in found and mark + b"t" not in found:
                os.kill(int(place.name), signal.SIGKILL)
        return "struck"


class MixedData(TaskData):
    """A row: its `answer` is for the judge."""

    answer: str = "42"


class MixedTask(Task[MixedData, NotesState, TaskConfig]):
    """One way to end."""

    tools = (Desk,)

    @reward
    async def noted(self, trace: Any) -> float:
        """What the tools left in the state."""
        return float(len(trace.state.notes) > 0 and trace.state.looked_up > 0)


class MixedConfig(TasksetConfig):
    """Options: the tasks' names, which say what is to happen."""

    names: list[str] = []
    lookup: LookupConfig = LookupConfig()


class MixedTaskset(Taskset[MixedTask, MixedConfig]):
    """A row for each name."""

    tools = (Lookup,)

    def load(self) -> Iterable[MixedTask]:
        return [
            MixedTask(MixedData(idx=i, name=name, prompt=f"--{name}"), self.config.task)
            for i, name in enumerate(self.config.names)
        ]
