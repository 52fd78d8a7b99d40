"""Blocking work off the event loop, on threads that never keep the process alive."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class DaemonExecutor(ThreadPoolExecutor):
    """An executor for a loop's default: a slow read of a dead file system is abandoned at exit, not waited for.

    Every call gets a thread of its own, at most `max_workers` at once.
    """

    def __init__(self, max_workers: int = 8) -> None:
        super().__init__(max_workers=1)
        self._places = threading.Semaphore(max_workers)

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """See `concurrent.futures.Executor`."""
        future: Future[T] = Future()

        def work() -> None:
            with self._places:
                if not future.set_running_or_notify_cancel():
                    return
                try:
                    result = fn(*args, **kwargs)
                except BaseException as e:
                    future.set_exception(e)
                else:
                    future.set_result(result)

        threading.Thread(target=work, name="vf-tui-background", daemon=True).start()
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Nothing is waited for."""


def run_apart(make: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run a coroutine to its end on a loop of its own, in this thread; no thread of it is waited for."""

    def loop() -> asyncio.AbstractEventLoop:
        new = asyncio.new_event_loop()
        new.set_default_executor(DaemonExecutor())
        return new

    with asyncio.Runner(loop_factory=loop) as runner:
        return runner.run(make())


async def apart(make: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """As `run_apart`, in a thread: for SDKs that may block the loop they run on. Cancelling abandons it."""
    return await asyncio.wrap_future(DaemonExecutor().submit(run_apart, make))
