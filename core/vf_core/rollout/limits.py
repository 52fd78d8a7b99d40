"""How long each stage of an attempt may take."""

from __future__ import annotations

import time

from vf_core.eval_config import TimeoutConfig
from vf_core.trace.task import TaskData

# Seconds of a sandbox's lifetime that are kept for what comes after its program.
LIFETIME_RESERVE = 120.0


def stage_seconds(config: TimeoutConfig, data: TaskData, stage: str) -> float | None:
    """The limit of a stage: the config's, else the task's own; None: there is none."""
    own = getattr(config, stage)
    if own is not None:
        return float(own)
    theirs = getattr(data.timeout, "harness" if stage == "rollout" else stage)
    return None if theirs is None else float(theirs)


def program_seconds(seconds: float | None, lifetime: float | None, live_since: float) -> float | None:
    """The limit of the program: its own, or what is left of the sandbox's lifetime when that ends first, in whole
    seconds. Some of that is kept for finalize and scoring, so that the rollout ends well instead of being cut off.
    `live_since` in Unix seconds."""
    if lifetime is None:
        return seconds
    left = lifetime - (time.time() - live_since)
    capped = float(max(1, int(left - min(LIFETIME_RESERVE, 0.1 * lifetime))))
    return capped if seconds is None else min(seconds, capped)
