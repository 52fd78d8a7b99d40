"""Finished attempts: their traces on disk, group rewards, and what the run's exit code is made of."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from vf_core.errors import RolloutError, RunDirError
from vf_core.events import types as ev
from vf_core.rollout import Attempt, Result, RolloutSpec
from vf_core.tasks.judging import judged
from vf_core.tasks.scoring import group_rewards, score_group
from vf_core.trace.reader import TraceIndex
from vf_core.trace.record import Trace
from vf_core.trace.writer import TraceWriter

log = logging.getLogger(__name__)


Member = tuple[RolloutSpec, int, Trace[Any, Any]]
"""A rollout of a group, the attempt that counts for it, and that attempt's trace."""


class Results:
    """Writes traces in order, off the loop. A group with group rewards is written when it is whole; when one of its
    rollouts is run again later, the others' traces are read back, and written again where their rewards changed.

    `last` names the traces of rollouts that were kept from an earlier sitting. `broken` is called once, with what
    happened, when a trace can't be written.
    """

    def __init__(
        self,
        writer: TraceWriter,
        publish: Callable[[ev.Event], None],
        broken: Callable[[Exception], None],
        last: Mapping[str, str] | None = None,
    ) -> None:
        self._writer = writer
        self._publish = publish
        self._broken = broken
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="traces")
        self._groups: dict[int, dict[str, Member]] = {}
        self._specs: dict[int, list[RolloutSpec]] = {}
        self._locks: dict[int, asyncio.Lock] = {}
        self._last = dict(last or {})
        self._index: TraceIndex | None = None

    def expect(self, specs: list[RolloutSpec]) -> None:
        """Note who is in the groups that have group rewards."""
        for spec in specs:
            if group_rewards(spec.task):
                self._specs.setdefault(spec.position, []).append(spec)

    async def keep(self, attempt: Attempt, result: Result, *, again: bool = False) -> None:
        """Write the trace of a finished attempt, or hold it until its group is whole. A stopped attempt, and one that
        is followed by another (`again`), is nobody's share of a group."""
        spec, trace = attempt.spec, attempt.record()
        if spec.position not in self._specs:
            await self._write(trace)
            return
        async with self._locks.setdefault(spec.position, asyncio.Lock()):
            group = self._groups.setdefault(spec.position, {})
            if (replaced := group.pop(spec.id, None)) is not None:
                await self._write(replaced[2])
            if again or result.outcome == "stopped":
                self._last.pop(spec.id, None)
                await self._write(trace)
                return
            group[spec.id] = (spec, attempt.number, trace)
            await self._complete(spec.position, group)

    async def _complete(self, position: int, group: dict[str, Member]) -> None:
        """Score and write a group that is whole, with those of its rollouts that were written before."""
        recalled: dict[str, dict[str, float]] = {}
        members = dict(group)
        for spec in self._specs[position]:
            if spec.id not in members:
                member = await self._recall(spec)
                if member is None:
                    return
                members[spec.id] = member
                recalled[spec.id] = dict(member[2].rewards)
        del self._groups[position]
        for id in recalled:
            spec, _, trace = members[id]
            for hook in group_rewards(spec.task):
                trace.rewards.pop(hook.name, None)
        await self._score_group(members)
        # A kill in between leaves the new one missing, so that the group is run again: never new and old shares.
        for id in sorted(members, key=lambda id: id not in recalled):
            trace = members[id][2]
            if id not in recalled or dict(trace.rewards) != recalled[id]:
                await self._write(trace)
            self._last[id] = trace.id

    async def _recall(self, spec: RolloutSpec) -> Member | None:
        """A rollout of a group that was written as a whole; None where it was not."""
        last = self._last.get(spec.id)
        if last is None:
            return None
        trace = await asyncio.get_running_loop().run_in_executor(self._thread, self._read, last)
        if trace is None:
            return None
        number = trace.extra.get("attempt")
        return spec, number if isinstance(number, int) else 1, trace

    def _read(self, trace: str) -> Trace[Any, Any] | None:
        try:
            if self._index is None:
                self._index = TraceIndex(self._writer.path)
            else:
                self._index.refresh()
            record = self._index.get(trace)
            return None if record is None else Trace.from_record(record)
        except (RunDirError, ValueError) as e:
            log.error("trace %s can't be read back: %s", trace, e)
            return None

    async def flush(self) -> None:
        """Write groups that will not become whole: without their group rewards."""
        for position in list(self._groups):
            async with self._locks.setdefault(position, asyncio.Lock()):
                for id, (_, _, trace) in self._groups.pop(position, {}).items():
                    await self._write(trace)
                    self._last[id] = trace.id

    async def close(self) -> None:
        """Write what is held, and end the thread."""
        await self.flush()
        await asyncio.to_thread(self._thread.shutdown)
        try:
            self._writer.close()
        except RunDirError as e:
            self._broken(e)

    async def _score_group(self, group: dict[str, Member]) -> None:
        members = sorted(group.values(), key=lambda member: member[0].sample)
        traces = [trace for _, _, trace in members]
        try:
            await score_group(members[0][0].task, traces, members[0][0].panel)
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
                    judged=judged(trace),
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
