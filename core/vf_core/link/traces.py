"""The traces of attempts that are over, read from the run directory for whoever looks at one."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vf_core.errors import RunDirError
from vf_core.events import types as ev
from vf_core.events.state import RunState

if TYPE_CHECKING:
    from vf_core.trace.reader import TraceIndex


class Traces:
    """Knows which trace belongs to which attempt, and finds it in `traces.jsonl`."""

    def __init__(self, run_dir: Path | None) -> None:
        self._run_dir = run_dir
        self._ids: dict[str, dict[int, str]] = {}
        self._index: TraceIndex | None = None
        self._lock = asyncio.Lock()

    def take(self, state: RunState) -> None:
        """Note the attempts that `state` knows."""
        self._ids = {r.id: {a.number: a.trace for a in r.attempts} for r in state.rollouts.values()}

    def see(self, events: Iterable[ev.Event]) -> None:
        """Note the attempts that began in `events`."""
        for event in events:
            if isinstance(event, ev.AttemptStarted):
                self._ids.setdefault(event.rollout, {})[event.attempt] = event.trace

    def number(self, rollout: str, attempt: int) -> int:
        """`attempt`, or the number of the latest one where it is 0."""
        return attempt or max(self._ids.get(rollout, {}), default=0)

    async def get(self, rollout: str, attempt: int) -> dict[str, Any] | None:
        """The record of an attempt (0: the latest) as it stands on disk; None when it does not."""
        id = self._ids.get(rollout, {}).get(self.number(rollout, attempt))
        if not id or self._run_dir is None:
            return None
        async with self._lock:
            try:
                return await asyncio.to_thread(self._read, self._run_dir / "traces.jsonl", id)
            except RunDirError:
                return None

    def _read(self, path: Path, id: str) -> dict[str, Any] | None:
        from vf_core.trace.reader import TraceIndex

        if self._index is None:
            self._index = TraceIndex(path)
        else:
            self._index.refresh()
        return self._index.get(id)
