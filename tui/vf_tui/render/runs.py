"""A run as a line of the home list, and as facts."""

from __future__ import annotations

import time
from functools import lru_cache

from vf_core.runs.engine_file import Standing
from vf_core.runs.find import RunSummary
from vf_tui import glyphs
from vf_tui.render import timefmt
from vf_tui.render.facts import Section
from vf_tui.render.line import Line, Segment, clip, fit
from vf_tui.safe_text import cell

STATUS_STYLES = {
    "running": "run", "starting": "run", "stopping": "warn", "completed": "ok", "stopped": "dim",
    "failed": "error", "died": "alarm", "unknown": "faint",
}  # fmt: skip

# Column: width. In the order of the line.
_WIDTHS = {
    "status": 9, "id": 8, "done": 9, "active": 6, "reward": 13, "failed": 6, "declined": 8, "tokens": 6, "cost": 7,
    "left": 11, "unconfirmed": 11, "started": 12,
}  # fmt: skip
# What is shown first when there is room for little.
_RANK = (
    "status", "done", "started", "reward", "id", "unconfirmed", "failed", "active", "tokens", "left", "cost",
    "declined",
)  # fmt: skip
_RIGHT = frozenset({"done", "active", "failed", "declined", "tokens", "cost", "started"})
_TITLES = {"left": "time left"}
NAME, NAME_AT_LEAST = 30, 14
"""Cells for the name: what it should have, and what is left to it for the two foremost columns."""


@lru_cache(maxsize=64)
def _shown(cells: int) -> tuple[str, ...]:
    """The columns that `cells` have room for beside the name, in the order of the line."""
    chosen: list[str] = []
    room = cells - 2
    for n, name in enumerate(_RANK):
        room -= _WIDTHS[name] + 1
        if room < (NAME_AT_LEAST if n < 2 else NAME if n > 3 else 22):
            break
        chosen.append(name)
    return tuple(name for name in _WIDTHS if name in chosen)


def _name_cells(cells: int) -> int:
    return max(8, cells - 2 - sum(_WIDTHS[name] + 1 for name in _shown(cells)))


def titles(cells: int) -> Line:
    """The line over the list."""
    out: list[Segment] = [("  ", "head"), (fit("run", _name_cells(cells)), "head"), (" ", "head")]
    for name in _shown(cells):
        out += [(fit(_TITLES.get(name, name), _WIDTHS[name], right=name in _RIGHT), "head"), (" ", "head")]
    return clip(out, cells, "head")


def run_row(run: RunSummary, cells: int, now: float) -> Line:
    """`run` as a line of at most `cells` cells."""
    out: list[Segment] = [
        (glyphs.current().mark if run.live else " ", "run"),
        (fit(cell(run.name, 120) or run.id, _name_cells(cells + 1)), "text" if run.live else "dim"),
        (" ", ""),
    ]
    for name in _shown(cells + 1):
        text, style = _cell(run, name, now)
        out += [(fit(text, _WIDTHS[name], right=name in _RIGHT), style), (" ", "")]
    return tuple(out)


def _cell(run: RunSummary, name: str, now: float) -> tuple[str, str]:  # noqa: PLR0911  one line a column
    s = run.standing
    match name:
        case "status":
            return run.status, STATUS_STYLES.get(run.status, "text")
        case "id":
            return cell(run.id, 8), "faint"
        case "done":
            return (f"{s.done}/{s.total}" if run.known else f"{s.total or '?'}"), "text"
        case "active":
            return str(s.active or ""), "run"
        case "reward":
            return reward(run), "text"
        case "failed":
            return _share(s.errors, s.done), "error" if s.errors else "faint"
        case "declined":
            return str(s.declined or ""), "warn"
        case "tokens":
            return timefmt.count(s.prompt_tokens + s.completion_tokens or None), "dim"
        case "cost":
            return timefmt.money(s.cost), "dim"
        case "left":
            return time_left(run, now), "dim"
        case "unconfirmed":
            return str(run.unconfirmed or ""), "alarm" if not run.live else "warn"
    return _when(s.started or run.changed, now), "dim"


def _unconfirmed(run: RunSummary) -> Line:
    left = run.unconfirmed
    if not left:
        return (("0", "ok"),)
    tail = " may still exist: the engine died with them" if run.status == "died" else ""
    return ((str(left), "alarm"), (tail, "warn"))


def reward(run: RunSummary) -> str:
    """`0.612 ± 0.031`, or blank."""
    s = run.standing
    if s.reward is None:
        return ""
    tail = f" {glyphs.current().pm} {s.reward_error:.3f}" if s.reward_error is not None else ""
    return f"{s.reward:.3f}{tail}"


def _counts(s: Standing) -> str:
    """`12 of 40 done, 4 active, 1 failed, 1 declined`: those that declined are no failures."""
    declined = f", {s.declined} declined" if s.declined else ""
    return f"{s.done} of {s.total} done, {s.active} active, {s.errors} failed{declined}"


def _share(n: int, of: int) -> str:
    return f"{100 * n / of:.0f} %" if n and of else ""


def time_left(run: RunSummary, now: float) -> str:
    """How long it may still take, as a range; blank when that can't be told."""
    s = run.standing
    left = s.total - s.done
    if not run.live or s.started is None or s.done < 3 or left <= 0 or s.paused:
        return ""
    each = max(0.0, now - s.started) / s.done
    doubt = min(0.5, s.done**-0.5)
    low, high = (timefmt.span(left * each * factor) for factor in (1 - doubt, 1 + doubt))
    return low if low == high else f"{low}{glyphs.current().dash}{high}"


def _when(t: float, now: float) -> str:
    if not t:
        return ""
    same_day = time.localtime(t)[:3] == time.localtime(now)[:3]
    return time.strftime("%H:%M" if same_day else "%d %b %H:%M", time.localtime(t))


def run_sections(run: RunSummary, now: float) -> list[Section]:
    """What is known of a run."""
    s = run.standing
    rows: list[tuple[str, str | Line]] = [
        ("state", ((run.status, STATUS_STYLES.get(run.status, "text")), (_engine(run), "dim"))),
        ("run", run.id),
        ("directory", str(run.dir)),
        ("environment", run.taskset or "?"),
        ("harness", run.harness or "?"),
        ("model", run.model or "?"),
        ("runtime", run.runtime or "?"),
    ]
    if run.known:
        rows += [
            ("rollouts", _counts(s)),
            ("reward", f"{reward(run) or 'none yet'} ({s.scored} scored)"),
            ("tokens", f"{timefmt.count(s.prompt_tokens)} in, {timefmt.count(s.completion_tokens)} out"),
            ("unconfirmed", _unconfirmed(run)),
        ]
    if run.producer != "vf-tui":
        rows.append(("written by", run.producer))
    if left := time_left(run, now):
        rows.append(("time left", left))
    if s.paused and run.live:
        rows.append(("launching", (("paused", "warn"),)))
    return [Section(cell(run.name, 80) or run.id, rows)]


def _engine(run: RunSummary) -> str:
    who = f"  pid {run.pid} on {cell(run.host, 40)}" if run.pid else ""
    words = {"live": "", "dead": ", gone", "elsewhere": ", not on this machine", "ended": ", ended"}
    return f"{who}{words[run.liveness]}" if who else ""
