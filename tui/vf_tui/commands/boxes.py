"""Sandboxes of the inventory as lines and as records: what `sandboxes` and `cleanup` print."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from vf_core.runtimes.lifecycle import State
from vf_core.text import one_line
from vf_tui.inventory_view import seen_by
from vf_tui.render import boxes, timefmt
from vf_tui.render.line import fit, wrap
from vf_tui.safe_text import cell

if TYPE_CHECKING:
    from vf_core.sandboxes.items import Inventory, Item, Outcome, ProviderReport

WIDTH = 80
"""Cells that every line fits in, but for an id that is longer: ids are never cut."""
_COLUMNS = {"STATE": 9, "WHERE": 10, "ID": 31, "SEEN": 6, "AGE": 8, "ENDS IN": 9}
LEGEND = "* is left over: `vf-tui cleanup` deletes it"


def report_lines(reports: Iterable[ProviderReport]) -> Iterator[str]:
    """A line a provider, those that could not be asked first."""
    from vf_tui.inventory_view import in_order

    for report in in_order(reports):
        yield one_line(boxes.report_text(report, report.seconds), limit=1_000)


def item_lines(items: Iterable[Item], now: float) -> Iterator[str]:
    """A block a sandbox under one line of titles: what it is, whose, and what may be done about it."""
    yield "  " + " ".join(name.ljust(width) for name, width in _COLUMNS.items()).rstrip()
    for item in items:
        yield _first(item, now)
        for text in _rest(item):
            yield from _indented(text)


def _first(item: Item, now: float) -> str:
    id = boxes.short_id(item)
    values = (
        item.word,
        cell(item.kind, 20),
        id if len(id) <= _COLUMNS["ID"] else "(below)",
        seen_by(item),
        boxes.age(item, now),
        boxes.ends_in(item, now),
    )
    cells = [fit(value, width) for value, width in zip(values, _COLUMNS.values(), strict=True)]
    return f"{'*' if item.leftover else ' '} {' '.join(cells)}".rstrip()


def _rest(item: Item) -> Iterator[str]:
    if len(boxes.short_id(item)) > _COLUMNS["ID"]:
        yield one_line(item.id or item.name, limit=500)
    yield whose(item)
    if item.claimable:
        yield f"only by a claim: vf-tui cleanup --claim {shlex.quote(cell(boxes.short_id(item) or item.key))}"
    elif item.why and not item.leftover and (not item.owner_proof or item.owner_proof not in item.why):
        yield item.why


def whose(item: Item) -> str:
    """`dead: run 9a1d77c2, 0003-0 #1; pid 4242 is gone (host dev1, this boot); $0.42/h`."""
    who = f"run {item.run[:8]}" if item.run else "no run is known"
    if item.rollout:
        who += f", {item.rollout}" + (f" #{item.attempt}" if item.attempt else "")
    if not item.owner_proof and item.host:
        who += f", host {item.host}" + (f", pid {item.pid}" if item.pid else "")
    proof = f"; {item.owner_proof}" if item.owner_proof else ""
    price = f"; {timefmt.money(item.price)}/h" if item.price is not None else ""
    return f"{item.owner}: {who}{proof}{price}"


def _indented(text: str) -> Iterator[str]:
    """`text` in lines under a block; a word that is longer than a line stays whole."""
    for line in wrap(one_line(text, limit=2_000), WIDTH - 4):
        yield f"    {line.rstrip()}"


def outcome_line(outcome: Outcome) -> str:
    """`GONE      docker c0ffee123456: docker: no such container`."""
    why = outcome.proof or outcome.detail
    id = boxes.short_id(outcome.item)
    return f"{outcome.state:9} " + one_line(
        f"{outcome.item.kind} {id}{f': {why}' if why else ''}", limit=1_000
    )


def item_facts(item: Item) -> dict[str, Any]:
    """A sandbox as JSON. Names here are promises to scripts."""
    return {
        "key": item.key,
        "provider": item.kind,
        "account": item.account,
        "id": item.id,
        "name": item.name,
        "run": item.run,
        "rollout": item.rollout,
        "attempt": item.attempt,
        "host": item.host,
        "pid": item.pid,
        "owner": item.owner,
        "owner_proof": item.owner_proof,
        "seen": sorted(item.seen),
        "state": item.word,
        "status": item.status,
        "created": item.created,
        "ends": item.ends,
        "price": item.price,
        "leftover": item.leftover,
        "claimable": item.claimable,
        "why": item.why,
        "command": item.command,
    }


def report_facts(report: ProviderReport) -> dict[str, Any]:
    """A provider's answer as JSON."""
    return {
        "provider": report.kind,
        "account": report.account,
        "ok": bool(report.ok),
        "seconds": round(report.seconds, 3),
        "answered": report.answered,
        "error": report.error,
        "count": report.count,
        "needed": report.needed,
    }


def summary(inventory: Inventory) -> str:
    """`12 sandboxes, 3 left over`; those that were just found to be gone are none."""
    gone = sum(item.state is State.GONE for item in inventory.items)
    total, left = len(inventory.items) - gone, len(inventory.leftovers)
    return f"{total} sandbox{'es' * (total != 1)}, {left} left over" + (
        f" ({gone} more {'is' if gone == 1 else 'are'} now proven gone)" if gone else ""
    )
