"""What there is: the ledger joined with what each provider lists, and whose each sandbox is."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection

from vf_core.sandboxes.items import Inventory, Item, ProviderReport
from vf_core.sandboxes.ledger import Ledger
from vf_core.sandboxes.providers import Makers

__all__ = ["Inventory", "Item", "ProviderReport", "take"]

TIMEOUT = 20.0


async def take(
    ledger: Ledger,
    kinds: Collection[str] | None = None,
    *,
    timeout: float = TIMEOUT,
    on_report: Callable[[ProviderReport], None] | None = None,
    makers: Makers | None = None,
) -> Inventory:
    """Ask the ledger and all providers (of `kinds`, if given) at once, each for at most `timeout` seconds.

    `on_report` is told when a provider is asked and when it answered. Never raises for one that cannot be asked: its
    report says why, and what the ledger knows of it is unknown, never gone. `makers` replaces the known providers.
    """
    return Inventory(taken=time.time())
