"""`vf-tui show RUN ROLLOUT`: all that is known of one rollout, as on the screen's tabs."""

from __future__ import annotations

import shutil
import sys
from typing import TYPE_CHECKING

import click

from vf_core.config.paths import text_of
from vf_core.runs.layout import RunDir
from vf_tui.cli import OK
from vf_tui.commands.console import emit, say
from vf_tui.commands.select import select
from vf_tui.facts import rollout_details
from vf_tui.render import activity, facts
from vf_tui.render.line import Line

if TYPE_CHECKING:
    from vf_core.events.state import RolloutView, RunState
    from vf_core.runs.find import RunSummary

WIDTH = 110
"""Columns where there is no terminal to ask."""
FAILED_LINES = 6
"""Lines of a failed call's result."""


def print_rollout(run: RunSummary, state: RunState, selector: str, *, as_json: bool) -> int:
    """The one rollout of `state` that `selector` means. Raises `click.UsageError` for none, or several."""
    ids = select(state, [selector])
    if len(ids) != 1:
        named = ", ".join(ids[:5]) + (", …" if len(ids) > 5 else "")
        which = f"means {len(ids)} rollouts: {named}" if ids else "means none"
        raise click.UsageError(f"one rollout, please: {selector!r} {which}")
    view = state.rollouts[ids[0]]
    logs = RunDir(run.dir).output_logs(view.id, max(1, view.attempt))
    output = {stream: text_of(path) for stream, path in logs.items() if path.exists()}
    if as_json:
        emit({**rollout_details(view, state), "run": run.id, "dir": text_of(run.dir), "output": output})
        return OK
    width = shutil.get_terminal_size((WIDTH, 24)).columns if sys.stdout.isatty() else WIDTH
    sections = [
        *facts.overview_sections(view, state.now),
        *_calls(view, state.now, width),
        *facts.score_sections(view),
        *facts.sandbox_sections(view, state, state.now),
        *facts.attempt_sections(view, state.now),
    ]
    for line in facts.section_lines(sections, max(40, width)):
        say("".join(text for text, _ in line).rstrip())
    for stream, path in output.items():
        say(f"{stream}: {path}")
    return OK


def _calls(view: RolloutView, now: float, width: int) -> list[facts.Section]:
    """The latest tool calls; of those that failed how they did."""
    tools = [tool for tool in view.tools if not tool.partial]
    if not tools:
        return []
    lines: list[Line] = []
    if earlier := activity.unknown_before(view.tool_count, tools):
        lines.append(((earlier, "faint"),))
    for tool in tools:
        lines.append(activity.head(tool, width - 3, now, unfolded=False)[1:])
        if tool.failed:
            lines += activity.block(tool.result, width - 3, indent=4, rows=FAILED_LINES)
    return [facts.Section("tool calls", lines=lines)]
