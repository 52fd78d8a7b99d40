"""Many Modal sandboxes at once, and those whose engine ends without ending them."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys

import pytest

from doubles.modal import kit
from vf_core.runtimes.lifecycle import State

MANY = 40


@pytest.fixture
def double(monkeypatch):
    yield from kit.serving(monkeypatch)


async def test_many_at_once(double):
    double.bystander(3)
    boxes = [kit.runtime(f"box-{n}") for n in range(MANY)]
    await asyncio.gather(*(box.start() for box in boxes))
    assert len({box.sandbox_id for box in boxes}) == MANY
    results = await asyncio.gather(*(box.run(["echo", str(n)]) for n, box in enumerate(boxes)))
    assert [result.stdout for result in results] == [f"{n}\n" for n in range(MANY)]
    waiting = [
        asyncio.ensure_future(box.run_program(["sleep", "600"], on_output=lambda *_: None)) for box in boxes
    ]
    async with asyncio.timeout(60):
        while not all(box._box.handle.programs for box in boxes):
            await asyncio.sleep(0.02)
    beats = asyncio.ensure_future(_beat())
    await asyncio.gather(*(box.stop_confirmed() for box in boxes))
    beats.cancel()
    assert {box.state for box in boxes} == {State.GONE}
    assert all(result.exit_code != 0 for result in await asyncio.gather(*waiting))
    assert len(double.live()) == 3


async def _beat() -> None:
    """The loop stays free: no step of a stop blocks it."""
    while True:
        await asyncio.sleep(0.01)


async def test_creation_is_paced(double):
    """R31: a stop empties the queue at once; what was never asked for is not looked for."""
    boxes = [kit.runtime(f"box-{n}", creates_per_sec=1) for n in range(40)]
    starts = [asyncio.ensure_future(box.start()) for box in boxes]
    async with asyncio.timeout(60):
        while double.faults.count("^SandboxCreateV2$") < 2:
            await asyncio.sleep(0.02)
    await asyncio.wait_for(asyncio.gather(*(box.stop_confirmed() for box in boxes)), 60)
    await asyncio.gather(*starts, return_exceptions=True)
    assert double.faults.count("^SandboxCreateV2$") < 6
    assert {box.state for box in boxes} == {State.GONE}
    assert sum("never asked" in box.proof for box in boxes) >= 34
    assert double.live() == []


CHILD = """\
import asyncio, sys
from doubles.modal import kit
from vf_core.runtimes.lifecycle import State
boxes = [kit.runtime(f"box-{n}") for n in range(6)]
async def main():
    await asyncio.gather(*(box.start() for box in boxes))
    await boxes[0].run_background(["sleep", "600"])
    if sys.argv[1] == "stopping":
        asyncio.ensure_future(boxes[1].stop_confirmed())
        await asyncio.sleep(0)
asyncio.run(main())
import atexit
atexit.register(lambda: None)
"""


def child(program: str, *args: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", program, *args],
        env={**os.environ, "PYTHONPATH": "tests", **env},
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )


@pytest.mark.parametrize("how", ["live", "stopping"])
def test_an_interpreter_that_exits_ends_its_sandboxes(double, how):
    """The loop is gone; the SDK's own still runs then. Nothing is printed (U10)."""
    double.bystander(1)
    done = child(CHILD, how)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert len(double.world.sandboxes) == 7
    assert len(double.live()) == 1


def test_an_exit_while_a_create_call_is_in_flight(double):
    """R01: found by its tags."""
    double.faults.add("^SandboxCreateV2$", "hang_after", seconds=600, times=-1)
    program = """\
import asyncio
from doubles.modal import kit
async def main():
    box = kit.runtime()
    asyncio.ensure_future(box.start())
    while box._box.handle.creating is None:
        await asyncio.sleep(0.01)
    await asyncio.sleep(1)
asyncio.run(main())
"""
    done = child(program)
    assert done.returncode == 0
    assert len(double.world.sandboxes) == 1
    assert double.live() == []


def test_an_exit_does_not_wait_for_a_provider_that_hangs(double):
    """T08."""
    double.faults.add("^SandboxTerminateV2$", "hang", seconds=300, times=-1)
    program = CHILD.replace("boxes = [", "kit.ModalRuntime.exit_deadline = 1.0\nboxes = [")
    done = child(program, "live")
    assert done.returncode == 0
    assert len(double.live()) == 6
