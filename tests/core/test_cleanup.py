"""Cleanup: nothing of a live owner's is touched, nothing is gone without its provider's proof."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from doubles.fake_provider import (
    FakeProvider,
    Shelf,
    dead_owner,
    elsewhere_owner,
    let_go,
    live_owner,
    reused_owner,
)
from vf_core.errors import SandboxError
from vf_core.runtimes.lifecycle import State, Transition
from vf_core.runtimes.liveness import process_start
from vf_core.runtimes.provider import Provider
from vf_core.sandboxes import asking, cleanup
from vf_core.sandboxes.cleanup import Outcome, clean
from vf_core.sandboxes.inventory import Inventory, take
from vf_core.sandboxes.ledger import Ledger
from vf_core.sandboxes.owners import Owner

OLD = time.time() - 3600


@pytest.fixture
async def ledger(tmp_path: Path) -> AsyncIterator[Ledger]:
    opened = Ledger.open(tmp_path / "state" / "sandboxes.db")
    yield opened
    opened.close()
    await let_go()


async def recorded(
    ledger: Ledger, owner: Owner, name: str, *, id: str = "", account: str = "acme", t: float = OLD
) -> None:
    recorder = ledger.recorder(owner, rollout="0-0", attempt=1, account=account)
    await recorder.reserve(Transition(name, "fake", State.STARTING, t))
    if id:
        recorder.note(Transition(name, "fake", State.LIVE, t, id))


async def looked(ledger: Ledger, shelf: Shelf) -> Inventory:
    return await take(ledger, makers={"fake": lambda: FakeProvider(shelf)}, timeout=5)


async def cleaned(ledger: Ledger, shelf: Shelf, inventory: Inventory, **more: object) -> dict[str, Outcome]:
    outcomes = await clean(
        ledger,
        inventory.items,
        makers={"fake": lambda: FakeProvider(shelf)},
        **more,  # type: ignore[arg-type]
    )
    assert [outcome.item for outcome in outcomes] == list(inventory.items)
    return {outcome.item.id or outcome.item.name: outcome for outcome in outcomes}


async def states(ledger: Ledger) -> dict[str, State]:
    return {row.name: row.state for row in await ledger.read()}


async def one_leftover(ledger: Ledger, shelf: Shelf) -> Inventory:
    owner = dead_owner()
    shelf.put("i1", owner)
    await recorded(ledger, owner, "name-i1", id="i1")
    return await looked(ledger, shelf)


# ---------------------------------------------------------------------- what may be ended


async def test_a_sweep_ends_the_dead_engines_sandboxes_and_touches_nothing_else(ledger: Ledger) -> None:
    shelf = Shelf()
    for id, owner in (
        ("dead", dead_owner()),
        ("reused", reused_owner()),
        ("live", live_owner()),
        ("elsewhere", elsewhere_owner()),
        ("boot", replace(dead_owner(), boot="another")),
    ):
        shelf.put(id, owner)
    shelf.put("untagged", dead_owner(), labels={})
    outcomes = await cleaned(ledger, shelf, await looked(ledger, shelf))
    assert {id: outcome.state for id, outcome in outcomes.items()} == {
        "dead": "GONE",
        "reused": "GONE",
        "live": "skipped",
        "elsewhere": "skipped",
        "boot": "skipped",
        "untagged": "skipped",
    }
    assert sorted(shelf.deleted) == ["dead", "reused"]
    assert outcomes["dead"].proof == "acme: no sandbox dead"
    assert "in use" in outcomes["live"].detail


async def test_a_claim_is_for_one_and_never_for_a_live_owner(ledger: Ledger) -> None:
    shelf = Shelf()
    for id, owner in (("far", elsewhere_owner()), ("farther", elsewhere_owner()), ("live", live_owner())):
        shelf.put(id, owner)
    inventory = await looked(ledger, shelf)
    claimed = ["fake|acme|far", "fake|acme|live"]
    outcomes = await cleaned(ledger, shelf, inventory, claimed=claimed)
    assert {id: outcome.state for id, outcome in outcomes.items()} == {
        "far": "GONE",
        "farther": "skipped",
        "live": "skipped",
    }
    assert shelf.deleted == ["far"]


async def test_a_run_that_comes_alive_after_the_list_is_not_touched(ledger: Ledger, tmp_path: Path) -> None:
    owner = dead_owner("r1", str(tmp_path))
    shelf = Shelf()
    for id in ("recorded", "listed", "nameless"):
        shelf.put(id, owner)
    await recorded(ledger, owner, "name-recorded", id="recorded")
    await recorded(ledger, owner, "other")
    inventory = await looked(ledger, shelf)
    assert len(inventory.leftovers) == 3
    (tmp_path / "engine.json").write_text(json.dumps(asdict(live_owner("r1"))))
    outcomes = await cleaned(ledger, shelf, inventory, claimed=[item.key for item in inventory.items])
    assert {outcome.state for outcome in outcomes.values()} == {"skipped"}
    assert "alive again" in outcomes["recorded"].detail
    assert shelf.deleted == []


async def test_an_engine_that_was_seen_dead_by_mistake_is_asked_again_before_each_delete(
    ledger: Ledger, tmp_path: Path
) -> None:
    """The first delete brings the run to life: the second is not made."""
    owner = dead_owner("r1", str(tmp_path))
    shelf = Shelf()
    for id in ("a", "b"):
        shelf.put(id, owner)
        await recorded(ledger, owner, f"name-{id}", id=id)
    shelf.on_delete = lambda id: (tmp_path / "engine.json").write_text(json.dumps(asdict(live_owner("r1"))))  # type: ignore[assignment,func-returns-value]
    outcomes = await cleaned(ledger, shelf, await looked(ledger, shelf), parallel=1)
    assert sorted(outcome.state for outcome in outcomes.values()) == ["GONE", "skipped"]
    assert len(shelf.deleted) == 1


# ---------------------------------------------------------------------- proof


async def test_gone_is_written_down_with_its_proof(ledger: Ledger) -> None:
    shelf = Shelf()
    inventory = await one_leftover(ledger, shelf)
    told: list[Outcome] = []
    outcomes = await cleaned(ledger, shelf, inventory, on_result=told.append)
    assert told == [outcomes["i1"]]
    [row] = await ledger.read()
    assert (row.state, row.proof) == (State.GONE, "acme: no sandbox i1")
    assert shelf.closed == 2
    assert (await looked(ledger, shelf)).items == ()


async def test_not_found_is_success_and_a_refusal_is_a_visible_failure(ledger: Ledger) -> None:
    shelf = Shelf()
    inventory = await one_leftover(ledger, shelf)
    shelf.boxes.clear()
    assert (await cleaned(ledger, shelf, inventory))["i1"].state == "GONE"
    shelf = Shelf(delete="denied")
    shelf.put("i2", dead_owner())
    outcome = (await cleaned(ledger, shelf, await looked(ledger, shelf)))["i2"]
    assert outcome.state == "SURVIVED"
    assert "401" in outcome.detail
    assert "acme says running" in outcome.detail


@pytest.mark.parametrize(
    ("delete", "probe", "state", "detail"),
    [
        ("ignored", "", "SURVIVED", "acme says running"),
        ("", "down", "UNKNOWN", "cannot be reached"),
        ("", "raw", "UNKNOWN", "RuntimeError: socket hang up"),
        ("", "stuck", "UNKNOWN", "no answer within"),
        ("denied", "denied", "UNKNOWN", "401"),
        ("raw", "", "SURVIVED", "socket hang up"),
        ("stuck", "", "SURVIVED", "not answered in time"),
        ("down", "down", "UNKNOWN", "cannot be reached"),
    ],
)
async def test_without_proof_nothing_is_gone_and_it_can_be_tried_again(
    ledger: Ledger, delete: str, probe: str, state: str, detail: str
) -> None:
    shelf = Shelf()
    inventory = await one_leftover(ledger, shelf)
    shelf.delete, shelf.probe = delete, probe  # type: ignore[assignment]
    outcome = (await cleaned(ledger, shelf, inventory, timeout=0.6))["i1"]
    assert (outcome.state, outcome.proof) == (state, "")
    assert detail in outcome.detail
    [row] = await ledger.read()
    assert (row.state, row.proof) == (State[state], "")
    assert detail in row.detail
    shelf.delete = shelf.probe = ""
    again = await looked(ledger, shelf)
    if again.leftovers:
        outcome = (await cleaned(ledger, shelf, again))["i1"]
        assert outcome.state == "GONE"
    assert await states(ledger) == {"name-i1": State.GONE}
    assert shelf.boxes == {}


async def test_one_that_lingers_is_waited_for(ledger: Ledger) -> None:
    shelf = Shelf(delete="lingers", linger=3)
    inventory = await one_leftover(ledger, shelf)
    outcome = (await cleaned(ledger, shelf, inventory))["i1"]
    assert outcome.state == "GONE"
    assert shelf.calls.count("probe i1") == 3


async def test_one_without_an_id_is_found_by_its_name(ledger: Ledger) -> None:
    owner, shelf = dead_owner(), Shelf()
    await recorded(ledger, owner, "name-late", t=time.time())
    inventory = await looked(ledger, shelf)
    assert [item.id for item in inventory.leftovers] == [""]
    # Its create call is answered after the list was made.
    shelf.put("late", owner)
    outcomes = await cleaned(ledger, shelf, inventory)
    assert outcomes["name-late"].state == "GONE"
    assert shelf.deleted == ["late"]
    assert await states(ledger) == {"name-late": State.GONE}


async def test_one_that_may_still_be_on_its_way_is_waited_for_and_not_gone_before(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner, shelf = dead_owner(), Shelf()
    await recorded(ledger, owner, "name-late", t=time.time())
    inventory = await looked(ledger, shelf)
    outcome = (await cleaned(ledger, shelf, inventory, timeout=0.3))["name-late"]
    assert (outcome.state, "on its way" in outcome.detail) == ("UNKNOWN", True)
    monkeypatch.setattr(asking, "ARRIVAL", 1.0)
    task = asyncio.create_task(cleaned(ledger, shelf, inventory))
    looks = len(shelf.calls)
    while len(shelf.calls) < looks + 2:
        await asyncio.sleep(0.01)
    shelf.put("late", owner)
    assert (await task)["name-late"].state == "GONE"
    assert shelf.deleted == ["late"]
    await recorded(ledger, owner, "never", t=time.time())
    inventory = await looked(ledger, shelf)
    outcome = (await cleaned(ledger, shelf, inventory))["never"]
    assert (outcome.state, outcome.proof) == ("GONE", "acme: nothing has the name never")


async def test_another_runs_sandbox_of_that_name_is_left_alone(ledger: Ledger) -> None:
    shelf = Shelf()
    await recorded(ledger, dead_owner("mine"), "box", t=time.time())
    inventory = await looked(ledger, shelf)
    shelf.put("theirs", live_owner("other"), name="box")
    await cleaned(ledger, shelf, inventory, timeout=0.2)
    assert shelf.deleted == []


async def test_another_account_or_no_provider_is_unknown(ledger: Ledger) -> None:
    await recorded(ledger, dead_owner(), "box", id="i1", account="ssh://far")
    shelf = Shelf(account="unix:///near")
    inventory = await looked(ledger, shelf)
    outcome = (await cleaned(ledger, shelf, inventory))["i1"]
    assert outcome.state == "UNKNOWN"
    assert "ssh://far" in outcome.detail
    assert "unix:///near" in outcome.detail
    assert shelf.deleted == []

    def missing() -> Provider:
        raise SandboxError("no credentials for acme", hint="set ACME_KEY")

    for makers in ({"fake": missing}, {}):
        [outcome] = await clean(ledger, inventory.items, makers=makers)
        assert outcome.state == "UNKNOWN", makers


async def test_a_proof_that_cannot_be_written_down_holds_and_says_so(ledger: Ledger) -> None:
    shelf = Shelf()
    inventory = await one_leftover(ledger, shelf)
    ledger.close()
    ledger.path.write_bytes(b"no database any more" * 999)
    outcome = (await cleaned(ledger, shelf, inventory))["i1"]
    assert (outcome.state, outcome.proof) == ("GONE", "acme: no sandbox i1")
    assert "is damaged" in outcome.detail


# ---------------------------------------------------------------------- many


async def test_stuck_ones_delay_nobody(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cleanup, "_HOLD", 0.05)
    owner, shelf = dead_owner(), Shelf()
    for n in range(60):
        shelf.put(f"i{n}", owner)
    shelf.stuck_ids = {f"i{n}" for n in range(8)}
    inventory = await looked(ledger, shelf)
    order: list[str] = []
    outcomes = await cleaned(
        ledger,
        shelf,
        inventory,
        parallel=4,
        timeout=3,
        on_result=lambda outcome: order.append(outcome.item.id),
    )
    assert {id for id, outcome in outcomes.items() if outcome.state == "UNKNOWN"} == shelf.stuck_ids
    assert set(order[-8:]) == shelf.stuck_ids, "all others were done before"
    assert set(shelf.boxes) == shelf.stuck_ids


async def test_five_hundred_at_once(ledger: Ledger) -> None:
    owner, shelf = dead_owner(), Shelf()
    for n in range(500):
        shelf.put(f"i{n}", owner)
    await asyncio.gather(*(recorded(ledger, owner, f"name-i{n}", id=f"i{n}") for n in range(500)))
    inventory = await looked(ledger, shelf)
    assert len(inventory.leftovers) == 500
    outcomes = await cleaned(ledger, shelf, inventory)
    assert {outcome.state for outcome in outcomes.values()} == {"GONE"}
    assert set((await states(ledger)).values()) == {State.GONE}


async def test_two_cleanups_at_once_agree(ledger: Ledger) -> None:
    owner, shelf = dead_owner(), Shelf()
    for n in range(20):
        shelf.put(f"i{n}", owner)
        await recorded(ledger, owner, f"name-i{n}", id=f"i{n}")
    inventory = await looked(ledger, shelf)
    other = Ledger.open(ledger.path)
    results = await asyncio.gather(
        cleaned(ledger, shelf, inventory), cleaned(other, shelf, inventory), cleaned(ledger, shelf, inventory)
    )
    other.close()
    assert {outcome.state for outcomes in results for outcome in outcomes.values()} == {"GONE"}
    assert set((await states(ledger)).values()) == {State.GONE}


async def test_a_cancelled_cleanup_loses_no_row(ledger: Ledger) -> None:
    shelf = Shelf(stuck_ids={"i1"})
    inventory = await one_leftover(ledger, shelf)
    task = asyncio.create_task(cleaned(ledger, shelf, inventory, timeout=30))
    while "delete i1" not in shelf.calls:
        await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await states(ledger) == {"name-i1": State.LIVE}


# ---------------------------------------------------------------------- an engine's death, for real

ENGINE = """
import asyncio, sys, time
from pathlib import Path
from vf_core.runtimes.lifecycle import State, Transition
from vf_core.sandboxes.ledger import Ledger, Owner

async def main():
    ledger = Ledger.open(Path(sys.argv[1]))
    for n in range(3):
        recorder = ledger.recorder(Owner.this_process("real"), rollout="0-0", attempt=1, account="acme")
        await recorder.reserve(Transition(f"name-i{n}", "fake", State.STARTING, time.time() - 3600))
        if n:
            recorder.note(Transition(f"name-i{n}", "fake", State.LIVE, time.time(), f"i{n}"))
    ledger.flush()
    print("up", flush=True)
    sys.stdin.read()

asyncio.run(main())
"""


async def test_a_killed_engines_sandboxes_are_left_over_once_it_is_dead(ledger: Ledger) -> None:
    engine = subprocess.Popen(
        [sys.executable, "-c", ENGINE, str(ledger.path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert engine.stdout is not None
    assert engine.stdout.readline() == "up\n"
    owner = replace(Owner.this_process("real"), pid=engine.pid, start=process_start(engine.pid))
    shelf, bystander = Shelf(), live_owner("bystander")
    for n in range(3):
        shelf.put(f"i{n}", owner)
    shelf.put("bystander", bystander)
    alive = await looked(ledger, shelf)
    assert not alive.leftovers
    assert {outcome.state for outcome in (await cleaned(ledger, shelf, alive)).values()} == {"skipped"}
    os.kill(engine.pid, signal.SIGKILL)
    engine.communicate()
    dead = await looked(ledger, shelf)
    assert sorted(item.id for item in dead.leftovers) == ["i0", "i1", "i2"]
    outcomes = await cleaned(ledger, shelf, dead)
    assert {id: outcome.state for id, outcome in outcomes.items()} == {
        "i0": "GONE",
        "i1": "GONE",
        "i2": "GONE",
        "bystander": "skipped",
    }
    assert list(shelf.boxes) == ["bystander"]
    assert await ledger.read(unproven=True) == []
