"""The link over a socket: what viewers see, and that none of them can hurt the run or each other."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from doubles import engine_process
from doubles.event_streams import without_live
from doubles.fake_engine import FakeEngine
from doubles.records import record
from doubles.viewers import Viewer
from vf_core.errors import EngineSilentError, LinkError
from vf_core.events import types as ev
from vf_core.events.fold import fold
from vf_core.events.journal import JournalWriter, read_journal
from vf_core.link import server as serving
from vf_core.link import socket as viewing
from vf_core.link.base import Silent
from vf_core.link.server import SocketServer, pieces
from vf_core.link.socket import SocketLink
from vf_core.link.wire import PROTOCOL, frame
from vf_core.runs.layout import RunDir


@pytest.fixture(autouse=True)
def own_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "rt").mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "rt"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


@pytest.fixture
def run_dir(tmp_path: Path) -> RunDir:
    return RunDir.create(tmp_path / "outputs", "demo--m--bash")


class Served:
    """A fake engine played by hand, and its server, on this loop."""

    def __init__(self, run_dir: RunDir, engine: FakeEngine, server: SocketServer) -> None:
        self.run_dir, self.engine, self.server = run_dir, engine, server

    def link(self, **options: Any) -> SocketLink:
        return SocketLink(self.server.path, run=self.run_dir.run_id, run_dir=self.run_dir.path, **options)

    async def raw(self, *, read_only: bool = False, greet: bool = True) -> tuple[asyncio.StreamReader, Any]:
        reader, writer = await asyncio.open_unix_connection(str(self.server.path), limit=1 << 26)
        if greet:
            writer.write(frame("hello", protocol=PROTOCOL, version="x", read_only=read_only, by="raw"))
            assert json.loads(await reader.readline())["frame"] == "hello"
        return reader, writer


@pytest.fixture
async def served(run_dir: RunDir) -> AsyncIterator[Served]:
    engine = FakeEngine(rollouts=20, run=run_dir.run_id)
    engine.begin()
    async with SocketServer(engine, run_dir) as server:
        yield Served(run_dir, engine, server)
    assert not server.path.exists()


async def test_a_viewer_sees_the_run_to_its_end(served: Served) -> None:
    engine = served.engine
    engine.step(300)
    viewer = await Viewer(served.link()).start()
    viewer.link.watch({"t0-s0"})
    engine.play()
    engine.finish()
    closing = asyncio.create_task(served.server.close())
    await viewer.until(lambda v: v.lost)
    assert viewer.lost[0].clean
    assert without_live(viewer.state) == without_live(engine.state)
    await viewer.stop()
    await closing
    assert (engine.attached, engine.watched) == (0, frozenset())


async def test_n05_a_viewer_knows_whose_engine_it_is(served: Served) -> None:
    link = served.link()
    await link.connect()
    about = link.describe()
    assert (about.how, about.run, about.dir) == ("socket", served.run_dir.run_id, str(served.run_dir.path))
    assert about.host
    assert about.pid
    assert about.version
    await link.close()
    other = SocketLink(served.server.path, run="another run")
    with pytest.raises(LinkError, match="not another run"):
        await other.connect()


async def test_what_is_watched_comes_as_it_is_generated(served: Served) -> None:
    engine = served.engine
    viewer = await Viewer(served.link()).start()
    viewer.link.watch({"t0-s0"})
    engine.bus.publish(ev.AttemptStarted(rollout="t0-s0", attempt=1, trace="x"))
    engine.bus.publish(ev.ModelCallStarted(rollout="t0-s0", attempt=1, call=0))
    for word in ("one ", "two ", "\x1b[31m\ud800"):
        engine.bus.publish(ev.TextDelta(rollout="t0-s0", attempt=1, call=0, text=word))
    engine.bus.flush()
    await viewer.until(lambda v: v.state.rollouts["t0-s0"].text == "one two \x1b[31m\ud800")
    await viewer.stop()


async def test_commands_and_their_answers(served: Served) -> None:
    engine = served.engine
    viewer = await Viewer(served.link(by="me@tty1")).start()
    replies = await asyncio.gather(
        viewer.link.command("pause"),
        viewer.link.command("stop", ["t0-s0"], force=True),
        viewer.link.command("stop", ["none"]),
    )
    assert [reply.ok for reply in replies] == [True, True, False]
    assert replies[0].changed == ("run",)
    assert engine.received[1] == ("stop", ("t0-s0",), {"force": True}, "me@tty1")
    await viewer.until(lambda v: v.state.paused)
    await viewer.stop()
    assert not (await viewer.link.command("pause")).ok


async def test_a_command_that_fails_inside_is_answered(served: Served) -> None:
    async def boom(*_: object) -> None:
        raise RuntimeError("boom")

    served.engine.command = boom  # type: ignore[assignment,method-assign]
    link = served.link()
    await link.connect()
    reply = await link.command("pause")
    assert (reply.ok, "boom" in reply.message) == (False, True)
    await link.close()


async def test_the_engine_itself_refuses_a_read_only_viewer(served: Served) -> None:
    link = served.link(read_only=True)
    await link.connect()
    assert not (await link.command("stop_all")).ok
    await link.close()
    _, writer = await served.raw(read_only=True)
    reader, writer = await served.raw(read_only=True)
    writer.write(frame("command", id=1, name="stop_all", targets=[], args={}))
    while (got := json.loads(await reader.readline()))["frame"] != "reply":
        pass
    assert (got["ok"], got["message"]) == (False, "this viewer is read-only")
    assert not served.engine.received
    writer.close()


async def test_commands_are_answered_to_one_who_does_not_read_the_batches(served: Served) -> None:
    engine = served.engine
    link = served.link()
    state = await link.connect()
    for round in range(60):
        for n in range(400):
            engine.bus.publish(ev.Log(level="info", message=f"{round} {n}"))
        await asyncio.sleep(0)
        assert (await link.command("set_concurrency", value=round + 1)).ok
    viewer = Viewer(link)
    viewer.state = state
    viewer._task = asyncio.create_task(viewer._follow())
    await viewer.until(lambda v: v.state.seq == engine.state.seq)
    assert viewer.state.logs == engine.state.logs
    await viewer.stop()


async def test_n08_a_frozen_viewer_is_not_waited_for_and_gets_a_fresh_snapshot(served: Served) -> None:
    engine = served.engine
    reader, writer = await served.raw()
    while not json.loads(await reader.readline()).get("last"):
        pass
    good = await Viewer(served.link()).start()
    reader._transport.pause_reading()  # type: ignore[attr-defined]
    for n in range(100):
        for _ in range(300):
            engine.bus.publish(ev.Log(level="info", message=f"{n} " + "x" * 500))
        await asyncio.sleep(0)
        if n % 10 == 0:
            await good.until(lambda v: v.state.seq == engine.state.seq)
    assert all(len(s._queue) <= 10_000 for s in engine.bus.subscriptions)
    reader._transport.resume_reading()  # type: ignore[attr-defined]
    kinds = set()
    async with asyncio.timeout(60):
        while True:
            got = json.loads(await reader.readline())
            kinds.add(got["frame"])
            if got["frame"] == "part" and got["last"]:
                assert got["data"]["head"]["seq"] == engine.state.seq
                break
    await good.until(lambda v: v.state.seq == engine.state.seq)
    assert good.snapshots == 0 or good.state.logs == engine.state.logs
    await good.stop()
    writer.close()


@pytest.mark.parametrize(
    "junk",
    [
        b"",
        b"\n",
        b"{",
        b"[]\n",
        b'{"frame": 3}\n',
        b'{"frame": "hello"}\n',
        frame("hello", protocol=PROTOCOL, version="x")[:20],
        frame("hello", protocol=PROTOCOL, version="x") + b"nonsense\n",
        frame("hello", protocol=PROTOCOL, version="x") + b"x" * (2 << 20),
        frame("hello", protocol=PROTOCOL, version="x") + frame("command", id=1)[:30],
        frame("hello", protocol=PROTOCOL, version="x", read_only=False)
        + frame("command", id="a", name=None, targets="t", args=3)
        + frame("watch", rollouts=3)
        + frame("trace", id=None)
        + frame("trace", id=1, rollout=3, attempt="x")
        + frame("from a newer version")
        + frame("bye"),
    ],
)
async def test_n08_a_viewer_that_makes_no_sense_or_breaks_off_hurts_nobody(
    served: Served, junk: bytes
) -> None:
    good = await Viewer(served.link()).start()
    reader, writer = await served.raw(greet=False)
    writer.write(junk)
    try:
        writer.write_eof()
        async with asyncio.timeout(60):
            while await reader.read(1 << 16):
                pass
    except ConnectionError:
        pass
    writer.close()
    served.engine.step(200)
    await good.until(lambda v: v.state.seq == served.engine.state.seq)
    assert (await good.link.command("pause")).ok
    await good.stop()
    async with asyncio.timeout(60):
        while served.server._viewers:
            await asyncio.sleep(0.01)
    assert not served.engine.bus.subscriptions


async def test_one_who_never_says_hello_is_shown_out(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "HELLO_TIMEOUT", 0.05)
    reader, writer = await served.raw(greet=False)
    assert await asyncio.wait_for(reader.read(), 60) == b""
    writer.close()


async def test_five_viewers_see_the_same(served: Served) -> None:
    viewers = [await Viewer(served.link()).start() for _ in range(5)]
    for viewer in viewers:
        viewer.link.watch({"t0-s0"})
    for _ in range(20):
        served.engine.step(100)
        await asyncio.sleep(0)
    for viewer in viewers:
        await viewer.until(lambda v: v.state.seq == served.engine.state.seq)
        assert without_live(viewer.state) == without_live(served.engine.state)
        await viewer.stop()


@pytest.mark.parametrize("protocol", [PROTOCOL - 1, PROTOCOL + 1, None])
async def test_n14_another_versions_viewer_is_refused_with_both_named(
    served: Served, protocol: int | None
) -> None:
    reader, writer = await served.raw(greet=False)
    writer.write(frame("hello", protocol=protocol, version="9.9"))
    got = json.loads(await reader.readline())
    assert got["frame"] == "refused"
    assert got["protocol"] == PROTOCOL
    assert served.server.version in got["reason"]
    assert "9.9" in got["reason"]
    assert await reader.read() == b""
    writer.close()


async def test_n14_another_versions_engine_is_watched_by_its_files(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = JournalWriter(served.run_dir.events)
    journal.append(ev.stamp(ev.RunStarted(run="r", name="theirs"), seq=1, t=1.0))
    journal.close()
    monkeypatch.setattr(viewing, "PROTOCOL", PROTOCOL + 1)
    link = served.link(version="9.9")
    state = await link.connect()
    assert state.name == "theirs"
    assert link.read_only
    assert "9.9" in link.describe().note
    reply = await link.command("stop_all")
    assert (reply.ok, "9.9" in reply.message) == (False, True)
    assert not served.engine.received
    await link.close()


async def test_n07_the_other_end_must_be_the_same_user(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vf_core.link.wire.peer_uid", lambda sock: 12345)
    with pytest.raises(LinkError, match="user 12345"):
        await served.link().connect()
    reader, writer = await served.raw(greet=False)
    assert await asyncio.wait_for(reader.read(), 60) == b""
    writer.close()


async def test_a_live_trace_comes_whole_however_large(served: Served) -> None:
    big = {**record(turns=40), "info": {"blob": "é\ud800x" * 200_000}, "empty": [], "none": None}
    served.engine.trace_record = lambda rollout, attempt: big  # type: ignore[method-assign]
    link = served.link()
    await link.connect()
    assert await asyncio.gather(link.trace("t0-s0", 1), link.trace("t1-s0", 1)) == [big, big]
    await link.close()


@pytest.mark.parametrize("value", [{}, {"a": []}, {"a": [1, "x", {}], "b": {"c": [2]}, "d": None}])
def test_pieces_are_the_record(value: dict[str, Any]) -> None:
    assert json.loads("".join(pieces(value))) == value


async def test_a_finished_trace_is_read_from_disk(served: Served) -> None:
    served.engine.trace_record = lambda rollout, attempt: None  # type: ignore[method-assign]
    viewer = await Viewer(served.link()).start()
    served.engine.play()
    await viewer.until(lambda v: v.state.seq == served.engine.state.seq)
    finished = {**record(), "id": "trace-t3-s0-1"}
    served.run_dir.traces.write_text(json.dumps(finished) + "\n")
    assert await viewer.link.trace("t3-s0") == finished
    assert await viewer.link.trace("t4-s0") is None
    await viewer.stop()


# An engine in a process of its own.


async def test_when_the_engine_is_killed_the_rest_comes_from_its_journal(run_dir: RunDir) -> None:
    started = await asyncio.to_thread(engine_process.start, run_dir, rate=2_000)
    viewer = await Viewer(SocketLink(started.socket, run=run_dir.run_id)).start()
    await viewer.until(lambda v: v.state.totals.ended >= 3)
    asked = asyncio.create_task(viewer.link.trace("t0-s0"))
    started.process.send_signal(signal.SIGKILL)
    await viewer.until(lambda v: v.lost)
    await asyncio.wait_for(asked, 60)
    assert "gone" in viewer.lost[0].reason
    assert not viewer.lost[0].clean
    assert not viewer.link.describe().alive
    reply = await viewer.link.command("stop_all")
    assert (reply.ok, "gone" in reply.message) == (False, True)
    whole = fold(read_journal(run_dir.events))
    await viewer.until(lambda v: v.state.seq >= whole.seq)
    # What was heard live and not yet on disk is not forgotten either.
    if viewer.state.seq == whole.seq:
        assert without_live(viewer.state) == without_live(whole)
    started.process.wait()
    # An engine that takes the run up again is heard through the journal.
    journal = JournalWriter(run_dir.events)
    journal.append(ev.stamp(ev.RunStarted(run="r", name="again", pid=1), seq=viewer.state.seq + 1, t=1.0))
    journal.close()
    await viewer.until(lambda v: v.state.name == "again")
    await viewer.stop()


async def test_n04_a_paused_engine_is_reported_busy_and_left_alone(
    run_dir: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(viewing, "ANSWER", 0.3)
    started = await asyncio.to_thread(engine_process.start, run_dir)
    try:
        started.process.send_signal(signal.SIGSTOP)
        with pytest.raises(LinkError, match="paused or overloaded"):
            await SocketLink(started.socket).connect()
        with pytest.raises(LinkError, match="another engine"):
            await SocketServer(FakeEngine(rollouts=1), run_dir).__aenter__()
        started.process.send_signal(signal.SIGCONT)
        monkeypatch.setattr(viewing, "ANSWER", 20)
        link = SocketLink(started.socket)
        await link.connect()
        await link.close()
    finally:
        started.process.kill()
        started.process.wait()


async def test_n04_an_engine_that_falls_silent_is_told_and_waited_for(
    run_dir: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(viewing, "ASK", 0.05)
    monkeypatch.setattr(viewing, "ANSWER", 5.0)
    started = await asyncio.to_thread(engine_process.start, run_dir, rate=20)
    try:
        link, late = SocketLink(started.socket), SocketLink(started.socket)
        await link.connect()
        said = (batch async for batch in link.batches() if isinstance(batch, Silent))
        started.process.send_signal(signal.SIGSTOP)
        monkeypatch.setattr(viewing, "ANSWER", 0.3)
        assert await asyncio.wait_for(anext(said), 60) == Silent()
        with pytest.raises(EngineSilentError):
            await late.connect()
        started.process.send_signal(signal.SIGCONT)
        assert await asyncio.wait_for(anext(said), 60) == Silent(over=True)
        monkeypatch.setattr(viewing, "ANSWER", 20)
        await late.connect()
        await late.close()
        await link.close()
    finally:
        started.process.kill()
        started.process.wait()


async def test_n04_a_killed_engines_socket_is_stale_and_replaced(run_dir: RunDir) -> None:
    started = await asyncio.to_thread(engine_process.start, run_dir)
    started.process.kill()
    started.process.wait()
    assert started.socket.exists()
    with pytest.raises(LinkError, match="the engine is gone"):
        await SocketLink(started.socket).connect()
    async with SocketServer(FakeEngine(rollouts=1), run_dir) as server:
        assert server.path == started.socket
        link = SocketLink(server.path)
        await link.connect()
        await link.close()
