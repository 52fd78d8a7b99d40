"""`vf-tui doctor`: what this machine can do, and what to do about what it can't."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import click

from vf_tui.cli import OK
from vf_tui.commands.console import emit, say
from vf_tui.commands.facts import JSON

if TYPE_CHECKING:
    from vf_tui.checks.base import Finding

MARKS = {"ok": "ok", "warn": "warn", "missing": "missing", "broken": "BROKEN"}


@click.command("doctor")
@JSON
def doctor_command(as_json: bool) -> int:
    """Check what this machine can do: engines, credentials (presence only), terminal, directories.

    Each line is ok, warn, missing (optional, and not there) or BROKEN (set up, and not working); the exit code is 0
    unless something is BROKEN: 5 when only an engine does not answer, else 2.
    """
    findings: list[Finding] = []
    section = ""
    for finding in look():
        findings.append(finding)
        if as_json:
            continue
        if finding.section != section:
            section = finding.section
            say(section)
        for line in lines(finding):
            say(line)
    code = exit_code(findings)
    if as_json:
        emit({"findings": [facts(finding) for finding in findings], "exit_code": code})
    else:
        say(_summary(findings))
    return code


def look() -> Iterator[Finding]:
    """All findings, section by section, as they come."""
    from vf_tui.checks import machine, providers, terminal

    yield from machine.python()
    extras = machine.extras()
    yield from extras
    there = {finding.name: finding.status == "ok" for finding in extras}
    yield providers.local()
    yield providers.docker(sdk=there["docker"])
    yield providers.prime(sdk=there["prime"])
    yield providers.modal(sdk=there["modal"])
    yield from providers.model_key()
    yield from machine.tools()
    yield from terminal.terminal()
    yield from machine.places()
    yield from machine.own_files()
    yield from machine.ledger()


def exit_code(findings: Iterable[Finding]) -> int:
    """0 when nothing is broken, else the gravest of what the broken ones ask for: 2 before 5."""
    return min((finding.code for finding in findings if finding.status == "broken"), default=OK)


def lines(finding: Finding) -> Iterator[str]:
    """A finding in lines that fit the terminal, 80 cells where that does not say."""
    from vf_core.text import one_line
    from vf_tui.render.line import wrap

    room = max(20, min(shutil.get_terminal_size((80, 24)).columns, 100) - 26)
    first, *rest = wrap(one_line(finding.text, limit=1_000), room)
    yield f"  {MARKS[finding.status]:7}  {finding.name:14} {first}".rstrip()
    for line in rest:
        yield f"{'':26}{line}".rstrip()
    if finding.todo and finding.status != "ok":
        for i, line in enumerate(wrap(one_line(finding.todo, limit=1_000), room - 3)):
            yield f"{'':26}{'-> ' if i == 0 else '   '}{line}".rstrip()


def facts(finding: Finding) -> dict[str, Any]:
    """A finding as JSON."""
    return {
        "section": finding.section,
        "name": finding.name,
        "status": finding.status,
        "text": finding.text,
        "todo": finding.todo,
    }


def _summary(findings: Iterable[Finding]) -> str:
    counts: dict[str, int] = {}
    for finding in findings:
        counts[finding.status] = counts.get(finding.status, 0) + 1
    return ", ".join(f"{counts[status]} {MARKS[status]}" for status in MARKS if counts.get(status))
