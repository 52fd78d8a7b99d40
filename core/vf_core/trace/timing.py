"""When the phases of a rollout began and ended. Times are Unix seconds, durations seconds."""

from __future__ import annotations

import time

from pydantic import Field

from vf_core.trace.types import RecordModel


class TimeSpan(RecordModel):
    """A stretch of time; `end` 0: not over (or never begun, when `start` is 0 too)."""

    start: float = 0.0
    end: float = 0.0

    @property
    def duration(self) -> float:
        """Seconds; 0 until it is over, never negative."""
        return max(0.0, self.end - self.start) if self.end else 0.0

    def close(self, now: float) -> None:
        """End it at `now` if it was begun and is not over."""
        if self.start and not self.end:
            self.end = now


class TimeSplit(RecordModel):
    """A share of a span: the sum of stretches that need not touch."""

    duration: float = 0.0


class GenerationSpan(TimeSpan):
    """The agent's run, split into time inside model calls and outside them; both add up to the span."""

    model: TimeSplit = Field(default_factory=TimeSplit)
    harness: TimeSplit = Field(default_factory=TimeSplit)


class Timing(RecordModel):
    """The phases of a rollout; `start` is when its trace was made."""

    start: float = Field(default_factory=time.time)
    boot: TimeSpan = Field(default_factory=TimeSpan)
    setup: TimeSpan = Field(default_factory=TimeSpan)
    generation: GenerationSpan = Field(default_factory=GenerationSpan)
    finalize: TimeSpan = Field(default_factory=TimeSpan)
    scoring: TimeSpan = Field(default_factory=TimeSpan)

    def close(self, now: float) -> None:
        """End every span that is still open at `now`."""
        for span in (self.boot, self.setup, self.generation, self.finalize, self.scoring):
            span.close(now)
