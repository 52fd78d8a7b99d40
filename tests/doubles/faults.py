"""Faults that a provider's double is told to show: each hits the next calls whose name fits, in the order given."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Fault:
    """`op`: a pattern searched in an operation's name. `times`: how many calls it hits; -1: every one.

    status: an error answer (`status`, `body`, `headers`), nothing done. hang: `seconds` before the work. hang_after:
    the work, then `seconds`, then the connection breaks. reset_before, reset_after: the connection breaks, without
    or after the work. cut: it breaks `seconds` into the answer. linger: an end that takes `seconds` to show.
    Doubles may know more actions of their own.
    """

    op: str
    action: str
    times: int = 1
    status: int = 500
    body: dict[str, Any] = field(default_factory=dict)
    headers: dict[str, str] = field(default_factory=dict)
    seconds: float = 0.0


class Faults:
    """A plan of faults and a log of all calls. Thread-safe: the test and its double live in different threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._plan: list[Fault] = []
        self.log: list[tuple[float, str]] = []

    def add(self, op: str, action: str, **details: Any) -> None:
        """Plan a fault; see `Fault`."""
        with self._lock:
            self._plan.append(Fault(op, action, **details))

    def clear(self) -> None:
        """Everything works from now on."""
        with self._lock:
            self._plan.clear()

    def take(self, op: str, actions: Collection[str] | None = None) -> Fault | None:
        """The first fault that hits this call, counted; only of these actions, if any are named."""
        with self._lock:
            for fault in self._plan:
                fits = actions is None or fault.action in actions
                if fault.times and fits and re.search(fault.op, op):
                    fault.times -= 1
                    return fault
        return None

    def record(self, op: str) -> None:
        """A call came in."""
        with self._lock:
            self.log.append((time.monotonic(), op))

    def count(self, op: str) -> int:
        """How many calls came in whose name fits."""
        with self._lock:
            return sum(1 for _, name in self.log if re.search(op, name))
