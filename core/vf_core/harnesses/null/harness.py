"""The `null` harness: the model alone, with the task's MCP tools if it has any."""

from __future__ import annotations

from pathlib import Path

from vf_core.harnesses.chat_program import ChatProgramConfig, ChatProgramHarness


class NullHarnessConfig(ChatProgramConfig):
    """Options of the `null` harness."""

    id: str = "null"


class NullHarness(ChatProgramHarness[NullHarnessConfig]):
    """A chat loop without tools of its own."""

    PROGRAM = Path(__file__).with_name("program.py")

    def own_tools(self) -> list[str]:
        """None."""
        return []
