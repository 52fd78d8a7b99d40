"""An inventory that a test makes up, and providers that answer when the test says so."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Sequence
from typing import Any

from vf_core.errors import SandboxError
from vf_core.runtimes.lifecycle import State
from vf_core.sandboxes.items import Inventory, Item, Outcome, ProviderReport
from vf_tui.inventory_source import InventorySource


def item(n: int = 0, **changes: Any) -> Item:
    """A proven leftover in docker, made an hour ago, with the key `box-n`."""
    now = time.time()
    values: dict[str, Any] = {
        "kind": "docker", "account": "", "id": f"{n:012x}c0ffee", "name": f"vf-{n}", "run": "9a1d77c2e0b1",
        "rollout": f"{n:04}-0", "attempt": 1, "host": "devbox", "pid": 4242, "owner": "dead",
        "owner_proof": "pid 4242 is gone (host devbox, this boot)", "seen": frozenset({"ledger", "list"}),
        "state": State.LIVE, "status": "running", "created": now - 3600 - n, "ends": None, "price": None,
        "leftover": True, "claimable": False, "why": "", "command": f"docker rm --force vf-{n}", "key": f"box-{n}",
    }  # fmt: skip
    return Item(**{**values, **changes})


def alive(n: int) -> Item:
    """Ours, of an engine that lives."""
    proof = "pid 77 lives (host devbox)"
    return item(n, owner="live", owner_proof=proof, leftover=False, pid=77, why="its owner is alive")


def elsewhere(n: int) -> Item:
    """Ours by label, made on another host."""
    why = "made on host farm-7, which cannot be asked from devbox"
    return item(
        n, kind="prime", owner="elsewhere", owner_proof=why, host="farm-7", leftover=False, claimable=True, why=why,
        seen=frozenset({"list"}), ends=time.time() + 83_000, price=0.42, status="RUNNING",
    )  # fmt: skip


def foreign(n: int) -> Item:
    """Nobody's that we know of."""
    return item(
        n, owner="unknown", owner_proof="", run="", rollout="", host="", pid=0, leftover=False, state="not ours",
        seen=frozenset({"list"}), why="it has none of our labels",
    )  # fmt: skip


class FakeInventory(InventorySource):
    """What the screen is given. `hold` makes providers wait until `let_go`; `results` maps a key to what becomes of
    it (GONE unless told otherwise); `took` records what was to be ended, with the claimed keys."""

    def __init__(
        self, items: Sequence[Item] = (), *, reports: Sequence[ProviderReport] | None = None
    ) -> None:
        self.items = list(items)
        self.reports = [ProviderReport("docker", "", True, 0.4, time.time(), "", len(self.items))]
        if reports is not None:
            self.reports = list(reports)
        self.results: dict[str, str] = {}
        self.asked = 0
        self.took: list[tuple[tuple[str, ...], tuple[str, ...]]] = []
        self.failure = ""
        self._free = asyncio.Event()
        self._free.set()

    def hold(self) -> None:
        """From now on whoever is asked waits."""
        self._free.clear()

    def let_go(self) -> None:
        """They may answer."""
        self._free.set()

    def leftover_kinds(self) -> list[str]:
        """See `InventorySource`."""
        return [one.kind for one in self.items if one.leftover]

    async def take(self, on_report: Callable[[ProviderReport], None]) -> Inventory:
        """See `InventorySource`."""
        self.asked += 1
        for report in self.reports:
            on_report(ProviderReport(report.kind, report.account, None))
        for report in self.reports[:1]:
            on_report(report)
        await self._free.wait()
        if self.failure:
            raise SandboxError(self.failure)
        return Inventory(tuple(self.items), tuple(self.reports), time.time())

    async def clean(
        self, items: Sequence[Item], claimed: Collection[str], on_result: Callable[[Outcome], None]
    ) -> list[Outcome]:
        """See `InventorySource`."""
        self.took.append((tuple(one.key for one in items), tuple(claimed)))
        out = []
        for one in items:
            await self._free.wait()
            state: Any = self.results.get(one.key, "GONE")
            proof = f"docker: no such container {one.name}" if state == "GONE" else ""
            outcome = Outcome(one, state, proof, "" if proof else "the engine did not answer")
            if state == "GONE":
                self.items = [other for other in self.items if other.key != one.key]
            on_result(outcome)
            out.append(outcome)
        return out
