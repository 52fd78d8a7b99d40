"""A taskset whose tasks have a tool server for each rollout and share another, for tests."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Iterable
from typing import Any

from pydantic import SecretStr

from vf_core.tasks import (
    State,
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

__all__ = ["ToolTaskset"]


class NotesState(State):
    """What a rollout has noted."""

    notes: list[str] = []
    looked_up: int = 0
    answer: str = ""


class NotesConfig(ToolsetConfig):
    """Options of `Notes`. `trouble`: how its start goes wrong."""

    greeting: str = "noted"
    key: SecretStr = SecretStr("")
    trouble: str = ""


class Notes(Toolset[NotesConfig, NotesState]):
    """A rollout's own notes."""

    async def setup(self) -> None:
        print("notes are set up", self.config.key.get_secret_value())
        if self.config.trouble == "raise":
            raise RuntimeError("no room for notes")
        if self.config.trouble == "exit":
            os._exit(3)
        if self.config.trouble == "hang":
            # A session of its own, and deaf.
            deaf = "trap '' TERM HUP INT; while :; do sleep 1; done"
            subprocess.Popen(["sh", "-c", deaf], start_new_session=True)
            print("stuck", flush=True)
            time.sleep(3600)

    async def setup_task(self, task: TaskData) -> None:
        self.task = task

    @tool
    async def note(self, text: str, times: int = 1) -> str:
        """Note a text."""
        self.state.notes = [*self.state.notes, *[text] * times]
        return f"{self.config.greeting}: {', '.join(self.state.notes)}"

    @tool
    def about(self) -> dict[str, Any]:
        """What the server knows."""
        return {
            "row": self.task.idx,
            "kind": type(self.task).__name__,
            "key": self.config.key.get_secret_value(),
        }

    @tool
    def environment(self) -> dict[str, str]:
        """What the server's process sees of the host."""
        return dict(os.environ)

    @tool
    def fail(self) -> str:
        """Always fails."""
        raise ValueError("the tool's own failure")

    @tool
    def die(self) -> str:
        """Ends the server's process in the middle of the call."""
        print("dying on purpose", file=sys.stderr)
        os._exit(9)

    @tool
    def hang(self) -> str:
        """Never answers, and listens to nobody."""
        while True:
            time.sleep(60)

    @tool
    def noisy(self) -> str:
        """Prints much and answers long."""
        print("\x1b[31mBANNER\x1b[0m " * 1000)
        sys.stderr.write("warning: noise\n" * 1000)
        return "x" * 5_000_000


class LookupConfig(ToolsetConfig):
    """Options of `Lookup`."""

    table: dict[str, str] = {"capital": "Paris"}


class Lookup(Toolset[LookupConfig, NotesState]):
    """What all rollouts look up."""

    TOOL_PREFIX = "db"

    async def setup(self) -> None:
        self.calls = 0

    @tool(name="get")
    async def look(self, word: str) -> str:
        """Look a word up."""
        self.calls += 1
        self.state.looked_up += 1
        await asyncio.sleep(0)
        return f"{self.config.table.get(word, 'nothing')} (call {self.calls}, pid {os.getpid()})"

    @tool
    def die(self) -> str:
        """Ends the server's process."""
        os._exit(9)


class ToolTaskConfig(TaskConfig):
    """Options of the tasks."""

    notes: NotesConfig = NotesConfig()


class ToolTaskData(TaskData):
    """A row."""

    wanted: str = "Paris"


class ToolTask(Task[ToolTaskData, NotesState, ToolTaskConfig]):
    """Note something."""

    tools = (Notes,)

    @reward
    async def noted(self, trace: Any) -> float:
        """What the tools left in the state."""
        return len(trace.state.notes) + 10.0 * trace.state.looked_up


class ToolTasksetConfig(TasksetConfig):
    """Options of the taskset."""

    task: ToolTaskConfig = ToolTaskConfig()
    lookup: LookupConfig = LookupConfig()
    prompts: list[str] = ["use your tools"]


class ToolTaskset(Taskset[ToolTask, ToolTasksetConfig]):
    """Rows that need tools."""

    tools = (Lookup,)

    def load(self) -> Iterable[ToolTask]:
        return [
            ToolTask(ToolTaskData(idx=i, prompt=prompt), self.config.task)
            for i, prompt in enumerate(self.config.prompts)
        ]
