"""An event loop whose time passes at once: whatever would be waited for in time happens immediately, in order."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class _Selector(selectors.DefaultSelector):
    now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        events = super().select(0)
        if not events:
            if timeout is None:
                raise RuntimeError("nothing is scheduled and nothing will ever happen")
            self.now += max(timeout, 0.0)
        return events


class SteppedLoop(asyncio.SelectorEventLoop):
    """`advance` lets simulated seconds pass; `do` runs a coroutine to its end in simulated time."""

    def __init__(self) -> None:
        self._steps = _Selector()
        super().__init__(self._steps)

    def time(self) -> float:
        return self._steps.now

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        return self.run_until_complete(work)

    def advance(self, seconds: float) -> None:
        self.run_until_complete(asyncio.sleep(seconds))
