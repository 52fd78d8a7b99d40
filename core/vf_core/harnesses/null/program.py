"""The `null` agent: a chat loop without tools of its own."""

from __future__ import annotations

from vf_core.harnesses.program.loop import PLAIN_FLAGS, VALUE_FLAGS, Toolbox, read_flags, run_agent, run_main


def main(argv: list[str]) -> int:
    """Run the agent with these flags; its exit code."""
    return run_agent(read_flags(argv, VALUE_FLAGS, PLAIN_FLAGS), Toolbox())


if __name__ == "__main__":
    run_main(main)
