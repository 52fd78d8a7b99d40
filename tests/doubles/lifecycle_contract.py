"""What every runtime promises of a sandbox's life, from its start to the proof of its end, as tests."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from typing import Any

import pytest

from doubles.sandbox_commands import Output, long_sleep, sh
from vf_core.errors import SandboxError, SandboxFileNotFoundError
from vf_core.runtimes.base import Runtime
from vf_core.runtimes.lifecycle import State, Transition

IN_ORDER = [State.STARTING, State.LIVE, State.STOPPING, State.SENT, State.CHECKING, State.GONE]


def watched(box: Runtime) -> list[Transition]:
    """The moves of its lifecycle from now on."""
    moves: list[Transition] = []
    box._observer = moves.append
    return moves


def states(moves: list[Transition]) -> list[State]:
    """The states that it went through: an id or a remark is no move."""
    seen = [move.state for move in moves]
    return [state for n, state in enumerate(seen) if n == 0 or seen[n - 1] is not state]


class LifecycleContract:
    """Part of `RuntimeContract`."""

    # How many sandboxes are started and stopped at once.
    many = 24

    @abstractmethod
    def make(self, name: str = "contract", **options: Any) -> Runtime: ...

    def exists(self, id: str) -> bool:
        """Whether its provider, asked past all of our code, still has a sandbox."""
        raise AssertionError("the subclass says how the provider is asked")

    async def test_each_move_is_told_and_the_end_is_proven(self):
        box = self.make()
        moves = watched(box)
        await box.start()
        assert self.exists(box.sandbox_id)
        await box.stop_confirmed()
        assert states(moves) == IN_ORDER
        assert [move.sandbox for move in moves] == [box.name] * len(moves)
        assert {move.id for move in moves[1:] if move.id} == {box.sandbox_id}
        assert moves[-1].proof == box.proof != ""
        assert not self.exists(box.sandbox_id)

    async def test_what_never_started_has_nothing_to_stop(self):
        box = self.make()
        moves = watched(box)
        await box.stop()
        await box.stop_confirmed()
        box.cleanup()
        assert moves == []
        assert box.state is State.NEW

    async def test_a_stop_alone_claims_nothing(self):
        box = self.make()
        moves = watched(box)
        await box.start()
        await box.stop()
        assert State.GONE not in states(moves)
        assert not box.proof
        await box.stop_confirmed()
        assert states(moves) == IN_ORDER

    async def test_stopping_and_confirming_often_and_at_once(self):
        box = self.make()
        moves = watched(box)
        await box.start()
        await asyncio.gather(box.stop(), box.stop(), box.stop_confirmed(), box.stop_confirmed())
        id, told = box.sandbox_id, len(moves)
        for again in (box.stop, box.stop_confirmed, box.stop):
            await again()
        assert states(moves) == IN_ORDER
        assert len(moves) == told
        assert box.sandbox_id == id

    async def test_a_confirm_that_is_cancelled_goes_on(self):
        box = self.make()
        await box.start()
        confirming = asyncio.ensure_future(box.stop_confirmed())
        await asyncio.sleep(0)
        for _ in range(3):
            confirming.cancel()
            await asyncio.sleep(0)
        with pytest.raises(asyncio.CancelledError):
            await confirming
        await box.stop_confirmed()
        assert box.state is State.GONE
        assert not self.exists(box.sandbox_id)

    async def test_a_start_that_is_cancelled_leaves_nothing(self):
        """R01."""
        box = self.make()
        moves = watched(box)
        create = box._create

        async def cancelled_meanwhile(its):
            starting.cancel()
            await create(its)

        box._create = cancelled_meanwhile
        starting = asyncio.ensure_future(box.start())
        with pytest.raises(asyncio.CancelledError):
            await starting
        await box.stop_confirmed()
        assert states(moves)[0] is State.STARTING
        assert box.state is State.GONE
        assert not (box.sandbox_id and self.exists(box.sandbox_id))

    async def test_a_start_that_is_cancelled_at_once(self):
        box = self.make()
        starting = asyncio.ensure_future(box.start())
        await asyncio.sleep(0)
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting
        await box.stop_confirmed()
        assert box.state.settled
        assert not (box.sandbox_id and self.exists(box.sandbox_id))
        await box.start()
        await box.stop_confirmed()

    async def test_nothing_is_placed_in_one_that_is_gone(self):
        box = self.make()
        for _ in range(2):
            for work in (
                lambda: box.run(["true"]),
                lambda: box.run_program(["true"], on_output=Output()),
                lambda: box.run_background(["true"]),
                lambda: box.read("file"),
                lambda: box.read_bounded("file", 1),
                lambda: box.write("file", b""),
            ):
                with pytest.raises(SandboxError):
                    await work()
            if box.state is State.NEW:
                await box.start()
                await box.stop_confirmed()

    async def test_a_restart_starts_from_nothing(self):
        """T17."""
        box = self.make()
        await box.start()
        first = box.sandbox_id
        await box.write("left", b"over")
        await box.stop_confirmed()
        await box.start()
        assert box.sandbox_id != first
        assert not box.proof
        assert self.exists(box.sandbox_id)
        assert not self.exists(first)
        with pytest.raises(SandboxFileNotFoundError):
            await box.read("left")
        await box.stop_confirmed()
        await box.stop_confirmed()
        assert box.state is State.GONE

    async def test_a_second_start_beside_the_first_is_refused(self):
        box = self.make()
        await box.start()
        first = box.sandbox_id
        with pytest.raises(SandboxError, match="live"):
            await box.start()
        assert (box.sandbox_id, box.state) == (first, State.LIVE)
        await box.stop_confirmed()

    async def test_a_stop_ends_what_is_being_run(self):
        box = self.make()
        await box.start()
        output = Output()
        running = asyncio.ensure_future(
            box.run_program(sh(f"echo up; {long_sleep()}; echo more"), on_output=output)
        )
        await asyncio.wait_for(output.came.wait(), 60)
        await box.stop_confirmed()
        result = await asyncio.wait_for(running, 60)
        assert result.exit_code != 0
        assert result.stdout == "up\n"
        assert not self.exists(box.sandbox_id)

    async def test_many_at_once(self):
        """Each is started, used and proven gone, and none is another's."""
        boxes = [self.make(f"many-{n}") for n in range(self.many)]
        await asyncio.gather(*(box.start() for box in boxes))
        ids = {box.sandbox_id for box in boxes}
        assert len(ids) == self.many

        async def own(n: int, box: Runtime) -> bytes:
            await box.write("mine", b"%d\n" % n)
            return (await box.run(["cat", "mine"])).stdout.encode()

        got = await asyncio.gather(*(own(n, box) for n, box in enumerate(boxes)))
        await asyncio.gather(*(box.stop_confirmed() for box in boxes))
        assert got == [b"%d\n" % n for n in range(self.many)]
        assert {box.state for box in boxes} == {State.GONE}
        assert [id for id in ids if self.exists(id)] == []

    def test_what_is_left_at_exit_is_ended_without_a_loop(self):
        box = self.make()

        async def use() -> None:
            await box.start()
            await box.run_background(sh(long_sleep()))

        asyncio.run(use())
        box.cleanup()
        assert box.state in (State.GONE, State.SENT)
        assert (box.state is State.GONE) == bool(box.proof)
        assert not self.exists(box.sandbox_id)
        box.cleanup()
