"""Deadlines that hold, also against what does not let itself be cancelled."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable
from typing import Any, TypeVar

log = logging.getLogger(__name__)

T = TypeVar("T")

# What is still at work after its deadline; held, so that its end is not lost.
_STUCK: set[asyncio.Future[Any]] = set()


async def bounded(work: Awaitable[T], timeout: float) -> T:
    """The result of `work`, or TimeoutError after `timeout` seconds, even if it does not let itself be cancelled."""
    task = asyncio.ensure_future(work)
    _STUCK.add(task)
    task.add_done_callback(_reap)
    try:
        await asyncio.wait({task}, timeout=max(0.0, timeout))
    finally:
        if not task.done():
            task.cancel()
    if not task.done():
        raise TimeoutError("no answer within the time allowed")
    return task.result()


def _reap(task: asyncio.Future[Any]) -> None:
    _STUCK.discard(task)
    if not task.cancelled():
        task.exception()  # whoever waited has it; nobody may have


async def quietly(work: Awaitable[object], timeout: float = 2.0) -> None:
    """Do it if it can be done; what goes wrong is of no interest."""
    try:
        await bounded(work, timeout)
    except Exception:
        log.debug("a provider could not be let go of", exc_info=True)
