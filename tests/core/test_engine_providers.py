"""Whole runs on every kind of sandbox: what is written down and when, and what becomes of a provider's faults."""

from __future__ import annotations

import asyncio
import os
import random
import socket
from collections.abc import Iterator
from functools import partialmethod
from pathlib import Path

import pytest

from doubles.engine_kit import Kit, engine_kit, run_whole
from doubles.prime import kit as prime
from doubles.spoiled_places import AtDocker, AtModal, Place, config_of, serving
from vf_core.config.paths import state_dir
from vf_core.events import types as ev
from vf_core.events.state import ENDED
from vf_core.rollout import attempt
from vf_core.runtimes import make_provider
from vf_core.runtimes.docker import container
from vf_core.runtimes.identity import boot_id
from vf_core.runtimes.lifecycle import State
from vf_core.runtimes.machine import Machine
from vf_core.sandboxes.cleanup import clean
from vf_core.sandboxes.inventory import take
from vf_core.sandboxes.ledger import Ledger
from vf_core.sandboxes.rows import Row


@pytest.fixture
def place(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Place]:
    yield from serving(request.param, monkeypatch, tmp_path)


def rows(run: str = "") -> list[Row]:
    ledger = Ledger.open()
    try:
        return ledger.rows(run=run) if run else ledger.rows()
    finally:
        ledger.close()


@pytest.mark.parametrize("place", ["subprocess", "docker", "prime", "modal"], indirect=True)
async def test_a_row_is_on_disk_before_the_provider_is_asked(place: Place, tmp_path: Path) -> None:
    """With all that is needed to find the sandbox when its answer is lost; its id, states and proof follow."""
    seen: list[list[Row]] = []
    place.on_create(lambda: seen.append(rows()))
    async with engine_kit(config_of(place, tmp_path, ["exec sleep 600"])) as (kit, _):
        await kit.running()
        box = kit.rollout().sandbox
        assert box is not None
        ((row,),) = seen
        assert (row.kind, row.name, row.state, row.rollout, row.attempt) == (
            place.kind,
            box.name,
            State.STARTING,
            "0000-0",
            1,
        )
        assert not row.proof
        assert row.account
        assert row.price == (0.5 if place.kind in ("prime", "modal") else None)
        owner = row.owner
        assert (owner.run, owner.run_dir) == (kit.run_dir.run_id, str(kit.run_dir.path))
        assert (owner.host, owner.boot, owner.pid) == (socket.gethostname(), boot_id(), os.getpid())
        assert owner.start
        await kit.until(lambda: box.state is State.LIVE)
        # Its labels say the same, for whoever has lost the ledger.
        provider = make_provider(place.kind)
        (listed,) = [one for one in await provider.listed() if one.labels.get("run") == owner.run]
        assert (listed.id, listed.name, listed.alive) == (box.id, box.name, True)
        assert {key: listed.labels[key] for key in ("rollout", "attempt", "host", "pid", "boot")} == {
            "rollout": "0000-0",
            "attempt": "1",
            "host": owner.host,
            "pid": str(owner.pid),
            "boot": owner.boot,
        }
        assert float(listed.labels["started"]) == float(owner.start)
        await provider.close()
        assert (await kit.engine.command("confirm_stop", ("0000-0",), {}, "test")).ok
    (row,) = rows(kit.run_dir.run_id)
    assert (row.state, row.id) == (State.GONE, box.id)
    assert row.id
    assert row.proof


@pytest.mark.parametrize("place", ["docker", "prime", "modal"], indirect=True)
async def test_what_cannot_be_written_down_is_not_asked_for(place: Place, tmp_path: Path) -> None:
    asked: list[str] = []
    place.on_create(lambda: asked.append("create"))
    (state_dir() / "sandboxes.db").mkdir(parents=True)
    kit, code = await run_whole(config_of(place, tmp_path, ["touch ran"]))
    assert code == 3
    assert (kit.rollout().status, kit.rollout().error_type) == ("error", "SandboxError")
    assert "sandboxes.db" in kit.rollout().error
    assert asked == []
    assert kit.state.unconfirmed == set()


FAULTS = {
    "401": State.UNKNOWN,
    "403": State.UNKNOWN,
    "500": State.UNKNOWN,
    "look fails": State.UNKNOWN,
    "says 404": State.UNKNOWN,
    "404 of one that lives": State.SURVIVED,
    "hang": State.UNKNOWN,
    "look hangs": State.UNKNOWN,
    "reset": State.UNKNOWN,
    "linger": State.SURVIVED,
}
NOTHING_DONE = {"401", "403", "500", "404 of one that lives", "hang", "reset"}
NOT_FOR = {
    "docker": {"401", "500", "404 of one that lives", "hang", "look hangs", "reset"},
    "modal": {"says 404", "404 of one that lives"},
}
CASES = [
    (kind, fault)
    for kind in ("docker", "prime", "modal")
    for fault in FAULTS
    if fault not in NOT_FOR.get(kind, ())
]


@pytest.mark.parametrize(("place", "fault"), CASES, indirect=["place"])
async def test_no_fault_of_an_end_is_ever_gone(
    place: Place, fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The word, the row, the exit code; and what is left is found and ended once the provider is well again."""
    monkeypatch.setattr(attempt, "_STOP_PATIENCE", 0.3)
    monkeypatch.setattr(Machine, "stop_confirmed", partialmethod(Machine.stop_confirmed, timeout=0.7))
    async with engine_kit(config_of(place, tmp_path, ["exec sleep 600"])) as (kit, run):
        if isinstance(place, AtDocker):
            place.run = kit.run_dir.run_id
        await kit.running()
        box = kit.rollout().sandbox
        assert box is not None
        await kit.until(lambda: box.state is State.LIVE)
        place.spoil(fault)
        reply = await kit.engine.command("confirm_stop", ("0000-0",), {}, "test")
        assert not reply.ok
        assert f"is {FAULTS[fault].word}" in reply.message
        assert await asyncio.wait_for(run, 60) == 4
    assert box.state is FAULTS[fault]
    assert {state for state, *_ in box.history}.isdisjoint({"gone"})
    assert kit.state.unconfirmed == {box.name}
    (finished,) = kit.of(ev.RunFinished)
    assert (finished.exit_code, finished.unconfirmed) == (4, (box.name,))
    (row,) = rows(kit.run_dir.run_id)
    assert (row.state, row.id, row.proof) == (FAULTS[fault], box.id, "")
    if fault in NOTHING_DONE:
        assert place.live() == 1
    place.calm()
    if fault == "linger" and isinstance(place, AtModal):
        place.double.expire(box.id)
    ledger = Ledger.open()
    found = await take(ledger, [place.kind])
    mine = [item for item in found.items if item.run == kit.run_dir.run_id and item.word != "GONE"]
    outcomes = await clean(ledger, mine)
    await ledger.aclose()
    assert {outcome.state for outcome in outcomes} <= {"GONE"}
    (row,) = rows(kit.run_dir.run_id)
    assert (row.state, bool(row.proof)) == (State.GONE, True)
    assert place.live() == 0


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("place", ["prime", "modal"], indirect=True)
async def test_t15_racing_commands_on_a_remote_provider(place: Place, tmp_path: Path, seed: int) -> None:
    """Create and delete calls are slow, some answers are lost: still at most one sandbox a rollout, and none left."""
    rng = random.Random(seed)
    create = prime.OPERATIONS["create"] if place.kind == "prime" else "^SandboxCreateV2$"
    delete = prime.OPERATIONS["delete"] if place.kind == "prime" else "^SandboxTerminateV2$"
    place.double.faults.add(create, "reset_after", times=2)
    place.double.faults.add(create, "hang", seconds=0.1, times=4)
    place.double.faults.add(delete, "reset_after", times=2)
    last: dict[str, str] = {}
    most = 0

    async with engine_kit(config_of(place, tmp_path, ["exec sleep 600"] * 2)) as (kit, run):
        kit.engine.viewers(1)

        def watch(event: ev.Event) -> None:
            nonlocal most
            if isinstance(event, ev.RuntimeChanged):
                names = [
                    b.name
                    for b in kit.state.sandboxes.values()
                    if b.rollout == event.rollout and not b.state.settled
                ]
                most = max(most, len(names))

        kit.engine.bus.add_sink(watch)
        pending = []
        for _ in range(12):
            id = f"000{rng.randrange(2)}-0"
            last[id] = rng.choice(["stop", "confirm_stop", "restart", "restart"])
            pending.append(asyncio.create_task(kit.engine.command(last[id], (id,), {}, "test")))
            await asyncio.sleep(rng.choice([0, 0.01, 0.2]))
        await asyncio.gather(*pending)
        for id, command in last.items():
            if command == "restart":
                await kit.until(lambda id=id: kit.rollout(id).status == "active")  # type: ignore[misc]
            else:
                assert kit.rollout(id).status in ENDED
        await kit.engine.command("shutdown", (), {}, "test")
        await asyncio.wait_for(run, 60)
    assert most == 1
    assert kit.state.unconfirmed == set()
    assert place.live() == 0
    assert {row.state for row in rows(kit.run_dir.run_id)} == {State.GONE}
    assert_one_trace_each(kit)


@pytest.mark.parametrize("place", ["docker", "prime", "modal"], indirect=True)
async def test_r17_whose_fault_an_end_was(place: Place, tmp_path: Path) -> None:
    """A sandbox that is ended by hand is the provider's; a program that ends with 137 by itself is the harness's."""
    async with engine_kit(config_of(place, tmp_path, ["echo up; exec sleep 600", "exit 137"])) as (kit, run):
        await kit.running("0000-0")
        box = kit.rollout("0000-0").sandbox
        assert box is not None
        await kit.until(lambda: kit.rollout("0001-0").status == "error")
        await asyncio.to_thread(place.remove, box.id)
        await kit.until(lambda: kit.rollout("0000-0").status == "error")
        assert await asyncio.wait_for(run, 60) == 3
    types = {id: kit.rollout(id).error_type for id in ("0000-0", "0001-0")}
    assert types == {"0000-0": "SandboxError", "0001-0": "HarnessError"}
    assert box.name in kit.rollout("0000-0").error
    assert box.state is State.GONE
    assert box.proof


@pytest.mark.parametrize("place", ["docker"], indirect=True)
async def test_r28_a_loopback_of_its_own_is_found_out_before_the_program_runs(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = container.spec

    def apart(*args: object, **options: object) -> dict[str, object]:
        body = made(*args, **options)  # type: ignore[arg-type]
        body["HostConfig"]["NetworkMode"] = "none"
        return body

    monkeypatch.setattr(container, "spec", apart)
    kit, code = await run_whole(config_of(place, tmp_path, ["touch ran"]))
    assert code == 3
    assert kit.rollout().error_type == "SandboxError"
    assert "cannot reach http://127.0.0.1" in kit.rollout().error
    assert "env.interception.tunnel" in kit.rollout().error
    assert kit.of(ev.ProgramStarted) == []
    assert kit.state.unconfirmed == set()


def assert_one_trace_each(kit: Kit) -> None:
    seen = [(r["info"]["vf_tui"]["rollout"], r["info"]["vf_tui"]["attempt"]) for r in kit.records()]
    assert len(seen) == len(set(seen))
