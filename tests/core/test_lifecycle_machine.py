"""The lifecycle as a provider's faults meet it, one at a time."""

from __future__ import annotations

import asyncio
import gc

import pytest

from doubles.fake_runtime import SLOW, FakeRuntime, World
from doubles.stepped_loop import SteppedLoop
from vf_core.errors import SandboxError, SandboxUnconfirmedError
from vf_core.runtimes import at_exit
from vf_core.runtimes.lifecycle import Lifecycle, LifecycleError, State, Transition


@pytest.fixture
def loop():
    loop = SteppedLoop()
    asyncio.set_event_loop(loop)
    yield loop
    for task in asyncio.all_tasks(loop):
        task.cancel()
    loop.advance(0)
    asyncio.set_event_loop(None)
    loop.close()
    at_exit._UNSETTLED.clear()


def build() -> tuple[World, FakeRuntime, list[Transition]]:
    world, moves = World(), list[Transition]()
    return world, FakeRuntime(world, observer=moves.append), moves


def words(moves: list[Transition]) -> str:
    return " ".join(move.state for move in moves)


def test_from_nothing_to_proof(loop):
    world, box, moves = build()
    assert box.state is State.NEW
    loop.do(box.start())
    assert (box.state, box.sandbox_id) == (State.LIVE, "id-1")
    loop.do(box.stop())
    assert box.state is State.SENT
    assert not box.proof
    loop.do(box.stop_confirmed())
    assert (box.state, box.proof) == (State.GONE, "the provider lists none")
    # The second "starting" says that the id became known.
    assert words(moves) == "starting starting live stopping sent checking gone"
    assert world.calls == ["create", "terminate", "probe"]


def test_the_observer_hears_of_it_before_anything_is_done(loop):
    world = World()
    seen: list[tuple[str, list[str]]] = []
    box = FakeRuntime(world, observer=lambda move: seen.append((move.state, list(world.calls))))
    loop.do(box.start())
    loop.do(box.stop_confirmed())
    heard = dict(reversed(seen))
    assert heard["starting"] == []
    assert heard["stopping"] == ["create"]
    assert heard["checking"] == ["create", "terminate"]


def test_what_cannot_be_recorded_is_not_created(loop):
    def full(move: Transition) -> None:
        raise OSError("disk full")

    world = World()
    box = FakeRuntime(world, observer=full)
    with pytest.raises(OSError, match="disk full"):
        loop.do(box.start())
    assert (box.state, world.calls) == (State.NEW, [])


def test_what_exists_is_ended_even_if_that_cannot_be_recorded(loop):
    world = World()
    full = False

    def observer(move: Transition) -> None:
        if full:
            raise OSError("disk full")

    box = FakeRuntime(world, observer=observer)
    loop.do(box.start())
    full = True
    loop.do(box.stop_confirmed())
    assert (box.state, world.alive) == (State.GONE, {})


def test_nothing_to_stop(loop):
    world, box, moves = build()
    loop.do(box.stop())
    loop.do(box.stop_confirmed())
    box.force()
    box.cleanup()
    assert (box.state, moves, world.calls) == (State.NEW, [], [])


def test_once_confirmed_always_confirmed(loop):
    world, box, _ = build()
    loop.do(box.start())
    loop.do(box.stop_confirmed())
    calls = list(world.calls)
    for _ in range(3):
        loop.do(box.stop_confirmed())
        loop.do(box.stop())
    assert world.calls == calls


def test_concurrent_stops_are_one(loop):
    world, box, _ = build()
    world.terminate = "slow"
    loop.do(box.start())

    async def all_at_once() -> None:
        await asyncio.gather(*(box.stop() for _ in range(5)), *(box.stop_confirmed() for _ in range(5)))

    loop.do(all_at_once())
    assert box.state is State.GONE
    assert world.calls.count("terminate") == 1


def test_a_refused_creation_takes_the_same_road(loop):
    world, box, moves = build()
    world.create = "refused"
    with pytest.raises(SandboxError, match="503"):
        loop.do(box.start())
    assert (box.state, box.sandbox_id) == (State.FAILED, "")
    loop.do(box.stop_confirmed())
    assert box.state is State.GONE
    assert words(moves) == "starting failed stopping sent checking gone"


def test_a_lost_answer_is_found_by_name(loop):
    world, box, _ = build()
    world.create = "lost"
    with pytest.raises(SandboxError, match="connection reset"):
        loop.do(box.start())
    assert len(world.alive) == 1
    loop.do(box.stop_confirmed())
    assert world.alive == {}


@pytest.mark.parametrize("fault", ["slow", "late"])
def test_cancelled_while_being_created(loop, fault):
    """R01: the provider makes it, the caller is gone before the answer."""
    world, box, moves = build()
    world.create = fault

    async def cancelled_start() -> None:
        task = asyncio.create_task(box.start())
        await asyncio.sleep(1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert box.state is State.STOPPING
        assert asyncio.get_running_loop().time() < SLOW

    loop.do(cancelled_start())
    loop.do(box.stop_confirmed())
    assert (box.state, world.alive, world.created) == (State.GONE, {}, 1)
    assert "live" not in words(moves)


def test_cancelled_start_is_stopped_even_if_nobody_asks(loop):
    world, box, _ = build()
    world.create = "slow"

    async def cancelled_start() -> None:
        task = asyncio.create_task(box.start())
        await asyncio.sleep(1)
        task.cancel()

    loop.do(cancelled_start())
    loop.advance(2 * SLOW)
    assert (box.state, world.alive) == (State.SENT, {})


def test_never_gone_while_a_creation_is_under_way(loop):
    world, box, _ = build()
    world.create = "stuck"

    async def give_up() -> None:
        task = asyncio.create_task(box.start())
        await asyncio.sleep(1)
        task.cancel()
        with pytest.raises(SandboxUnconfirmedError):
            await box.stop_confirmed(timeout=3)

    loop.do(give_up())
    assert box.state is State.UNKNOWN
    # The answer comes after all: what was made late is ended at once.
    world.heal()
    loop.advance(1)
    assert (box.state, world.alive) == (State.SENT, {})
    loop.do(box.stop_confirmed())
    assert box.state is State.GONE


def test_a_start_that_was_stopped_does_not_succeed(loop):
    world, box, _ = build()
    world.create = "slow"

    async def race() -> None:
        task = asyncio.create_task(box.start())
        await asyncio.sleep(1)
        await box.stop_confirmed()
        with pytest.raises(SandboxError, match="stopped while it started"):
            await task

    loop.do(race())
    assert (box.state, world.alive) == (State.GONE, {})


def test_still_there_at_the_deadline(loop):
    world, box, _ = build()
    world.terminate = "ignored"
    loop.do(box.start())
    with pytest.raises(SandboxUnconfirmedError, match=r"SURVIVED.*lists id-1"):
        loop.do(box.stop_confirmed(timeout=10))
    assert box.state is State.SURVIVED
    world.heal()
    loop.do(box.stop_confirmed())
    assert box.state is State.GONE


@pytest.mark.parametrize("fault", ["error", "stuck"])
@pytest.mark.parametrize("call", ["terminate", "probe"])
def test_who_cannot_be_asked_leaves_it_unknown(loop, call, fault):
    """T07, T08: an error or silence is never success, ends in bounded time, and can be tried again."""
    world, box, _ = build()
    loop.do(box.start())
    setattr(world, call, fault)
    began = loop.time()
    with pytest.raises(SandboxUnconfirmedError, match="UNKNOWN") as raised:
        loop.do(box.stop_confirmed(timeout=10))
    assert loop.time() - began < 11
    assert raised.value.hint
    assert box.state is State.UNKNOWN
    world.heal()
    loop.do(box.stop_confirmed())
    assert (box.state, world.alive) == (State.GONE, {})


def test_whoever_waits_for_a_stop_is_not_cancelled_by_the_next_one(loop):
    """One that waits long, and two that wait for proof for less than that."""
    world, box, _ = build()
    world.terminate = "stuck"
    loop.do(box.start())

    async def at_once() -> None:
        patient = asyncio.create_task(box.stop(timeout=30))
        await asyncio.sleep(0)
        for _ in range(2):
            with pytest.raises(SandboxUnconfirmedError):
                await box.stop_confirmed(timeout=1)
        assert not patient.done()
        world.heal()
        await box.stop_confirmed(timeout=1)
        await patient

    loop.do(at_once())
    assert (box.state, world.alive) == (State.GONE, {})


def test_a_best_effort_stop_does_not_raise_and_does_not_lie(loop):
    world, box, _ = build()
    world.terminate = "error"
    loop.do(box.start())
    loop.do(box.stop())
    assert box.state is State.UNKNOWN


@pytest.mark.parametrize("confirm", [False, True])
def test_stops_are_shielded(loop, confirm):
    """T01: the caller is cancelled again and again; the stop ends, and then the caller is cancelled."""
    world, box, _ = build()
    world.terminate = "slow"
    loop.do(box.start())

    async def impatient() -> None:
        task = asyncio.create_task(box.stop_confirmed() if confirm else box.stop())
        for _ in range(4):
            await asyncio.sleep(0.5)
            task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    loop.do(impatient())
    assert box.state is (State.GONE if confirm else State.SENT)
    assert world.alive == {}


def test_a_restart_forgets_everything(loop):
    """T17: id, proof and what was made are the new sandbox's alone."""
    world, box, _ = build()
    loop.do(box.start())
    first = box._box.handle
    box.force()
    loop.do(box.stop_confirmed())
    loop.do(box.start())
    assert (box.state, box.sandbox_id, box.proof) == (State.LIVE, "id-2", "")
    assert box._box.handle is not first
    assert not box._box.forced.is_set()
    loop.do(box.stop_confirmed())
    assert world.alive == {}


@pytest.mark.parametrize("state", ["live", "sent", "survived", "unknown", "failed"])
def test_a_start_beside_the_old_must_be_asked_for(loop, state):
    world, box, moves = build()
    bring_to(loop, world, box, state)
    world.heal()
    with pytest.raises(LifecycleError):
        loop.do(box.start())
    assert box.state == state
    loop.do(box.start(force=True))
    assert (box.state, box.name) == (State.LIVE, "box.2")
    assert [life.sandbox for life in box.left] == ["box"]
    assert box.left[0].state is State.SENT
    assert {move.sandbox for move in moves} == {"box", "box.2"}
    loop.do(box.confirm_left())
    assert box.left == ()
    loop.do(box.stop_confirmed())
    assert world.alive == {}


def bring_to(loop: SteppedLoop, world: World, box: FakeRuntime, state: str) -> None:
    if state == "failed":
        world.create = "lost"
        with pytest.raises(SandboxError):
            loop.do(box.start())
        return
    loop.do(box.start())
    if state == "sent":
        loop.do(box.stop())
    elif state in ("survived", "unknown"):
        world.terminate = "ignored" if state == "survived" else "error"
        with pytest.raises(SandboxUnconfirmedError):
            loop.do(box.stop_confirmed(timeout=5))
    assert box.state == state


def test_only_a_live_sandbox_takes_work(loop):
    _world, box, _ = build()
    with pytest.raises(SandboxError, match="new"):
        loop.do(box.run(["true"]))
    loop.do(box.start())
    assert loop.do(box.run(["true"])).exit_code == 0
    box._lost("connection closed")
    with pytest.raises(SandboxError, match=r"UNKNOWN.*lost: connection closed"):
        loop.do(box.run(["true"]))
    loop.do(box.stop_confirmed())
    with pytest.raises(SandboxError, match="GONE"):
        loop.do(box.write("x", b""))


def test_what_exists_is_not_lost_with_its_reference(loop):
    _world, box, _ = build()
    loop.do(box.start())
    del box
    gc.collect()
    assert [held.state for held in at_exit._UNSETTLED] == [State.LIVE]
    at_exit.cleanup_all()
    assert [held.state for held in at_exit._UNSETTLED] == [State.SENT]


@pytest.mark.parametrize("state", list(State))
def test_moves_that_are_not_allowed(state):
    allowed = {
        State.NEW: {State.STARTING},
        State.STARTING: {State.LIVE, State.FAILED, State.STOPPING},
        State.LIVE: {State.STOPPING, State.UNKNOWN},
        State.FAILED: {State.STOPPING, State.CHECKING},
        State.STOPPING: {State.SENT, State.UNKNOWN},
        State.SENT: {State.STOPPING, State.CHECKING},
        State.CHECKING: {State.GONE, State.SURVIVED, State.UNKNOWN},
        State.SURVIVED: {State.STOPPING, State.CHECKING},
        State.UNKNOWN: {State.STOPPING, State.CHECKING},
        State.GONE: {State.STARTING},
    }
    for target in State:
        life = Lifecycle("box", "fake")
        life.state = state
        if target in allowed[state]:
            life.to(target, proof="seen" if target is State.GONE else "")
            assert life.state is target
        else:
            with pytest.raises(LifecycleError):
                life.to(target, proof="seen" if target is State.GONE else "")
            assert life.state is state


def test_gone_needs_proof_and_only_gone_has_it():
    life = Lifecycle("box", "fake")
    life.state = State.CHECKING
    with pytest.raises(LifecycleError):
        life.to(State.GONE)
    with pytest.raises(LifecycleError):
        life.to(State.UNKNOWN, proof="a hunch")
    with pytest.raises(LifecycleError):
        Lifecycle("box", "fake").identify("id-1")
