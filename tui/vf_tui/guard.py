"""Keys that were meant: what is pasted, typed ahead or bounced must not answer a dialog."""

from __future__ import annotations

import time
from collections.abc import Callable

QUIET_SECONDS = 0.3
"""A dialog takes keys only after this long without one, counted from its opening."""
BURST_SECONDS = 0.06
"""Keys closer together than this were not typed one by one."""


class Guard:
    """Tells meant keys from others. `clock` is monotonic, in seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._deaf_until = clock() + QUIET_SECONDS
        self._last = float("-inf")

    def key(self) -> bool:
        """A key came: whether it was meant. One that was not makes the wait begin again."""
        now = self._clock()
        burst = now - self._last < BURST_SECONDS
        self._last = now
        if burst or now < self._deaf_until:
            self._deaf_until = now + QUIET_SECONDS
            return False
        return True

    @property
    def ready(self) -> bool:
        """A key (or click) that came now would count."""
        return self._clock() >= self._deaf_until

    def again(self) -> None:
        """Begin again, as if just opened."""
        self._deaf_until = self._clock() + QUIET_SECONDS

    def alone(self) -> bool:
        """No key came in the last `BURST_SECONDS`: asked that long after a key, it came alone."""
        return self._clock() - self._last >= BURST_SECONDS
