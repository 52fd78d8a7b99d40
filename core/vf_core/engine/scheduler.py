"""Who runs next: a queue, a number of places, and whether launching is paused."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from vf_core.engine.jobs import Job

log = logging.getLogger(__name__)


class Scheduler:
    """Launches queued jobs while there are places. `launch` runs one attempt; it must not raise for a job's sake."""

    def __init__(self, concurrency: int, launch: Callable[[Job], Coroutine[Any, Any, None]]) -> None:
        self.concurrency = concurrency
        self.paused = False
        self.closed = False
        self._launch = launch
        self._queue: deque[Job] = deque()
        self._running: set[asyncio.Task[None]] = set()
        self._promised = 0
        self._quiet = asyncio.Event()
        self._quiet.set()

    @property
    def active(self) -> int:
        """Attempts under way, teardown included."""
        return len(self._running)

    @property
    def waiting(self) -> int:
        """Jobs without a place."""
        return len(self._queue)

    def add(self, jobs: Iterable[Job], *, first: bool = False) -> None:
        """Queue `jobs`, behind the others or (`first`) before them; one that waits already stays where it is."""
        for job in jobs:
            if job.queued:
                continue
            job.queued = True
            if first:
                self._queue.appendleft(job)
            else:
                self._queue.append(job)
        self.pump()

    def remove(self, job: Job) -> bool:
        """Take `job` out of the queue; False when it is not there."""
        try:
            self._queue.remove(job)
        except ValueError:
            return False
        job.queued = False
        self._note_quiet()
        return True

    def clear(self) -> list[Job]:
        """Empty the queue at once and return what was in it."""
        jobs = list(self._queue)
        self._queue.clear()
        for job in jobs:
            job.queued = False
        self._note_quiet()
        return jobs

    def pump(self) -> None:
        """Launch what may be launched now."""
        while self._queue and not self.paused and not self.closed and self.active < self.concurrency:
            self._start(self._queue.popleft())
        self._note_quiet()

    def launch_one(self) -> Job | None:
        """Launch the next job although launching is paused; None when there is none, or no place."""
        if not self._queue or self.closed or self.active >= self.concurrency:
            return None
        job = self._queue.popleft()
        self._start(job)
        return job

    def _start(self, job: Job) -> None:
        job.queued = False
        job.idle.clear()
        task = asyncio.create_task(self._launch(job), name=f"job {job.spec.id}")
        self._running.add(task)
        task.add_done_callback(self._ended)

    @property
    def busy(self) -> bool:
        """Something runs, is queued, or is promised."""
        return bool(self._running or self._queue or self._promised)

    @contextmanager
    def promise(self) -> Iterator[None]:
        """Inside, a job may be about to be queued: it is not quiet until that is decided."""
        self._promised += 1
        self._note_quiet()
        try:
            yield
        finally:
            self._promised -= 1
            self._note_quiet()

    async def quiet(self) -> None:
        """Wait until nothing runs, is queued, or is promised."""
        await self._quiet.wait()

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("%s ended unexpectedly", task.get_name(), exc_info=error)
        self.pump()

    def _note_quiet(self) -> None:
        if self.busy:
            self._quiet.clear()
        else:
            self._quiet.set()
