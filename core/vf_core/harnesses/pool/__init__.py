"""The `pool` harness: Poolside's agent, installed in the sandbox."""

from vf_core.harnesses.pool.harness import PoolHarness, PoolHarnessConfig

__all__ = ["PoolHarness", "PoolHarnessConfig"]
