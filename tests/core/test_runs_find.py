"""Finding runs: live, dead, elsewhere, past; by path, id and name."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from doubles.records import record, verifiers_run
from vf_core.errors import RunDirError
from vf_core.runs import index
from vf_core.runs.engine_file import EngineInfo, Standing, write_engine_info
from vf_core.runs.find import find_runs, resolve_run, summarise
from vf_core.runs.layout import RunDir
from vf_core.runs.liveness import Whereabouts, here, process_lives, process_start
from vf_core.runtimes import liveness


@pytest.fixture(autouse=True)
def own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        yield process
        process.kill()


def made(root: Path, name: str = "env--model--bash", **changes: object) -> tuple[RunDir, EngineInfo]:
    run = RunDir.create(root, name)
    info = EngineInfo.of_this_process(run.run_id, run.path, socket="", version="1", protocol=1)
    info = replace(info, name=name, **changes)  # type: ignore[arg-type]
    write_engine_info(run.engine_json, info)
    return run, info


FINISHED = Standing(status="completed", finished=5.0, started=1.0, total=3, done=3)
RUNNING = Standing(status="running", started=1.0, total=3, done=1)


def test_this_process_lives() -> None:
    assert process_start(os.getpid())
    assert process_lives(os.getpid(), process_start(os.getpid()), here()) == "live"


def test_a_process_that_ended_is_dead_and_its_number_alone_proves_nothing(
    child: subprocess.Popen[bytes],
) -> None:
    start = process_start(child.pid)
    assert process_lives(child.pid, start, here()) == "live"
    assert process_lives(child.pid, "somebody else's start", here()) == "dead"
    child.kill()
    # Not yet waited for: a zombie runs nothing.
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert process_lives(child.pid, start, here()) == "dead"
    child.wait()
    assert process_lives(child.pid, start, here()) == "dead"


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"host": "other", "boot": "x"}, "elsewhere"),
        ({"machine": "other", "boot": "x"}, "elsewhere"),
        ({"boot": "an earlier boot"}, "dead"),
        ({"space": "another container"}, "elsewhere"),
        ({"host": "renamed since"}, "live"),
    ],
)
def test_n05_another_machines_process_is_elsewhere_and_never_dead(
    monkeypatch: pytest.MonkeyPatch, changes: dict[str, str], expected: str
) -> None:
    now = Whereabouts("host", "machine", "boot", "space")
    monkeypatch.setattr(liveness, "here", lambda: now)
    where = replace(now, **changes)
    assert process_lives(os.getpid(), process_start(os.getpid()), where) == expected


def test_where_boots_are_told_by_the_clock_a_set_clock_kills_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(liveness, "here", lambda: Whereabouts("mac", boot="sec = 2"))
    where = Whereabouts("mac", boot="sec = 1")
    assert process_lives(os.getpid(), process_start(os.getpid()), where) == "live"
    assert process_lives(os.getpid(), "another start", where) == "dead"


def test_runs_are_found_in_any_output_directory(tmp_path: Path) -> None:
    run, _ = made(tmp_path / "far" / "away")
    assert not find_runs()
    assert index.remember(run.path, run.run_id)
    assert [r.id for r in find_runs()] == [run.run_id]
    # The same run is listed once, by whichever way it is found.
    assert len(find_runs([tmp_path / "far" / "away", tmp_path / "far"])) == 1
    shutil.rmtree(run.path)
    assert not find_runs()


def test_an_entry_of_no_sense_costs_only_itself(tmp_path: Path) -> None:
    run, _ = made(tmp_path)
    index.remember(run.path, run.run_id)
    for n, text in enumerate(["", "[]", "{}", '{"dir": 3}', "\0"]):
        (tmp_path / "state" / "vf-tui" / "runs" / f"{n}.json").write_text(text)
    assert [r.id for r in find_runs()] == [run.run_id]


def test_an_old_entry_of_a_directory_that_is_gone_is_dropped(tmp_path: Path) -> None:
    run, _ = made(tmp_path)
    index.remember(run.path, run.run_id)
    (entry,) = (tmp_path / "state" / "vf-tui" / "runs").iterdir()
    shutil.rmtree(run.path)
    assert not list(index.known())
    assert entry.exists()
    os.utime(entry, (1, 1))
    assert not list(index.known())
    assert not entry.exists()


def test_live_runs_come_first_then_the_latest(tmp_path: Path) -> None:
    old, _ = made(tmp_path, standing=replace(FINISHED, started=1.0), ended=True)
    new, _ = made(tmp_path, standing=replace(FINISHED, started=9.0), ended=True)
    live, _ = made(tmp_path, standing=replace(RUNNING, started=0.5))
    assert [r.id for r in find_runs([tmp_path])] == [live.run_id, new.run_id, old.run_id]


def test_the_word_for_a_runs_state(tmp_path: Path) -> None:
    words = {}
    for key, changes in {
        "live": {"standing": RUNNING},
        "killed": {"standing": RUNNING, "pid": 2**22 + 1},
        "over": {"standing": FINISHED, "pid": 2**22 + 1},
        "lingering": {"standing": FINISHED},
        "away": {"standing": RUNNING, "host": "other", "machine": "m", "boot": "b"},
    }.items():
        run, _ = made(tmp_path, **changes)
        found = summarise(run.path)
        assert found is not None
        words[key] = (found.liveness, found.status)
    assert words == {
        "live": ("live", "running"),
        "killed": ("dead", "died"),
        "over": ("ended", "completed"),
        "lingering": ("live", "completed"),
        "away": ("elsewhere", "running"),
    }


def test_what_was_at_work_when_the_engine_died_counts_as_unconfirmed(tmp_path: Path) -> None:
    told = replace(RUNNING, unconfirmed=1, left=5)
    for pid, unconfirmed in ((os.getpid(), 1), (2**22 + 1, 5)):
        run, _ = made(tmp_path, standing=told, pid=pid)
        found = summarise(run.path)
        assert found is not None
        assert found.unconfirmed == unconfirmed


def test_nothing_is_waited_for_that_is_not_a_file(tmp_path: Path) -> None:
    run = tmp_path / "name" / "run"
    run.mkdir(parents=True)
    for name in ("engine.json", "events.jsonl", "traces.jsonl", "config.toml"):
        os.mkfifo(run / name)
    (found,) = find_runs([tmp_path])
    assert not found.known


def test_a_copy_of_a_live_runs_directory_is_not_live(tmp_path: Path) -> None:
    run, _ = made(tmp_path, standing=RUNNING)
    copy = shutil.copytree(run.path, tmp_path / "copy")
    assert summarise(run.path).live  # type: ignore[union-attr]
    assert not summarise(copy).live  # type: ignore[union-attr]


def test_verifiers_runs_are_listed_by_their_config(tmp_path: Path) -> None:
    path = verifiers_run(tmp_path / "gsm8k--m--bash" / "u1", record())
    (found,) = find_runs([tmp_path])
    assert (found.dir, found.producer, found.known, found.status) == (path, "verifiers", False, "unknown")
    assert (found.name, found.model, found.taskset) == ("gsm8k--m--bash", "org/model", "gsm8k")
    assert (found.harness, found.runtime, found.standing.total) == ("bash", "docker", 6)


@pytest.mark.parametrize(
    "config", ["", "nonsense [", "env = 3\nmodel = 4", "[taskset]\nid = 'x'\n[harness]\nid = 'y'"]
)
def test_a_config_of_any_shape_is_taken_for_what_it_says(tmp_path: Path, config: str) -> None:
    verifiers_run(tmp_path / "u1", record(), config=config)
    assert len(find_runs([tmp_path])) == 1


def test_roots_are_searched_only_so_deep_and_not_behind_links(tmp_path: Path) -> None:
    verifiers_run(tmp_path / "root" / "a" / "b" / "c", record())
    verifiers_run(tmp_path / "root" / "a" / "b" / "d" / "e", record())
    verifiers_run(tmp_path / "elsewhere" / "x", record())
    (tmp_path / "root" / "link").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "root" / "loop").symlink_to(tmp_path / "root")
    assert [r.id for r in find_runs([tmp_path / "root"])] == ["c"]


def test_a_run_is_meant_by_its_path_id_or_name(tmp_path: Path) -> None:
    run, _ = made(tmp_path, "one--m--bash")
    made(tmp_path, "two--m--bash")
    roots = [tmp_path]
    for text in (
        str(run.path),
        str(run.events),
        f"{run.path}/",
        run.run_id,
        run.run_id[:6],
        run.run_id[:6].upper(),
        "one--m--bash",
        "ONE",
    ):
        assert resolve_run(text, roots).id == run.run_id, text


def test_a_name_that_several_runs_have_is_refused_with_them_named(tmp_path: Path) -> None:
    runs = [made(tmp_path)[0] for _ in range(7)]
    with pytest.raises(RunDirError, match="means several runs") as caught:
        resolve_run("env--", [tmp_path])
    assert sum(run.run_id[:8] in str(caught.value) for run in runs) == 5
    assert "and 2 more" in str(caught.value)


def test_an_unknown_run_is_refused_with_the_nearest_named(tmp_path: Path) -> None:
    made(tmp_path, "gsm8k--m--bash")
    with pytest.raises(RunDirError, match=r"did you mean .*gsm8k--m--bash"):
        resolve_run("gsm8--m--bash", [tmp_path])
    with pytest.raises(RunDirError, match=r"`vf-tui ls`"):
        resolve_run("zzzz", [tmp_path])
    with pytest.raises(RunDirError):
        resolve_run("", [tmp_path])


def test_only_live_runs_are_meant_where_only_they_will_do(tmp_path: Path) -> None:
    made(tmp_path, "same", standing=FINISHED, ended=True)
    live, _ = made(tmp_path, "same", standing=RUNNING)
    assert resolve_run("same", [tmp_path], live_only=True).id == live.run_id


def test_listing_reads_no_journal_and_imports_nothing_heavy(tmp_path: Path) -> None:
    for _ in range(3):
        run, _ = made(tmp_path, standing=FINISHED, ended=True)
        # Reading this would fail.
        run.events.unlink()
        run.events.mkdir()
    code = (
        "import sys; from pathlib import Path; from vf_core.runs.find import find_runs;"
        "assert len(find_runs([Path(sys.argv[1])])) == 3;"
        "heavy = {'textual', 'openai', 'mcp', 'httpx', 'aiohttp', 'pydantic', 'asyncio'} & set(sys.modules);"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True)
