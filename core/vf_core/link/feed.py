"""The engine's side of one viewer: a snapshot in parts, then batches of events, again and again as needed.

A feed lives on the engine's loop and takes only as fast as its viewer does.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

from vf_core.events import types as ev
from vf_core.events.snapshot import Dumping
from vf_core.link.base import EnginePort

INTERVAL = 0.1
"""Seconds between two batches to one viewer, at least."""
FAREWELL = 2.0
"""Seconds that an engine which has ended waits for its viewers to hear the last of it."""
CHUNK = 50
"""Rollouts in one part of a snapshot."""
BATCH = 1_000
"""Events in one batch, at most."""


@dataclass(frozen=True, slots=True)
class Part:
    """A piece of a snapshot (see `events.snapshot.Loading`); the `last` one completes it."""

    data: dict[str, Any]
    first: bool
    last: bool


class Feed:
    """What one viewer is to be sent. `items` ends when the bus is closed and all of it was handed over."""

    def __init__(
        self, port: EnginePort, *, read_only: bool, interval: float = INTERVAL, batch: int = BATCH
    ) -> None:
        self._port = port
        self._bus = port.bus
        self._interval = interval
        self._batch = batch
        self._subscription = self._bus.subscribe(commands=not read_only)
        self._tell()

    async def items(self) -> AsyncIterator[Part | list[ev.Event]]:
        """Parts of a snapshot first, then lists of events; parts again whenever the viewer fell behind."""
        subscription = self._subscription
        while not subscription.ended:
            if subscription.lost:
                async for part in self._parts():
                    yield part
                continue
            await subscription.ready.wait()
            events = subscription.take(self._batch)
            if events:
                yield events
                if len(events) < self._batch and not self._bus.closed:
                    await asyncio.sleep(self._interval)

    async def _parts(self) -> AsyncIterator[Part]:
        # Between chunks the loop gets its turn; between `finish` and `fresh` nothing may happen.
        dumping = Dumping(self._bus.state)
        first = True
        while (chunk := dumping.chunk(CHUNK)) is not None:
            yield Part(chunk, first, False)
            first = False
            await asyncio.sleep(0)
        last = Part(dumping.finish(), first, True)
        self._subscription.fresh()
        yield last

    def watch(self, rollouts: set[str]) -> None:
        """See `Link.watch`."""
        self._subscription.watch(rollouts)
        self._tell()

    def resync(self) -> None:
        """The viewer lost track: it needs a snapshot."""
        self._subscription.lose()

    def close(self) -> None:
        """Unsubscribe. Idempotent."""
        self._subscription.close()
        self._tell()

    def _tell(self) -> None:
        self._port.watch(self._bus.watching)
        self._port.viewers(sum(s.commands for s in self._bus.subscriptions))
