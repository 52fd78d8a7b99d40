"""How fast sandboxes are asked for: evenly, over all processes, and nothing is left of what was given up (R31)."""

from __future__ import annotations

import asyncio
import fcntl
import itertools
import json
import logging
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from doubles.stepped_loop import SteppedLoop
from vf_core.runtimes import limiter as limiter_module
from vf_core.runtimes.limiter import CreationLimiter

_names = itertools.count()


@pytest.fixture
def name(tmp_path, monkeypatch):
    """A limiter's name that nobody used, and a state directory of its own."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    return f"test-{next(_names)}"


@pytest.fixture
def loop():
    loop = SteppedLoop()
    yield loop
    loop.close()


def cursor(name: str) -> Path:
    return Path(os.environ["XDG_STATE_HOME"], "vf-tui", "limiters", f"{name}.cursor")


def forget(name: str) -> None:
    """What a new process knows: nothing."""
    limiter_module._granted.pop(name, None)


class Bench:
    """Limiters in simulated time; `skew` is how far the monotonic clock is from the loop's."""

    def __init__(self, loop: SteppedLoop, name: str) -> None:
        self.loop, self.name, self.skew, self.boot = loop, name, 1000.0, "boot-1"
        self.grants: list[float] = []

    def limiter(self, per_second: float = 1.0) -> CreationLimiter:
        return CreationLimiter(
            self.name, per_second, clock=lambda: self.loop.time() + self.skew, boot=lambda: self.boot
        )

    async def one(self, limiter: CreationLimiter) -> None:
        await limiter.admit()
        self.grants.append(self.loop.time())

    def start(self, count: int, per_second: float = 1.0) -> list[asyncio.Task[None]]:
        """Wishes of as many runtimes, each with a limiter of its own."""
        return [self.loop.create_task(self.one(self.limiter(per_second))) for _ in range(count)]

    def first_wait(self, per_second: float = 1.0) -> float:
        before = self.loop.time()
        self.loop.do(self.one(self.limiter(per_second)))
        return self.loop.time() - before


@pytest.fixture
def bench(loop, name):
    return Bench(loop, name)


def test_evenly_paced_and_the_first_at_once(bench):
    tasks = bench.start(100, per_second=40)
    bench.loop.do(_all(tasks))
    gaps = [b - a for a, b in itertools.pairwise(bench.grants)]
    assert bench.grants[0] == 0
    assert max(gaps) < 0.026
    assert min(gaps) > 0.024


async def _all(tasks):
    await asyncio.gather(*tasks)


def test_first_come_first_served(bench):
    order: list[int] = []

    async def one(n: int) -> None:
        await bench.limiter(10).admit()
        order.append(n)

    bench.loop.do(_all([bench.loop.create_task(one(n)) for n in range(20)]))
    assert order == list(range(20))


def test_a_stop_empties_the_queue_and_leaves_no_wait(bench):
    """R31: 50 at one a second, stopped after two; nobody after them waits for what they had wished."""
    tasks = bench.start(50)
    bench.loop.advance(2.5)
    assert len(bench.grants) == 3
    for task in tasks:
        task.cancel()
    bench.loop.advance(0)
    assert all(task.done() for task in tasks)
    assert bench.first_wait() <= 1
    assert bench.first_wait() <= 1


def test_a_cancelled_one_gives_its_place_to_the_next(bench):
    tasks = bench.start(4)
    bench.loop.advance(0.5)
    tasks[1].cancel()
    bench.loop.advance(1)
    assert bench.grants == [0, 1]
    bench.loop.advance(1)
    assert bench.grants == [0, 1, 2]


@pytest.mark.parametrize("skew", [-900.0, 0.0, 5e6])
def test_no_long_wait_after_a_reboot_or_a_strange_clock(bench, skew):
    """R31: a cursor of another boot, of the future, or of long ago."""
    bench.loop.do(_all(bench.start(5)))
    forget(bench.name)
    bench.boot, bench.skew = "boot-2", skew
    assert bench.first_wait() == 0
    bench.skew -= 500  # a clock that is set back within one boot
    assert bench.first_wait() <= 1


@pytest.mark.parametrize(
    "data", [b"", b"\xff\xfe", b"nan boot-1", b"inf boot-1", b"-1 boot-1", b"1e400 x", b"{}"]
)
def test_a_damaged_cursor_is_no_cursor(bench, data):
    bench.first_wait()
    forget(bench.name)
    cursor(bench.name).write_bytes(data)
    assert bench.first_wait() == 0
    assert cursor(bench.name).read_bytes().endswith(b" boot-1\n")


def test_the_pace_survives_the_removal_of_the_file(bench):
    assert bench.first_wait() == 0
    cursor(bench.name).unlink()
    assert bench.first_wait() == pytest.approx(1)


def test_different_rates_under_one_name(bench):
    """A slow one does not make a quick one wait for its long pause."""
    assert bench.first_wait(per_second=0.01) == 0
    assert bench.first_wait(per_second=10) == pytest.approx(0.1)
    assert bench.first_wait(per_second=0.01) == pytest.approx(100, rel=0.01)


def test_a_late_wake_up_is_made_good_a_little(bench):
    """A loop that was busy keeps the rate, without a burst."""
    assert bench.first_wait(10) == 0
    bench.loop.advance(60)
    bench.loop.do(_all(bench.start(5, per_second=10)))
    gaps = [b - a for a, b in itertools.pairwise(bench.grants[1:])]
    assert gaps == pytest.approx([0, 0.1, 0.1, 0.1], abs=0.001)


def test_a_lock_that_is_never_let_go_is_not_waited_for(bench, caplog):
    """A suspended process at the file; the loop goes on meanwhile, and the pace is kept alone."""
    bench.first_wait()
    with open(cursor(bench.name)) as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with caplog.at_level(logging.WARNING):
            assert bench.first_wait() <= 3
        assert "kept by this process alone" in caplog.text


def test_a_state_directory_that_cannot_be_written(bench, tmp_path, monkeypatch, caplog):
    blocked = tmp_path / "file"
    blocked.write_text("")
    monkeypatch.setenv("XDG_STATE_HOME", str(blocked))
    with caplog.at_level(logging.WARNING):
        assert bench.first_wait() == 0
        assert bench.first_wait() == pytest.approx(1)
    assert "kept by this process alone" in caplog.text


@pytest.mark.parametrize("rate", [0, -1, float("nan")])
def test_a_rate_that_is_none(name, rate):
    with pytest.raises(ValueError):
        CreationLimiter(name, rate)


CHILD = """\
import asyncio, json, sys, time
from vf_core.runtimes.limiter import CreationLimiter
async def one(limiter, grants):
    await limiter.admit()
    grants.append(time.monotonic())
async def main():
    print("up", flush=True); sys.stdin.readline()
    grants = []
    await asyncio.gather(*(one(CreationLimiter(sys.argv[1], 50), grants) for _ in range(12)))
    print(json.dumps(grants))
asyncio.run(main())
"""


def test_processes_of_this_host_share_one_pace(name):
    children = [
        subprocess.Popen(
            [sys.executable, "-c", CHILD, name], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for _ in range(3)
    ]
    for child in children:
        assert child.stdout.readline() == "up\n"
    started = time.monotonic()
    for child in children:
        child.stdin.write("go\n")
        child.stdin.flush()
    grants = sorted(t for child in children for t in json.loads(child.communicate(timeout=60)[0]))
    assert len(grants) == 36
    # 36 at 50 a second: the last one is due 35 turns after the first, less the slack that one turn may have.
    assert grants[-1] - started >= 34 / 50
