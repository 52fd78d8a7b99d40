"""`vf-tui plugins`: what a config may name, and which of it does not load and why."""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import shorten
from typing import TYPE_CHECKING, Any

import click

from vf_core.text import one_line
from vf_tui.cli import OK, USAGE
from vf_tui.commands.console import emit, notice, say
from vf_tui.commands.facts import JSON, table

if TYPE_CHECKING:
    from vf_core.discovery import Broken, Candidate, Found

_TABLES = {
    "taskset": "[env.taskset]",
    "harness": "[env.agent.harness]",
    "judge": "[[env.taskset.task.judges]]",
}
_ABOUT = 60
_SHOWN_OUTPUT = 3


@click.command("plugins")
@click.argument("ids", metavar="[ID]...", nargs=-1)
@click.option(
    "--seconds",
    type=click.FloatRange(min=0.1),
    default=30.0,
    show_default=True,
    help="How long each may take to be imported.",
)
@JSON
def plugins_command(ids: tuple[str, ...], seconds: float, as_json: bool) -> int:
    """List tasksets, harnesses and judges, and what is broken and why.

    Built-in and installed ones; each is tried in a process of its own. With IDs: those alone, with their own
    options; the exit code is 2 when one of them is broken or not there.
    """
    from vf_core.discovery import discover

    wanted = _wanted(ids)
    found, broken = _apart(discover(wanted, seconds=seconds))
    if as_json:
        emit(
            {"plugins": [_facts(item) for item in found], "broken": [_broken_facts(item) for item in broken]}
        )
    else:
        _print(found, broken, options=bool(ids))
    return USAGE if ids and broken else OK


def _wanted(ids: Sequence[str]) -> list[Candidate] | None:
    """What `ids` may mean: modules of ours, installed ones, and whatever else has that name. None: no ids."""
    if not ids:
        return None
    from vf_core.discovery import Candidate, candidates
    from vf_core.plugins import plugin_name

    known, out = candidates(), []
    for id in ids:
        module = plugin_name(id).replace("-", "_").lower()
        same = [c for c in known if (c.module.rpartition(".")[2] if c.kind else c.module).lower() == module]
        out += same or [Candidate(plugin_name(id).replace("-", "_"), declared=True)]
    return out


def _apart(results: Sequence[Found | Broken]) -> tuple[list[Found], list[Broken]]:
    from vf_core.discovery import Found

    found = [item for item in results if isinstance(item, Found)]
    return found, [item for item in results if not isinstance(item, Found)]


def _print(found: Sequence[Found], broken: Sequence[Broken], *, options: bool) -> None:
    if found:
        rows = [("KIND", "ID", "FROM", "ABOUT")]
        rows += [
            (
                item.kind,
                item.id,
                _origin(item.candidate),
                shorten(one_line(item.about), _ABOUT, placeholder="…"),
            )
            for item in found
        ]
        for line in table(rows):
            say(line)
    for item in found if options else ():
        say()
        say(f"{_TABLES[item.kind]} id = {item.id!r}: {one_line(item.cls)}")
        own = [(f"  {o.name}", one_line(o.type), _default(o.default)) for o in item.options]
        for line in table(own) if own else ["  no options of its own"]:
            say(line)
    for lost in broken:
        say()
        say(f"broken: {one_line(lost.candidate.module)} ({_origin(lost.candidate)})")
        say(f"  {lost.reason}")
        for printed in lost.output.splitlines()[-_SHOWN_OUTPUT:]:
            say(f"  | {one_line(printed, limit=200)}")
    if broken:
        notice(f"{len(broken)} broken; the others are not affected")


def _default(value: str | None) -> str:
    return "must be given" if value is None else one_line(value)


def _origin(candidate: Candidate) -> str:
    if candidate.kind is not None:
        return "built in"
    if candidate.distribution:
        return one_line(f"{candidate.distribution} {candidate.version}".rstrip())
    return one_line(candidate.file) or "not a listed distribution"


def _facts(item: Found) -> dict[str, Any]:
    return {
        "kind": item.kind,
        "id": item.id,
        "class": item.cls,
        "about": item.about,
        "options": [{"name": o.name, "type": o.type, "default": o.default} for o in item.options],
        **_where(item.candidate),
    }


def _broken_facts(item: Broken) -> dict[str, Any]:
    return {
        "module": item.candidate.module,
        "reason": item.reason,
        "output": item.output,
        **_where(item.candidate),
    }


def _where(candidate: Candidate) -> dict[str, Any]:
    return {
        "distribution": candidate.distribution or None,
        "version": candidate.version or None,
        "file": candidate.file or None,
        "built_in": candidate.kind is not None,
    }
