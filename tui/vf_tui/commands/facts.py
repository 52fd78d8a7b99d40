"""Commands that print what is known: `ls`, `show`, `events`. They read files and start nothing."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from vf_core.runs.find import RunSummary, find_runs
from vf_core.text import one_line
from vf_tui.cli import OK
from vf_tui.commands.console import emit, fit, notice, say
from vf_tui.commands.runs import ROOTS, RUN_HELP, the_run
from vf_tui.render import timefmt

if TYPE_CHECKING:
    from vf_core.events.state import RolloutView, RunState

JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
POLL = 0.2


@click.command("ls")
@click.argument("roots", metavar="[DIR]...", nargs=-1, type=click.Path(path_type=Path))
@JSON
def ls_command(roots: tuple[Path, ...], as_json: bool) -> int:
    """List runs, live ones first: this user's, those in ./outputs and those below each DIR."""
    return print_runs(roots, as_json=as_json)


def print_runs(roots: Sequence[Path], *, as_json: bool) -> int:
    """All runs as a table, or as a JSON array."""
    from vf_tui.proofs import settle_runs

    runs = settle_runs(find_runs([*ROOTS, *roots]))
    tell_leftovers()
    if as_json:
        emit([summary_facts(run) for run in runs])
        return OK
    if not runs:
        say("no runs yet; `vf-tui demo` makes one")
        return OK
    rows: list[tuple[str, ...]] = [
        ("RUN", "STATUS", "DONE", "ACTIVE", "REWARD", "ERRORS", "DECLINED", "UNCONFIRMED", "AGE", "NAME")
    ]
    rows += [_run_row(run) for run in runs]
    for line in table(rows):
        say(line)
    return OK


def tell_leftovers() -> None:
    """A notice of what dead runs left, as far as the ledger knows; asks nobody."""
    from vf_core.errors import VfError
    from vf_tui.inventory_source import InventorySource, left_text

    try:
        left = left_text(InventorySource().leftover_kinds())
    except VfError as e:
        notice(f"warning: {e}")
        return
    if left:
        notice(f"{left}: `vf-tui cleanup` deletes {'it' if left.startswith('1 ') else 'them'}")


def _run_row(run: RunSummary) -> tuple[str, ...]:
    at = run.standing
    age = timefmt.span(time.time() - (at.started or run.changed))
    total = f"{at.done}/{at.total}" if run.known else f"?/{at.total or '?'}"
    reward = "" if at.reward is None else f"{at.reward:.3f}"
    if at.reward_error is not None:
        reward += f" ± {at.reward_error:.3f}"
    status = f"{run.status} (paused)" if at.paused and run.live else run.status
    unconfirmed = str(run.unconfirmed) if run.unconfirmed or not run.live else ""
    return (
        one_line(run.id, limit=8), status, total, str(at.active) if run.live else "", reward,
        str(at.errors or ""), str(at.declined or ""), unconfirmed, age, one_line(run.name, limit=80),
    )  # fmt: skip


def table(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Rows as lines for stdout, columns aligned; the last column is as long as it is."""
    rows = [[fit(cell, sys.stdout) for cell in row] for row in rows]
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    for row in rows:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


def summary_facts(run: RunSummary) -> dict[str, Any]:
    """A run as JSON: what `ls` shows, and where it is."""
    at = run.standing
    return {
        "run": run.id,
        "name": run.name,
        "dir": str(run.dir),
        "status": run.status,
        "live": run.live,
        "liveness": run.liveness,
        "producer": run.producer,
        "model": run.model,
        "taskset": run.taskset,
        "harness": run.harness,
        "runtime": run.runtime,
        "host": run.host,
        "pid": run.pid,
        "socket": run.socket,
        "version": run.version,
        "known": run.known,
        "total": at.total,
        "done": at.done,
        "active": at.active,
        "errors": at.errors,
        "declined": at.declined,
        "scored": at.scored,
        "reward": at.reward,
        "reward_error": at.reward_error,
        "tokens": {"prompt": at.prompt_tokens, "completion": at.completion_tokens},
        "cost": at.cost,
        "unconfirmed": run.unconfirmed,
        "paused": at.paused,
        "started": at.started,
        "finished": at.finished,
        "exit_code": at.exit_code,
    }


@click.command(
    "show",
    help="Show a run, or one of its rollouts: counts and a list, or all that is known of that one."
    f"\n\n{RUN_HELP} ROLLOUT is a rollout's id, or its task and sample as in 12.0.",
)
@click.argument("run")
@click.argument("rollout", required=False)
@JSON
def show_command(run: str, rollout: str | None, as_json: bool) -> int:
    """Show a run, or one of its rollouts."""
    found = the_run(run)
    if rollout is None:
        return print_run(found, as_json=as_json)
    from vf_tui.commands.rollout import print_rollout

    return print_rollout(found, load_state(found), rollout, as_json=as_json)


def load_state(run: RunSummary) -> RunState:
    """The run's state as far as it is on disk; what a dead engine left counts as unconfirmed until the
    ledger has a proof of its end.

    Raises `RunDirError`.
    """
    from vf_core.events.state import RunState
    from vf_core.runs.open import load, open_source

    state = load(open_source(run.dir), RunState())
    if run.status == "died":
        state.abandon()
    if run.live and not state.over:
        # What runs gets older between two events, too.
        state.now = max(state.now, time.time())
    if not run.live and state.unconfirmed:
        from vf_tui.proofs import proofs_of, settle

        settle(state, proofs_of(state.run))
    return state


def print_run(run: RunSummary, *, as_json: bool) -> int:
    """A run's facts and a row for each of its rollouts, or all of it as one JSON object."""
    from vf_tui.facts import rollout_facts, run_facts
    from vf_tui.plain import summary

    state = load_state(run)
    if as_json:
        rollouts = [rollout_facts(view) for view in state.rollouts.values()]
        extra = {"status": run.status if run.known else state.status, "live": run.live, "dir": str(run.dir)}
        emit({**run_facts(state), **extra, "rollouts": rollouts})
        return OK
    say(f"run {run.id} {run.name}")
    what = [
        ("model", state.model),
        ("tasks", state.taskset),
        ("harness", state.harness),
        ("runtime", state.runtime),
    ]
    say(", ".join(f"{name} {value}" for name, value in what if value))
    say(f"directory: {run.dir}")
    if run.status == "died":
        say(f"its engine died: what it had written is shown; `vf-tui resume {run.id[:8]}` takes it up")
    for line in summary(state):
        say(line)
    if state.rollouts:
        say()
        rows: list[tuple[str, ...]] = [
            ("ROLLOUT", "STATUS", "REWARD", "TURNS", "EXIT", "SANDBOX", "TIME", "NAME")
        ]
        rows += [_rollout_row(view, state) for view in state.rollouts.values()]
        for line in table(rows):
            say(line)
    if state.unconfirmed and not run.live and run.liveness != "elsewhere":
        notice(f"`vf-tui cleanup {run.id[:8]}` ends what is there of sandboxes that are not proven gone")
    return OK


def _rollout_row(view: RolloutView, state: RunState) -> tuple[str, ...]:
    box = view.sandbox
    why = f" ({view.error_type})" if view.error_type else ""
    return (
        one_line(view.id, limit=40),
        f"{view.status}{why}",
        timefmt.reward(view.reward),
        str(view.turns) if view.turns else "",
        one_line(view.exit_word, limit=40),
        box.state.word if box else "",
        timefmt.clock(timefmt.elapsed(view, state.now)),
        one_line(view.name, limit=80),
    )


@click.command("events", help=f"Print a run's journal.\n\n{RUN_HELP}")
@click.argument("run")
@click.option("--follow", "-f", is_flag=True, help="Go on until the run is over.")
@JSON
def events_command(run: str, follow: bool, as_json: bool) -> int:
    """Print a run's journal."""
    from vf_core.events.codec import encode
    from vf_core.events.fold import apply
    from vf_core.events.state import RunState
    from vf_core.runs.open import open_source
    from vf_tui.plain import PlainLines, summary

    found = the_run(run)
    source, state, lines = open_source(found.dir), RunState(), PlainLines()
    while True:
        for event in source.read():
            apply(state, event)
            if as_json:
                say(encode(event))
            elif (line := lines.of(event, state)) is not None:
                say(line)
        if not source.at_end:
            continue
        if not follow or state.over or not _still_live(found):
            break
        time.sleep(POLL)
    if state.over and not as_json:
        for line in summary(state):
            say(line)
    return OK


def _still_live(run: RunSummary) -> bool:
    from vf_core.runs.find import summarise

    now = summarise(run.dir)
    return now is not None and now.live
