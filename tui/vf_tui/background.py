"""Blocking work off the event loop, on threads that never keep the process alive."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import ParamSpec, TypeVar

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
