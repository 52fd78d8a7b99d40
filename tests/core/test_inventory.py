"""The inventory: ledger and lists joined; only a proven death of its engine makes a sandbox a leftover."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import AsyncIterator
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

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
from vf_core.runtimes.liveness import here, process_start
from vf_core.runtimes.provider import Listed, Provider
from vf_core.sandboxes import owners
from vf_core.sandboxes.cleanup import clean
from vf_core.sandboxes.inventory import Inventory, Item, ProviderReport, take
from vf_core.sandboxes.join import _ends, match
from vf_core.sandboxes.ledger import Ledger
from vf_core.sandboxes.owners import Owner
from vf_core.sandboxes.rows import Row

OLD = time.time() - 3600


@pytest.fixture
async def ledger(tmp_path: Path) -> AsyncIterator[Ledger]:
    opened = Ledger.open(tmp_path / "state" / "sandboxes.db")
    yield opened
    opened.close()
    await let_go()


async def recorded(
    ledger: Ledger,
    owner: Owner,
    name: str,
    *,
    id: str = "",
    state: State = State.LIVE,
    kind: str = "fake",
    account: str = "acme",
    t: float = OLD,
    price: float | None = None,
) -> Row:
    recorder = ledger.recorder(owner, rollout="0-0", attempt=1, account=account, price=price)
    await recorder.reserve(Transition(name, kind, State.STARTING, t))
    if state is not State.STARTING or id:
        proof = "404" if state is State.GONE else ""
        recorder.note(Transition(name, kind, state, t, id, proof))
    return next(row for row in await ledger.read() if row.name == name)


async def looked(ledger: Ledger, *shelves: Shelf, **more: object) -> Inventory:
    """An inventory of one provider, or of several kinds `fake`, `fake1`, …"""
    makers = {f"fake{n or ''}": (lambda shelf=shelf: FakeProvider(shelf)) for n, shelf in enumerate(shelves)}
    return await take(ledger, makers=makers, **more)  # type: ignore[arg-type]


def by_id(inventory: Inventory) -> dict[str, Item]:
    return {item.id or item.name: item for item in inventory.items}


def standing(item: Item) -> tuple[str, bool, bool]:
    return (item.owner, item.leftover, item.claimable)


# ---------------------------------------------------------------------- whose it is


async def test_only_the_sandbox_of_a_proven_dead_engine_is_a_leftover(ledger: Ledger) -> None:
    shelf = Shelf()
    whose = {
        "dead": dead_owner(),
        "live": live_owner(),
        "reused": reused_owner(),
        "elsewhere": elsewhere_owner(),
        "earlier-boot": replace(dead_owner(), boot="another"),
        "other-user": replace(dead_owner(), user="4242"),
        "container": replace(Owner.this_process("r"), space="pid:[1]", pid=999_999),
    }
    for id, owner in whose.items():
        shelf.put(id, owner)
    shelf.put("no-labels", whose["dead"], labels={})
    shelf.put("odd-labels", whose["dead"], labels={"host": here().host, "pid": "x9", "boot": here().boot})
    shelf.put("no-boot", whose["dead"], labels={"host": here().host, "pid": "999999"})
    found = by_id(await looked(ledger, shelf))
    assert {id: standing(item) for id, item in found.items()} == {
        "dead": ("dead", True, False),
        "reused": ("dead", True, False),
        "live": ("live", False, False),
        "elsewhere": ("elsewhere", False, True),
        "container": ("elsewhere", False, True),
        "other-user": ("elsewhere", False, True),
        "earlier-boot": ("unknown", False, True),
        "no-labels": ("unknown", False, True),
        "odd-labels": ("unknown", False, True),
        "no-boot": ("unknown", False, True),
    }
    pid = whose["dead"].pid
    assert found["dead"].owner_proof == f"pid {pid} is gone (host {here().host}, this boot)"
    assert found["dead"].why == f"left over: {found['dead'].owner_proof}"
    assert "other-host" in found["elsewhere"].why
    assert found["elsewhere"].word == found["no-labels"].word == "not ours"
    assert found["dead"].command == "acme rm dead"
    assert shelf.deleted == []


async def test_a_recorded_owner_is_also_known_to_be_dead_after_a_reboot(ledger: Ledger) -> None:
    shelf = Shelf()
    owner = replace(Owner.this_process("r"), boot="another")
    shelf.put("i1", owner)
    await recorded(ledger, owner, "name-i1", id="i1")
    [item] = (await looked(ledger, shelf)).items
    assert standing(item) == ("dead", True, False)
    assert "an earlier boot" in item.owner_proof
    assert item.seen == {"ledger", "list"}


async def test_a_run_that_is_alive_again_has_no_leftovers(ledger: Ledger, tmp_path: Path) -> None:
    owner = dead_owner("r1", str(tmp_path))
    shelf = Shelf()
    shelf.put("recorded", owner)
    shelf.put("listed", owner)
    await recorded(ledger, owner, "name-recorded", id="recorded")
    assert [item.owner for item in (await looked(ledger, shelf)).items] == ["dead", "dead"]
    engine = {**asdict(live_owner("r1")), "dir": str(tmp_path)}
    (tmp_path / "engine.json").write_text(json.dumps(engine))
    found = await looked(ledger, shelf)
    assert [standing(item) for item in found.items] == [("live", False, False)] * 2
    assert all(f"alive again: pid {engine['pid']}" in item.why for item in found.items)
    # Somebody else's directory stands there now, or a broken file: neither speaks for this run.
    for text in (json.dumps({**engine, "run": "another"}), "{", "[]", json.dumps({**engine, "ended": True})):
        (tmp_path / "engine.json").write_text(text)
        assert [item.owner for item in (await looked(ledger, shelf)).items] == ["dead", "dead"], text
    (tmp_path / "engine.json").write_text(json.dumps({**asdict(elsewhere_owner("r1"))}))
    assert [item.owner for item in (await looked(ledger, shelf)).items] == ["unknown", "unknown"]


async def test_an_engine_that_closed_owns_nothing_though_its_process_goes_on(
    ledger: Ledger, tmp_path: Path
) -> None:
    owner = Owner.this_process("r1", str(tmp_path))
    await recorded(ledger, owner, "box", id="i1", state=State.SURVIVED)
    shelf = Shelf()
    shelf.put("i1", owner)
    assert [item.owner for item in (await looked(ledger, shelf)).items] == ["live"]
    (tmp_path / "engine.json").write_text(json.dumps({**asdict(owner), "ended": True}))
    [item] = (await looked(ledger, shelf)).items
    assert (item.owner, item.leftover, item.state) == ("dead", True, State.SURVIVED)
    assert "has closed" in item.owner_proof


def test_what_a_dead_process_leaves_of_itself_is_no_process() -> None:
    import subprocess
    import sys

    child = subprocess.Popen([sys.executable, "-S", "-c", "input()"], stdin=subprocess.PIPE)
    owner = replace(Owner.this_process("r"), pid=child.pid, start=process_start(child.pid))
    assert owners.judge(owner).owner == "live"
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert owners.judge(owner).owner == "dead", "it is a zombie"
    child.wait()
    child.communicate()
    assert owners.judge_labels(owner).owner == "dead"


def test_an_owner_comes_back_from_its_labels() -> None:
    owner = Owner.this_process("r1")
    labels = owner.labels()
    assert all(re.fullmatch(r"[A-Za-z0-9._-]{1,63}", value) for value in labels.values()), labels
    assert owners.judge_labels(Owner.from_labels(labels)) == owners.Verdict(
        "live", f"pid {os.getpid()} lives (host {here().host})"
    )
    renamed = {**labels, "host": "name-by-another-network"}
    assert owners.judge_labels(Owner.from_labels(renamed)).owner == "live", "the same kernel"
    del renamed["space"]
    assert owners.judge_labels(Owner.from_labels(renamed)).owner == "elsewhere"
    odd = replace(owner, run="a run/with: odd signs", boot="{ sec = 1, usec = 2 }", start="")
    assert "started" not in odd.labels()
    assert owners.judge_labels(Owner.from_labels(odd.labels())).owner == "unknown"


async def test_an_address_with_a_login_is_kept_without_it_and_still_the_same_place(ledger: Ledger) -> None:
    address = "tcp://me:hunter2@host:2375"
    shelf, owner = Shelf(account=address), dead_owner()
    shelf.put("i1", owner)
    await recorded(ledger, owner, "name-i1", id="i1", account=address)
    [item] = (await looked(ledger, shelf)).items
    assert item.seen == {"ledger", "list"}
    assert "hunter2" not in repr(item)
    [outcome] = await clean(ledger, [item], makers={"fake": lambda: FakeProvider(shelf)})
    assert outcome.state == "GONE"


# ---------------------------------------------------------------------- what there is


async def test_ledger_and_list_are_joined_by_id_and_by_name(ledger: Ledger) -> None:
    owner, shelf = dead_owner(), Shelf()
    for id, more in (("by-id", {}), ("by-name", {}), ("ends", {"ends": 4e9, "status": "draining"})):
        shelf.put(id, owner, **more)
    await recorded(ledger, owner, "anything", id="by-id", price=0.5)
    await recorded(ledger, owner, "name-by-name", state=State.STARTING)
    await recorded(ledger, owner, "name-ends", id="ends", state=State.SENT)
    found = by_id(await looked(ledger, shelf))
    assert all(item.seen == {"ledger", "list"} for item in found.values())
    assert {id: item.state for id, item in found.items()} == {
        "by-id": State.LIVE,
        "by-name": State.LIVE,
        "ends": State.SENT,
    }
    assert (found["by-id"].price, found["by-id"].created) == (0.5, OLD)
    assert (found["ends"].ends, found["ends"].status) == (4e9, "draining")
    assert len(found["by-id"].rows) == 1


async def test_the_same_name_in_another_run_is_another_sandbox(ledger: Ledger) -> None:
    shelf, mine, other = Shelf(), dead_owner("mine"), live_owner("other")
    shelf.put("theirs", other, name="box")
    await recorded(ledger, mine, "box", state=State.STARTING)
    found = by_id(await looked(ledger, shelf))
    assert standing(found["theirs"]) == ("live", False, False)
    assert (found["box"].state, found["box"].id) == (State.GONE, "")


async def test_what_the_list_lacks_is_asked_for_and_its_end_settled(ledger: Ledger) -> None:
    owner, shelf = dead_owner(), Shelf()
    await recorded(ledger, owner, "ended", id="i-ended", state=State.UNKNOWN)
    await recorded(ledger, owner, "never-made", state=State.STARTING)
    await recorded(ledger, owner, "on-its-way", state=State.STARTING, t=time.time())
    found = {item.name: item for item in (await looked(ledger, shelf)).items}
    assert (found["ended"].state, found["ended"].proof) == (State.GONE, "acme: no sandbox i-ended")
    assert (found["never-made"].state, found["never-made"].proof) == (
        State.GONE,
        "acme: nothing has the name never-made",
    )
    assert (found["on-its-way"].state, found["on-its-way"].leftover) == (State.STARTING, True)
    assert "may still be on its way" in found["on-its-way"].detail
    assert not found["ended"].leftover
    assert {row.name: row.proof for row in await ledger.read()} == {
        "ended": "acme: no sandbox i-ended",
        "never-made": "acme: nothing has the name never-made",
        "on-its-way": "",
    }
    assert [item.name for item in (await looked(ledger, shelf)).items] == ["on-its-way"]


async def test_a_list_that_lags_proves_nothing(ledger: Ledger) -> None:
    class Lagging(FakeProvider):
        async def listed(self) -> list[Listed]:
            return []

    owner, shelf = dead_owner(), Shelf()
    shelf.put("i1", owner, status="running")
    shelf.put("i2", owner)
    await recorded(ledger, owner, "one", id="i1")
    await recorded(ledger, owner, "name-i2", state=State.FAILED)
    found = by_id(await take(ledger, makers={"fake": lambda: Lagging(shelf)}))
    assert (found["i1"].state, found["i1"].leftover, found["i1"].status) == (
        State.LIVE,
        True,
        "acme says running",
    )
    assert (found["i2"].state, found["i2"].seen) == (State.LIVE, {"ledger", "list"})


async def test_of_a_live_engine_nothing_is_asked_nor_settled(ledger: Ledger) -> None:
    shelf = Shelf()
    await recorded(ledger, live_owner(), "box", id="i1", state=State.STOPPING)
    await recorded(ledger, elsewhere_owner(), "far", id="i2")
    found = {item.name: item for item in (await looked(ledger, shelf)).items}
    assert (found["box"].state, standing(found["box"])) == (State.STOPPING, ("live", False, False))
    assert standing(found["far"]) == ("elsewhere", False, True)
    assert shelf.calls == ["list", "probe i2"]
    assert {row.state for row in await ledger.read()} == {State.STOPPING, State.LIVE}


async def test_an_unknown_status_counts_as_alive_and_a_missing_name_is_no_fault(ledger: Ledger) -> None:
    owner, shelf = dead_owner(), Shelf()
    for id, status in (("a", ""), ("b", "WAT"), ("c", "0")):
        shelf.put(id, owner, status=status, name="")
    shelf.put("ended", owner, alive=False, status="terminated")
    found = await looked(ledger, shelf)
    assert sorted(item.id for item in found.leftovers) == ["a", "b", "c"]
    assert {item.key for item in found.items} == {"fake|acme|a", "fake|acme|b", "fake|acme|c"}
    report = found.reports[1]
    assert (report.kind, report.count, report.ok) == ("fake", 3, True)


async def test_one_that_ended_by_itself_is_settled_by_what_its_provider_says(ledger: Ledger) -> None:
    owner, shelf = dead_owner(), Shelf()
    await recorded(ledger, owner, "box", id="gone")
    ended = shelf.put("gone", owner, alive=False)

    class Ended(FakeProvider):
        async def listed(self) -> list[Listed]:
            self.shelf.boxes.clear()
            return [ended]

    [item] = (await take(ledger, makers={"fake": lambda: Ended(shelf)})).items
    assert (item.state, item.proof) == (State.GONE, "acme: no sandbox gone")
    assert [row.state for row in await ledger.read()] == [State.GONE]


async def test_what_is_listed_in_spite_of_its_proof_survived(ledger: Ledger) -> None:
    owner, shelf = dead_owner(), Shelf()
    await recorded(ledger, owner, "box", id="i1", state=State.GONE)
    shelf.put("i1", owner)
    [item] = (await looked(ledger, shelf)).items
    assert (item.state, item.leftover, item.seen) == (State.SURVIVED, True, {"ledger", "list"})


# ---------------------------------------------------------------------- providers that do not answer


@pytest.mark.parametrize("fault", ["down", "denied", "stuck", "raw"])
async def test_a_provider_that_cannot_be_asked_is_unknown_with_its_reason(ledger: Ledger, fault: str) -> None:
    owner = dead_owner()
    await recorded(ledger, owner, "box", id="i1")
    await recorded(ledger, live_owner(), "work", id="i2")
    well, ill = Shelf(account="well"), Shelf(listing=fault)  # type: ignore[arg-type]
    well.put("w1", owner)
    told: list[ProviderReport] = []
    found = await looked(ledger, ill, well, timeout=0.4, on_report=told.append)
    report = next(report for report in found.reports if report.kind == "fake")
    reason = {"down": "cannot be reached", "denied": "401", "stuck": "no answer within", "raw": "hang up"}[
        fault
    ]
    assert (report.ok, report.answered, report.needed) == (False, None, True)
    assert reason in report.error
    assert found.unknown == (report,)
    items = by_id(found)
    assert (items["i1"].state, items["i1"].leftover) == (State.UNKNOWN, True)
    assert reason in items["i1"].why
    assert items["i2"].state is State.LIVE, "its engine knows"
    assert items["w1"].leftover
    assert [(report.kind, report.ok) for report in told if report.kind == "fake"] == [
        ("fake", None),
        ("fake", False),
    ]
    assert [row.state for row in await ledger.read()] == [State.LIVE, State.LIVE]


async def test_a_sandbox_that_cannot_be_asked_for_alone_is_unknown(ledger: Ledger) -> None:
    owner = dead_owner()
    await recorded(ledger, owner, "box", id="i1")
    for fault in ("down", "stuck"):
        found = await looked(ledger, Shelf(probe=fault), timeout=0.4)  # type: ignore[arg-type]
        assert [item.state for item in found.items] == [State.UNKNOWN], fault
        assert found.reports[1].ok, "its list was answered"
    assert [row.state for row in await ledger.read()] == [State.LIVE]


async def test_another_account_or_engine_than_the_one_that_can_be_asked_is_unknown(ledger: Ledger) -> None:
    await recorded(ledger, dead_owner(), "box", id="i1", account="ssh://far")
    shelf = Shelf(account="unix:///near")
    [item] = (await looked(ledger, shelf)).items
    assert (item.state, item.leftover, item.account) == (State.UNKNOWN, True, "ssh://far")
    assert "made at ssh://far" in item.why
    assert "unix:///near" in item.why
    assert shelf.calls == ["list"]
    assert [row.state for row in await ledger.read()] == [State.LIVE]


async def test_what_is_listed_under_another_name_of_its_engine_is_one_sandbox(ledger: Ledger) -> None:
    owner, shelf = dead_owner(), Shelf(account="unix:///near")
    shelf.put("i1", owner, name="box")
    await recorded(ledger, owner, "box", id="i1", account="unix:///near-by-another-name")
    await recorded(ledger, owner, "gone", id="i0", state=State.GONE, account="unix:///near-by-another-name")
    shelf.put("i0", owner, name="gone")
    items = by_id(await looked(ledger, shelf))
    assert len(items) == 2
    assert {item.account for item in items.values()} == {"unix:///near"}
    assert (items["i1"].state, items["i1"].seen) == (State.LIVE, {"ledger", "list"})
    assert items["i0"].state is State.SURVIVED, "listed in spite of its proof"
    outcomes = await clean(ledger, list(items.values()), makers={"fake": lambda: FakeProvider(shelf)})
    assert [outcome.state for outcome in outcomes] == ["GONE", "GONE"]
    assert [row.state for row in await ledger.read()] == [State.GONE, State.GONE]


async def test_where_a_list_tells_half_of_it_another_place_stays_unknown(ledger: Ledger) -> None:
    class Half(FakeProvider):
        whole = False

    owner, shelf = dead_owner(), Shelf(account="here")
    shelf.put("i1", owner, name="box")
    await recorded(ledger, owner, "box", id="i1", account="there")
    found = await take(ledger, makers={"fake": lambda: Half(shelf)})
    assert {(item.state, item.account) for item in found.items} == {
        (State.LIVE, "here"),
        (State.UNKNOWN, "there"),
    }
    await clean(ledger, found.items, makers={"fake": lambda: Half(shelf)})
    assert [row.state for row in await ledger.read()] == [State.UNKNOWN]


async def test_providers_that_are_not_set_up_are_told_only_where_they_are_missed(ledger: Ledger) -> None:
    def missing() -> Provider:
        raise SandboxError("no credentials for acme", hint="set ACME_KEY")

    inventory = await take(ledger, makers={"fake": missing})
    assert [report.kind for report in inventory.reports] == ["ledger"]
    inventory = await take(ledger, ["fake", "odd"], makers={"fake": missing})
    assert [(report.kind, report.ok, report.needed) for report in inventory.reports[1:]] == [
        ("fake", False, True),
        ("odd", False, True),
    ]
    assert "set ACME_KEY" in inventory.reports[1].error
    await recorded(ledger, dead_owner(), "box", id="i1")
    inventory = await take(ledger, makers={"fake": missing})
    assert inventory.unknown[0].kind == "fake"
    assert [(item.state, item.leftover) for item in inventory.items] == [(State.UNKNOWN, True)]


async def test_without_its_ledger_an_inventory_has_what_is_listed(tmp_path: Path) -> None:
    place = tmp_path / "state"
    place.mkdir(mode=0o700)
    (place / "sandboxes.db").write_bytes(b"not a database" * 1000)
    ledger, shelf = Ledger.open(place / "sandboxes.db"), Shelf()
    shelf.put("i1", dead_owner())
    inventory = await looked(ledger, shelf)
    assert [item.id for item in inventory.leftovers] == ["i1"]
    report = inventory.reports[0]
    assert (report.kind, report.ok) == ("ledger", False)
    assert "is damaged" in report.error
    ledger.close()


async def test_kinds_can_be_chosen_and_providers_are_let_go(ledger: Ledger) -> None:
    one, two, owner = Shelf(), Shelf(), dead_owner()
    one.put("i1", owner)
    two.put("i2", owner)
    await recorded(ledger, owner, "box", kind="other")
    inventory = await looked(ledger, one, two, kinds=["fake1"])
    assert [item.id for item in inventory.items] == ["i2"]
    assert (one.calls, two.closed) == ([], 1)


# ---------------------------------------------------------------------- the join, for any lists

NAMES = st.sampled_from(["", "a", "b", "c"])
ROWS = st.lists(st.tuples(NAMES, st.sampled_from(["a", "b"])), max_size=6)
LISTED = st.dictionaries(st.sampled_from(["a", "b", "c", "d"]), st.tuples(NAMES, st.sampled_from(["a", "b"])))


@settings(max_examples=150)
@given(rows=ROWS, listed=LISTED)
def test_joining_loses_nothing_and_takes_nothing_twice(
    rows: list[tuple[str, str]], listed: dict[str, tuple[str, str]]
) -> None:
    told = [
        Row(n, "fake", "acme", "a", id, Owner(run), "0-0", 1, State.LIVE, 1.0, 1.0)
        for n, (id, run) in enumerate(rows)
    ]
    entries = [
        Listed(id, name, {"run": run, "rollout": "0-0", "attempt": "1"}) for id, (name, run) in listed.items()
    ]
    matched = match(told, entries)
    assert sorted(row.key for row, _ in matched.rows) == [row.key for row in told]
    taken = [entry.id for _, entry in matched.rows if entry is not None]
    assert sorted([*taken, *(entry.id for entry in matched.unknown)]) == sorted(listed)
    for row, entry in matched.rows:
        if entry is not None:
            assert row.id == entry.id or (not row.id and entry.name == row.name)
            assert row.id or entry.labels["run"] == row.owner.run


def test_what_ends_by_itself_says_when() -> None:
    """As its provider says; where that is silent, as its label does."""
    labels = {"lifetime": "3600"}
    assert _ends(Listed("a", created=100.0, ends=200.0, labels=labels)) == 200.0
    assert _ends(Listed("a", created=100.0, labels=labels)) == 3700.0
    for entry in (None, Listed("a", labels=labels), Listed("a", created=1.0, labels={"lifetime": "x-1"})):
        assert _ends(entry) is None
