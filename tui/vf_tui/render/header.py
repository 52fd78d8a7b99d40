"""The run in one to three lines: how far, how good, how dear, how long still, and what is in the way."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from vf_core.events.state import RolloutView, RunState, SandboxView
from vf_core.runtimes.lifecycle import State
from vf_tui import glyphs
from vf_tui.attention import STALL_SECONDS, only_asked
from vf_tui.render import status, timefmt
from vf_tui.render.line import Line, Segment, clip, cut, line_width, split, squeeze, width
from vf_tui.safe_text import cell

_GOING = (State.STOPPING, State.SENT, State.CHECKING)
_DOUBT = (State.SURVIVED, State.UNKNOWN)
_WORKING = (State.STARTING, State.LIVE)
_BAR = 10
_SENTENCE = 24
"""Cells below which what is left of a sentence says nothing."""


@dataclass(frozen=True, slots=True)
class Survey:
    """What takes a walk over the run's rollouts to know (once a second is often enough).

    `waits`: how many active rollouts do what (boot, model, tool, scoring, …). `stopping` sandboxes are being
    torn down, the oldest since `oldest`; `unconfirmed` were asked to go and could not be proven gone. `unscored` are
    those of the errors that came when the agent was done.
    """

    waits: tuple[tuple[str, int], ...] = ()
    stopping: int = 0
    oldest: float | None = None
    unconfirmed: int = 0
    stalled: int = 0
    unscored: int = 0


def survey(state: RunState, now: float, stall: float = STALL_SECONDS) -> Survey:
    """Walk over `state` once."""
    waits: Counter[str] = Counter()
    stalled = 0
    if state.totals.active and not state.unattended:
        for view in state.rollouts.values():
            if view.status == "active":
                waits[_wait(view)] += 1
                if stall and now - view.last_progress >= stall:
                    stalled += 1
    stopping = doubt = 0
    oldest: float | None = None
    for box in state.sandboxes.values():
        if box.state.settled or (box.state in _WORKING and not state.unattended):
            continue
        asked = only_asked(box, now)
        if box.state in _GOING and not asked and not state.unattended:
            stopping += 1
            since = going_since(box)
            oldest = since if oldest is None else min(oldest, since)
        elif box.name in state.unconfirmed and (box.state in _DOUBT or asked or state.unattended):
            doubt += 1
    unscored = sum(map(status.unscored, state.rollouts.values())) if state.totals.error else 0
    return Survey(tuple(waits.most_common(4)), stopping, oldest, doubt, stalled, unscored)


def going_since(box: SandboxView) -> float:
    """When the teardown that `box` is in began."""
    since = box.since
    for state, t, _ in reversed(box.history):
        if state not in _GOING:
            break
        since = t
    return since


def _wait(view: RolloutView) -> str:
    if view.model_since is not None:
        return "model"
    if view.phase == "running":
        return "tool" if status.running_tool(view) is not None else "program"
    return "tool servers" if view.phase == "tools" else view.phase or "boot"


def eta(state: RunState, now: float) -> tuple[float, float] | None:
    """Seconds left, as a range; None with fewer than three results, or when nothing moves or is left.

    The rate of results so far, give or take the square root of their number.
    """
    done = state.totals.ended
    left = state.total - done
    if state.started is None or done < 3 or left <= 0 or state.over or state.paused:
        return None
    each = max(0.0, now - state.started - state.idle) / done
    doubt = min(0.5, 1 / done**0.5)
    return left * each * (1 - doubt), left * each * (1 + doubt)


def eta_words(state: RunState, now: float) -> str:
    """`ETA 4–7 m`, or blank."""
    got = eta(state, now)
    if got is None:
        return ""
    low, high = (timefmt.span(value) for value in got)
    dash = glyphs.current().dash
    if low == high:
        return f"ETA {high}"
    if low.count(" ") == 1 and low.split()[1:] == high.split()[1:]:
        low = low.split()[0]
    return f"ETA {low}{dash}{high}"


def bar(state: RunState, cells: int) -> Line:
    """Done, active and left in exactly `cells` cells; errors are part of done, at its end."""
    g = glyphs.current()
    t = state.totals
    total = max(state.total, t.ended + t.active + t.queued, 1)
    bad = t.error
    steps = (t.ended - bad, t.ended, t.ended + t.active)
    good, done, active = (min(cells, round(cells * value / total)) for value in steps)
    if steps[-1] >= total:
        active = cells
    parts = (
        (g.bar_done * good, "bar_done"),
        (g.bar_done * (done - good), "bar_bad"),
        (g.bar_active * (active - done), "bar_active"),
        (g.bar_left * (cells - active), "bar_left"),
    )
    return tuple(part for part in parts if part[0])


def state_words(state: RunState, now: float) -> tuple[str, str]:
    """The run's status in words, and the style."""
    if state.unattended:
        style = {"completed": "ok", "stopped": "dim"}.get(state.status, "error")
        return cell(state.status, 20), style
    if state.status == "stopping":
        return "stopping", "warn"
    if state.paused:
        return "paused", "warn"
    return cell(state.status, 20), "accent" if state.status == "running" else "dim"


def _elapsed(state: RunState, now: float) -> str:
    if state.started is None:
        return ""
    end = state.finished if state.finished is not None else now
    return timefmt.clock(max(0.0, end - state.started - state.idle))


def _join(parts: Iterable[Sequence[Segment]], room: int, gap: str = "   ") -> list[Segment]:
    """`parts` side by side: whole ones, the first first, as far as `room` goes. Too long a sentence is cut."""
    out: list[Segment] = []
    for whole in parts:
        part = whole
        between = len(gap) if out else 0
        if part and line_width(part) + between > room >= between + _SENTENCE and len(part) == 1:
            part = [(cut(squeeze(part[0][0], room - between), room - between), part[0][1])]
        if part and (need := line_width(part) + between) <= room:
            out += [(gap, ""), *part] if out else list(part)
            room -= need
    return out


def _reward(state: RunState) -> Line:
    mean = state.reward_mean
    if mean is None:
        return ()
    error = state.reward_error
    pm = glyphs.current().pm
    tail: Line = ((f" {pm} {error:.3f}", "dim"),) if error is not None else ()
    return (("reward ", "dim"), (f"{mean:.3f}", "strong"), *tail)


def _money(state: RunState) -> Line:
    t = state.totals
    g = glyphs.current()
    fed = t.prompt_tokens + t.cached_tokens
    if not fed and not t.completion_tokens:
        return ((timefmt.money(t.cost), "text"),) if t.cost is not None else ()
    out: list[Segment] = [
        (timefmt.count(fed), "text"), (f"{g.up} ", "dim"), (timefmt.count(t.completion_tokens), "text"),
        (f"{g.down} tok", "dim"),
    ]  # fmt: skip
    if t.cost is not None:
        out += [("  ", ""), (timefmt.money(t.cost), "text")]
    return tuple(out)


def _counts(state: RunState, unscored: int) -> list[Line]:
    t = state.totals
    left = max(state.total, t.ended) - t.ended - t.active
    out: list[Line] = [((f"{t.ended}", "strong"), (f"/{max(state.total, t.ended)} done", "dim"))]
    if t.active:
        out.append(((f"{t.active}", "text"), (" active", "dim")))
    if t.error > unscored:
        out.append(((f"{t.error - unscored} failed", "error"),))
    if unscored:
        out.append(((f"{unscored} unscored", "error"),))
    if t.declined:
        out.append(((f"{t.declined} declined", "warn"),))
    if t.stopped:
        out.append(((f"{t.stopped} stopped", "dim"),))
    if left > 0:
        out.append(((f"{left}", "text"), (" left", "dim")))
    return out


def trouble(state: RunState, found: Survey, now: float) -> list[Line]:
    """Facts that want attention, the gravest first."""
    g = glyphs.current()
    out: list[Line] = []
    if found.unconfirmed:
        out.append(((f" {found.unconfirmed} unconfirmed ", "alarm"),))
    if found.stalled:
        out.append(((f"{found.stalled} stalled", "warn"),))
    if found.stopping:
        age = timefmt.span(now - found.oldest) if found.oldest is not None else ""
        out.append(((f"stopping {found.stopping} {g.dot} oldest {age}", "warn"),))
    if state.paused and not state.over:
        why = cell(state.pause_reason, 60)
        out.append(((f"launching paused{': ' + why if why else ''}", "warn"),))
    if state.status == "stopping" and state.stop_reason:
        out.append(((f"stopping: {cell(state.stop_reason, 60)}", "warn"),))
    if state.over and state.message and state.status != "completed":
        out.append(((cell(state.message, 160), "error" if state.status == "failed" else "dim"),))
    return out


def header(
    state: RunState, found: Survey, cells: int, height: int, now: float, *, note: str = ""
) -> list[Line]:
    """The header in exactly `height` (1 to 3) lines of `cells` cells."""
    if height <= 1:
        return [_short(state, found, cells, now, note)]
    notes: list[Line] = [((cell(note, 200), "accent"),)] if note else []
    third = [*notes, *trouble(state, found, now), *_waits(found, state), *_aside(state)]
    facts = [_reward(state), _money(state)] if height > 2 else [*third[:1], _reward(state)]
    right = [*_join(facts, cells * 3 // 5), (" ", "")]
    time_left = eta_words(state, now)
    # The bar gives way to the counts, down to what still is one.
    room, counts = cells - len(time_left) - 5, _counts(state, found.unscored)
    bar_cells = max(_BAR, min(cells * 2 // 5, 60))
    need = sum(line_width(count) + 2 for count in counts)
    bar_cells = max(_BAR, min(bar_cells, room - need))
    out = [
        split(_title(state, now, cells - line_width(right) - 1), right, cells),
        split(
            [(" ", ""), *bar(state, bar_cells), ("  ", ""), *_join(counts, room - bar_cells, "  ")],
            [(f"{time_left} ", "dim")],
            cells,
        ),
    ]
    if height > 2:
        out.append(clip([(" ", ""), *_join(third, cells - 2)], cells))
    return out


def _title(state: RunState, now: float, room: int) -> list[Segment]:
    """Name, id and status; the status stays whole."""
    words, style = state_words(state, now)
    status_part: list[Segment] = [(words, style), (f" {_elapsed(state, now)}", "dim")]
    room -= line_width(status_part) + 3
    name = cut(cell(state.name, 80) or "run", room)
    out: list[Segment] = [(" ", ""), (name, "title"), ("  ", "")]
    run = cell(state.run, 8)
    if run and width(name) + len(run) + 2 <= room:
        out += [(run, "faint"), ("  ", "")]
    return [*out, *status_part]


def _waits(found: Survey, state: RunState) -> list[Line]:
    """How many rollouts do what, the most first."""
    if state.over:
        return []
    return [((f"{cell(name, 20)} ", "faint"), (str(n), "dim")) for name, n in found.waits]


def _aside(state: RunState) -> list[Line]:
    """What is none of the run's own counts: what stood before a resume, what that replaced, what judges used."""
    out: list[Line] = []
    if state.kept or state.totals.redone_tokens:
        redone = state.totals.redone_tokens
        again = f" (replaced: {timefmt.count(redone)} tok)" if redone else ""
        out.append((("resumed, ", "faint"), (f"kept {state.kept:,}", "dim"), (again, "faint")))
    if judges := status.judged(state.totals):
        out.append((("judges ", "faint"), (judges, "dim")))
    return out


def _short(state: RunState, found: Survey, cells: int, now: float, note: str) -> Line:
    """One line for a narrow screen: bar, counts, and the gravest fact or the reward."""
    t = state.totals
    words, style = state_words(state, now)
    total = max(state.total, t.ended)
    left: list[Segment] = [*bar(state, max(6, cells // 5)), (" ", ""), (f"{t.ended}/{total}", "strong")]
    problems = trouble(state, found, now)
    if note:
        left += [(" ", ""), (cell(note, 100), "accent")]
    elif problems:
        left += [(" ", ""), *problems[0]]
    elif state.status == "running" and not state.paused:
        left += [(f" {t.active} active", "dim")]
    elif t.error and state.status == "completed":
        apart = t.error - found.unscored
        what = "unscored" if not apart else "failed" if not found.unscored else "errors"
        left += [(" ", ""), (f"{t.error} {what}", "error")]
    else:
        left += [(" ", ""), (words, style)]
    mean = state.reward_mean
    right: list[Segment] = []
    if mean is not None:
        right = [(f"{mean:.2f}", "strong"), (" ", "")]
    right.append((_elapsed(state, now), "dim"))
    if line_width(left) + line_width(right) >= cells:
        right = right[-1:]
    return split(left, right, cells)
