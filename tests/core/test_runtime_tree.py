"""The whole tree of a local sandbox ends, and nothing else."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from doubles.local_boxes import local_box, processes_with, sh, until, zombies_of
from vf_core.errors import SandboxError, SandboxUnconfirmedError
from vf_core.runtimes import census, environment, processes, tree
from vf_core.runtimes.identity import engine, start_time
from vf_core.runtimes.lifecycle import State
from vf_core.runtimes.tree import Proc


async def test_every_kind_of_descendant_is_found():
    """R08: in the background, in a session of its own, without our mark, without both."""
    box = local_box()
    await box.start()
    for number, command in enumerate(
        (
            "{} &",
            "(setsid {} &)",
            "env -i {} &",
            "env -i nohup {} >/dev/null 2>&1 &",
            "setsid env -i {} & sleep 77",
            "until [ -e go ]; do sleep 0.02; done; (env -i setsid {} &)",
            "setsid sh -c '{} & trap \"\" TERM; wait' & wait",
        ),
        10,
    ):
        log = f"{number}.log"
        await box.run_background(sh(command.format(f"sleep 5{number}.{os.getpid()}")), log=log)
    await box.write("go", b"")
    wanted = [f"5{number}.{os.getpid()}" for number in range(10, 17)]
    await until(lambda: all(processes_with(text) for text in wanted))
    await box.stop_confirmed()
    assert [text for text in wanted if processes_with(text)] == []
    assert processes_with(box.sandbox_id) == []
    assert box.sandbox_id in box.proof


async def test_a_chain_of_forks_is_caught(tmp_path):
    """Each one lives for some milliseconds, and leaves another before it goes: too short to be seen for sure."""
    ticks = tmp_path / "ticks"
    ticks.touch()
    box = local_box(grace=0)
    await box.start()
    hop = f"hop() {{ echo >>'{ticks}'; sleep 0.01; hop & }}; hop & "
    await box.run(sh(f"{hop} (hop2() {{ setsid sh -c 'sleep 0.02' & }}; hop2)"))
    await until(lambda: ticks.stat().st_size > 10)
    await box.stop_confirmed()
    size = ticks.stat().st_size
    assert not any(processes_with(box.sandbox_id) for _ in range(10))
    assert ticks.stat().st_size == size


async def test_strangers_live_on(tmp_path):
    """Somebody who mentions the sandbox, or works in its directory, does not belong to it."""
    box = local_box()
    await box.start()
    env = {**os.environ, "NOTE": f"{environment.SANDBOX_VAR}={box.sandbox_id}/1", "PWD": box.directory}
    near = f"{environment.SANDBOX_VAR}_OLD"
    stranger = subprocess.Popen(
        ["sleep", "60"], env={**env, near: f"{box.sandbox_id}/1"}, cwd=box.directory, start_new_session=True
    )
    try:
        await box.run(sh("sleep 61 &"))
        await box.stop_confirmed()
        assert stranger.poll() is None
    finally:
        stranger.kill()
        assert stranger.wait() == -signal.SIGKILL


def test_a_number_that_came_again_is_another_process():
    """T05: matched by pid and start time."""
    other = subprocess.Popen(["sleep", "60"])
    try:
        started = start_time(other.pid)
        assert started is not None
        old = Proc(other.pid, started - 1, 1, other.pid, other.pid, "sleep")
        assert not tree.send(old, signal.SIGKILL)
        assert other.poll() is None
        assert tree.send(Proc(other.pid, started, 1, other.pid, other.pid, "sleep"), signal.SIGKILL)
        assert other.wait() == -signal.SIGKILL
        assert not tree.send(old, signal.SIGKILL)
    finally:
        other.kill()
        other.wait()


async def test_asked_before_it_is_made(tmp_path):
    said = tmp_path / "said"
    box = local_box(grace=30)
    await box.start()
    await box.run_background(
        sh(f"trap 'echo TERM > {said}; exit' TERM; echo up; while :; do sleep 0.05; done")
    )
    await box.run_background(
        sh(f"setsid sh -c \"trap 'echo TERM > {said}2; exit' TERM; echo up; while :; do sleep 0.05; done\""),
        log="second.log",
    )
    logs = [Path(box.directory, name) for name in ("background.log", "second.log")]
    await until(lambda: all(log.exists() and "up" in log.read_text() for log in logs))
    await box.stop_confirmed()
    assert said.read_text() == "TERM\n"
    assert Path(f"{said}2").read_text() == "TERM\n"


async def test_each_is_asked_once():
    box = local_box(grace=30)
    await box.start()
    trap = "trap 'echo asked' TERM; echo up; until [ -e go ]; do sleep 0.05; done"
    for command in (trap, f'bash -c "{trap}" & wait', f'setsid bash -c "{trap}" & wait'):
        await box.run_background(["bash", "-c", command])
    log = Path(box.directory, "background.log")
    await until(lambda: log.exists() and log.read_text().count("up") == 3)
    stop = asyncio.ensure_future(box.stop_confirmed())
    await until(lambda: log.read_text().count("asked") >= 3)
    for _ in range(3):
        await census.census().count()
    said = log.read_text()
    box.force()
    await stop
    assert said.count("asked") == 3


@pytest.mark.parametrize("when", ["before", "during"])
async def test_force_skips_the_grace_period(when):
    box = local_box(grace=300)
    await box.start()
    stubborn = "trap '' TERM; echo up; while :; do sleep 0.05; done"
    running = asyncio.ensure_future(box.run(sh(f'setsid sh -c "{stubborn}" & {stubborn}')))
    await until(lambda: len(processes_with(box.sandbox_id)) >= 2)
    if when == "before":
        box.force()
    stop = asyncio.ensure_future(box.stop_confirmed())
    await until(lambda: box.state is not State.LIVE)
    box.force()
    await asyncio.wait_for(stop, 60)
    assert (await running).exit_code == 137
    assert box.state is State.GONE


async def leave_orphans(box, *commands):
    """Not in the first instant of a program's life, when it is not marked yet."""
    script = f"until [ -e go ]; do sleep 0.02; done; {'; '.join(commands)}; touch gone"
    await box.run_background(sh(script))
    await box.write("go", b"")
    await until(lambda: Path(box.directory, "gone").exists())


async def test_orphans_are_buried_and_others_children_are_left_alone():
    """R10: no zombies of ours; whoever started a child gets its exit code."""
    before = set(zombies_of(os.getpid()))
    theirs = [
        subprocess.Popen(["sh", "-c", "exit 7"]),
        subprocess.Popen(["sh", "-c", "exit 8"], start_new_session=True),
    ]
    waited = await asyncio.create_subprocess_exec("sh", "-c", "exit 9", start_new_session=True)
    await until(lambda: {child.pid for child in theirs} <= set(zombies_of(os.getpid())))
    box = local_box()
    await box.start()
    await leave_orphans(box, "(true &)", "(setsid true &)", "(setsid sh -c 'env -i true &' &)")
    mine = before | {child.pid for child in theirs}
    await box.stop_confirmed()
    await census.census().count()
    await until(lambda: set(zombies_of(os.getpid())) <= mine)
    assert [child.wait() for child in theirs] == [7, 8]
    assert await waited.wait() == 9


async def test_orphans_do_not_pile_up_while_a_sandbox_lives(monkeypatch):
    monkeypatch.setattr(census, "_BURIAL_INTERVAL", 0.05)
    before = set(zombies_of(os.getpid()))
    box = local_box()
    await box.start()
    await leave_orphans(box, *8 * ["(setsid true &)"])
    await until(lambda: set(zombies_of(os.getpid())) <= before)
    await box.stop_confirmed()


async def test_concurrent_stops_share_their_looks(monkeypatch):
    boxes = [local_box(f"shared-{number}") for number in range(24)]
    await asyncio.gather(*(box.start() for box in boxes))
    await asyncio.gather(*(box.run(["true"]) for box in boxes))
    looks = 0
    look = tree.Table.look

    def counted(*args):
        nonlocal looks
        looks += 1
        return look(*args)

    monkeypatch.setattr(tree.Table, "look", counted)
    await asyncio.gather(*(box.stop_confirmed() for box in boxes))
    assert {box.state for box in boxes} == {State.GONE}
    assert 1 <= looks <= 4


async def test_five_hundred_live_sandboxes():
    others = set(census.REGISTRY.children), set(census.REGISTRY.groups)
    boxes = [local_box(f"many-{number}") for number in range(500)]
    for box in boxes:
        await box.start()
    running = [asyncio.ensure_future(box.run(["sleep", "600"])) for box in boxes]
    # Half of them run a program at once; that is the most descriptors that are ever needed.
    await until(lambda: all(box._box.handle.processes for box in boxes), 30)
    assert len(census.REGISTRY.children) >= 500
    await asyncio.gather(*(box.stop_confirmed() for box in boxes))
    results = await asyncio.gather(*running)
    assert {result.exit_code for result in results} == {143}
    assert {box.state for box in boxes} == {State.GONE}
    assert set(census.REGISTRY.children) <= others[0]
    assert set(census.REGISTRY.groups) <= others[1]


async def test_no_descriptor_left_is_an_error_and_never_a_proof():
    box = local_box()
    await box.start()
    await census.census().count()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    held = [os.open("/dev/null", os.O_RDONLY)]
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (held[0] + 1, hard))
        with pytest.raises(SandboxError, match=r"descriptor.*ulimit -n"):
            await box.run(["true"])
        with pytest.raises(SandboxUnconfirmedError, match="UNKNOWN"):
            await box.stop_confirmed()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        os.close(held[0])
    assert box.state is State.UNKNOWN
    await box.stop_confirmed()
    assert box.state is State.GONE


async def test_a_survivor_is_named(monkeypatch):
    box = local_box()
    await box.start()
    await box.run(sh("setsid sleep 62 & sleep 0.05"))
    monkeypatch.setattr("vf_core.runtimes.ending.KILL_PATIENCE", 0.1)
    with monkeypatch.context() as patched:
        patched.setattr(tree, "send", lambda proc, signum: False)
        with pytest.raises(SandboxUnconfirmedError, match=r"SURVIVED: 1 process still there: \d+ sleep"):
            await box.stop_confirmed(timeout=1)
    await box.stop_confirmed()
    assert box.state is State.GONE


async def test_code_that_swallows_its_cancellation_ends_with_the_sandbox():
    """T11: it can only fail, at once, however often it tries."""
    box = local_box()
    await box.start()
    tries = 0

    async def stubborn() -> None:
        nonlocal tries
        while tries < 20:
            try:
                await box.run(["sleep", "600"])
            except BaseException:
                pass
            tries += 1

    task = asyncio.ensure_future(stubborn())
    await until(lambda: processes_with(box.sandbox_id))
    task.cancel()
    await until(lambda: tries >= 1)
    await box.stop_confirmed()
    await asyncio.wait_for(task, 60)
    assert processes_with(box.sandbox_id) == []


async def test_output_of_a_background_child_neither_blocks_nor_breaks_it():
    box = local_box()
    await box.start()
    counter = "n=0; while :; do n=$((n+1)); echo line $n; echo $n > count.tmp; mv count.tmp count; done"
    result = await asyncio.wait_for(box.run(sh(f"({counter}) & echo started")), 60)
    assert result.stdout.startswith(("started", "line"))

    def count() -> int:
        try:
            return int(Path(box.directory, "count").read_text())
        except (OSError, ValueError):
            return 0

    seen = count()
    # Far more than a pipe holds, after nobody wants it any more.
    await until(lambda: count() > seen + 100)
    await box.stop_confirmed()


async def test_a_sink_that_fails_ends_the_program_and_is_heard():
    box = local_box()
    await box.start()

    def sink(stream: str, data: bytes) -> None:
        raise RuntimeError("the log is full")

    with pytest.raises(RuntimeError, match="the log is full"):
        await asyncio.wait_for(box.run_program(sh("echo x; sleep 600"), on_output=sink), 60)
    await box.stop_confirmed()


async def test_memory_stays_bounded_under_much_output():
    """R13."""
    box = local_box()
    await box.start()
    await box.run(["true"])
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    got = 0

    def sink(stream: str, data: bytes) -> None:
        nonlocal got
        got += len(data)

    result = await box.run_program(
        sh("head -c 50000000 /dev/zero; head -c 50000000 /dev/zero >&2"), on_output=sink
    )
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert (result.exit_code, got) == (0, 100_000_000)
    assert grown < 50_000 * (1 if sys.platform == "linux" else 1024)
    await box.stop_confirmed()


async def test_without_pidfd(monkeypatch):
    monkeypatch.delattr(os, "pidfd_open")
    box = local_box()
    await box.start()
    result = await box.run(sh("sleep 63 & (setsid sleep 63 &) ; echo word; exit 5"))
    assert (result.exit_code, result.stdout) == (5, "word\n")
    timed_out = await box.run(["sleep", "64"], timeout=0.1)
    assert timed_out.timed_out
    await box.stop_confirmed()
    assert processes_with(box.sandbox_id) == []


async def test_the_exit_code_that_other_code_took(monkeypatch, caplog):
    box = local_box()
    await box.start()

    def taken(pid: int, options: int) -> tuple[int, int]:
        raise ChildProcessError

    with monkeypatch.context() as patched:
        patched.setattr(processes.os, "waitpid", taken)
        result = await box.run(["true"])
    assert result.exit_code == 255
    assert "taken by other code" in caplog.text
    await box.stop_confirmed()


async def test_programs_get_the_users_own_limit_of_descriptors():
    box = local_box()
    await box.start()
    assert processes._user_limit is not None
    limit = int((await box.run(sh("sleep 0.1; ulimit -n"))).stdout)
    assert limit == processes._user_limit[0]
    await box.stop_confirmed()


def test_groups_and_ancestry_decide_where_environments_cannot_be_read():
    """The part of ownership that other systems than Linux have to live by."""
    me = engine().pid
    procs = {
        p.pid: p
        for p in (
            Proc(100, 1, me, 100, 0, "leader"),
            Proc(101, 1, 100, 100, 0, "child"),
            Proc(102, 1, 101, 102, 0, "grandchild in a group of its own"),
            Proc(103, 1, me, 100, 0, "orphan of the group"),
            Proc(104, 1, 1, 100, 0, "not ours: the group's number came again"),
            Proc(105, 1, me, 105, 0, "another child of ours"),
            Proc(106, 1, 999, 106, 0, "a stranger"),
        )
    }
    assert tree.owners(procs, me, {100: ("box-1", 3)}, {}, lambda proc: ()) == dict.fromkeys(
        (100, 101, 102, 103), ("box-1/3",)
    )


def test_processes_as_ps_lists_them():
    listing = """\
      1     0     1 Ss   Mon Jan  6 09:00:01 2025     /sbin/launchd
  48211 48100 48211 S+   Tue Mar  3 14:05:09 2026     /Applications/Some App.app/Contents/MacOS/some app
  48300 48211 48211 Z    Tue Mar  3 14:05:10 2026     (sleep)
garbage
"""
    first, app, dead = tree.parse_ps(listing)
    assert (first.pid, first.parent, first.group, first.dead) == (1, 0, 1, False)
    assert app.name.endswith("some app")
    assert (dead.pid, dead.parent, dead.dead) == (48300, 48211, True)
    assert 0 < first.start < app.start < dead.start
