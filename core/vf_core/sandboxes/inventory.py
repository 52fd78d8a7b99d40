"""What there is: the ledger joined with what each provider lists, and whose each sandbox is."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection

from vf_core.errors import SandboxError, VfError
from vf_core.runtimes.provider import Provider
from vf_core.sandboxes import providers
from vf_core.sandboxes.asking import Asked, Report
from vf_core.sandboxes.bounds import bounded, quietly
from vf_core.sandboxes.items import Inventory, Item, ProviderReport
from vf_core.sandboxes.ledger import Ledger
from vf_core.sandboxes.providers import Makers
from vf_core.sandboxes.rows import Row

__all__ = ["Inventory", "Item", "ProviderReport", "take"]

log = logging.getLogger(__name__)

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
    A sandbox of a dead owner that its provider says is gone is settled in the ledger, and shown once more.
    """
    told: Report = on_report or (lambda report: None)
    usable = makers if makers is not None else providers.makers()
    rows, mine = await _read(ledger, kinds)
    told(mine)
    wanted = dict.fromkeys([*(kinds if kinds is not None else usable), *(row.kind for row in rows)])
    asked = [
        Asked(kind, of_kind, ledger, needed=bool(of_kind) or (kinds is not None and kind in kinds))
        for kind in wanted
        for of_kind in [[row for row in rows if row.kind == kind]]
    ]
    await asyncio.gather(*(_ask(one, usable.get(one.kind), timeout, told) for one in asked))
    reports = [one.report for one in asked if one.report.needed or one.report.account]
    items = sorted((item for one in asked for item in one.items), key=_order)
    return Inventory(tuple(items), (mine, *reports), time.time())


async def _read(ledger: Ledger, kinds: Collection[str] | None) -> tuple[list[Row], ProviderReport]:
    began, place = time.monotonic(), str(ledger.path)
    try:
        rows = await ledger.read(unproven=True, kinds=kinds)
    except SandboxError as e:
        return [], ProviderReport("ledger", place, False, time.monotonic() - began, error=str(e))
    return rows, ProviderReport("ledger", place, True, time.monotonic() - began, time.time(), count=len(rows))


async def _ask(asked: Asked, make: Callable[[], Provider] | None, timeout: float, told: Report) -> None:
    error = ""
    await asyncio.to_thread(providers.load, asked.kind)
    if make is None:
        error = f"this vf-tui has no sandboxes of kind {asked.kind!r}"
    else:
        try:
            await bounded(asked.ask(make, told), timeout)
        except TimeoutError:
            error = f"no answer within {timeout:g} s"
        except VfError as e:
            error = str(e)
        except Exception as e:
            log.exception("provider %s could not be asked", asked.kind)
            error = f"{type(e).__name__}: {e}"
    asked.failed(error)
    if asked.report.needed or asked.report.account:
        told(asked.report)
    await asked.unanswered()
    await quietly(asked.close())


def _order(item: Item) -> tuple[bool, bool, float, str]:
    return (not item.leftover, not item.claimable, item.created or 0.0, item.key)
