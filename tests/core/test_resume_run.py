"""An engine that takes up what another one left: real sandboxes, real programs, files as a kill leaves them."""

from __future__ import annotations

import asyncio
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from doubles.engine_kit import DEADLINE, Kit, engine_kit, resume_whole, resumed_kit, run_whole, script_config
from vf_core.engine.jobs import Job, kinds_of, retry_wanted
from vf_core.engine.plan import make_plan
from vf_core.engine.resume import Left, look, take_over
from vf_core.engine.scheduler import Scheduler
from vf_core.engine.session import EngineSession
from vf_core.errors import RunDirError
from vf_core.eval_config import EvalConfig, RolloutRetryConfig
from vf_core.events import types as ev
from vf_core.events.codec import encode
from vf_core.events.fold import fold
from vf_core.events.journal import read_journal
from vf_core.rollout import Result, RolloutSpec
from vf_core.runs.layout import RunDir
from vf_core.runs.lock import RunLock
from vf_core.runtimes.lifecycle import State
from vf_core.sandboxes.owners import Owner
from vf_core.sandboxes.rows import Row
from vf_core.tasks import Task, TaskConfig, TaskData
from vf_core.trace.writer import TraceWriter


def last(kit: Kit) -> dict[str, dict[str, Any]]:
    """The last record of each rollout."""
    return {record["info"]["vf_tui"]["rollout"]: record for record in kit.records()}


def left_as(kit: Kit, to: Path) -> Path:
    """The run's directory as a kill at this moment leaves it, elsewhere; its name is the run's id."""
    to.mkdir()
    shutil.copytree(kit.run_dir.path, to / kit.run_dir.run_id, symlinks=True)
    return to / kit.run_dir.run_id


async def killed(config: EvalConfig, traces: int, to: Path) -> Path:
    """Run until `traces` are written and others are at work; what a kill leaves then."""
    async with engine_kit(config) as (kit, _):
        async with asyncio.timeout(DEADLINE):
            while len(kit.run_dir.traces.read_bytes().splitlines()) < traces:
                await asyncio.sleep(0.02)
        return left_as(kit, to)


async def test_x05_what_was_cut_short_ends_like_what_was_not(tmp_path: Path) -> None:
    """Killed twice; a workdir, counters and a trace of its own for each attempt (T17)."""
    go = tmp_path / "go"
    slow = f"[ -e left ] && exit 9; touch left; [ -e {go} ] || sleep 600; touch solved"
    scripts = ["touch solved", "exit 4", slow, "true", "exit 3"]
    config = script_config(tmp_path, scripts, group=True, num_rollouts=2, max_concurrent=3)
    path = await killed(config, 4, tmp_path / "first")
    before = (path / "traces.jsonl").read_bytes()
    async with resumed_kit(config, path) as (kit, _):
        await kit.running("0002-0", attempt=2)
        assert kit.state.kept == 4
        path = left_as(kit, tmp_path / "second")
    go.touch()
    kit, code = await resume_whole(config, path)
    plain, whole = await run_whole(config)
    assert code == whole == 3
    assert (path / "traces.jsonl").read_bytes().startswith(before)
    for name in ("completed", "declined", "error", "stopped", "scored", "reward_sum", "model_calls"):
        assert getattr(kit.state.totals, name) == getattr(plain.state.totals, name), name
    told = lambda k: {id: (r["rewards"], r["info"]["vf_tui"]["outcome"]) for id, r in last(k).items()}  # noqa: E731
    assert told(kit) == told(plain)
    assert (
        max(
            Counter(
                (r["info"]["vf_tui"]["rollout"], r["info"]["vf_tui"]["attempt"]) for r in kit.records()
            ).values()
        )
        == 1
    )
    assert kit.rollout("0002-0").attempt >= 3
    assert [a.reason for a in kit.rollout("0002-0").attempts][-1] == "resume"
    again = fold(read_journal(kit.run_dir.events))
    assert (again.totals, again.kept) == (kit.state.totals, kit.state.kept)


async def test_x01_x02_files_cut_anywhere_are_taken_up(tmp_path: Path) -> None:
    """No engine runs here: the files alone, after every kind of cut, twice."""
    odd = "# \u0085\u2028\u2029\x0c\rñ\ntouch solved"
    config = script_config(tmp_path, [odd, "exit 4", "exit 1"], num_rollouts=2)
    kit, _ = await run_whole(config)
    plan = make_plan(config)
    files = {name: (kit.run_dir.path / name).read_bytes() for name in ("events.jsonl", "traces.jsonl")}
    lines = files["traces.jsonl"].count(b"\n")
    rng = random.Random(5)
    character = files["traces.jsonl"].find(b"\\u00f1")
    cuts: list[tuple[int, int]] = [(0, 0), (0, 10**9), (10**9, 0), (10**9, 10**9 - 1), (10**9, character + 3)]
    cuts += [
        (rng.randrange(len(files["events.jsonl"])), rng.randrange(len(files["traces.jsonl"])))
        for _ in range(20)
    ]
    for n, (events, cut) in enumerate(cuts):
        run = RunDir(tmp_path / f"cut{n}" / kit.run_dir.run_id)
        run.path.mkdir(parents=True)
        run.events.write_bytes(files["events.jsonl"][:events])
        traces = len(files["traces.jsonl"]) - 1 if cut == 10**9 - 1 else cut
        run.traces.write_bytes(files["traces.jsonl"][:traces])
        seen = look(run, plan, Left())
        saved = take_over(run, plan, Left())
        assert (saved.kept, saved.owed) == (seen.kept, seen.owed)
        assert seen.state.totals == saved.state.totals
        assert all(json.loads(line) for line in run.traces.read_bytes().split(b"\n")[:-1])
        assert all(json.loads(line) for line in run.events.read_bytes().split(b"\n")[:-1])
        assert {id: saved.state.rollouts[id].status for id in saved.kept} == {
            id: stand.outcome for id, stand in saved.kept.items()
        }
        second = take_over(run, plan, Left())
        assert (second.kept.keys(), second.owed, second.untold) == (saved.kept.keys(), saved.owed, ())
        assert fold(read_journal(run.events)).totals == saved.state.totals
    whole = look(kit.run_dir, plan, Left())
    assert (lines, len(whole.kept), whole.owed) == (6, 4, ("0002-0", "0002-1"))
    assert odd in {
        json.loads(line)["task"]["data"]["prompt"] for line in files["traces.jsonl"].split(b"\n") if line
    }


async def test_t13_the_last_one_is_neither_dropped_nor_waited_for(tmp_path: Path) -> None:
    config = script_config(tmp_path, ["true"] * 11 + ["sleep 600"], max_concurrent=12)
    async with engine_kit(config) as (kit, run):
        await kit.until(lambda: kit.state.totals.ended == 11)
        assert (await kit.engine.command("stop_all", (), {"confirm": True}, "test")).ok
        await run
    assert Counter(r["info"]["vf_tui"]["outcome"] for r in kit.records()) == {"completed": 11, "stopped": 1}
    saved = look(kit.run_dir, make_plan(config), Left())
    assert (len(saved.kept), saved.owed, saved.why()) == (11, ("0011-0",), {"stopped": 1})
    done = [event for event in read_journal(kit.run_dir.events) if isinstance(event, ev.RunFinished)]
    assert len(done) == 1


@pytest.mark.parametrize("seed", range(6))
async def test_t15_commands_while_a_run_is_taken_up(tmp_path: Path, seed: int) -> None:
    """The last one on a rollout wins, and none is launched twice."""
    config = script_config(tmp_path, ["true", "exit 1", "exit 1"], max_concurrent=2)
    first, _ = await run_whole(config)
    rng = random.Random(seed)
    names = ["stop", "restart", "restart", "confirm_stop", "retry_failed"]
    orders = [(rng.choice(names), rng.choice(["0000-0", "0001-0", "0002-0"])) for _ in range(6)]
    async with EngineSession.open(config, first.run_dir, serve=False, resume=True) as session:
        kit = Kit(session.engine, first.run_dir)
        most: set[int] = set()

        def count_live(event: ev.Event) -> None:
            most.update(Counter(box.rollout for box in kit.state.left_over()).values())

        session.engine.bus.add_sink(count_live)
        asked = [asyncio.create_task(kit.engine.command(name, (who,), {}, "test")) for name, who in orders]
        for _ in range(rng.choice([1, 3, 10, 40])):
            await asyncio.sleep(0)
        run = asyncio.create_task(session.run())
        asked += [asyncio.create_task(kit.engine.command(name, (who,), {}, "test")) for name, who in orders]
        await asyncio.wait_for(asyncio.gather(*asked), DEADLINE)
        await asyncio.wait_for(run, DEADLINE)
    begun: dict[str, int] = {}
    for event in kit.events:
        if isinstance(event, ev.AttemptStarted):
            assert event.attempt > begun.get(event.rollout, 1)
            begun[event.rollout] = event.attempt
    assert most <= {1}
    final = {
        who: (name, task.result().ok) for (name, who), task in zip(orders, asked[len(orders) :], strict=True)
    }
    for who, (name, ok) in final.items():
        if ok and name in ("restart", "retry_failed"):
            assert kit.rollout(who).status in ("completed", "error"), name
    assert kit.state.totals.active == kit.state.totals.queued == 0
    traces = Counter((r["info"]["vf_tui"]["rollout"], r["info"]["vf_tui"]["attempt"]) for r in kit.records())
    assert max(traces.values()) == 1


async def test_t15_a_job_is_queued_once_whoever_asks() -> None:
    async def launch(job: Job) -> None:
        raise AssertionError(job)

    scheduler = Scheduler(1, launch)
    scheduler.closed = True
    job = Job(RolloutSpec("0000-0", Task(TaskData(idx=0, prompt=""), TaskConfig()), 0, 0, ""))
    scheduler.add([job])
    scheduler.add([job, job], first=True)
    assert scheduler.waiting == 1
    assert scheduler.remove(job)
    assert not scheduler.busy


async def test_a_member_of_a_kept_group_that_is_run_again_is_scored_with_the_others(tmp_path: Path) -> None:
    flag = tmp_path / "flag"
    scripts = [f"[ -e {flag} ] || touch solved; true", "exit 1"]
    config = script_config(tmp_path, scripts, group=True, hook="shared by the best", num_rollouts=2)
    first, _ = await run_whole(config)
    assert last(first)["0000-0"]["rewards"] == {"solved": 1.0, "share": 0.5}
    flag.touch()
    async with resumed_kit(config, first.run_dir.path) as (kit, run):
        assert (await kit.engine.command("restart", ("0000-1",), {}, "test")).ok
        await run
    assert kit.state.kept == 2
    records = [record for record in kit.records() if record["info"]["vf_tui"]["rollout"].startswith("0000")]
    # A kill between the two lines leaves the attempt that was run again missing, never rewards of two groups.
    told = [
        (r["info"]["vf_tui"]["rollout"], r["info"]["vf_tui"]["attempt"], r["rewards"]) for r in records[-2:]
    ]
    assert told == [
        ("0000-0", 1, {"solved": 1.0, "share": 1.0}),
        ("0000-1", 2, {"solved": 0.0, "share": 0.0}),
    ]
    assert (kit.rollout("0000-0").reward, kit.rollout("0000-1").reward) == (2.0, 0.0)


async def test_a_group_is_scored_by_the_attempts_that_count(tmp_path: Path) -> None:
    """One of its rollouts fails first, and is tried again."""
    once = tmp_path / "once"
    script = f"mkdir {once} 2>/dev/null && exit 7; touch solved"
    retries = {"rollout": {"max_retries": 1, "include": ["RolloutError"]}}
    config = script_config(tmp_path, [script], group=True, num_rollouts=3, retries=retries, max_concurrent=1)
    kit, code = await run_whole(config)
    assert code == 0
    records = kit.records()
    assert [r["info"]["vf_tui"]["outcome"] for r in records] == ["error", *["completed"] * 3]
    assert [r["rewards"] for r in records[1:]] == [{"solved": 1.0, "share": 1 / 3}] * 3
    saved = look(kit.run_dir, make_plan(config), Left())
    assert (saved.owed, saved.untold) == ((), ())


async def test_sandboxes_that_were_left_are_told_until_they_are_proven_gone(tmp_path: Path) -> None:
    config = script_config(tmp_path, ["true", "exit 1"])
    first, _ = await run_whole(config)
    box = ev.RuntimeChanged(rollout="0001-0", attempt=1, sandbox="far", kind="modal", state="live", id="m1")
    with first.run_dir.events.open("ab") as file:
        file.write(encode(ev.stamp(box, seq=first.state.seq + 1, t=first.state.now)).encode() + b"\n")
    kit, code = await resume_whole(config, first.run_dir.path)
    (finished,) = kit.of(ev.RunFinished)
    assert (code, finished.unconfirmed, kit.state.unconfirmed) == (4, ("far",), {"far"})
    row = Row(1, "modal", "a", "far", "m1", Owner("r"), "0001-0", 1, State.GONE, 1.0, 2.0, proof="404")
    saved = take_over(kit.run_dir, make_plan(config), Left(gone=(row,)))
    assert (saved.inherited, saved.state.unconfirmed) == ((), set())
    assert fold(read_journal(kit.run_dir.events)).sandboxes["far"].proof == "404"


async def test_one_engine_a_directory(tmp_path: Path) -> None:
    config = script_config(tmp_path, ["sleep 600"])
    async with engine_kit(config) as (kit, _):
        await kit.running()
        with pytest.raises(RunDirError, match=r"another engine \(pid \d+\) is at work"):
            async with resumed_kit(config, kit.run_dir.path):
                pass
        assert kit.rollout().status == "active"


def test_the_lock_ends_with_its_engine_whatever_that_has_forked(tmp_path: Path) -> None:
    """A taskset's pool of processes outlives a kill."""
    script = """
import os, sys, time
from pathlib import Path
from vf_core.runs.lock import RunLock
lock = RunLock(Path(sys.argv[1]))
child = os.fork()
if not child:
    os.close(1)
    time.sleep(600)
os.write(1, b"%d" % child)
os.kill(os.getpid(), 9)
"""
    run = RunDir(tmp_path)
    done = subprocess.run(
        [sys.executable, "-c", script, str(run.events)], stdout=subprocess.PIPE, check=False
    )
    try:
        RunLock(run.events).release()
    finally:
        os.kill(int(done.stdout), signal.SIGKILL)


async def test_a_signal_at_the_first_moment_of_a_resume_interrupts_it(tmp_path: Path) -> None:
    """The run that it takes up was over."""
    first, _ = await run_whole(config := script_config(tmp_path, ["exit 1"]))
    async with EngineSession.open(config, first.run_dir, serve=False, resume=True) as session:
        session.engine.interrupt("SIGTERM")
        assert await asyncio.wait_for(session.run(), DEADLINE) == 130


def test_x08_a_directory_that_cannot_be_written_is_said_to_be_so(tmp_path: Path) -> None:
    config = script_config(tmp_path, ["true"])
    run = RunDir(tmp_path / "run")
    run.traces.mkdir(parents=True)
    with pytest.raises(RunDirError, match="cannot take up"):
        take_over(run, make_plan(config), Left())


def test_x07_memory_is_bounded_by_a_line_however_large_the_file(tmp_path: Path) -> None:
    import tracemalloc

    from vf_core.runs.stands import read_stands

    path = tmp_path / "traces.jsonl"
    with path.open("w") as file:
        for n in range(24):
            own = {"rollout": f"{n:04d}-0", "attempt": 1, "outcome": "completed"}
            file.write(
                json.dumps({"id": str(n), "nodes": ["x" * 1000] * 1000, "info": {"vf_tui": own}}) + "\n"
            )
    tracemalloc.start()
    found = read_stands(path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(found.by_rollout) == 24
    assert peak < 6 * path.stat().st_size / 24


async def test_x07_traces_are_written_beside_the_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However large one is: screens are served, and programs heard, meanwhile. None is lost at the end."""
    threads: set[int] = set()
    write = TraceWriter.write

    def watched(self: TraceWriter, trace: Any) -> None:
        threads.add(threading.get_ident())
        write(self, trace)

    monkeypatch.setattr(TraceWriter, "write", watched)
    kit, _ = await run_whole(script_config(tmp_path, ["true"] * 2, group=True, num_rollouts=2))
    assert len(kit.records()) == 4
    assert len(threads) == 1
    assert threading.get_ident() not in threads


@pytest.mark.parametrize(
    ("policy", "kind", "wanted"),
    [
        ({}, "JudgeError", True),
        ({"include": ["TaskError"]}, "JudgeError", True),
        ({"include": ["JudgeError"]}, "TaskError", False),
        ({"include": ["RolloutError"]}, "OverlongPromptError", True),
        ({"include": ["ProviderError"], "exclude": ["OverlongPromptError"]}, "OverlongPromptError", False),
        ({"exclude": ["SandboxError"]}, "SandboxUnconfirmedError", False),
        ({"exclude": ["InterceptionError"]}, "ProviderError", True),
        ({"include": ["TaskError"]}, "ValueError", False),
        ({}, "ValueError", True),
    ],
)
def test_a_type_of_error_stands_for_its_kinds(policy: dict[str, list[str]], kind: str, wanted: bool) -> None:
    job = Job(RolloutSpec("0000-0", Task(TaskData(idx=0, prompt=""), TaskConfig()), 0, 0, ""))
    config = RolloutRetryConfig(max_retries=1, **policy)
    assert retry_wanted(job, Result("error", error_type=kind), config) is wanted
    assert kind in kinds_of(kind)
