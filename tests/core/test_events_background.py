"""The thread that writes."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

from vf_core.events.background import Background


def test_work_asked_for_often_is_done_once_and_sees_everything() -> None:
    background = Background("test", delay=60)
    left: list[int] = []
    seen: list[list[int]] = []

    def work() -> None:
        seen.append(list(left))

    for n in range(1_000):
        left.append(n)
        background.soon(work)
    background.close()
    assert seen == [list(range(1_000))]
    background.close()
    background.soon(work)
    assert len(seen) == 2


def test_urgent_work_does_not_wait() -> None:
    background = Background("test", delay=60)
    done = threading.Event()
    background.soon(done.set, now=True)
    assert done.wait(60)
    background.close()


def test_work_that_fails_does_not_stop_what_follows() -> None:
    background = Background("test", delay=0)
    done = threading.Event()

    def fail() -> None:
        raise RuntimeError("boom")

    background.soon(fail)
    background.soon(done.set)
    assert done.wait(60)
    background.close()


async def test_the_end_needs_no_thread_of_a_pool_that_is_busy() -> None:
    release = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        asyncio.get_running_loop().set_default_executor(pool)
        pool.submit(release.wait)
        background = Background("test", delay=60)
        done: list[int] = []
        background.soon(lambda: done.append(1))
        await asyncio.wait_for(background.aclose(), 60)
        await background.aclose()
        assert done == [1]
        release.set()
    assert not [thread for thread in threading.enumerate() if thread.name == "test"]
