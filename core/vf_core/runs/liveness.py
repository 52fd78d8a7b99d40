"""Whether the process that runs a run is still there (see `runtimes.liveness`), or has said its last word."""

from __future__ import annotations

from typing import Literal

from vf_core.runtimes.liveness import Whereabouts, here, process_lives, process_start

__all__ = ["Liveness", "Whereabouts", "here", "process_lives", "process_start"]

Liveness = Literal["live", "dead", "elsewhere", "ended"]
"""`ended`: it said its last word; `elsewhere`: on another machine or in another container, so it can't be told."""
