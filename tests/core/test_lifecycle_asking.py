"""From the wish for a sandbox to the question: its turn, its row, and what a stop means before anything was asked."""

from __future__ import annotations

import asyncio
import threading

import pytest

from doubles.fake_runtime import FakeRuntime, World
from doubles.stepped_loop import SteppedLoop
from vf_core.errors import SandboxError
from vf_core.runtimes import at_exit
from vf_core.runtimes.box import Answer, Box
from vf_core.runtimes.lifecycle import State, Transition


class Book:
    """Writes down what it is told; `full`: it cannot."""

    def __init__(self, world: World, *, full: bool = False, seconds: float = 0.0) -> None:
        self.world, self.full, self.seconds = world, full, seconds
        self.reserved: list[tuple[str, list[str]]] = []
        self.noted: list[Transition] = []

    async def reserve(self, move: Transition) -> None:
        await asyncio.sleep(self.seconds)
        if self.full:
            raise SandboxError("the ledger is full")
        self.reserved.append((move.sandbox, list(self.world.calls)))

    def note(self, move: Transition) -> None:
        self.noted.append(move)


class Queued(FakeRuntime):
    """Waits for its turn for ten seconds."""

    async def _admit(self, box: Box[dict[str, object]]) -> None:
        box.life.remark("waiting for its turn")
        await asyncio.sleep(10)


@pytest.fixture
def loop():
    loop = SteppedLoop()
    asyncio.set_event_loop(loop)
    yield loop
    loop.advance(0)
    asyncio.set_event_loop(None)
    loop.close()
    at_exit._UNSETTLED.clear()


def test_it_is_written_down_before_it_is_asked_for_and_with_all_that_follows(loop):
    world = World()
    box = FakeRuntime(world)
    book = box.recorder = Book(world)
    loop.do(box.start())
    loop.do(box.stop_confirmed())
    assert book.reserved == [("box", [])]
    assert [move.state for move in book.noted] == [
        "starting", "starting", "live", "stopping", "sent", "checking", "gone",
    ]  # fmt: skip
    assert book.noted[-1].proof


def test_what_cannot_be_written_down_is_not_asked_for(loop):
    world = World()
    box = FakeRuntime(world)
    box.recorder = Book(world, full=True)
    with pytest.raises(SandboxError, match="the ledger is full"):
        loop.do(box.start())
    assert box.state is State.FAILED
    loop.do(box.stop_confirmed())
    assert box.state is State.GONE
    assert world.calls == []


@pytest.mark.parametrize("confirm", [False, True])
def test_a_stop_in_the_queue_asks_nobody_and_is_over_at_once(loop, confirm):
    world, moves = World(), list[Transition]()
    box = Queued(world, observer=moves.append)

    async def story() -> float:
        starting = asyncio.create_task(box.start())
        await asyncio.sleep(1)
        began = loop.time()
        await (box.stop_confirmed() if confirm else box.stop())
        with pytest.raises(SandboxError, match="stopped before it was asked for"):
            await starting
        return loop.time() - began

    assert loop.do(story()) < 1
    assert [(move.state, move.detail) for move in moves][1] == ("starting", "waiting for its turn")
    loop.do(box.stop_confirmed())
    assert "never asked" in box.proof
    assert world.calls == []


def test_a_cancel_in_the_queue_leaves_nothing(loop):
    world = World()
    box = Queued(world)

    async def story() -> None:
        starting = asyncio.create_task(box.start())
        await asyncio.sleep(1)
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting

    loop.do(story())
    loop.do(box.stop_confirmed())
    assert world.calls == []
    loop.advance(20)
    assert world.calls == []


def test_a_stop_while_it_is_written_down_asks_nobody(loop):
    world = World()
    box = FakeRuntime(world)
    box.recorder = Book(world, seconds=5)

    async def story() -> None:
        starting = asyncio.create_task(box.start())
        await asyncio.sleep(1)
        await box.stop_confirmed()
        with pytest.raises(SandboxError, match="stopped before"):
            await starting

    loop.do(story())
    assert box.state is State.GONE
    assert world.calls == []


def test_at_exit_providers_are_asked_side_by_side_and_one_that_hangs_delays_nobody(loop):
    together, hung, asked = threading.Barrier(8), threading.Event(), list[str]()

    class Slow(FakeRuntime):
        def _cleanup(self, box: Box[dict[str, object]]) -> Answer:
            if box.name == "stuck":
                hung.wait(60)
            else:
                together.wait(20)
                asked.append(box.name)
            return Answer(True, "it says so")

    boxes = [Slow(World(), name=f"box-{n}") for n in range(8)]
    stuck = Slow(World(), name="stuck")
    for box in (stuck, *boxes):
        loop.do(box.start())
    at_exit.clean_up([stuck, *boxes], patience=2)
    hung.set()
    assert sorted(asked) == [box.name for box in boxes]
    assert {box.state for box in boxes} == {State.GONE}
    assert stuck.state is State.UNKNOWN
