"""The bus: every event passes here once, is numbered, folded into the live state and handed on.

All of it runs on the engine's loop (`publish_threadsafe` is the way in for other threads). No reader can slow
a publisher: sinks only take note, subscriptions are bounded and are told to start afresh when they overflow.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import TypeVar

from vf_core.events import types as ev
from vf_core.events.fold import apply
from vf_core.events.fold_live import live_now
from vf_core.events.live import LiveBuffer
from vf_core.events.state import RunState

LIVE_INTERVAL = 0.1
"""Seconds for which live events of a rollout are held and merged."""
CAPACITY = 8_192
"""Events that a subscription holds before it has to start afresh."""

E = TypeVar("E", bound=ev.Event)
Sink = Callable[[ev.Event], None]


def steady_clock() -> Callable[[], float]:
    """Unix seconds that never go back while this process lives, whatever happens to the wall clock."""
    # BOOTTIME goes on while the machine is suspended, so that the times stay true after a nap.
    clock = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
    start = time.time() - time.clock_gettime(clock)
    return lambda: start + time.clock_gettime(clock)


class Bus:
    """Numbers and distributes events. `state` is their fold, always up to date with the last durable one."""

    def __init__(
        self,
        state: RunState | None = None,
        *,
        clock: Callable[[], float] | None = None,
        live_interval: float = LIVE_INTERVAL,
    ) -> None:
        self.state = RunState() if state is None else state
        self.closed = False
        self._clock = clock or steady_clock()
        self._interval = live_interval
        self._sinks: tuple[Sink, ...] = ()
        self._subscriptions: tuple[Subscription, ...] = ()
        self._live: dict[str, LiveBuffer] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._left = asyncio.Event()

    def bind(self, loop: asyncio.AbstractEventLoop) -> None:
        """Say which loop is the engine's; otherwise the first one seen running while publishing is."""
        self._loop = loop

    def publish(self, event: E) -> E:
        """Stamp `event` with time and number, fold it, hand it on. Only from the engine's loop.

        A live event is held for at most `live_interval` seconds and merged with its like; a durable event of
        the same rollout lets it go first, so that the order stays.
        """
        if not event.durable:
            self._hold(ev.stamp(event, t=self._clock()))
            return event
        if self._live and isinstance(event, ev.RolloutEvent) and event.rollout in self._live:
            self._release(event.rollout)
        ev.stamp(event, seq=self.state.seq + 1, t=self._clock())
        apply(self.state, event)
        for sink in self._sinks:
            sink(event)
        for subscription in self._subscriptions:
            subscription.put(event)
        return event

    def publish_threadsafe(self, event: ev.Event) -> None:
        """Publish from another thread: soon, in the order of these calls. Nothing happens once it is closed."""
        if self._loop is None:
            raise RuntimeError("the bus is bound to no loop yet")
        try:
            self._loop.call_soon_threadsafe(self.publish, event)
        except RuntimeError:
            self.closed = True

    def add_sink(self, sink: Sink) -> Callable[[], None]:
        """Call `sink` with every durable event; it must not block nor raise. Returns the way to undo this."""
        self._sinks = (*self._sinks, sink)

        def remove() -> None:
            self._sinks = tuple(s for s in self._sinks if s is not sink)

        return remove

    def subscribe(self, *, capacity: int = CAPACITY, commands: bool = False) -> Subscription:
        """A bounded queue of what happens from here on; it starts out due for a snapshot. `commands`: whoever
        reads it may send commands."""
        subscription = Subscription(self, capacity, commands)
        self._subscriptions = (*self._subscriptions, subscription)
        return subscription

    @property
    def subscriptions(self) -> tuple[Subscription, ...]:
        """Who listens now."""
        return self._subscriptions

    @property
    def watching(self) -> frozenset[str]:
        """The rollouts that anybody looks at."""
        return frozenset().union(*(s.watching for s in self._subscriptions))

    def flush(self) -> None:
        """Let go of every live event that is held."""
        for rollout in list(self._live):
            self._release(rollout)

    def close(self) -> None:
        """Nothing more will be published: subscriptions end once they are read out. Idempotent."""
        self.flush()
        self.closed = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for subscription in self._subscriptions:
            subscription.ready.set()

    async def drained(self, timeout: float) -> bool:
        """Close, and wait until every subscriber has left; whether they did within `timeout` seconds."""
        self.close()
        self._left.clear()
        if self._subscriptions:
            try:
                await asyncio.wait_for(self._left.wait(), timeout)
            except TimeoutError:
                return False
        return True

    def _drop(self, subscription: Subscription) -> None:
        self._subscriptions = tuple(s for s in self._subscriptions if s is not subscription)
        if not self._subscriptions:
            self._left.set()

    def _hold(self, event: ev.Event) -> None:
        if not isinstance(event, ev.RolloutEvent):
            return
        buffer = self._live.get(event.rollout)
        if buffer is None:
            buffer = self._live[event.rollout] = LiveBuffer()
        buffer.add(event)
        if self._timer is None:
            self._arm()

    def _arm(self) -> None:
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            self.flush()
            return
        self._loop = self._loop or loop
        self._timer = loop.call_later(self._interval, self._tick)

    def _tick(self) -> None:
        self._timer = None
        self.flush()

    def _release(self, rollout: str) -> None:
        for event in self._live.pop(rollout).merged():
            apply(self.state, event)
            for subscription in self._subscriptions:
                subscription.put_live(event)


class Subscription:
    """What one reader has yet to see. `lost`: it fell too far behind (or has just begun), and needs a snapshot.

    Live events come only for rollouts in `watching` and are the first to be dropped; what was dropped is made
    good by one `LiveNow` a rollout.
    """

    def __init__(self, bus: Bus, capacity: int, commands: bool) -> None:
        self.lost = True
        self.commands = commands
        self.watching: frozenset[str] = frozenset()
        self.ready = asyncio.Event()
        self.ready.set()
        self._bus = bus
        self._capacity = capacity
        self._queue: deque[ev.Event] = deque()
        self._stale: set[str] = set()

    @property
    def ended(self) -> bool:
        """The bus is closed and everything was read."""
        return self._bus.closed and not self._queue and not self.lost

    def put(self, event: ev.Event) -> None:
        """Take note of a durable event."""
        if self.lost:
            return
        if len(self._queue) >= self._capacity:
            self.lose()
        else:
            self._queue.append(event)
            self.ready.set()

    def lose(self) -> None:
        """Forget what waits: the reader needs a snapshot."""
        self.lost = True
        self._queue.clear()
        self._stale.clear()
        self.ready.set()

    def put_live(self, event: ev.RolloutEvent) -> None:
        """Take note of a live event, unless nobody looks or there is little room left."""
        if self.lost or event.rollout not in self.watching:
            return
        if len(self._queue) >= self._capacity // 2:
            self._stale.add(event.rollout)
            return
        self._queue.append(event)
        self.ready.set()

    def watch(self, rollouts: Iterable[str]) -> None:
        """Look at exactly these rollouts; those newly looked at begin with all they have so far."""
        new = frozenset(rollouts)
        self._stale = (self._stale & new) | (new - self.watching)
        self.watching = new
        if self._stale:
            self.ready.set()

    def take(self, limit: int = CAPACITY) -> list[ev.Event]:
        """Up to `limit` events in order; none while `lost`."""
        if self.lost:
            return []
        queue = self._queue
        out = [queue.popleft() for _ in range(min(limit, len(queue)))]
        if not queue:
            self.ready.clear()
            out.extend(self._made_good())
            if self._bus.closed:
                self.ready.set()
        return out

    def _made_good(self) -> list[ev.Event]:
        rollouts = self._bus.state.rollouts
        out: list[ev.Event] = [live_now(rollouts[name]) for name in self._stale if name in rollouts]
        # What does not exist yet has nothing to be made good.
        self._stale.clear()
        return out

    def fresh(self) -> None:
        """A snapshot of the state as it is this instant was taken: go on from here."""
        self.lost = False
        self._queue.clear()
        self._stale.clear()
        if not self._bus.closed:
            self.ready.clear()

    def close(self) -> None:
        """Stop receiving. Idempotent."""
        self._bus._drop(self)
        self._queue.clear()
        self.ready.set()
