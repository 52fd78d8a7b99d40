"""The link to an engine on another thread: neither side can hold up the other."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from doubles.event_streams import without_live
from doubles.fake_engine import FakeEngine
from doubles.records import record
from doubles.viewers import Viewer
from vf_core.errors import LinkError
from vf_core.events import types as ev
from vf_core.link.base import EnginePort, Events, Lost, Snapshot
from vf_core.link.local import AHEAD, EngineThread, LocalLink


@pytest.fixture
def threaded() -> Iterator[tuple[FakeEngine, EngineThread]]:
    engine = FakeEngine(rollouts=20, rate=4_000)
    thread = engine.start_thread()
    yield engine, thread
    engine._shut = True
    assert thread.join(60)


Threaded = tuple[FakeEngine, EngineThread]


async def test_a_screen_sees_what_the_engine_sees_up_to_its_last_word(threaded: Threaded) -> None:
    engine, thread = threaded
    viewer = await Viewer(engine.link()).start()
    viewer.link.watch({"t0-s0", "t8-s0"})
    await viewer.until(lambda v: v.state.totals.ended == 20)
    reply = await viewer.link.command("shutdown")
    assert (reply.ok, reply.changed) == (True, ("run",))
    await viewer.until(lambda v: v.lost)
    assert viewer.lost[0].clean
    assert viewer.state.over
    assert without_live(viewer.state) == without_live(engine.state)
    assert thread.join(60)
    assert thread.error is None
    assert not viewer.link.describe().alive
    await viewer.stop()


async def test_what_is_watched_is_seen_while_it_comes_into_being() -> None:
    engine = FakeEngine(rollouts=4, endless=True)
    viewer = await Viewer(engine.link()).start()
    viewer.link.watch({"t0-s0"})
    engine.warm_up()
    for _ in range(40):
        engine.step(20)
        engine.bus.flush()
        await viewer.until(lambda v: v.state.seq == engine.state.seq)
        if viewer.state.rollouts["t0-s0"].output:
            break
    await viewer.until(lambda v: v.state.rollouts["t0-s0"].text == engine.state.rollouts["t0-s0"].text)
    assert viewer.state.rollouts["t0-s0"].output == engine.state.rollouts["t0-s0"].output
    assert engine.state.rollouts["t1-s0"].output
    assert not viewer.state.rollouts["t1-s0"].output
    await viewer.stop()


async def test_a_screen_that_stalls_does_not_hold_up_the_engine(threaded: Threaded) -> None:
    engine, _ = threaded
    viewer = await Viewer(engine.link()).start()
    goal = engine.state.seq + 500
    reached = threading.Event()
    engine.loop.call_soon_threadsafe(
        engine.bus.add_sink, lambda event: reached.set() if event.seq >= goal else None
    )
    # This blocks the screen's loop, as a terminal that does not read would.
    assert reached.wait(60)
    await viewer.until(lambda v: v.state.seq >= goal)
    await viewer.stop()


async def test_a_screen_that_stalls_for_long_gets_a_fresh_snapshot_and_costs_little(
    threaded: Threaded,
) -> None:
    engine, _ = threaded
    link = engine.link()
    await link.connect()
    done = threading.Event()

    def flood() -> None:
        for n in range(30_000):
            engine.bus.publish(ev.Log(level="info", message=str(n)))
        done.set()

    engine.loop.call_soon_threadsafe(flood)
    assert done.wait(60)
    assert link._arrived.qsize() <= AHEAD
    assert all(len(s._queue) <= 10_000 for s in engine.bus.subscriptions)
    logs: list[str] = []
    async with asyncio.timeout(60):
        async for batch in link.batches():
            if isinstance(batch, Snapshot):
                logs = [message for _, _, message, _ in batch.state.logs]
            elif isinstance(batch, Events):
                logs += [e.message for e in batch.events if isinstance(e, ev.Log)]
            if "29999" in logs:
                break
    await link.close()


async def test_commands_are_carried_out_on_the_engines_loop(threaded: Threaded) -> None:
    engine, _ = threaded
    viewer = await Viewer(engine.link()).start()
    reply = await viewer.link.command("set_concurrency", value=3)
    assert (reply.ok, engine.concurrency) == (True, 3)
    await viewer.until(lambda v: v.state.concurrency == 3)
    reply = await viewer.link.command("stop", ["no such"])
    assert (reply.ok, reply.message) == (False, "no such rollout: no such")
    assert engine.received[0] == ("set_concurrency", (), {"value": 3}, "test")
    await viewer.stop()


async def test_a_read_only_screen_commands_nothing(threaded: Threaded) -> None:
    engine, _ = threaded
    link = engine.link(read_only=True)
    await link.connect()
    assert not (await link.command("stop_all")).ok
    assert not engine.received
    assert engine.attached == 0
    await link.close()


async def test_the_engine_knows_who_watches_what() -> None:
    engine = FakeEngine(rollouts=3)
    engine.begin()
    links = [engine.link(read_only=n == 2) for n in range(3)]
    for link, watching in zip(links, ({"t0-s0"}, {"t1-s0"}, set[str]()), strict=True):
        await link.connect()
        link.watch(watching)
    await asyncio.sleep(0)
    assert (engine.attached, engine.watched) == (2, {"t0-s0", "t1-s0"})
    await links[0].close()
    await links[0].close()
    await asyncio.sleep(0)
    assert (engine.attached, engine.watched) == (1, {"t1-s0"})
    for link in links:
        await link.close()


class Mute(FakeEngine):
    """Never answers a command."""

    async def command(self, name: str, targets: Any, args: Any, by: str) -> Any:
        self.received.append((name, (), {}, by))
        await asyncio.Event().wait()


async def test_an_engine_that_ends_leaves_no_command_waiting() -> None:
    engine = Mute(rollouts=2)
    thread = engine.start_thread()
    viewer = await Viewer(engine.link()).start()
    asked = asyncio.create_task(viewer.link.command("pause"))
    async with asyncio.timeout(60):
        while not engine.received:
            await asyncio.sleep(0.01)
    engine._shut = True
    reply = await asyncio.wait_for(asked, 60)
    assert (reply.ok, reply.message) == (False, "the engine has ended")
    assert thread.join(60)
    assert not (await viewer.link.command("pause")).ok
    assert await viewer.link.trace("t0-s0") is None
    viewer.link.watch({"t0-s0"})
    await viewer.stop()
    with pytest.raises(LinkError):
        await engine.link().connect()


async def test_one_who_asks_while_reading_is_answered_when_the_engine_ends() -> None:
    engine = Mute(rollouts=2)
    thread = engine.start_thread()
    link = engine.link()
    await link.connect()
    async with asyncio.timeout(60):
        async for batch in link.batches():
            if isinstance(batch, Lost):
                break
            engine._shut = True
            assert not (await link.command("pause")).ok
    assert thread.join(60)
    await link.close()


async def test_an_engine_that_ends_before_it_noticed_us_is_no_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vf_core.link.local.PATIENCE", 0.01)
    engine = FakeEngine(rollouts=1)
    engine._loop = asyncio.new_event_loop()
    connecting = asyncio.create_task(engine.link().connect())
    await asyncio.sleep(0)
    engine.loop.close()
    with pytest.raises(LinkError, match="has ended"):
        await asyncio.wait_for(connecting, 60)


async def test_an_engine_that_fails_is_lost_with_its_reason() -> None:
    async def main(up: Callable[[EnginePort], None]) -> None:
        engine = FakeEngine(rollouts=1)
        engine.begin()
        up(engine)
        await fail.wait()
        raise RuntimeError("boom")

    fail = asyncio.Event()
    thread = EngineThread(main)
    await asyncio.to_thread(thread.start)
    viewer = await Viewer(LocalLink(thread)).start()
    thread.loop.call_soon_threadsafe(fail.set)
    await viewer.until(lambda v: v.lost)
    assert not viewer.lost[0].clean
    assert thread.join(60)
    assert isinstance(thread.error, RuntimeError)
    await viewer.stop()


def test_an_engine_that_cannot_start_says_why() -> None:
    async def refuse(up: object) -> None:
        raise LinkError("no such plan")

    async def nothing(up: object) -> None:
        pass

    with pytest.raises(LinkError, match="no such plan"):
        EngineThread(refuse).start()
    with pytest.raises(LinkError, match="before it was up"):
        EngineThread(nothing).start()


async def test_a_trace_is_had_while_it_grows_and_from_disk_afterwards(tmp_path: Path) -> None:
    engine = FakeEngine(rollouts=2)
    engine.play()
    finished = {**record(), "id": engine.state.rollouts["t1-s0"].attempts[-1].trace}
    (tmp_path / "traces.jsonl").write_text(json.dumps(finished) + "\n")
    loop = asyncio.get_running_loop()

    class Host:
        port = engine

    Host.loop = loop  # type: ignore[attr-defined]
    link = LocalLink(Host(), run_dir=tmp_path)  # type: ignore[arg-type]
    await link.connect()
    live = await link.trace("t0-s0")
    assert live is not None
    assert live["id"] == "trace-t0-s0-1"
    engine.trace_record = lambda rollout, attempt: None  # type: ignore[method-assign]
    assert await link.trace("t1-s0", 1) == finished
    assert await link.trace("t1-s0") == finished
    assert await link.trace("t0-s0") is None
    assert await link.trace("none") is None
    await link.close()
