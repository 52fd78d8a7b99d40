"""Which run a command is about, and the way to it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from vf_core.runs.find import RunSummary, find_runs, resolve_run

if TYPE_CHECKING:
    from vf_core.link.base import Link

ROOTS = (Path("outputs"),)
"""Searched beside the index of this user's runs."""

RUN_HELP = "RUN is a run's id, the beginning of one, its name or its directory."


def the_run(text: str) -> RunSummary:
    """The run that `text` means. Raises `RunDirError` naming those that are near."""
    return resolve_run(text, ROOTS)


def the_live_run(text: str) -> RunSummary:
    """A run whose engine can be talked to. Raises `click.UsageError` when its engine is not (any more) here."""
    run = the_run(text)
    if not run.live:
        raise click.UsageError(f"run {run.id[:8]} takes no commands: {why_not_live(run)}")
    return run


def live_runs() -> list[RunSummary]:
    """All runs whose engines run on this machine."""
    return [run for run in find_runs(ROOTS) if run.live]


def why_not_live(run: RunSummary) -> str:
    """Why a run's engine can't be reached."""
    if run.liveness == "elsewhere":
        return f"its engine runs on {run.host or 'another machine'}"
    if run.producer != "vf-tui":
        return "it was written by another program"
    if run.status == "died":
        return f"its engine died (`vf-tui resume {run.id[:8]}` takes it up)"
    return "it is over"


def link_to(run: RunSummary, *, read_only: bool = False, by: str = "") -> Link:
    """The way to `run`: its engine's socket while it lives, else its files."""
    if run.live and run.socket:
        from vf_core.link.socket import SocketLink

        return SocketLink(Path(run.socket), run=run.id, run_dir=run.dir, read_only=read_only, by=by)
    from vf_core.link.file import FileLink

    return FileLink(run.dir)
