"""Ending a sandbox's processes: SIGTERM, a grace period, SIGKILL, and a look whether anybody is left."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable, Collection, Sequence
from typing import Any

from vf_core.runtimes import tree
from vf_core.runtimes.census import Count, census, count_now
from vf_core.runtimes.processes import Process
from vf_core.runtimes.tree import Proc

Members = Callable[[Count], list[Proc]]
"""Picks those that are to be ended out of all."""

# Killed processes are gone at once, unless the kernel holds them; then this long is waited before that is said.
KILL_PATIENCE = 3.0
_LOOKS = (0.01, 0.02, 0.05, 0.1, 0.2)


def _pause(look: int) -> float:
    return _LOOKS[min(look, len(_LOOKS) - 1)]


async def end(
    own: Collection[Process], members: Members, *, grace: float, forced: asyncio.Event
) -> list[Proc]:
    """Ask them to end; after `grace` seconds, or once `forced`, make them. Returns who is left, whatever was done.

    `own` are the programs that were started, `members` finds what they started in turn. When nobody runs, this is
    one look at the process table.
    """
    # Each is asked once: a program may take a second request for an order to drop everything.
    asked: set[tuple[int, int]] = set()
    running = {process.pid for process in own if process.exit_code is None}
    try:
        if running:
            # While their parents live, whose everybody is can still be seen.
            left = members(await census().count())
            asked = {(proc.pid, proc.start) for proc in left if proc.group in running}
    finally:
        for process in own:
            process.signal_group(signal.SIGTERM)
    deadline = time.monotonic() + grace
    look = 0
    while True:
        ends = {process.ended for process in own if process.exit_code is None}
        if ends:
            await _first(ends, forced, min(_pause(look), deadline - time.monotonic()))
        left = members(await census().count())
        if not left and all(process.exit_code is not None for process in own):
            return []
        if forced.is_set() or time.monotonic() >= deadline:
            return await kill(own, members)
        for proc in left:
            if (proc.pid, proc.start) not in asked:
                asked.add((proc.pid, proc.start))
                tree.send(proc, signal.SIGTERM)
        await _first(set(), forced, _pause(look))
        look += 1


async def kill(own: Collection[Process], members: Members) -> list[Proc]:
    """Kill them until a look finds nobody; returns who is still there when patience ends."""
    deadline = time.monotonic() + KILL_PATIENCE
    while True:
        for process in own:
            process.signal_group(signal.SIGKILL)
        left = members(await census().count())
        if not left and all(process.exit_code is not None for process in own):
            return []
        for proc in left:
            tree.send(proc, signal.SIGKILL)
        if time.monotonic() >= deadline:
            return left
        # No growing pauses here: who forks and exits all the time is only caught by looking often.
        await asyncio.sleep(_LOOKS[0])


def kill_now(own: Collection[Process], members: Members) -> list[Proc]:
    """As `kill`, without an event loop."""
    for process in own:
        process.signal_group(signal.SIGKILL)
    deadline = time.monotonic() + KILL_PATIENCE
    while (left := members(count_now())) and time.monotonic() < deadline:
        for proc in left:
            tree.send(proc, signal.SIGKILL)
        time.sleep(_LOOKS[0])
    return left


def still_there(left: Sequence[Proc]) -> str:
    """Names who is left."""
    some = ", ".join(str(proc) for proc in left[:5])
    more = f" and {len(left) - 5} more" if len(left) > 5 else ""
    return f"{len(left)} process{'es' if len(left) > 1 else ''} still there: {some}{more}"


async def _first(futures: set[asyncio.Future[None]], event: asyncio.Event, timeout: float) -> None:
    """Wait for the first of `futures`, for `event`, or for `timeout` seconds."""
    told = asyncio.ensure_future(event.wait())
    waited: set[asyncio.Future[Any]] = {told, *futures}
    try:
        await asyncio.wait(waited, timeout=max(0.0, timeout), return_when=asyncio.FIRST_COMPLETED)
    finally:
        told.cancel()
