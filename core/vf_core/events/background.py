"""A thread for the slow part of writing: an event loop never waits for a disk."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable

log = logging.getLogger(__name__)

DELAY = 0.1
"""Seconds for which work is gathered before it is done."""


class Background:
    """Runs functions off the caller's thread, each at most once every `delay` seconds however often it is asked
    for. The thread starts when first needed and ends with `close`."""

    def __init__(self, name: str, *, delay: float = DELAY) -> None:
        self._name = name
        self._delay = delay
        self._due: dict[Callable[[], None], None] = {}
        self._changed = threading.Condition()
        self._urgent = False
        self._closed = False
        self._thread: threading.Thread | None = None
        self._on_end: list[Callable[[], object]] = []

    def soon(self, work: Callable[[], None], *, now: bool = False) -> None:
        """Have `work` done within `delay` seconds, or at once with `now`. Once closed, it is done here."""
        # What is due is taken out before it runs, so whatever the caller left for `work` will be seen.
        if work in self._due and not now:
            return
        with self._changed:
            if not self._closed:
                self._due[work] = None
                self._urgent = self._urgent or now
                if self._thread is None:
                    self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                    self._thread.start()
                self._changed.notify()
                return
        work()

    def close(self, *, wait: bool = True) -> None:
        """Do what is due, and end the thread; with `wait`, block until that is done. Idempotent."""
        with self._changed:
            self._closed = True
            self._changed.notify()
            thread = self._thread
        if wait and thread is not None:
            thread.join()

    async def aclose(self) -> None:
        """As `close`, waiting without holding the loop, and without a thread of the loop's pool, which may be
        busy with other people's code."""
        loop = asyncio.get_running_loop()
        ended = asyncio.Event()
        with self._changed:
            if self._thread is None:
                self._closed = True
                return
            self._on_end.append(lambda: loop.call_soon_threadsafe(ended.set))
        self.close(wait=False)
        await ended.wait()

    def _run(self) -> None:
        self._work()
        with self._changed:
            # From here on nobody is told.
            tell, self._thread = self._on_end, None
        for told in tell:
            try:
                told()
            except RuntimeError:
                pass  # that loop is closed

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._due or self._closed)
                self._changed.wait_for(lambda: self._urgent or self._closed, self._delay)
                due, self._due, self._urgent = self._due, {}, False
                last = self._closed
            for work in due:
                try:
                    work()
                except Exception:
                    log.exception("background work failed")
            if last and not self._due:
                return
