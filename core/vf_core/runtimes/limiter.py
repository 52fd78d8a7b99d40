"""How fast sandboxes are asked for, over all processes of this host: one after another, evenly.

The last grant's time is in a file under the state directory; who wants the next one takes it when it is due, never
before. Nobody holds a place in the future, so nothing is left behind by a wish that was cancelled or a process that
was killed. Times are of the monotonic clock, which all processes share, and count within one boot only.
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from weakref import WeakKeyDictionary

from vf_core.config.paths import private_dir, state_dir
from vf_core.errors import ConfigError
from vf_core.runtimes.identity import boot_id
from vf_core.text import slug

log = logging.getLogger(__name__)

# A late wake-up is made good, so that the rate is kept on the average; by no more than this, in seconds.
_SLACK = 0.1
# Tries for a lock that another process holds: it is held for microseconds, unless that one was suspended.
_LOCK_PAUSE = 0.002
_LOCK_PATIENCE = 2.0

# One wish a name and loop is at the file; the others queue behind it, first come first served.
_queues: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, asyncio.Lock]] = WeakKeyDictionary()
# When this process last granted one: what holds where the file cannot be used.
_granted: dict[str, float] = {}


class CreationLimiter:
    """At most `per_second` grants a second under `name`, evenly paced, over all processes of this host.

    Limiters with one name share their pace, each with its own `per_second`. `clock` gives monotonic seconds, `boot`
    the boot that they count in. Raises `ValueError` unless `per_second` is above 0.
    """

    def __init__(
        self,
        name: str,
        per_second: float,
        *,
        clock: Callable[[], float] = time.monotonic,
        boot: Callable[[], str] = boot_id,
    ) -> None:
        if not per_second > 0:
            raise ValueError(f"{per_second:g} a second: expected more than 0")
        self.name = name
        self.interval = 1.0 / per_second
        self._clock = clock
        self._boot = boot

    async def admit(self) -> None:
        """Wait for a turn; never longer than the wishes before it in this process need, if no other process asks.

        When cancelled it has taken nothing. A file that cannot be used is logged, and this process then keeps the
        pace by itself.
        """
        queue = _queues.setdefault(asyncio.get_running_loop(), {}).setdefault(self.name, asyncio.Lock())
        async with queue:
            give_up = self._clock() + _LOCK_PATIENCE
            while True:
                try:
                    wait = self._try_file()
                except BlockingIOError:
                    if self._clock() < give_up:
                        await asyncio.sleep(_LOCK_PAUSE * (1 + random.random()))  # noqa: S311 - no secret
                        continue
                    wait = self._try_alone(f"its lock is held for more than {_LOCK_PATIENCE:g} s")
                except (OSError, ConfigError) as e:
                    wait = self._try_alone(str(e))
                if wait <= 0:
                    return
                await asyncio.sleep(wait)
                give_up = self._clock() + _LOCK_PATIENCE

    def _try_file(self) -> float:
        """Take a turn if one is due; 0 when taken, else the seconds until it is. Raises `OSError`, and
        `BlockingIOError` when another process is at the file."""
        with self._locked() as fd:
            now = self._clock()
            last = _parse(os.pread(fd, 256, 0), self._boot(), now)
            own = _granted.get(self.name)
            if own is not None and own <= now and (last is None or own > last):
                last = own  # the file was removed, or could not be written
            wait = self._wait(last, now)
            if wait > 0:
                return wait
            taken = self._slot(last, now)
            _granted[self.name] = taken
            data = f"{taken!r} {self._boot()}\n".encode()
            os.pwrite(fd, data, 0)
            os.ftruncate(fd, len(data))
            return 0.0

    def _try_alone(self, why: str) -> float:
        now = self._clock()
        last = _granted.get(self.name)
        if last is not None and last > now:
            last = None
        wait = self._wait(last, now)
        if wait <= 0:
            log.warning("the pace of %s is kept by this process alone: %s", self.name, why)
            _granted[self.name] = self._slot(last, now)
        return wait

    def _wait(self, last: float | None, now: float) -> float:
        return 0.0 if last is None else min(self.interval, last + self.interval - now)

    def _slot(self, last: float | None, now: float) -> float:
        """The time that a turn taken now counts for: when it was due, if that is not long ago."""
        if last is None:
            return now
        return min(now, max(last + self.interval, now - min(self.interval, _SLACK)))

    @contextmanager
    def _locked(self) -> Iterator[int]:
        directory = private_dir(state_dir() / "limiters")
        path = Path(directory, f"{slug(self.name, limit=60)}.cursor")
        # Opened for each try: a file that was removed meanwhile is made again.
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield fd
        finally:
            os.close(fd)


def _parse(data: bytes, boot: str, now: float) -> float | None:
    """The last grant's time; None when the file says nothing that counts: another boot, the future, or garbage."""
    try:
        text, _, of = data.decode("ascii").strip().partition(" ")
        last = float(text)
    except ValueError:
        return None
    return last if of == boot and 0 <= last <= now else None
