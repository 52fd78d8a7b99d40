"""Hours of work, scaled down: what a screen and the state behind it hold stays as it was after warming up (U08)."""

from __future__ import annotations

import gc
import os

from doubles.fake_engine import FakeEngine
from doubles.watching import Watching, watching
from vf_core.events import types as ev

GROWTH = 6_000_000


def resident() -> int:
    """Bytes of memory that this process has."""
    gc.collect()
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


async def work(w: Watching, events: int) -> None:
    """Let so many things happen, in helpings that the screen can follow, with output of every kind."""
    ids = list(w.engine.state.rollouts)
    for n in range(events // 1000):
        w.engine.step(1000)
        for id in ids:
            text = "\x1b]0;" + "y" * 50_000 if n % 4 == 0 else f"{n} {'line ' * 20}\n" * 200
            w.engine.bus.publish(ev.OutputChunk(rollout=id, attempt=1, stream="stdout", text=text))
        await w.settle()


async def test_u08_a_long_run_does_not_grow_the_screen() -> None:
    engine = FakeEngine(32, endless=True)
    engine.begin()
    async with watching(engine) as w:
        await w.press("enter")
        await work(w, 8_000)
        before = resident()
        await work(w, 24_000)
        assert resident() - before < GROWTH
