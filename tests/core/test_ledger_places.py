"""The ledger in a file that does not serve: read-only, on a full disk, newer, moved away."""

from __future__ import annotations

import asyncio
import json
import shutil
import sqlite3
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from doubles.ledgers import OWNER, reserve, starting
from vf_core.errors import SandboxError
from vf_core.runtimes.lifecycle import Lifecycle, State
from vf_core.sandboxes.ledger import Ledger


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state" / "sandboxes.db"


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
        timeout=60,
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
        await asyncio.wait_for(writing, 60)
        assert len(await asyncio.wait_for(staying, 60)) > 1
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
