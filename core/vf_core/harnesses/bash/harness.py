"""The `bash` harness: an agent with a shell, an editor for single replacements and, if wanted, web search."""

from __future__ import annotations

import os
from pathlib import Path

from vf_core.errors import ConfigError
from vf_core.harnesses.chat_program import ChatProgramConfig, ChatProgramHarness

SERPER_KEY = "SERPER_API_KEY"

_AGENT = "You are an agent working in a sandbox. You have these tools:"
_TOOLS = {
    "bash": "bash: run a shell command and get its output. No terminal, no input.",
    "edit": "edit: replace a text that occurs exactly once in a file.",
    "search": "search: search the web; read a result in full with bash (curl).",
}
_END = "When the task is done, answer without calling a tool."


class BashHarnessConfig(ChatProgramConfig):
    """Options of the `bash` harness. `search` needs a Serper key in the variable SERPER_API_KEY."""

    id: str = "bash"
    edit: bool = True
    search: bool = False


class BashHarness(ChatProgramHarness[BashHarnessConfig]):
    """A chat loop with the tools `bash`, `edit` and `search`."""

    PROGRAM = Path(__file__).with_name("program.py")

    def own_tools(self) -> list[str]:
        """Those that the config switches on."""
        offered = {"bash": True, "edit": self.config.edit, "search": self.config.search}
        return [name for name, on in offered.items() if on]

    def system_prompt(self, task: str | None) -> str:
        """What the agent is and has, then the task's own prompt."""
        names = [name for name in self.own_tools() if name not in self.config.disabled_tools]
        own = "\n".join([_AGENT, *(f"- {_TOOLS[name]}" for name in names), _END])
        return f"{own}\n\n{task}" if task else own

    def validate(self) -> None:
        """See `Harness.validate`."""
        super().validate()
        if self.config.search and not self._serper_key():
            raise ConfigError(
                f"search needs a Serper key, and {SERPER_KEY} is not set",
                key="env.agent.harness.search",
                hint=f"set {SERPER_KEY}, or switch search off",
            )

    def own_flags(self) -> list[str]:
        """The tools to offer, and the search key."""
        flags = ["--edit"] if self.config.edit else []
        if self.config.search:
            flags += ["--search", f"--serper-key={self._serper_key()}"]
        return flags

    def environment(self) -> dict[str, str]:
        """The program's extra variables, without the search key."""
        environment = super().environment()
        if self.config.search:
            # The key goes to the program by flag alone: the agent's commands inherit what stands here.
            environment.pop(SERPER_KEY, None)
        return environment

    def _serper_key(self) -> str:
        """The key: the harness's own (set empty, it hides the host's), else the host's."""
        return self.config.resolved_env.get(SERPER_KEY, os.environ.get(SERPER_KEY, ""))
