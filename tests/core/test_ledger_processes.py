"""The ledger among many processes, some of which are killed or suspended."""

from __future__ import annotations

import signal
import stat
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from doubles.ledgers import OWNER, move, reserve, starting
from vf_core.errors import SandboxError
from vf_core.runtimes.lifecycle import State
from vf_core.sandboxes.ledger import Ledger
from vf_core.sandboxes.spill import Spill


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state" / "sandboxes.db"


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
    subprocess.run([sys.executable, "-c", code, str(path)], check=True, timeout=60)
    ledger = Ledger.open(path)
    assert {row.name for row in ledger.rows()} == {"parent", "child", "parent again"}
    ledger.close()
