"""Which rollouts a command is meant for."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import get_args

import click

from vf_core.events.state import RolloutView, RunState, Status

HELP = "A rollout's id, `all`, `status:error`, `task:NAME`, or a pattern such as `0003-*`."

STATUSES: tuple[str, ...] = get_args(Status)


def select(state: RunState, selectors: Sequence[str]) -> list[str]:
    """The ids of all rollouts that any of `selectors` means, in the run's order.

    Raises `click.UsageError` for one that means none.
    """
    chosen: set[str] = set()
    for selector in selectors:
        found = [r.id for r in state.rollouts.values() if _means(selector, r)]
        if not found:
            _refuse(selector, state)
        chosen.update(found)
    return [id for id in state.rollouts if id in chosen]


def _means(selector: str, rollout: RolloutView) -> bool:
    kind, colon, value = selector.partition(":")
    # The screen's short form, where there is room for no more, is task and sample.
    if selector in ("all", rollout.id, f"{rollout.task}.{rollout.sample}"):
        return True
    if colon and kind == "status":
        return rollout.status == value
    if colon and kind == "task":
        return value in (rollout.name, str(rollout.task)) or fnmatchcase(rollout.name, value)
    return fnmatchcase(rollout.id, selector)


def _refuse(selector: str, state: RunState) -> None:
    kind, colon, value = selector.partition(":")
    hint = "`vf-tui show` lists them"
    if colon and kind == "status":
        if value in STATUSES:
            return  # nothing has this status now: that is an answer, not a mistake
        near = get_close_matches(value, STATUSES, n=1)
        hint = f"did you mean status:{near[0]}?" if near else f"statuses: {', '.join(STATUSES)}"
    elif colon and kind == "task":
        near = get_close_matches(value, {r.name for r in state.rollouts.values()}, n=1)
        hint = f"did you mean task:{near[0]}?" if near else hint
    elif near := get_close_matches(selector, state.rollouts, n=1):
        hint = f"did you mean {near[0]}?"
    raise click.UsageError(f"no rollout is meant by {selector!r} ({hint})")
