"""An engine's loop ends in time, whatever runs on it (T08, T14)."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
import threading
from collections.abc import AsyncIterator

import pytest

from vf_core.link import loop as loops
from vf_core.link.loop import run_loop


async def _stubborn() -> None:
    while True:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            continue


def test_it_gives_what_main_gives_and_closes_its_loop() -> None:
    async def main() -> asyncio.AbstractEventLoop:
        return asyncio.get_running_loop()

    assert run_loop(main()).is_closed()
    loop = asyncio.new_event_loop()
    assert run_loop(main(), loop) is loop

    async def fail() -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        run_loop(fail())


def test_what_is_left_is_cancelled_and_may_clean_up() -> None:
    said = []

    async def tidy() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            said.append("task")

    async def numbers() -> AsyncIterator[int]:
        try:
            yield 1
            yield 2
        finally:
            said.append("generator")

    async def main() -> None:
        kept.append(asyncio.create_task(tidy()))
        generator = numbers()
        kept.append(generator)
        await anext(generator)

    kept: list[object] = []
    run_loop(main())
    assert said == ["task", "generator"]


def test_t08_a_task_that_swallows_its_cancellation_is_left_behind(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(loops, "PATIENCE", 0.2)

    async def main() -> int:
        kept.append(asyncio.create_task(_stubborn(), name="stop box-1"))
        await asyncio.sleep(0)
        return 4

    kept: list[object] = []
    with caplog.at_level(logging.ERROR):
        assert run_loop(main()) == 4
    assert "left behind, it does not end when cancelled: stop box-1" in caplog.text


def test_t14_a_blocked_thread_of_its_pool_is_not_waited_for() -> None:
    let_go = threading.Event()

    async def main() -> int:
        asyncio.get_running_loop().run_in_executor(None, let_go.wait)
        return 0

    assert run_loop(main()) == 0
    let_go.set()


@pytest.mark.parametrize("code", [0, 4])
def test_t14_threads_do_not_keep_the_process(code: int) -> None:
    program = (
        "import sys, threading, time\n"
        "from vf_core.link import loop\n"
        "loop.PATIENCE = 0.2\n"
        "threading.Thread(target=time.sleep, args=(3600,), name='stuck').start()\n"
        "print('the last word')\n"
        f"loop.end_process_soon({code})\n"
        f"sys.exit({code})\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout) == (code, "the last word\n")
    assert "stuck" in done.stderr
