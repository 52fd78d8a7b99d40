"""Finished attempts: their traces on disk, group rewards, and what the run's exit code is made of."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from vf_core.errors import RolloutError, RunDirError
from vf_core.events import types as ev
from vf_core.rollout import Attempt, Result, RolloutSpec
from vf_core.tasks.scoring import group_rewards, score_group
from vf_core.trace.record import Trace
from vf_core.trace.writer import TraceWriter

log = logging.getLogger(__name__)


class Results:
    """Writes traces in order, off the loop. A group with group rewards is written when it is whole.

    `broken` is called once, with what happened, when a trace can't be written.
    """

    def __init__(
        self, writer: TraceWriter, publish: Callable[[ev.Event], None], broken: Callable[[Exception], None]
    ) -> None:
        self._writer = writer
        self._publish = publish
        self._broken = broken
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="traces")
        self._groups: dict[int, dict[str, tuple[RolloutSpec, int, Trace[Any, Any]]]] = {}
        self._sizes: dict[int, int] = {}

    def expect(self, specs: list[RolloutSpec]) -> None:
        """Note how large each group is that has group rewards."""
        for spec in specs:
            if group_rewards(spec.task):
                self._sizes[spec.position] = self._sizes.get(spec.position, 0) + 1

    async def keep(self, attempt: Attempt, result: Result) -> None:
        """Write the trace of a finished attempt, or hold it until its group is whole."""
        spec, trace = attempt.spec, attempt.record()
        size = self._sizes.get(spec.position)
        if size is None or result.outcome == "stopped":
            await self._write(trace)
            return
        group = self._groups.setdefault(spec.position, {})
        first_time = spec.id not in group
        group[spec.id] = (spec, attempt.number, trace)
        if len(group) < size:
            return
        await self._score_group(group)
        # A restart in a group that was written before adds its own trace only.
        for _, _, held in group.values() if first_time else [group[spec.id]]:
            await self._write(held)

    async def flush(self) -> None:
        """Write groups that will not become whole: without their group rewards."""
        for position, group in self._groups.items():
            if len(group) < self._sizes[position]:
                for _, _, trace in group.values():
                    await self._write(trace)
        self._groups.clear()

    async def close(self) -> None:
        """Write what is held, and end the thread."""
        await self.flush()
        await asyncio.to_thread(self._thread.shutdown)
        try:
            self._writer.close()
        except RunDirError as e:
            self._broken(e)

    async def _score_group(self, group: dict[str, tuple[RolloutSpec, int, Trace[Any, Any]]]) -> None:
        members = sorted(group.values(), key=lambda member: member[0].sample)
        traces = [trace for _, _, trace in members]
        try:
            await score_group(members[0][0].task, traces)
        except RolloutError as e:
            for spec, number, _ in members:
                self._publish(
                    ev.ErrorRaised(rollout=spec.id, attempt=number, kind=type(e).__name__, message=str(e))
                )
            return
        for spec, number, trace in members:
            self._publish(
                ev.Scored(
                    rollout=spec.id,
                    attempt=number,
                    reward=trace.score,
                    rewards=dict(trace.rewards),
                    metrics=dict(trace.metrics),
                )
            )

    async def _write(self, trace: Trace[Any, Any]) -> None:
        try:
            await asyncio.get_running_loop().run_in_executor(self._thread, self._writer.write, trace)
        except RunDirError as e:
            log.error("trace %s not written: %s", trace.id, e)
            self._broken(e)


def exit_code(
    *, errors: int, max_errors: int, unconfirmed: int, unreachable: bool, interrupted: bool, failed: bool
) -> int:
    """The run's exit code, the gravest first: see the table in the README."""
    for applies, code in (
        (failed, 1),
        (unconfirmed > 0, 4),
        (interrupted, 130),
        (unreachable, 5),
        (errors > max_errors, 3),
    ):
        if applies:
            return code
    return 0


def is_unreachable(trace_error: Any) -> bool:
    """Whether an error on a trace says that the provider could not be reached."""
    return (
        trace_error is not None
        and trace_error.type == "ProviderError"
        and trace_error.status_code in (502, 503, 504)
    )
