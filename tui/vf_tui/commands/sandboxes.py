"""`vf-tui sandboxes`: what exists, and what is left of dead runs."""

from __future__ import annotations

import time
from contextlib import closing
from typing import TYPE_CHECKING

import click

from vf_tui.cli import OK, UNREACHABLE
from vf_tui.commands.console import emit, notice, say
from vf_tui.commands.facts import JSON

if TYPE_CHECKING:
    from vf_core.sandboxes.items import Inventory, Item


@click.command("sandboxes")
@click.option(
    "--provider", "providers", metavar="KIND", multiple=True, help="Only of this kind (docker, prime, …)."
)
@click.option(
    "--all", "everything", is_flag=True, help="Also those that are proven gone and still in the ledger."
)
@JSON
def sandboxes_command(providers: tuple[str, ...], everything: bool, as_json: bool) -> int:
    """List all sandboxes: what exists, and what is left of dead runs.

    It is the ledger joined with what each provider lists. Each provider's answer time, or why it could not be asked,
    stands at the top. The exit code is 5 when a provider that the ledger has sandboxes of could not be asked.
    """
    from vf_tui.commands.boxes import LEGEND, item_facts, item_lines, report_facts, report_lines, summary

    inventory = take(providers)
    items = [item for item in inventory.items if everything or item.word != "GONE"]
    if everything:
        known = {key for item in items for key in item.rows}
        items += [item for item in proven(providers) if not known.issuperset(item.rows)]
    if as_json:
        emit(
            {
                "taken": inventory.taken,
                "providers": [report_facts(report) for report in inventory.reports],
                "sandboxes": [item_facts(item) for item in items],
                "leftovers": len(inventory.leftovers),
            }
        )
    else:
        for line in report_lines(inventory.reports):
            say(line)
        say()
        if items:
            for line in item_lines(items, time.time()):
                say(line)
            say()
        say(summary(inventory))
        if inventory.leftovers:
            notice(LEGEND)
    return UNREACHABLE if inventory.unknown else OK


def take(providers: tuple[str, ...]) -> Inventory:
    """The inventory, of `providers` only if there are any. Raises `click.UsageError` for one that does not exist."""
    from vf_core.sandboxes.inventory import take
    from vf_core.sandboxes.ledger import Ledger
    from vf_tui.background import run_apart

    check_kinds(providers)

    async def ask() -> Inventory:
        with closing(Ledger.open()) as ledger:
            return await take(ledger, providers or None)

    return run_apart(ask)


def proven(providers: tuple[str, ...]) -> list[Item]:
    """What the ledger still has of sandboxes that are proven gone."""
    from vf_core.runtimes.lifecycle import State
    from vf_core.sandboxes.items import Item
    from vf_core.sandboxes.ledger import Ledger
    from vf_core.sandboxes.owners import Owner, Verdict, judge

    known: dict[Owner, Verdict] = {}
    out = []
    with closing(Ledger.open()) as ledger:
        rows = [row for row in ledger.rows(kinds=providers or None) if row.state is State.GONE]
    for row in rows:
        whose = known.get(row.owner) or known.setdefault(row.owner, judge(row.owner))
        out.append(
            Item(
                kind=row.kind, account=row.account, id=row.id, name=row.name, run=row.owner.run,
                rollout=row.rollout, attempt=row.attempt, host=row.owner.host, pid=row.owner.pid,
                owner=whose.owner, owner_proof=whose.proof, seen=frozenset({"ledger"}), state=row.state,
                status="", created=row.created, ends=None, price=row.price, leftover=False, claimable=False,
                why=f"proven gone: {row.proof}", command="", key=f"ledger|{row.key}", proof=row.proof,
                origin=row.owner, rows=(row.key,),
            )
        )  # fmt: skip
    return out


def check_kinds(providers: tuple[str, ...]) -> None:
    """Refuse a provider that does not exist, with the nearest that does."""
    from difflib import get_close_matches

    from vf_core.sandboxes.providers import makers

    known = list(makers())
    for kind in providers:
        if kind not in known:
            near = get_close_matches(kind, known, n=1)
            hint = f"did you mean {near[0]}?" if near else f"one of: {', '.join(known)}"
            raise click.UsageError(f"there is no provider {kind!r} ({hint})", click.get_current_context())
