"""`vf-tui resume`: what is missing of a run, or went wrong, is run again; the rest stands."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from vf_tui.cli import OK, USAGE
from vf_tui.commands.console import emit, notice, quiet, say
from vf_tui.commands.run import UNKNOWN_ARE_OVERRIDES, How, Prepare, run_config, run_options, split_files
from vf_tui.commands.scripted import scripted_option, with_scripted

if TYPE_CHECKING:
    from vf_core.engine.resume import Left
    from vf_core.engine.saved import Saved
    from vf_core.eval_config import EvalConfig
    from vf_core.runs.find import RunSummary
    from vf_core.runs.layout import RunDir

RECENT = 60.0
HERE = "subprocess"
"""Sandboxes of this kind died with their engine; what is left of them needs nobody's leave to be cleared away."""
_LISTED = 20
_LOOPBACK = ("http://127.0.0.1:", "http://localhost:", "http://[::1]:")


@dataclass(frozen=True, slots=True)
class Found:
    """A run as it was left: what stands, what is owed, and what is left of its engine."""

    saved: Saved
    left: Left
    total: int


@click.command("resume", context_settings=UNKNOWN_ARE_OVERRIDES, options_metavar="[OPTIONS]")
@run_options
@scripted_option
@click.option("--cleanup", is_flag=True, help="First end what the dead engine left, with proof.")
@click.option(
    "--engine-is-gone",
    "gone",
    is_flag=True,
    help="The run's engine ran elsewhere, and you know that it has ended.",
)
@click.argument("args", nargs=-1, type=click.UNPROCESSED, metavar="DIR [[@] CONFIG] [--a.b VALUE]...")
def resume_command(how: How, scripted: str | None, cleanup: bool, gone: bool, args: tuple[str, ...]) -> int:
    """Take up a run whose engine is gone: rollouts that errored, were stopped or are missing are run again.

    DIR is the run's directory (or its id), also one that verifiers wrote. Rollouts of a task with group rewards are
    run again together. The config is the saved one; CONFIG and options may change how many run at once, retries and
    `--max-errors`, and nothing that results depend on.
    """
    files, overrides = split_files(args)
    if not files or len(files) > 2:
        what = (
            "which run? give its directory"
            if not files
            else f"a directory and a config, not {len(files)} files"
        )
        raise click.UsageError(f"{what}: vf-tui resume DIR", click.get_current_context())
    from vf_core.engine.resume import check_files
    from vf_tui.commands.runs import the_run

    run = the_run(files[0])
    _check_alone(run, gone)
    if run.producer == "verifiers" and time.time() - run.changed < RECENT:
        notice(
            f"verifiers wrote in {run.dir} less than {RECENT:.0f} s ago: make sure that it does not any more"
        )
    run_dir = _place(run)
    check_files(run_dir)
    config, prepare, changes = _config(run_dir, Path(files[1]) if files[1:] else None, overrides, scripted)
    if changes:
        return _refuse(changes, how)
    found = _look(run_dir, config)
    _tell(found, how)
    if how.dry_run:
        return OK
    kinds = tuple(dict.fromkeys(row.kind for row in found.left.rest if cleanup or row.kind == HERE))
    if kinds and (code := _clean(run_dir, kinds, how)) and cleanup:
        notice("not resumed: see above; without --cleanup it is, and what is left stays listed")
        return code
    if not found.saved.owed:
        return OK
    from vf_tui.commands.preflight import require_key

    require_key(config)
    return run_config(config, how, prepare, run_dir=run_dir, before=found.saved.state)


def _check_alone(run: RunSummary, gone: bool) -> None:
    """Refuse a run that an engine is, or may be, at work on."""
    if run.live:
        raise click.UsageError(
            f"run {run.id[:8]} is at work (pid {run.pid}): `vf-tui attach {run.id[:8]}` shows it, "
            f"`vf-tui restart {run.id[:8]} ROLLOUT` runs one again"
        )
    if run.liveness == "elsewhere" and not gone:
        raise click.UsageError(
            f"the engine of run {run.id[:8]} ran on {run.host or 'another machine'}, which can't be asked from here: "
            "make sure that it has ended, then give --engine-is-gone"
        )


def _place(run: RunSummary) -> RunDir:
    """The run's directory. One that verifiers wrote may have any name, and sandboxes are told apart by the run's id:
    it gets one that is its own, and the same each time."""
    import uuid

    from vf_core.runs.layout import RunDir

    try:
        uuid.UUID(run.id)
    except ValueError:
        return RunDir(run.dir, run_id=str(uuid.uuid5(uuid.NAMESPACE_URL, run.dir.resolve().as_uri())))
    return RunDir(run.dir, run_id=run.id)


def _config(
    run_dir: RunDir, file: Path | None, overrides: list[str], scripted: str | None
) -> tuple[EvalConfig, Prepare | None, list[str]]:
    """The config to go on with, what is to be done to it, and how it differs in what must not."""
    from vf_core.engine.plan import make_harness
    from vf_core.engine.same import config_to_resume
    from vf_core.scripted.scenario import DEMO, PREFIX, load_scenario

    with quiet():
        config, changes = config_to_resume(run_dir, file, overrides)
        if changes:
            return config, None, changes
        make_harness(config)
    model, address = config.model, config.client.base_url
    if scripted is None and model == load_scenario(DEMO).model and address.startswith(_LOOPBACK):
        # The address of a demo's model is another one each time.
        scripted = ""
    if scripted is None:
        if model.startswith(PREFIX) and address.startswith(_LOOPBACK) and not _listens(address):
            notice(f"warning: the scripted model of this run ended with its engine (nothing answers at {address}): "
                   "`--scripted SCENARIO` starts it again")  # fmt: skip
        return config, None, []
    given, prepare = with_scripted(config, scripted)
    changes = [] if given.model == model else [f"model: {model} -> {given.model} (--scripted)"]
    return given, prepare, changes


def _listens(address: str) -> bool:
    """Somebody listens at an address of this machine."""
    import socket
    from urllib.parse import urlsplit

    parts = urlsplit(address)
    try:
        socket.create_connection((parts.hostname or "", parts.port or 80), timeout=2).close()
    except (OSError, ValueError):
        return False
    return True


def _refuse(changes: list[str], how: How) -> int:
    """Say what differs; the exit code."""
    if how.json:
        emit({"type": "refused", "changes": changes})
    notice("error: this is not the config of that run; results would not belong together:")
    for line in changes[:_LISTED]:
        notice(f"  {line}")
    if len(changes) > _LISTED:
        notice(f"  and {len(changes) - _LISTED} more")
    notice("leave the changes out, or start a new run with `vf-tui run`")
    return USAGE


def _look(run_dir: RunDir, config: EvalConfig) -> Found:
    """Read what is there; nothing is changed."""
    from contextlib import closing

    from vf_core.engine.plan import make_plan
    from vf_core.engine.resume import left_by, look
    from vf_core.sandboxes.ledger import Ledger

    with quiet():
        plan = make_plan(config)
    with closing(Ledger.open()) as ledger:
        left = left_by(ledger, run_dir.run_id)
    return Found(look(run_dir, plan, left), left, len(plan.specs))


def _tell(found: Found, how: How) -> None:
    saved, rest = found.saved, found.left.rest
    why = ", ".join(f"{n} {word}" for word, n in saved.why().items())
    owed = f"{len(saved.owed)} owed ({why})" if saved.owed else "none owed: there is nothing to resume"
    line = f"{found.total} rollout{'s' * (found.total != 1)}: {len(saved.kept)} kept, {owed}"
    if how.json and (how.dry_run or not saved.owed):
        emit(
            {
                "type": "dry-run" if how.dry_run else "done",
                "rollouts": found.total,
                "kept": len(saved.kept),
                "owed": list(saved.owed),
                "left": [row.name for row in rest],
                "exit_code": OK,
            }
        )
    elif how.dry_run:
        say(line)
        for id in saved.owed:
            say(f"  {id}")
    else:
        notice(line)
    for rows, told in (
        ([row for row in rest if row.kind == HERE], "cleared away first, with proof"),
        ([row for row in rest if row.kind != HERE], "--cleanup ends them first, with proof"),
    ):
        if rows:
            names = ", ".join(row.name for row in rows[:5]) + (" …" if len(rows) > 5 else "")
            notice(f"{_count(len(rows))} of the engine that is gone: {names} ({told})")


def _clean(run_dir: RunDir, kinds: tuple[str, ...], how: How) -> int:
    """End what the dead engine left of these kinds; 0 when all of it is proven gone."""
    from vf_tui.background import run_apart
    from vf_tui.commands.cleanup import Wanted, cleanup_wanted

    wanted = Wanted(runs=(run_dir.run_id,), providers=kinds, yes=True, json=how.json)
    return run_apart(lambda: cleanup_wanted(wanted))


def _count(n: int) -> str:
    return f"{n} sandbox{' is' if n == 1 else 'es are'} left"
