"""The `null` harness: a chat loop without tools of its own."""

from vf_core.harnesses.null.harness import NullHarness, NullHarnessConfig

__all__ = ["NullHarness", "NullHarnessConfig"]
