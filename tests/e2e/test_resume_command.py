"""`vf-tui resume` as it is typed: what is refused, and what is said before anything is started."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from doubles.command_line import PLUGINS
from doubles.engine_kit import Kit, engine_kit, run_whole, script_config
from vf_core.events.fold import fold
from vf_core.events.journal import read_journal
from vf_core.runs.engine_file import EngineInfo, write_engine_info
from vf_tui import cli


@pytest.fixture
def done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Kit:
    """A run that is over: one rollout completed, one errored."""
    monkeypatch.setenv("PYTHONPATH", str(PLUGINS))
    monkeypatch.chdir(tmp_path)
    kit, _ = asyncio.run(run_whole(script_config(tmp_path, ["true", "exit 1"])))
    return kit


def said(capsys: pytest.CaptureFixture[str], *args: str | Path) -> tuple[int, str, str]:
    code = cli.run(["resume", *map(str, args)])
    out = capsys.readouterr()
    return code, out.out, out.err


def test_what_is_said_before_anything_is_started(done: Kit, capsys: pytest.CaptureFixture[str]) -> None:
    path, before = done.run_dir.path, done.run_dir.events.read_bytes()
    code, out, err = said(capsys, path, "--dry-run")
    assert (code, out.splitlines()) == (0, ["2 rollouts: 1 kept, 1 owed (1 error)", "  0001-0"])
    assert "nothing answers at http://127.0.0.1:9/v1): `--scripted SCENARIO` starts it again" in err
    code, out, _ = said(capsys, "--json", done.run_dir.run_id, "--dry-run")
    told: dict[str, Any] = json.loads(out)
    assert (code, told["kept"], told["owed"], told["left"]) == (0, 1, ["0001-0"], [])
    code, out, err = said(capsys, path, "--env.agent.max-turns", "3", "--json")
    assert (code, json.loads(out)["changes"]) == (2, ["env.agent.max_turns: (not set) -> 3"])
    assert "this is not the config of that run" in err
    assert done.run_dir.events.read_bytes() == before


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ([], "which run?"),
        (["a", "b", "c"], "a directory and a config, not 3 files"),
        (["nowhere"], "there is no run 'nowhere'"),
    ],
)
def test_what_cannot_be_meant_is_refused(
    args: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, err = said(capsys, *args)
    assert code == 2
    assert words in err


def test_an_engine_that_cannot_be_asked_must_be_known_to_be_gone(
    done: Kit, capsys: pytest.CaptureFixture[str]
) -> None:
    place = done.run_dir
    info = EngineInfo(run=place.run_id, pid=1, host="elsewhere", machine="m", boot="b", dir=str(place.path))
    write_engine_info(place.engine_json, info)
    code, _, err = said(capsys, place.path, "--dry-run")
    assert code == 2
    assert "the engine of run" in err
    assert "--engine-is-gone" in err
    assert said(capsys, place.path, "--dry-run", "--engine-is-gone")[0] == 0


def test_nothing_owed_is_no_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    kit, _ = asyncio.run(run_whole(script_config(tmp_path, ["true"])))
    code, _, err = said(capsys, kit.run_dir.path)
    assert code == 0
    assert "1 rollout: 1 kept, none owed: there is nothing to resume" in err
    assert sum(e.type == "run.started" for e in read_journal(kit.run_dir.events)) == 1


async def test_a_run_at_work_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async with engine_kit(script_config(tmp_path, ["sleep 600"])) as (kit, _):
        await kit.running()
        code, _, err = await asyncio.to_thread(said, capsys, kit.run_dir.path)
        assert code == 2
        assert "is at work (pid" in err


def test_the_run_goes_on_in_lines(
    done: Kit, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What stood before is not told again; from another directory than it was started in (C07)."""
    elsewhere = done.run_dir.path.parent / "a b"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    code, out, err = said(capsys, f"../{done.run_dir.path.name}", "--headless")
    assert code == 3
    assert "0001-0 script 1: attempt 2 started (resume)" in out
    assert "0000-0" not in out
    assert "2 rollouts: 1 kept, 1 owed (1 error)" in err
    state = fold(read_journal(done.run_dir.events))
    assert (state.kept, state.rollouts["0001-0"].attempt, state.over) == (1, 2, True)


def test_a_directory_that_is_spoiled_is_refused_in_words(
    done: Kit, capsys: pytest.CaptureFixture[str]
) -> None:
    """A FIFO is not waited for, and an engine that cannot log says where."""
    place = done.run_dir
    shutil.rmtree(place.logs)
    place.logs.touch()
    code, _, err = said(capsys, place.path, "--headless")
    assert (code, f"error: cannot write {place.engine_log}: " in err) == (2, True), err
    place.traces.unlink()
    os.mkfifo(place.traces)
    code, _, err = said(capsys, place.path, "--dry-run")
    assert (code, f"error: {place.traces} is not a regular file" in err) == (2, True), err
