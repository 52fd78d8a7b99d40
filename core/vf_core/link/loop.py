"""The loop an engine runs on, and the end of its process: what others' code keeps busy is left behind, by name,
and never waited for without end."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import threading
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, TypeVar

log = logging.getLogger(__name__)

PATIENCE = 3.0
"""Seconds for cancelled tasks to end, and once more for threads."""

T = TypeVar("T")


def run_loop(main: Coroutine[Any, Any, T], loop: asyncio.AbstractEventLoop | None = None) -> T:
    """Run `main` on a loop of its own and close that, as `asyncio.run` does; but a task that swallows its
    cancellation, or a call that blocks a thread of the loop's pool, holds it up for `PATIENCE` seconds only."""
    loop = loop or asyncio.new_event_loop()
    try:
        asyncio.set_event_loop(loop)
        return loop.run_until_complete(main)
    finally:
        try:
            _cancel_rest(loop)
            loop.run_until_complete(loop.shutdown_asyncgens())
        finally:
            asyncio.set_event_loop(None)
            loop.close()


def _cancel_rest(loop: asyncio.AbstractEventLoop) -> None:
    tasks = asyncio.all_tasks(loop)
    for task in tasks:
        task.cancel()
    if not tasks:
        return
    _, left = loop.run_until_complete(asyncio.wait(tasks, timeout=PATIENCE))
    for task in left:
        log.error("left behind, it does not end when cancelled: %s", task.get_name())


def end_process_soon(code: int) -> None:
    """Have this process end with `code` if it has not ended by itself after `PATIENCE` seconds: threads of plugins
    may keep it. Its sandboxes are ended first, as at any exit."""

    def end() -> None:
        from vf_core.runtimes.at_exit import cleanup_all

        names = [thread.name for thread in threading.enumerate() if thread is not threading.current_thread()]
        log.error("ended although threads still run: %s", ", ".join(names))
        cleanup_all()
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError):
                stream.flush()
        os._exit(code)

    timer = threading.Timer(PATIENCE, end)
    timer.daemon = True
    timer.start()
