"""The `bash` harness: a chat loop with a shell."""

from vf_core.harnesses.bash.harness import BashHarness, BashHarnessConfig

__all__ = ["BashHarness", "BashHarnessConfig"]
