"""The ledger: on disk before anything is asked for, private, and safe among many processes."""

from __future__ import annotations

import asyncio
import os
import shutil
import sqlite3
import stat
import time
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from doubles.fake_runtime import FakeRuntime, World
from doubles.ledgers import OWNER, move, reserve, starting
from vf_core.errors import SandboxError
from vf_core.runtimes.lifecycle import LifecycleError, State, Transition
from vf_core.sandboxes import place
from vf_core.sandboxes.ledger import Ledger
from vf_core.sandboxes.rows import Change, Row, fold


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state" / "sandboxes.db"


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


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
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
