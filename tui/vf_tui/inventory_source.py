"""Where the inventory of sandboxes comes from, and how leftovers are ended.

Providers' SDKs may block the loop that they run on, and belong to it: everything is asked on a loop of its own, in
another thread, and told back on the caller's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import closing, suppress
from typing import TYPE_CHECKING, TypeVar

from vf_tui.background import apart

if TYPE_CHECKING:
    from vf_core.sandboxes.items import Inventory, Item, Outcome, ProviderReport

T = TypeVar("T")

PATIENCE = 2.0
"""Seconds that a look into the ledger waits for others who write to it."""


class InventorySource:
    """This user's ledger, and the providers that this machine can ask."""

    def leftover_kinds(self) -> list[str]:
        """The kind of each sandbox that a dead owner left, as far as the ledger knows. Asks nobody; reads a file: not
        to be called on an event loop. Raises `VfError`."""
        from vf_core.sandboxes.ledger import Ledger
        from vf_core.sandboxes.owners import Owner, judge

        dead: dict[Owner, bool] = {}
        out = []
        with closing(Ledger.open(patience=PATIENCE)) as ledger:
            for row in ledger.rows(unproven=True):
                if row.owner not in dead:
                    dead[row.owner] = judge(row.owner).owner == "dead"
                if dead[row.owner] and not row.state.settled:
                    out.append(row.kind)
        return out

    async def take(self, on_report: Callable[[ProviderReport], None]) -> Inventory:
        """Ask everybody. Raises `VfError` when not even the ledger can be read."""
        tell = _on_this_loop(on_report)

        async def ask() -> Inventory:
            from vf_core.sandboxes.inventory import take
            from vf_core.sandboxes.ledger import Ledger

            with closing(Ledger.open()) as ledger:
                return await take(ledger, on_report=tell)

        return await apart(ask)

    async def clean(
        self, items: Sequence[Item], claimed: Collection[str], on_result: Callable[[Outcome], None]
    ) -> list[Outcome]:
        """End `items`, of which `claimed` (keys) are claimed by the user; each result is told as it comes."""
        tell = _on_this_loop(on_result)

        async def end() -> list[Outcome]:
            from vf_core.sandboxes.cleanup import clean
            from vf_core.sandboxes.ledger import Ledger

            with closing(Ledger.open()) as ledger:
                return await clean(ledger, items, claimed=claimed, on_result=tell)

        return await apart(end)


def _on_this_loop(tell: Callable[[T], None]) -> Callable[[T], None]:
    """`tell`, called from another thread, on the loop that runs now; dropped once that is closed."""
    loop = asyncio.get_running_loop()

    def hand_over(what: T) -> None:
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(tell, what)

    return hand_over


def left_text(kinds: Iterable[str]) -> str:
    """`3 sandboxes of dead runs are left (2 docker, 1 prime)`; blank for none."""
    counts: dict[str, int] = {}
    for kind in kinds:
        counts[kind] = counts.get(kind, 0) + 1
    total = sum(counts.values())
    if not total:
        return ""
    named = ", ".join(f"{n} {kind}" for kind, n in sorted(counts.items(), key=lambda c: (-c[1], c[0])))
    one = total == 1
    return f"{total} sandbox{'' if one else 'es'} of {'a dead run is' if one else 'dead runs are'} left ({named})"
