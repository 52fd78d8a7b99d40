"""The `bash` agent: a chat loop with a shell, an editor for single replacements, and web search."""

from __future__ import annotations

import os

from vf_core.harnesses.program.local_tools import (
    BASH,
    EDIT,
    SEARCH,
    bash_tool,
    edit_tool,
    search_tool,
)
from vf_core.harnesses.program.loop import (
    PLAIN_FLAGS,
    VALUE_FLAGS,
    Toolbox,
    UsageError,
    read_flags,
    run_agent,
    run_main,
)
from vf_core.harnesses.program.shell import COMMAND_TIMEOUT


def main(argv: list[str]) -> int:
    """Run the agent with these flags; its exit code."""
    flags = read_flags(
        argv, (*VALUE_FLAGS, "serper-key", "command-timeout"), (*PLAIN_FLAGS, "edit", "search")
    )
    tools = Toolbox()
    seconds = float(flags.get("command-timeout", [COMMAND_TIMEOUT])[-1])
    tools.add(BASH, bash_tool(seconds))
    if "edit" in flags:
        tools.add(EDIT, edit_tool)
    if "search" in flags:
        key = flags.get("serper-key", [""])[-1]
        if not key:
            raise UsageError("--search needs --serper-key")
        # The key is for the search tool alone, not for the agent's own commands.
        os.environ.pop("SERPER_API_KEY", None)
        tools.add(SEARCH, search_tool(key))
    return run_agent(flags, tools)


if __name__ == "__main__":
    run_main(main)
