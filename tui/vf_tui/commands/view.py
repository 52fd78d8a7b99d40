"""Commands that show a run and change nothing: `attach`, `open`, and the home screen."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from vf_tui.cli import INTERNAL, INTERRUPTED, OK
from vf_tui.commands.console import notice, plain_reason, say
from vf_tui.commands.runs import RUN_HELP, link_to, live_runs, the_run, why_not_live
from vf_tui.commands.screen import screen_options, show

if TYPE_CHECKING:
    from vf_core.link.base import Link
    from vf_core.runs.find import RunSummary


def home(**screen: Any) -> int:
    """The home screen; without a terminal, the list of runs."""
    reason = plain_reason()
    if not reason:
        return show(None, **screen)
    from vf_tui.commands.facts import print_runs

    notice(f"no screen ({reason}): the list of runs; `vf-tui --help` tells the commands")
    return print_runs((), as_json=False)


@click.command(
    "attach", help=f"Watch a run that is live.\n\n{RUN_HELP} Without it: the only live run, or a choice."
)
@click.argument("run", required=False)
@click.option("--read-only", is_flag=True, help="Watch only: nothing can be stopped or restarted.")
@screen_options
def attach_command(run: str | None, read_only: bool, screen: dict[str, Any]) -> int:
    """Watch a run."""
    found = the_run(run) if run else _only_live()
    if found is None:
        return _choose(screen, read_only=read_only)
    if not found.live:
        notice(f"{why_not_live(found)}: its files are shown")
        if found.status == "died" and plain_reason():
            # Lines would be waited for that nobody writes.
            from vf_tui.commands.facts import print_run

            return print_run(found, as_json=False)
    return _watch(link_to(found, read_only=read_only), found, screen, read_only=read_only)


def _only_live() -> RunSummary | None:
    """The only live run; None when there are several."""
    runs = live_runs()
    if not runs:
        raise click.UsageError("no run is live; `vf-tui ls` lists past ones, `vf-tui open DIR` shows one")
    return runs[0] if len(runs) == 1 else None


def _choose(screen: dict[str, Any], *, read_only: bool) -> int:
    if not plain_reason():
        return show(None, read_only=read_only, **screen)
    names = ", ".join(f"{run.id[:8]} ({run.name})" for run in live_runs())
    raise click.UsageError(f"several runs are live: {names}; say which")


@click.command("open")
@click.argument("directory", metavar="DIR|RUN")
@screen_options
def open_command(directory: str, screen: dict[str, Any]) -> int:
    """Look at any run directory, also one written by verifiers; it is followed while it grows."""
    from vf_core.errors import RunDirError
    from vf_core.link.file import FileLink
    from vf_core.runs.find import summarise

    path = Path(directory)
    run = summarise(path) if path.exists() else the_run(directory)
    if run is None:
        raise RunDirError(
            f"{directory} holds no run", hint="give the directory of one run; `vf-tui ls` lists them"
        )
    if plain_reason():
        from vf_tui.commands.facts import print_run

        return print_run(run, as_json=False)
    return show(FileLink(run.dir), read_only=True, **screen)


def _watch(link: Link, run: RunSummary, screen: dict[str, Any], *, read_only: bool) -> int:
    reason = plain_reason()
    if not reason:
        return show(link, read_only=read_only, **screen)
    notice(f"no screen ({reason}): plain lines")
    return asyncio.run(_plain(link, run))


async def _plain(link: Link, run: RunSummary) -> int:
    """Lines until the run is over; leaving changes nothing about it."""
    from vf_tui.headless import Reporter, interruptible, watch
    from vf_tui.plain import summary

    say(f"run {run.id} {run.name}: {run.standing.done} of {run.standing.total} done")
    state = await link.connect()
    task = asyncio.ensure_future(watch(link, state, Reporter(json=False), from_start=False))
    try:
        with interruptible(task):
            watched = await task
    except asyncio.CancelledError:
        notice(f"left; the run goes on: vf-tui attach {run.id[:8]}")
        return INTERRUPTED
    finally:
        await link.close()
    if watched.lost:
        notice(f"error: the engine is lost: {watched.lost}")
    for line in summary(watched.state):
        say(line)
    return INTERNAL if watched.lost else watched.state.exit_code or OK
