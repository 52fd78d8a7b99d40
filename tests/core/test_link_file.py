"""The link to a run that is only on disk."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from doubles.fake_engine import FakeEngine
from doubles.records import append, record, verifiers_run
from doubles.viewers import Viewer
from vf_core.errors import LinkError
from vf_core.events import types as ev
from vf_core.events.journal import JournalWriter
from vf_core.link import file as files
from vf_core.link.file import FileLink
from vf_core.link.open import open_link
from vf_core.link.socket import SocketLink
from vf_core.runs.engine_file import EngineInfo, Standing, write_engine_info
from vf_core.runs.find import summarise
from vf_core.runs.layout import RunDir


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(files, "EAGER", 0.01)
    monkeypatch.setattr(files, "LAZY", 0.02)
    monkeypatch.setattr(files, "CHECK", 0.02)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


def told(run: RunDir, *events: ev.Event) -> None:
    journal = JournalWriter(run.events)
    for event in events:
        journal.append(event)
    journal.close()


def started(run: RunDir, **changes: object) -> EngineInfo:
    info = EngineInfo.of_this_process(run.run_id, run.path, socket="", version="7", protocol=1)
    info = replace(info, standing=Standing(status="running"), **changes)  # type: ignore[arg-type]
    write_engine_info(run.engine_json, info)
    return info


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    run = RunDir.create(tmp_path / "outputs", "n")
    told(run, ev.RunStarted(run=run.run_id, name="n", seq=1), ev.RolloutQueued(rollout="a", task=0, seq=2))
    return run


async def test_a_finished_run_is_shown_with_its_traces(run: RunDir) -> None:
    engine = FakeEngine(rollouts=10)
    run.events.unlink()
    journal = JournalWriter(run.events)
    engine.bus.add_sink(journal.append)
    engine.play()
    engine.finish()
    journal.close()
    run.traces.write_text(json.dumps({**record(), "id": "trace-t1-s0-1"}) + "\n")
    started(run, ended=True)
    viewer = await Viewer(FileLink(run.path)).start()
    assert viewer.state.totals == engine.state.totals
    assert viewer.state.over
    about = viewer.link.describe()
    assert (about.how, about.run, about.version, about.alive) == ("file", run.run_id, "7", False)
    trace = await viewer.link.trace("t1-s0")
    assert trace is not None
    assert trace["id"] == "trace-t1-s0-1"
    assert await viewer.link.trace("t2-s0") is None
    reply = await viewer.link.command("stop_all")
    assert not reply.ok
    viewer.link.watch({"t1-s0"})
    assert not viewer.lost
    await viewer.stop()


async def test_a_live_run_is_followed_until_its_engine_is_gone(run: RunDir) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        from vf_core.runs.liveness import process_start

        started(run, pid=process.pid, start=process_start(process.pid))
        viewer = await Viewer(FileLink(run.path)).start()
        assert viewer.link.describe().alive
        told(run, ev.AttemptStarted(rollout="a", attempt=1, trace="x", seq=3))
        await viewer.until(lambda v: v.state.rollouts["a"].status == "active")
        assert not viewer.lost
        process.kill()
    await viewer.until(lambda v: v.lost)
    assert str(process.pid) in viewer.lost[0].reason
    assert not viewer.lost[0].clean
    # Another one takes it up.
    told(run, ev.RunStarted(run="r", name="again", pid=1, seq=4))
    await viewer.until(lambda v: v.state.name == "again")
    await viewer.stop()


async def test_a_dead_run_is_opened_with_the_line_it_could_just_finish(run: RunDir) -> None:
    started(run, pid=2**22 + 1)
    with run.events.open("ab") as file:
        file.write(b'{"type":"log","seq":3,"level":"info","message":"last words"}')
    viewer = await Viewer(FileLink(run.path)).start()
    assert viewer.state.logs[-1][2] == "last words"
    assert not viewer.link.describe().alive
    await viewer.stop()


async def test_n05_a_run_elsewhere_is_watched_and_said_to_be(run: RunDir) -> None:
    started(run, host="far", machine="m", boot="b")
    found = summarise(run.path)
    assert found is not None
    link = open_link(found)
    await link.connect()
    about = link.describe()
    assert about.alive
    assert "far" in about.note
    assert "far" in (await link.command("pause")).message
    await link.close()


async def test_a_verifiers_run_is_followed_as_it_grows_and_reread_when_it_is_rewritten(
    tmp_path: Path,
) -> None:
    path = verifiers_run(tmp_path / "u1", record(0))
    viewer = await Viewer(FileLink(path)).start()
    assert viewer.link.describe().alive
    append(path, record(1), record(2))
    await viewer.until(lambda v: len(v.state.rollouts) == 3)
    trace = await viewer.link.trace("t2-s0")
    assert trace is not None
    assert trace["id"] == "trace2"
    (path / "traces.jsonl").unlink()
    append(path, record(9))
    await viewer.until(lambda v: v.snapshots and list(v.state.rollouts) == ["t9-s0"])
    await viewer.stop()


async def test_what_is_no_run_is_refused(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "none"):
        with pytest.raises(LinkError, match=r"no run|not a directory"):
            await FileLink(path).connect()


async def test_a_directory_that_goes_away_is_told_and_nothing_breaks(run: RunDir) -> None:
    started(run)
    viewer = await Viewer(FileLink(run.path)).start()
    shutil.rmtree(run.path)
    await viewer.until(lambda v: v.lost)
    assert "gone" in viewer.lost[0].reason
    assert await viewer.link.trace("a") is None
    await viewer.stop()


async def test_reading_a_large_run_can_be_given_up(run: RunDir) -> None:
    reading = asyncio.Event()
    loop = asyncio.get_running_loop()

    def progress(done: int, of: int) -> None:
        loop.call_soon_threadsafe(reading.set)
        asyncio.run_coroutine_threadsafe(link.close(), loop).result(10)

    told(run, *(ev.Log(level="info", message="m" * 900, seq=n) for n in range(3, 2_000)))
    link = FileLink(run.path, progress=progress)
    with pytest.raises(LinkError, match="closed"):
        await link.connect()
    assert reading.is_set()


def test_the_right_link_for_each_run(run: RunDir) -> None:
    started(run, socket="/somewhere.sock")
    found = summarise(run.path)
    assert found is not None
    assert isinstance(open_link(found), SocketLink)
    started(run)
    found = summarise(run.path)
    assert found is not None
    link = open_link(found)
    assert isinstance(link, FileLink)
    assert "no socket" in link.describe().note
