"""`vf-tui cleanup`: deletes what dead runs left, and proves it."""

from __future__ import annotations

import asyncio
import re
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from vf_core.errors import SandboxError
from vf_tui.cli import INTERRUPTED, OK, UNCONFIRMED
from vf_tui.commands.console import emit, fit, notice, say
from vf_tui.commands.facts import JSON
from vf_tui.commands.sandboxes import check_kinds

if TYPE_CHECKING:
    from vf_core.sandboxes.items import Inventory, Item, Outcome
    from vf_core.sandboxes.ledger import Ledger

CLAIM_AT_LEAST = 6
"""Characters of an id that tell it."""
RUN_AT_LEAST = 12
LAST_SECONDS = 15.0
"""How long an interrupted cleanup goes on to confirm what was asked."""
_UNITS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}


class Age(click.ParamType[float]):
    """A duration: `90`, `30m`, `2h`, `1d`; in seconds."""

    name = "AGE"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """See `click.ParamType`."""
        match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smhdw]?)", str(value).strip().lower())
        if match is None:
            self.fail(f"{value!r} is no age: write 90s, 30m, 2h or 1d", param, ctx)
        return float(match[1]) * _UNITS[match[2]]


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which leftovers are meant, and how."""

    runs: tuple[str, ...] = ()
    providers: tuple[str, ...] = ()
    older_than: float | None = None
    claims: tuple[str, ...] = ()
    dry_run: bool = False
    yes: bool = False
    json: bool = False


@click.command("cleanup")
@click.argument("runs", metavar="[RUN]...", nargs=-1)
@click.option("--dry-run", is_flag=True, help="Print the providers' own commands; execute nothing.")
@click.option(
    "--provider", "providers", metavar="KIND", multiple=True, help="Only of this kind (docker, prime, …)."
)
@click.option("--older-than", type=Age(), metavar="AGE", help="Only what is older: 90s, 30m, 2h, 1d.")
@click.option("--claim", "claims", metavar="ID", multiple=True,
              help="Also this one, though its owner can't be proven dead: its id, or its beginning.")  # fmt: skip
@click.option("--yes", is_flag=True, help="Don't ask.")
@JSON
def cleanup_command(
    *,
    runs: tuple[str, ...],
    dry_run: bool,
    providers: tuple[str, ...],
    older_than: float | None,
    claims: tuple[str, ...],
    yes: bool,
    as_json: bool,
) -> int:
    """Delete what dead runs left, with proof: sandboxes of ours whose owner is dead, of all runs or of each RUN.

    Every owner is looked at again right before its sandbox is deleted, and the end is proven by the provider's own
    answer. The exit code is 4 when something stays unconfirmed, or when a provider that the ledger has sandboxes of
    could not be asked.
    """
    from vf_tui.background import run_apart

    check_kinds(providers)
    wanted = Wanted(tuple(map(_run_id, runs)), providers, older_than, claims, dry_run, yes, as_json)
    if not (dry_run or yes or _can_ask()):
        raise click.UsageError(
            "nobody can be asked here (no terminal): give --yes, or --dry-run to see what would be done",
            click.get_current_context(),
        )
    return run_apart(lambda: cleanup_wanted(wanted))


def _run_id(text: str) -> str:
    """The id of the run that `text` means; itself where no such run is known here any more."""
    from vf_core.errors import RunDirError
    from vf_tui.commands.runs import the_run

    try:
        return the_run(text).id
    except RunDirError:
        return text


def _strange(inventory: Inventory, wanted: Wanted) -> Iterator[str]:
    """Those of the RUNs that neither a run nor a sandbox belongs to: most likely typed wrongly."""
    from vf_core.errors import RunDirError
    from vf_tui.commands.runs import the_run

    for run in wanted.runs:
        if not any(_is_run(item.run, run) for item in inventory.items):
            try:
                the_run(run)
            except RunDirError:
                yield run


def _can_ask() -> bool:
    return sys.stdin.isatty() and sys.stderr.isatty()


async def cleanup_wanted(wanted: Wanted) -> int:
    """Carry out what is `wanted`, told on the way; the exit code."""
    from vf_core.sandboxes.inventory import take
    from vf_core.sandboxes.ledger import Ledger
    from vf_tui.commands.boxes import report_lines

    with closing(Ledger.open()) as ledger:
        inventory = await take(ledger, wanted.providers or None)
        for line in report_lines(inventory.reports):
            notice(line)
        items = choose(inventory, wanted)
        for run in _strange(inventory, wanted):
            notice(
                f"no run and no sandbox is known here by {run!r}: `vf-tui ls` and `vf-tui sandboxes` list them"
            )
        incomplete = UNCONFIRMED if inventory.unknown else OK
        if wanted.dry_run:
            _print_commands(items, wanted)
            return incomplete
        if not items:
            return _nothing(inventory, wanted, incomplete)
        if not wanted.yes and not await _confirmed(items):
            notice("nothing was deleted")
            return UNCONFIRMED
        code = await _clean(ledger, items, inventory, wanted)
        with suppress(SandboxError):  # it is only about room
            await asyncio.to_thread(ledger.forget_old)
        return code or incomplete


def choose(inventory: Inventory, wanted: Wanted) -> list[Item]:
    """The leftovers that are meant, then what is claimed. Raises `click.UsageError` for a claim that is refused."""
    items = [item for item in inventory.leftovers if _meant(item, wanted, inventory.taken)]
    for text in dict.fromkeys(wanted.claims):
        item = claimed(text, inventory.items)
        if not (item.leftover or item.claimable):
            raise click.UsageError(f"{text} can't be claimed: {item.why or 'it is not ours'}")
        if item not in items:
            items.append(item)
    return items


def claimed(text: str, items: Sequence[Item]) -> Item:
    """The sandbox that `text` means: by key, id or name, or by the beginning of one id. Raises `click.UsageError`."""
    found = [item for item in items if text in (item.key, item.id, item.name)]
    if not found and len(text) >= CLAIM_AT_LEAST:
        found = [item for item in items if item.id.startswith(text)]
    if len(found) == 1:
        return found[0]
    many = f"{len(found)} sandboxes are meant by {text!r}: give one's whole id"
    raise click.UsageError(many if found else f"there is no sandbox {text!r} (`vf-tui sandboxes` lists them)")


def _meant(item: Item, wanted: Wanted, now: float) -> bool:
    if wanted.runs and not any(_is_run(item.run, run) for run in wanted.runs):
        return False
    # What has no known age is not known to be older.
    return wanted.older_than is None or (item.created is not None and now - item.created >= wanted.older_than)


def _is_run(run: str, wanted: str) -> bool:
    """`wanted` is the run's id or its beginning; some things that a run leaves have room for a part of it only."""
    run, wanted = run.replace("-", ""), wanted.replace("-", "")
    return (
        run == wanted
        or (len(wanted) >= 4 and run.startswith(wanted))
        or (len(run) >= RUN_AT_LEAST and wanted.startswith(run))
    )


def _print_commands(items: Sequence[Item], wanted: Wanted) -> None:
    from vf_tui.commands.boxes import item_facts
    from vf_tui.render.commands import command_lines

    if wanted.json:
        emit({"type": "dry-run", "sandboxes": [item_facts(item) for item in items]})
        return
    for line in command_lines(items):
        say(line)
    notice(f"dry run: {_count(items)}; nothing was executed")


def _nothing(inventory: Inventory, wanted: Wanted, code: int) -> int:
    if wanted.json:
        emit(_record([], inventory, code))
    narrowed = wanted.runs or wanted.providers or wanted.older_than is not None
    known = "" if code == OK else ", as far as is known"
    others = len(inventory.leftovers)
    if narrowed and others:
        notice(f"nothing of that is left over{known}; {others} other{'s are' if others != 1 else ' is'}")
    else:
        notice(f"nothing is left over{known}")
    return code


async def _confirmed(items: Sequence[Item]) -> bool:
    """Show what is meant and have its number typed; on stderr, so that standard output stays clean."""
    from vf_tui.commands.boxes import item_lines

    for line in item_lines(items, time.time()):
        notice(line)
    sys.stderr.write(fit(f"Type {len(items)} to delete {'it' if len(items) == 1 else 'them'}: ", sys.stderr))
    sys.stderr.flush()
    # In a thread, so that ctrl+c is heard at once.
    typed: str = await asyncio.to_thread(sys.stdin.readline)
    return typed.strip() == str(len(items))


async def _clean(ledger: Ledger, items: Sequence[Item], inventory: Inventory, wanted: Wanted) -> int:
    from vf_core.sandboxes.cleanup import clean
    from vf_tui.commands.boxes import outcome_line
    from vf_tui.headless import on_signals

    outcomes: dict[str, Outcome] = {}

    def came(outcome: Outcome) -> None:
        outcomes[outcome.item.key] = outcome
        if wanted.json:
            emit({"type": "sandbox", **_outcome_facts(outcome)})
        else:
            say(outcome_line(outcome))

    keys = [item.key for item in items if not item.leftover]
    halt = asyncio.Event()
    work = asyncio.ensure_future(clean(ledger, items, claimed=keys, on_result=came, halt=halt))
    interrupted = ""

    def first(name: str) -> None:
        nonlocal interrupted
        interrupted = name
        halt.set()
        notice(f"{name}: what was asked goes on being confirmed for at most {LAST_SECONDS:.0f} s")
        asyncio.get_running_loop().call_later(LAST_SECONDS, work.cancel)

    async with on_signals(first):
        try:
            await work
        except asyncio.CancelledError:
            if not interrupted:
                raise
    for outcome in _unheard(items, outcomes):
        came(outcome)
    return _told(list(outcomes.values()), inventory, wanted, interrupted=bool(interrupted))


def _unheard(items: Sequence[Item], outcomes: dict[str, Outcome]) -> list[Outcome]:
    """What is to be said of those that nothing was heard of before the end."""
    from vf_core.sandboxes.items import Outcome

    why = "interrupted before its end was proven"
    return [Outcome(item, "UNKNOWN", detail=why) for item in items if item.key not in outcomes]


def _told(outcomes: Sequence[Outcome], inventory: Inventory, wanted: Wanted, *, interrupted: bool) -> int:
    from vf_tui.render.boxes import outcome_counts

    left = [outcome for outcome in outcomes if outcome.state != "GONE"]
    code = INTERRUPTED if interrupted and left else UNCONFIRMED if left or inventory.unknown else OK
    counts: dict[str, int] = {}
    for outcome in outcomes:
        counts[outcome.state] = counts.get(outcome.state, 0) + 1
    if wanted.json:
        emit(_record(outcomes, inventory, code))
    notice(f"cleanup: {outcome_counts(counts)}")
    for report in inventory.unknown:
        notice(f"{report.kind} could not be asked: what it has is not known")
    return code


def _outcome_facts(outcome: Outcome) -> dict[str, object]:
    from vf_tui.commands.boxes import item_facts

    return {
        **item_facts(outcome.item),
        "result": outcome.state,
        "proof": outcome.proof,
        "detail": outcome.detail,
    }


def _record(outcomes: Sequence[Outcome], inventory: Inventory, code: int) -> dict[str, object]:
    from vf_tui.commands.boxes import report_facts

    return {
        "type": "cleanup",
        "gone": sum(1 for outcome in outcomes if outcome.state == "GONE"),
        "unconfirmed": sorted(outcome.item.key for outcome in outcomes if outcome.state != "GONE"),
        "providers": [report_facts(report) for report in inventory.reports],
        "exit_code": code,
    }


def _count(items: Sequence[Item]) -> str:
    return f"{len(items)} sandbox{'es' * (len(items) != 1)}"
