"""What a screen does with a link, without a screen."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from vf_core.events.fold import fold
from vf_core.events.state import RunState
from vf_core.link.base import Events, Link, Lost, Snapshot


class Viewer:
    """Connects, folds, and notes what came."""

    def __init__(self, link: Link) -> None:
        self.link = link
        self.state = RunState()
        self.snapshots = 0
        self.events = 0
        self.lost: list[Lost] = []
        self._changed = asyncio.Condition()
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> Viewer:
        """Connect and follow from here on."""
        self.state = await self.link.connect()
        self._task = asyncio.create_task(self._follow())
        return self

    async def _follow(self) -> None:
        async for batch in self.link.batches():
            match batch:
                case Snapshot(state):
                    self.state = state
                    self.snapshots += 1
                case Events(events):
                    fold(events, self.state)
                    self.events += len(events)
                case Lost():
                    self.lost.append(batch)
            async with self._changed:
                self._changed.notify_all()
        async with self._changed:
            self._changed.notify_all()

    async def until(self, test: Callable[[Viewer], object], timeout: float = 60.0) -> None:
        """Wait until `test` holds of this viewer."""
        async with asyncio.timeout(timeout), self._changed:
            await self._changed.wait_for(lambda: test(self) or (self._task is not None and self._task.done()))
        if self._task is not None and self._task.done() and not test(self):
            self._task.result()
            raise AssertionError("the link ended before it came to that")

    async def stop(self) -> None:
        """Leave."""
        await self.link.close()
        if self._task is not None:
            await asyncio.wait_for(self._task, 60)
