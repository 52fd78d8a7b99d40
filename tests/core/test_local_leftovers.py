"""What dead engines leave on this host: processes, directories, records, helpers, sockets. All real."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from doubles.local_boxes import local_box, processes_with, sh, until
from vf_core.errors import SandboxError
from vf_core.runtimes import make_provider, records
from vf_core.runtimes.leftover_sockets import SocketProvider
from vf_core.runtimes.leftovers import HELPERS, LocalProvider
from vf_core.runtimes.lifecycle import State
from vf_core.runtimes.provider import Listed
from vf_core.sandboxes.cleanup import Outcome, clean
from vf_core.sandboxes.inventory import Inventory, Item, take
from vf_core.sandboxes.ledger import Ledger, Owner

ENGINE = """
import asyncio, json, os, sys
from pathlib import Path
from vf_core.runtimes import make_runtime, runtime_config_class, watchdog
from vf_core.sandboxes.ledger import Ledger, Owner

PROGRAM = "trap '' TERM; setsid sleep 600 & (env -i sleep 600; true) & (setsid env -i sleep 600 &) ; wait"

async def main():
    owner = Owner.this_process("dead-run")
    ledger = Ledger.open(Path(sys.argv[1]))
    boxes = []
    for n in range(2):
        config = runtime_config_class("subprocess")(type="subprocess", grace=0.2)
        recorder = ledger.recorder(owner, rollout=f"{n}-0", attempt=1)
        labels = {**owner.labels(), "rollout": f"{n}-0", "attempt": "1"}
        boxes.append(make_runtime(config, name=f"vf-left-{n}", labels=labels, recorder=recorder))
    for box in boxes:
        await box.start()
        await box.write("a/read-only/file", b"x")
        await box.run(["chmod", "-R", "a-w", "a"])
        await box.run_background(["sh", "-c", PROGRAM])
    ledger.flush()
    print(json.dumps({"watchdog": watchdog.ensure(), "ids": [b.sandbox_id for b in boxes],
                      "directories": [b.directory for b in boxes], "pid": os.getpid()}), flush=True)
    sys.stdin.read()

asyncio.run(main())
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A temporary directory of its own, for this process and its children."""
    here = tmp_path / "tmp"
    here.mkdir()
    monkeypatch.setenv("TMPDIR", str(here))
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(records, "_root", None)
    return here


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    opened = Ledger.open(tmp_path / "state" / "sandboxes.db")
    yield opened
    opened.close()


@asynccontextmanager
async def killed_engine(ledger: Ledger) -> AsyncIterator[dict[str, Any]]:
    """An engine that was killed with its watchdog held, so that all that it started goes on."""
    engine = subprocess.Popen(
        [sys.executable, "-c", ENGINE, str(ledger.path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert engine.stdout is not None
    said = json.loads(await asyncio.to_thread(engine.stdout.readline))
    assert said["pid"] == engine.pid
    os.kill(said["watchdog"], signal.SIGSTOP)
    engine.kill()
    engine.communicate()
    try:
        yield said
    finally:
        os.kill(said["watchdog"], signal.SIGCONT) if _runs(said["watchdog"]) else None
        await until(lambda: not _runs(said["watchdog"]))


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def working_in(directory: Path) -> list[int]:
    """Processes whose working directory is, or was, at or under `directory`."""
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit() and _runs(int(name)):
            with contextlib.suppress(OSError):
                if os.readlink(f"/proc/{name}/cwd").startswith(f"{directory}/".rstrip("/")):
                    found.append(int(name))
    return found


async def looked(ledger: Ledger) -> Inventory:
    return await take(ledger, ["subprocess"])


def of_ids(inventory: Inventory, said: dict[str, Any]) -> list[Item]:
    """Those of this test: other tests may leave things at the same time."""
    return [item for item in inventory.items if item.id in said["ids"] or item.pid == said["pid"]]


async def cleaned(ledger: Ledger, items: list[Item]) -> dict[str, Outcome]:
    outcomes = await clean(ledger, items, makers={"subprocess": lambda: LocalProvider(grace=0.2)})
    return {outcome.item.id: outcome for outcome in outcomes}


async def listed(id: str) -> Listed | None:
    provider = LocalProvider()
    return next((entry for entry in await provider.listed() if entry.id == id), None)


# ---------------------------------------------------------------------- sandboxes


async def test_a_killed_engines_processes_directories_and_helpers_are_found_and_cleaned(
    place: Path, ledger: Ledger
) -> None:
    bystander = local_box("bystander")
    await bystander.start()
    await bystander.run_background(sh("sleep 600"))
    async with killed_engine(ledger) as said:
        found = of_ids(await looked(ledger), said)
        boxes = {item.id: item for item in found if not item.id.startswith(HELPERS)}
        assert sorted(boxes) == sorted(said["ids"])
        for item in boxes.values():
            assert (item.owner, item.leftover, item.state) == ("dead", True, State.LIVE)
            assert item.seen == {"ledger", "list"}
            assert (item.run, item.pid, item.attempt) == ("dead-run", said["pid"], 1)
            assert "process" in item.status
        [helper] = [item for item in found if item.id.startswith(HELPERS)]
        assert (helper.leftover, helper.pid) == (True, said["pid"])
        theirs = next(item for item in (await looked(ledger)).items if item.id == bystander.sandbox_id)
        assert (theirs.owner, theirs.leftover) == ("live", False)
        outcomes = await cleaned(ledger, [*found, theirs])
        assert outcomes.pop(theirs.id).state == "skipped"
        assert {outcome.state for outcome in outcomes.values()} == {"GONE"}, outcomes
        for id, directory in zip(said["ids"], said["directories"], strict=True):
            assert not processes_with(id)
            assert not os.path.lexists(directory)
            assert not os.path.lexists(f"{directory}.json")
            assert f"no process with mark {id}" in outcomes[id].proof
        assert not _runs(said["watchdog"])
        # Also those that dropped environment and session.
        assert working_in(place) == working_in(Path(bystander.directory))
    assert of_ids(await looked(ledger), said) == []
    assert {row.state for row in await ledger.read()} == {State.GONE}
    assert bystander.state is State.LIVE
    assert working_in(Path(bystander.directory))
    await bystander.stop_confirmed()


async def test_a_torn_or_lost_record_hides_nothing(place: Path, ledger: Ledger) -> None:
    async with killed_engine(ledger) as said:
        torn, lost = said["directories"]
        text = Path(f"{torn}.json").read_bytes()
        Path(f"{torn}.json").write_bytes(text[: len(text) // 2])
        os.unlink(f"{lost}.json")
        # Without the ledger too: the processes' own marks tell whose they are.
        elsewhere = Ledger.open(ledger.path.with_name("empty.db"))
        found = {item.id: item for item in of_ids(await looked(elsewhere), said)}
        for id in said["ids"]:
            assert (found[id].leftover, found[id].pid, found[id].run) == (True, said["pid"], "dead-run"), id
            assert "no record" in found[id].status
        outcomes = await cleaned(elsewhere, list(found.values()))
        assert {outcome.state for outcome in outcomes.values()} == {"GONE"}
        assert not any(processes_with(id) for id in said["ids"])
        assert not os.path.lexists(torn)
        assert not os.path.lexists(f"{torn}.json")
        assert not os.path.lexists(lost)
        elsewhere.close()
    assert {item.state for item in of_ids(await looked(ledger), said)} == {State.GONE}
    assert of_ids(await looked(ledger), said) == []


async def test_a_directory_that_nobody_tells_of_can_only_be_claimed(place: Path, ledger: Ledger) -> None:
    orphan = records.private_root() / "box-0a1b2c3d"
    orphan.mkdir(mode=0o700)
    (orphan / "file").write_bytes(b"x")
    [item] = [item for item in (await looked(ledger)).items if item.id == orphan.name]
    assert (item.owner, item.leftover, item.claimable) == ("unknown", False, True)
    assert item.status == "no process, its directory, no record"
    [outcome] = await clean(ledger, [item])
    assert (outcome.state, orphan.exists()) == ("skipped", True)
    [outcome] = await clean(ledger, [item], claimed={item.key})
    assert (outcome.state, orphan.exists()) == ("GONE", False)


async def test_a_ledgers_row_makes_a_lone_directory_a_leftover(place: Path, ledger: Ledger) -> None:
    async with killed_engine(ledger) as said:
        os.kill(said["watchdog"], signal.SIGCONT)
        await until(lambda: not _runs(said["watchdog"]))
        for directory in said["directories"]:
            os.unlink(f"{directory}.json")
        found = of_ids(await looked(ledger), said)
        assert sorted(item.id for item in found if item.leftover) == sorted(said["ids"])
        assert {outcome.state for outcome in (await cleaned(ledger, found)).values()} == {"GONE"}
        assert not any(os.path.lexists(directory) for directory in said["directories"])


async def test_what_was_made_under_another_tmpdir_is_found_and_ended_there(
    place: Path, ledger: Ledger, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    async with killed_engine(ledger) as said:
        other = tmp_path / "other"
        other.mkdir()
        monkeypatch.setattr(tempfile, "tempdir", str(other))
        found = [item for item in of_ids(await looked(ledger), said) if not item.id.startswith(HELPERS)]
        assert sorted(item.id for item in found) == sorted(said["ids"]), "each is told of once"
        assert {(item.seen, item.leftover) for item in found} == {(frozenset({"ledger", "list"}), True)}
        outcomes = await cleaned(ledger, found)
        assert {outcome.state for outcome in outcomes.values()} == {"GONE"}
        assert all(f"no directory in {other}, {place}" in o.proof for o in outcomes.values())
        assert not any(os.path.lexists(directory) for directory in said["directories"])
        assert {row.state for row in await ledger.read()} == {State.GONE}


@pytest.mark.parametrize("fault", ["unreadable", "gone"])
async def test_a_tmpdir_that_cannot_be_looked_into_proves_nothing(
    place: Path, ledger: Ledger, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, fault: str
) -> None:
    async with killed_engine(ledger) as said:
        os.kill(said["watchdog"], signal.SIGCONT)
        await until(lambda: not _runs(said["watchdog"]))
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
        real = os.listdir

        def denied(path: Any = ".") -> list[str]:
            if str(path).startswith(str(place)):
                raise (
                    PermissionError(13, "Permission denied")
                    if fault == "unreadable"
                    else FileNotFoundError(2)
                )
            return real(path)

        monkeypatch.setattr(os, "listdir", denied)
        found = of_ids(await looked(ledger), said)
        state = State.UNKNOWN if fault == "unreadable" else State.GONE
        assert {item.state for item in found} == {state}
        assert fault == "gone" or all(str(place) in item.why and "TMPDIR=" in item.why for item in found)


async def test_a_live_engines_sandbox_is_not_ended_even_if_asked(place: Path) -> None:
    box = local_box("mine")
    await box.start()
    await box.run_background(sh("sleep 600"))
    provider = make_provider("subprocess")
    with pytest.raises(SandboxError, match=f"its engine .pid {os.getpid()}. lives"):
        await provider.delete(box.sandbox_id)
    assert not (await provider.probe(box.sandbox_id)).gone
    entry = await listed(box.sandbox_id)
    assert entry is not None
    owner = Owner.from_labels(entry.labels)
    mine = Owner.this_process("test")
    assert (owner.pid, owner.start, owner.boot, owner.space) == (mine.pid, mine.start, mine.boot, mine.space)
    assert [entry.id for entry in await provider.find("mine")] == [box.sandbox_id]
    await box.stop_confirmed()
    assert await listed(box.sandbox_id) is None
    assert (await provider.probe(box.sandbox_id)).gone


@pytest.mark.parametrize("id", ["", ".", "..", "../x", "/etc", "a/b", "scripts", ".hidden"])
async def test_only_ids_of_sandboxes_are_taken(place: Path, id: str) -> None:
    for ask in (LocalProvider().delete, LocalProvider().probe):
        with pytest.raises(SandboxError, match="is not the id of a local sandbox"):
            await ask(id)


async def test_the_printed_command_does_what_it_says(place: Path, ledger: Ledger) -> None:
    async with killed_engine(ledger) as said:
        found = of_ids(await looked(ledger), said)
        for item in found:
            assert item.command
            done = subprocess.run(["sh", "-c", item.command], check=False, capture_output=True, text=True)
            assert done.returncode == 0, (item.command, done.stderr)
        await until(lambda: not _runs(said["watchdog"]))
        await until(lambda: not any(processes_with(f"VF_TUI_SANDBOX={id}/") for id in said["ids"]))
        assert not any(os.path.lexists(directory) for directory in said["directories"])
        # Whoever dropped its mark is found by where it worked.
        found = of_ids(await looked(ledger), said)
        outcomes = await cleaned(ledger, [item for item in found if item.leftover])
        assert {outcome.state for outcome in outcomes.values()} == {"GONE"}
        assert working_in(place) == []


# ---------------------------------------------------------------------- sockets


@pytest.fixture
def sockets(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="vfts-") as short:
        monkeypatch.setenv("XDG_RUNTIME_DIR", short)
        directory = Path(short) / "vf-tui"
        directory.mkdir(mode=0o700)
        yield directory


def stale(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(str(path))
        sock.listen(1)


async def test_a_stale_socket_is_found_and_removed_and_no_other(sockets: Path, ledger: Ledger) -> None:
    stale(sockets / "dead.sock")
    (sockets / "dead.lock").touch()
    stale(sockets / "unlocked.sock")
    (sockets / "notes.txt").touch()
    (sockets / "file.sock").touch()
    stale(sockets / "starting.sock")
    held = os.open(sockets / "starting.lock", os.O_RDWR | os.O_CREAT)
    fcntl.flock(held, fcntl.LOCK_EX)
    with socket.socket(socket.AF_UNIX) as live:
        live.bind(str(sockets / "live.sock"))
        live.listen(1)
        inventory = await take(ledger, ["socket"])
        assert {Path(item.id).name for item in inventory.items} == {"dead.sock", "unlocked.sock"}
        assert all(item.leftover and "refused" in item.owner_proof for item in inventory.items)
        assert inventory.items[0].command.startswith("rm -f -- ")
        outcomes = await clean(ledger, inventory.items)
        assert {outcome.state for outcome in outcomes} == {"GONE"}
        for name in ("live.sock", "starting.sock", "file.sock"):
            with pytest.raises(SandboxError, match="is not removed"):
                await SocketProvider().delete(str(sockets / name))
    os.close(held)
    assert sorted(path.name for path in sockets.iterdir()) == [
        *("file.sock", "live.sock", "notes.txt", "starting.lock", "starting.sock"),
    ]
    with pytest.raises(SandboxError, match="not a socket of ours"):
        await SocketProvider().delete("/etc/passwd")


async def test_a_socket_that_an_engine_takes_meanwhile_stays(sockets: Path, ledger: Ledger) -> None:
    from vf_core.link.listener import Listener

    stale(sockets / "dead.sock")
    inventory = await take(ledger, ["socket"])
    listener = await asyncio.to_thread(Listener, sockets / "dead.sock")
    [outcome] = await clean(ledger, inventory.items, timeout=1)
    assert outcome.state == "SURVIVED"
    assert (sockets / "dead.sock").exists()
    listener.close()
