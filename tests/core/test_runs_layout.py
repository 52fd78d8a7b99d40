"""Run directories: private, unique, and never somebody else's."""

from __future__ import annotations

import asyncio
import os
import shutil
import string
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from doubles.fake_engine import FakeEngine
from vf_core.errors import RunDirError
from vf_core.events.bus import Bus
from vf_core.events.fold import fold
from vf_core.events.journal import read_journal
from vf_core.events.types import Log, RunFinished, RunStarted
from vf_core.runs.engine_file import EngineInfo, read_engine_info, write_engine_info
from vf_core.runs.layout import RunDir, path_name, write_private
from vf_core.runs.recorder import Recorder


@pytest.fixture
def open_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


def modes(root: Path) -> dict[str, int]:
    return {str(p.relative_to(root)): p.stat().st_mode & 0o777 for p in root.rglob("*")}


@pytest.mark.usefixtures("open_umask")
async def test_s08_everything_in_a_run_directory_is_private(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    run = RunDir.create(tmp_path / "a" / "outputs", "env--model--bash")
    bus = Bus()
    recorder = Recorder(run, bus, version="1")
    bus.publish(Log(level="info", message="m"))
    output = run.open_output("t0", 1)
    output.write("stdout", b"x")
    output.write("stderr", b"y")
    await output.close()
    write_private(run.config, b"model = 1")
    await recorder.close()
    found = modes(tmp_path)
    assert {"a", "a/outputs", "state/vf-tui/runs"} <= found.keys()
    for name, mode in found.items():
        assert mode == (0o700 if (tmp_path / name).is_dir() else 0o600), name


_CREATE = """
import sys
from pathlib import Path
from vf_core.runs.layout import RunDir
for _ in range(20):
    print(RunDir.create(Path(sys.argv[1]), "same--name").path)
"""


def test_x04_runs_started_at_once_get_directories_of_their_own(tmp_path: Path) -> None:
    started = [
        subprocess.Popen([sys.executable, "-c", _CREATE, str(tmp_path)], stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    paths = [line for process in started for line in process.communicate()[0].split()]
    assert [process.returncode for process in started] == [0, 0]
    assert len(set(paths)) == len(paths) == 40
    assert all(Path(path).is_dir() for path in paths)


def test_x04_a_directory_that_is_there_is_never_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("uuid.uuid4", lambda: "same")
    first = RunDir.create(tmp_path, "n")
    first.traces.write_text("precious")
    with pytest.raises(RunDirError, match="File exists"):
        RunDir.create(tmp_path, "n")
    assert first.traces.read_text() == "precious"


def test_x08_an_output_directory_that_cannot_be_is_said_to_be_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RunDirError, match="choose another output_dir"):
        RunDir.create(tmp_path / "file", "n")


HOSTILE = [
    "../../x",
    "/etc/x",
    "a/b",
    "a b",
    "con",
    "x" * 300,
    "a\nb",
    "",
    ".",
    "..",
    "é",
    "A",
    "a",
    "a.",
    "\0",
]


def test_s04_hostile_ids_stay_inside_and_apart(tmp_path: Path) -> None:
    run = RunDir(tmp_path / "run")
    paths = [run.stdout_log(name, 1) for name in HOSTILE]
    for path in paths:
        assert path.parent.parent == run.logs
        assert len(path.parent.name) < 100
    names = [path.parent.name.casefold() for path in paths]
    assert len(set(names)) == len(names)
    assert run.stdout_log("t0-s0", 2) == run.logs / "t0-s0" / "attempt-2.stdout.log"


@given(st.lists(st.text(max_size=40), unique=True, max_size=8))
@settings(max_examples=200)
def test_s04_names_are_safe_and_unique_for_any_ids(ids: list[str]) -> None:
    names = [path_name(id) for id in ids]
    assert len({name.casefold() for name in names}) == len(ids)
    allowed = set(string.ascii_lowercase + string.digits + "-_.")
    for name in names:
        assert name.strip(".")
        assert set(name) <= allowed


def test_a_hostile_run_name_stays_inside(tmp_path: Path) -> None:
    run = RunDir.create(tmp_path, "../../env/../x--m")
    assert run.path.parent.parent == tmp_path


def test_a_private_file_is_replaced_whole_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "f"
    write_private(path, b"old")

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.replace", fail)
    with pytest.raises(OSError, match="No space"):
        write_private(path, b"new")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_engine_info_survives_the_file_and_its_successors(tmp_path: Path) -> None:
    path = tmp_path / "engine.json"
    info = EngineInfo.of_this_process("r", tmp_path, socket="/s", version="1", protocol=3)
    write_engine_info(path, info)
    assert read_engine_info(path) == info
    newer = path.read_text().replace('"run"', '"something_new": {"a": 1},\n "run"', 1)
    path.write_text(newer)
    assert read_engine_info(path) == info


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "null", '{"run": 3, "pid": 1}', '{"run": "r"}', '{"run":"r","pid":1,"standing":3}'],
)
def test_an_engine_file_of_no_sense_is_none(tmp_path: Path, text: str) -> None:
    path = tmp_path / "engine.json"
    path.write_text(text)
    assert read_engine_info(path) is None
    assert read_engine_info(tmp_path / "none") is None


async def test_the_recorder_leaves_a_journal_that_folds_to_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    run = RunDir.create(tmp_path, "n")
    engine = FakeEngine(rollouts=20)
    recorder = Recorder(run, engine.bus, version="1.2", protocol=1, socket=Path("/s"))
    before = read_engine_info(run.engine_json)
    engine.play()
    engine.finish()
    await recorder.close()
    await recorder.close()
    state = fold(read_journal(run.events))
    assert state.totals == engine.state.totals
    assert state.over
    info = read_engine_info(run.engine_json)
    assert info is not None
    assert (info.run, info.version, info.socket, info.ended) == (run.run_id, "1.2", "/s", True)
    assert (info.standing.done, info.standing.errors, info.standing.unconfirmed) == (20, 6, 4)
    assert info.liveness() == "ended"
    assert before is None or not before.ended


async def test_engine_json_follows_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr("vf_core.runs.recorder.INTERVAL", 0.01)
    run, bus = RunDir.create(tmp_path, "n"), Bus()
    recorder = Recorder(run, bus, version="1")

    async def shows(status: str, total: int) -> None:
        async with asyncio.timeout(60):
            while True:
                info = read_engine_info(run.engine_json)
                if info and (info.standing.status, info.standing.total) == (status, total):
                    return
                await asyncio.sleep(0.01)

    bus.publish(RunStarted(run="r", name="n", total=2))
    await shows("running", 2)
    bus.publish(RunStarted(run="r", name="n", total=3))
    await shows("running", 3)
    bus.publish(RunFinished(status="completed"))
    await shows("completed", 3)
    await recorder.close()


async def test_x08_a_directory_that_goes_away_stops_nobody_but_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    run, bus = RunDir.create(tmp_path, "n"), Bus()
    told: asyncio.Queue[OSError] = asyncio.Queue()
    recorder = Recorder(run, bus, version="1", on_error=told.put_nowait)
    while run.path.exists():
        # A new engine.json may appear in the middle of it.
        shutil.rmtree(run.path, ignore_errors=True)
    bus.publish(RunStarted(run="r", name="n"))
    assert "removed" in str(await asyncio.wait_for(told.get(), 60))
    await recorder.close()


async def test_a_home_that_cannot_be_written_keeps_no_run_from_starting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "state").write_text("not a directory")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    run, bus = RunDir.create(tmp_path, "n"), Bus()
    await Recorder(run, bus, version="1").close()
    assert run.engine_json.exists()
