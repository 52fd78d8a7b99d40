"""The ledger: on disk before anything is asked for, private, and safe among many processes."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import sqlite3
import stat
import subprocess
import sys
import textwrap
import time
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from doubles.fake_runtime import FakeRuntime, World
from vf_core.errors import SandboxError
from vf_core.runtimes.lifecycle import Lifecycle, LifecycleError, State, Transition
from vf_core.sandboxes import place
from vf_core.sandboxes.ledger import Ledger, Owner
from vf_core.sandboxes.rows import Change, Row, fold
from vf_core.sandboxes.spill import Spill

OWNER = Owner.this_process("run-1", "/runs/1")


def starting(name: str = "box", kind: str = "docker", id: str = "") -> Transition:
    return Transition(name, kind, State.STARTING, time.time(), id)


def move(state: State, name: str = "box", **more: str) -> Transition:
    return Transition(name, "docker", state, time.time(), **more)


async def reserve(ledger: Ledger, name: str = "box", **more: str) -> None:
    await ledger.recorder(OWNER, rollout="0-0", attempt=1).reserve(starting(name, **more))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state" / "sandboxes.db"


# ---------------------------------------------------------------------- what is written


async def test_a_row_tells_all_of_its_sandbox(path: Path) -> None:
    ledger = Ledger.open(path)
    recorder = ledger.recorder(OWNER, rollout="3-1", attempt=2, account="acme", price=0.25)
    await recorder.reserve(starting("vf-3-1"))
    recorder.note(move(State.STARTING, "vf-3-1", id="c0ffee"))
    recorder.note(move(State.LIVE, "vf-3-1", id="c0ffee"))
    recorder.note(move(State.STOPPING, "vf-3-1", id="c0ffee", detail="user_stopped"))
    [row] = await ledger.read(unproven=True)
    assert (row.kind, row.account, row.name, row.id) == ("docker", "acme", "vf-3-1", "c0ffee")
    assert (row.owner, row.rollout, row.attempt, row.price) == (OWNER, "3-1", 2, 0.25)
    assert (row.state, row.detail, row.proof) == (State.STOPPING, "user_stopped", "")
    assert row.created <= row.changed <= time.time()
    recorder.note(move(State.GONE, "vf-3-1", id="c0ffee", proof="acme: no such sandbox"))
    [row] = await ledger.read()
    assert (row.state, row.proof) == (State.GONE, "acme: no such sandbox")
    assert await ledger.read(unproven=True) == []
    await ledger.aclose()


async def test_rows_are_found_by_what_is_known_of_them(path: Path) -> None:
    ledger = Ledger.open(path)
    assert ledger.rows() == []
    assert not path.exists(), "reading makes nothing"
    for number, (run, kind) in enumerate((("a", "docker"), ("a", "prime"), ("b", "prime"))):
        owner = replace(OWNER, run=run)
        await ledger.recorder(owner, rollout="0-0", attempt=1).reserve(
            starting(f"n{number}", kind, f"id-{number}")
        )
    names = [
        [row.name for row in ledger.rows(**query)]
        for query in (
            {},
            {"kinds": ["prime"]},
            {"run": "a"},
            {"ids": ["id-0", "id-2", "other"]},
            {"kinds": ["prime"], "run": "a"},
            {"kinds": []},
            {"keys": [ledger.rows()[1].key]},
        )
    ]
    assert names == [["n0", "n1", "n2"], ["n1", "n2"], ["n0", "n1"], ["n0", "n2"], ["n1"], [], ["n1"]]
    ledger.close()


async def test_a_restart_and_a_forced_start_have_rows_of_their_own(path: Path) -> None:
    ledger = Ledger.open(path)
    world = World()
    runtime = FakeRuntime(world)
    runtime.recorder = ledger.recorder(OWNER, rollout="0-0", attempt=1)
    await runtime.start()
    await runtime.stop_confirmed()
    await runtime.start()
    world.terminate = "error"
    await runtime.start(force=True)
    rows = await ledger.read()
    assert [(row.name, row.id, row.state) for row in rows] == [
        ("box", "id-1", State.GONE),
        ("box", "id-2", State.UNKNOWN),
        ("box.2", "id-3", State.LIVE),
    ]
    world.heal()
    await runtime.stop_confirmed()
    await runtime.confirm_left()
    assert [row.state for row in await ledger.read()] == [State.GONE] * 3
    ledger.close()


async def test_what_was_never_asked_for_has_no_row(path: Path) -> None:
    ledger = Ledger.open(path)
    recorder = ledger.recorder(OWNER, rollout="0-0", attempt=1)
    recorder.note(starting())
    recorder.note(move(State.STOPPING))
    ledger.close()
    assert ledger.rows() == []


async def test_a_sandbox_is_on_disk_before_it_is_asked_for_and_nothing_is_made_otherwise(path: Path) -> None:
    world = World()
    path.parent.mkdir(mode=0o700)
    path.write_bytes(b"this is no database at all, but somebody's notes" * 100)
    ledger = Ledger.open(path)
    runtime = FakeRuntime(world)
    runtime.recorder = ledger.recorder(OWNER, rollout="0-0", attempt=1)
    with pytest.raises(SandboxError, match=r"sandboxes\.db is damaged .*\(mv "):
        await runtime.start()
    assert world.calls == []
    assert runtime.state is State.FAILED
    await runtime.stop_confirmed()
    assert runtime.state is State.GONE
    assert "never asked" in runtime.proof
    path.unlink()
    seen: list[list[Row]] = []
    world.create = "ok"
    original = runtime._create

    async def create(box: object) -> None:
        seen.append(Ledger.open(path).rows())
        await original(box)  # type: ignore[arg-type]

    runtime._create = create  # type: ignore[method-assign]
    await runtime.start()
    assert [row.state for row in seen[0]] == [State.STARTING]
    ledger.close()


async def test_settling_needs_its_proof_and_proof_stays(path: Path) -> None:
    ledger = Ledger.open(path)
    await reserve(ledger)
    [row] = ledger.rows()
    for state, proof in ((State.GONE, ""), (State.UNKNOWN, "somebody said so")):
        with pytest.raises(LifecycleError):
            await ledger.settle(row.key, state, proof=proof)
    await ledger.settle(row.key, State.UNKNOWN, id="i1", detail="503")
    assert (ledger.rows()[0].state, ledger.rows()[0].id) == (State.UNKNOWN, "i1")
    await ledger.settle(row.key, State.GONE, proof="404")
    await ledger.settle(row.key, State.SURVIVED, detail="later nonsense")
    [row] = ledger.rows()
    assert (row.state, row.proof, row.id) == (State.GONE, "404", "i1")
    ledger.close()


async def test_only_what_is_long_proven_gone_is_forgotten(path: Path) -> None:
    ledger = Ledger.open(path)
    old = time.time() - 30 * 86_400
    for name, last in (("old", State.GONE), ("fresh", State.GONE), ("lost", State.UNKNOWN)):
        recorder = ledger.recorder(replace(OWNER, run=name), rollout="0-0", attempt=1)
        await recorder.reserve(replace(starting(name), t=old))
        t = time.time() if name == "fresh" else old
        recorder.note(Transition(name, "docker", last, t, proof="404" if last is State.GONE else ""))
    assert ledger.forget_old(14) == 1
    assert ledger.forget_old(14) == 0
    assert {row.name for row in ledger.rows()} == {"fresh", "lost"}
    ledger.close()
    with sqlite3.connect(path) as db:
        assert db.execute("SELECT count(*) FROM owners").fetchone() == (2,)
    db.close()


async def test_whoever_closes_forgets_what_is_old(path: Path) -> None:
    ledger = Ledger.open(path)
    recorder = ledger.recorder(OWNER, rollout="0-0", attempt=1)
    await recorder.reserve(replace(starting(), t=1.0))
    recorder.note(Transition("box", "docker", State.GONE, 2.0, proof="404"))
    await reserve(ledger, "fresh")
    ledger.close()
    assert [row.name for row in ledger.rows()] == ["fresh"]
    ledger.close()


def test_hosts_that_share_a_state_directory_have_ledgers_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "a b"))
    table = tmp_path / "mountinfo"
    mounts = ["22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw", "torn line"]
    table.write_text("\n".join(mounts))
    assert place.filesystem(tmp_path, str(table)) == "ext4"
    table.write_text("\n".join([*mounts, f"41 22 0:36 / {tmp_path}/a\\040b rw - nfs4 server:/home rw"]))
    assert place.filesystem(tmp_path, str(table)) == "ext4"
    assert place.filesystem(tmp_path / "a b" / "vf-tui", str(table)) == "nfs4"
    assert place.filesystem(tmp_path, str(tmp_path / "none")) == ""
    assert Ledger.open().path == tmp_path / "a b" / "vf-tui" / "sandboxes.db"
    monkeypatch.setattr(place, "filesystem", lambda path: "nfs4")
    monkeypatch.setattr(place.socket, "gethostname", lambda: "node7")
    assert Ledger.open().path.name == "sandboxes-node7.db"


async def test_neither_credentials_nor_broken_text_are_written(path: Path) -> None:
    ledger = Ledger.open(path)
    recorder = ledger.recorder(OWNER, rollout="0-0", attempt=1, account="tcp://me:hunter2canary@host")
    await recorder.reserve(starting())
    key, bearer = "sk-canary00000000000000", "Bearer canary-token"
    recorder.note(move(State.FAILED, detail=f"401 for key {key} at half \ud83d a character"))
    recorder.note(move(State.STOPPING, detail=f"authorization: {bearer}"))
    recorder.note(move(State.UNKNOWN, detail="x" * 100_000))
    ledger.close()
    data = b"".join(file.read_bytes() for file in path.parent.iterdir())
    assert b"canary" not in data
    assert len(ledger.rows()[0].detail) <= 2_000


def test_files_are_private_whatever_the_umask(path: Path) -> None:
    old = os.umask(0)
    try:
        ledger = Ledger.open(path)
        asyncio.run(reserve(ledger))
        files = sorted(path.parent.iterdir())
        assert [file.name for file in files] == ["sandboxes.db", "sandboxes.db-shm", "sandboxes.db-wal"]
        assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
        ledger.close()
        for open_to_all in (path.parent, path):
            open_to_all.chmod(0o777)
        assert len(ledger.rows()) == 1
        asyncio.run(reserve(ledger, "another"))
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
        ledger.close()
    finally:
        os.umask(old)


# ---------------------------------------------------------------------- the fold


STATES = st.sampled_from([state for state in State if state is not State.NEW])
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("reserve"), st.integers(0, 3)),
        st.tuples(st.just("move"), st.integers(0, 3), STATES, st.sampled_from(["", "i1", "i2"])),
        st.tuples(st.just("crash")),
        st.tuples(st.just("reopen")),
    ),
    max_size=25,
)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=STEPS)
def test_a_row_is_the_fold_of_its_moves_whatever_crashes(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[object, ...]]
) -> None:
    asyncio.run(_fold_story(tmp_path_factory.mktemp("fold"), steps))


async def _fold_story(place: Path, steps: list[tuple[object, ...]]) -> None:
    path = place / "a" / "sandboxes.db"
    ledger = Ledger.open(path)
    expected: list[Row] = []
    current: dict[int, int] = {}
    recorders = {n: ledger.recorder(OWNER, rollout=f"{n}-0", attempt=1) for n in range(4)}
    t = time.time()
    for step in steps:
        t += 1
        if step[0] == "reserve":
            n = int(str(step[1]))
            await recorders[n].reserve(Transition(f"box{n}", "docker", State.STARTING, t))
            current[n] = len(expected)
            row = ledger.rows()[-1]
            expected.append(
                Row(row.key, "docker", "", f"box{n}", "", OWNER, f"{n}-0", 1, State.STARTING, t, t)
            )
        elif step[0] == "move":
            n, state, id = int(str(step[1])), State(str(step[2])), str(step[3])
            proof = "404" if state is State.GONE else ""
            recorders[n].note(Transition(f"box{n}", "docker", state, t, id, proof, f"d{t}"))
            if n in current:
                at = current[n]
                expected[at] = fold(expected[at], Change(expected[at].key, state, t, id, proof, f"d{t}"))
                if state is State.GONE:
                    del current[n]
        elif step[0] == "crash":
            # What a killed process leaves is what the files are at that moment.
            ledger.flush()
            copy = place / f"crash-{t}"
            shutil.copytree(path.parent, copy)
            survivor = Ledger.open(copy / path.name)
            assert survivor.rows() == expected
            survivor.close()
        else:
            ledger.close()
    ledger.close()
    assert ledger.rows() == expected
    ledger.close()


# ---------------------------------------------------------------------- many processes, and their deaths

WRITER = """
import asyncio, sys, time
from pathlib import Path
from vf_core.runtimes.lifecycle import State, Transition
from vf_core.sandboxes.ledger import Ledger, Owner

async def main(path, name, count):
    ledger = Ledger.open(Path(path), patience=0.5)
    owner = Owner.this_process(name)
    async def one(n):
        recorder = ledger.recorder(owner, rollout=f"{n}-0", attempt=1)
        await recorder.reserve(Transition(f"{name}-{n}", "docker", State.STARTING, time.time()))
        print(f"{name}-{n}", flush=True)
        for state in (State.LIVE, State.STOPPING, State.SENT, State.CHECKING):
            recorder.note(Transition(f"{name}-{n}", "docker", state, time.time(), f"id-{n}"))
            await asyncio.sleep(0)
        recorder.note(Transition(f"{name}-{n}", "docker", State.GONE, time.time(), f"id-{n}", "404"))
    for first in range(0, count, 25):
        await asyncio.gather(*(one(n) for n in range(first, first + 25)))
    ledger.close()

asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
"""


def writer(path: Path, name: str, count: int) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", WRITER, str(path), name, str(count)], stdout=subprocess.PIPE, text=True
    )


def test_eight_processes_write_and_some_are_killed_or_stopped(path: Path) -> None:
    names = [f"p{n}" for n in range(8)]
    writers = {name: writer(path, name, 5_000 if name in ("p0", "p1", "p2") else 100) for name in names}
    told: dict[str, list[str]] = {name: [] for name in names}
    for name in ("p0", "p1", "p2"):
        # In the middle of its work.
        told[name] += [writers[name].stdout.readline().strip() for _ in range(30)]  # type: ignore[union-attr]
        writers[name].send_signal(signal.SIGSTOP if name == "p2" else signal.SIGKILL)
    for name in names:
        if name != "p2":
            told[name] += writers[name].communicate(timeout=60)[0].split()
    assert all(writers[name].returncode == 0 for name in names[3:])
    writers["p2"].kill()
    told["p2"] += writers["p2"].communicate()[0].split()
    ledger = Ledger.open(path)
    rows = {row.name: row for row in ledger.rows()}
    ledger.close()
    missing = [name for names in told.values() for name in names if name not in rows]
    assert not missing, "what was said to be on disk is there"
    for name in names[3:]:
        assert sum(row.state is State.GONE for key, row in rows.items() if key.startswith(f"{name}-")) == 100
    assert {row.owner.run for row in rows.values()} == set(names)


HOLDER = """
import sqlite3, sys
db = sqlite3.connect(sys.argv[1], isolation_level=None)
db.execute("BEGIN IMMEDIATE")
db.execute("UPDATE sandboxes SET detail = 'half'")
print("held", flush=True)
sys.stdin.readline()
"""


def suspended_holder(path: Path) -> subprocess.Popen[str]:
    """A process that was suspended in the middle of a transaction."""
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    holder.send_signal(signal.SIGSTOP)
    return holder


def end(holder: subprocess.Popen[str]) -> None:
    holder.kill()
    holder.communicate()


async def test_a_process_that_is_suspended_in_a_transaction_keeps_nobody_from_working(path: Path) -> None:
    ledger = Ledger.open(path, patience=0.2)
    recorder = ledger.recorder(OWNER, rollout="0-0", attempt=1)
    await recorder.reserve(starting())
    holder = suspended_holder(path)
    recorder.note(move(State.LIVE, id="i1"))
    await reserve(ledger, "another")
    recorder.note(move(State.GONE, id="i1", proof="404"))
    ledger.flush()
    other = Ledger.open(path)
    for reader in (other, ledger):
        # What stands beside the ledger is part of it.
        rows = {row.name: row for row in await reader.read()}
        assert (rows["box"].state, rows["box"].id, rows["box"].proof) == (State.GONE, "i1", "404")
        assert [row.name for row in await reader.read(unproven=True)] == ["another"]
        assert [row.name for row in await reader.read(ids=["i1"])] == ["box"]
    assert {stat.S_IMODE(file.stat().st_mode) for file in path.parent.iterdir()} == {0o600}
    end(holder)
    await reserve(ledger, "third")
    ledger.close()
    assert [file.name for file in path.parent.glob("*.spill")] == []
    assert [row.name for row in await other.read(unproven=True)] == ["another", "third"]
    other.close()


async def test_what_a_killed_process_wrote_beside_the_ledger_is_taken_in(path: Path) -> None:
    ledger = Ledger.open(path)
    await reserve(ledger)
    holder = suspended_holder(path)
    code = WRITER.replace("patience=0.5", "patience=0.1").replace("ledger.close()", "time.sleep(60)")
    victim = subprocess.Popen(
        [sys.executable, "-c", code, str(path), "victim", "25"], stdout=subprocess.PIPE, text=True
    )
    assert victim.stdout is not None
    told = [victim.stdout.readline().strip() for _ in range(25)]
    victim.kill()
    victim.communicate()
    assert {row.name for row in await ledger.read()} == {"box", *told}
    end(holder)
    assert {row.name for row in await ledger.read()} == {"box", *told}
    assert list(path.parent.glob("*.spill")) == []
    ledger.close()


async def test_who_holds_the_lock_is_named_when_nothing_can_be_written_beside(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = Ledger.open(path, patience=0.2)
    recorder = ledger.recorder(OWNER, rollout="0-0", attempt=1)
    await recorder.reserve(starting())
    holder = suspended_holder(path)

    def full(*args: object, **more: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Spill, "append", full)
    with pytest.raises(
        SandboxError, match=f"locked by pid {holder.pid}, which is suspended.*No space.*kill -CONT"
    ):
        await reserve(ledger, "another")
    recorder.note(move(State.LIVE, id="i1"))
    # Who only reads is not kept waiting.
    assert [row.state for row in await ledger.read()] == [State.STARTING]
    end(holder)
    ledger.flush()
    assert [(row.name, row.state, row.id) for row in ledger.rows()] == [("box", State.LIVE, "i1")]
    ledger.close()


def test_a_reserved_row_survives_kill_9(path: Path) -> None:
    code = textwrap.dedent("""
        import asyncio, os, signal, sys
        from pathlib import Path
        from vf_core.runtimes.lifecycle import State, Transition
        from vf_core.sandboxes.ledger import Ledger, Owner
        async def main():
            ledger = Ledger.open(Path(sys.argv[1]))
            recorder = ledger.recorder(Owner.this_process("r"), rollout="0-0", attempt=1)
            await recorder.reserve(Transition("box", "prime", State.STARTING, 1.0))
            os.kill(os.getpid(), signal.SIGKILL)
        asyncio.run(main())
    """)
    done = subprocess.run([sys.executable, "-c", code, str(path)], check=False)
    assert done.returncode == -signal.SIGKILL
    ledger = Ledger.open(path)
    assert [(row.name, row.state) for row in ledger.rows()] == [("box", State.STARTING)]
    ledger.close()


def test_what_is_noted_while_the_interpreter_ends_is_written(path: Path) -> None:
    code = textwrap.dedent("""
        import asyncio, atexit, sys, time
        from pathlib import Path
        from vf_core.runtimes.lifecycle import State, Transition
        from vf_core.sandboxes.ledger import Ledger, Owner
        ledger = Ledger.open(Path(sys.argv[1]))
        recorder = ledger.recorder(Owner.this_process("r"), rollout="0-0", attempt=1)
        late = lambda: recorder.note(Transition("box", "docker", State.GONE, time.time(), "", "404"))
        atexit.register(late)
        asyncio.run(recorder.reserve(Transition("box", "docker", State.STARTING, 1.0)))
        if sys.argv[2] == "closed":
            ledger.close()
    """)
    for how in ("open", "closed"):
        subprocess.run([sys.executable, "-c", code, str(path), how], check=True)
    ledger = Ledger.open(path)
    assert [row.proof for row in ledger.rows()] == ["404", "404"]
    ledger.close()


def test_a_forked_child_opens_the_file_for_itself(path: Path) -> None:
    code = textwrap.dedent("""
        import asyncio, os, sys, warnings
        from pathlib import Path
        from vf_core.runtimes.lifecycle import State, Transition
        from vf_core.sandboxes.ledger import Ledger, Owner
        warnings.simplefilter("ignore")
        ledger = Ledger.open(Path(sys.argv[1]))
        def reserve(name):
            recorder = ledger.recorder(Owner.this_process("r"), rollout="0-0", attempt=1)
            asyncio.run(recorder.reserve(Transition(name, "docker", State.STARTING, 1.0)))
        reserve("parent")
        child = os.fork()
        if not child:
            reserve("child")
            ledger.close()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        reserve("parent again")
        ledger.close()
    """)
    subprocess.run([sys.executable, "-c", code, str(path)], check=True, timeout=30)
    ledger = Ledger.open(path)
    assert {row.name for row in ledger.rows()} == {"parent", "child", "parent again"}
    ledger.close()


# ---------------------------------------------------------------------- a file that does not serve


def run_as_a_user(code: str, *args: str) -> dict[str, str]:
    """Run as somebody whom modes bind: not as root."""
    prelude = textwrap.dedent("""
        import asyncio, codecs, encodings.ascii, json, os, resource, sys
        from pathlib import Path
        import vf_core.sandboxes.ledger, vf_core.runtimes.census
        from vf_core.errors import SandboxError
        from vf_core.runtimes.lifecycle import State, Transition
        from vf_core.sandboxes.ledger import Ledger, Owner
        path = Path(sys.argv[1])
        if os.geteuid() == 0:
            for place in (path.parent, *path.parent.iterdir()):
                os.chown(place, 65534, 65534)
            os.setgid(65534)
            os.setuid(65534)
        owner = Owner.this_process("r")
        async def reserve(ledger):
            recorder = ledger.recorder(owner, rollout="0-0", attempt=1)
            try:
                await recorder.reserve(Transition("box", "docker", State.STARTING, 1.0))
                return "reserved"
            except SandboxError as e:
                return str(e)
    """)
    done = subprocess.run(
        [sys.executable, "-c", prelude + textwrap.dedent(code), *args],
        check=False,
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


@pytest.fixture
def open_path(path: Path) -> Path:
    """A ledger under a directory that anybody can reach."""
    import tempfile

    place = Path(tempfile.mkdtemp(prefix="vft-ledger-"))
    place.chmod(0o755)
    (place / "state").mkdir(mode=0o700)
    return place / "state" / "sandboxes.db"


def test_a_read_only_ledger_says_so_and_what_to_do(open_path: Path) -> None:
    asyncio.run(reserve(ledger := Ledger.open(open_path)))
    ledger.close()
    told = run_as_a_user(
        """
        path.chmod(0o400); path.parent.chmod(0o500)
        ledger = Ledger.open(path)
        said = {"file": asyncio.run(reserve(ledger))}
        ledger.close()
        nowhere = Ledger.open(Path("/proc/nowhere/sandboxes.db"))
        said["directory"] = asyncio.run(reserve(nowhere))
        print(json.dumps(said))
        """,
        str(open_path),
    )
    assert str(open_path) in told["file"], told
    assert "XDG_STATE_HOME" in told["file"], told
    assert "/proc/nowhere" in told["directory"], told
    assert "XDG_STATE_HOME" in told["directory"], told
    shutil.rmtree(open_path.parent.parent)


def test_a_full_disk_says_so_and_heals(open_path: Path) -> None:
    told = run_as_a_user(
        """
        ledger = Ledger.open(path, patience=1)
        said = {"before": asyncio.run(reserve(ledger))}
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
        said["full"] = asyncio.run(reserve(ledger))
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        said["after"] = asyncio.run(reserve(ledger))
        said["rows"] = str(len(ledger.rows()))
        ledger.close()
        print(json.dumps(said))
        """,
        str(open_path),
    )
    assert (told["before"], told["after"], told["rows"]) == ("reserved", "reserved", "2"), told
    assert str(open_path) in told["full"], told
    assert "disk" in told["full"], told
    shutil.rmtree(open_path.parent.parent)


async def test_a_ledger_of_a_newer_version_is_left_alone(path: Path) -> None:
    ledger = Ledger.open(path)
    await reserve(ledger)
    ledger.close()
    db = sqlite3.connect(path)
    db.execute("PRAGMA user_version = 99")
    db.close()
    before = path.read_bytes()
    with pytest.raises(SandboxError, match=r"newer vf-tui .*upgrade"):
        await reserve(ledger)
    with pytest.raises(SandboxError, match="newer"):
        ledger.rows()
    ledger.close()
    assert path.read_bytes() == before


@pytest.mark.parametrize("all_of_it", [True, False])
async def test_a_ledger_that_is_moved_away_is_begun_anew(path: Path, all_of_it: bool) -> None:
    ledger, other = Ledger.open(path), Ledger.open(path)
    await reserve(ledger, "before")
    for file in path.parent.iterdir() if all_of_it else [path]:
        file.rename(path.with_name(f"moved-{file.name}"))
    await asyncio.gather(reserve(ledger, "after"), reserve(other, "of another"))
    for reader in (ledger, other, Ledger.open(path)):
        assert {row.name for row in await reader.read()} == {"after", "of another"}
        reader.close()
    if all_of_it:
        moved = Ledger.open(path.with_name(f"moved-{path.name}"))
        assert [row.name for row in moved.rows()] == ["before"]
        moved.close()


async def test_a_reader_that_goes_away_takes_nobody_along(path: Path) -> None:
    ledger = Ledger.open(path)
    await reserve(ledger)
    for _ in range(20):
        gone = asyncio.create_task(ledger.read())
        await asyncio.sleep(0)
        writing = asyncio.create_task(reserve(ledger, "next"))
        staying = asyncio.create_task(ledger.read())
        gone.cancel()
        await asyncio.wait_for(writing, 20)
        assert len(await asyncio.wait_for(staying, 20)) > 1
    ledger.close()


async def test_five_hundred_at_once_share_transactions(path: Path) -> None:
    ledger = Ledger.open(path)

    async def one(n: int) -> None:
        recorder = ledger.recorder(OWNER, rollout=f"{n}-0", attempt=1)
        life = Lifecycle(f"box-{n}", "docker", recorder.note)
        await recorder.reserve(starting(f"box-{n}"))
        life.to(State.STARTING)
        life.identify(f"id-{n}")
        life.to(State.LIVE)

    await asyncio.gather(*(one(n) for n in range(500)))
    rows = await ledger.read()
    assert len(rows) == 500
    assert {row.state for row in rows} == {State.LIVE}
    ledger.close()
