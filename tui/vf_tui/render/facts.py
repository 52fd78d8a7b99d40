"""Facts of a rollout in sections: the sandbox with every state it went through, attempts, phases, scores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from vf_core.events.state import AttemptView, RolloutView, RunState, SandboxView
from vf_core.runtimes.lifecycle import State
from vf_tui.render import status, timefmt
from vf_tui.render.line import Line, Segment, clip, fit, ruled, width, wrap
from vf_tui.safe_text import cell, lines


@dataclass(frozen=True, slots=True)
class Section:
    """A titled block. Rows are (name, value); a value is a text that is not trusted, or a styled line that is
    clean. `lines` come below them as they are."""

    title: str
    rows: Sequence[tuple[str, str | Line]] = ()
    lines: Sequence[Line] = field(default=())


def sandbox_sections(view: RolloutView, state: RunState, now: float, settings: str = "") -> list[Section]:
    """The sandbox tab: provider, id, image, what it is in now and why that is known, when it ends by itself, then
    every state with its proof. `settings`: what the run's config says of all its agents' sandboxes.

    The tool servers follow, then their sandboxes and those of earlier attempts.
    """
    boxes = [box for box in state.sandboxes.values() if box.rollout == view.id or _shared(box, view)]
    boxes.sort(key=lambda box: (-box.attempt if box.rollout else 0, bool(box.serves)))
    several = sum(not box.serves for box in boxes) > 1
    own = view.sandbox
    out: list[Section] = []
    if own is None:
        none = "none yet" if view.status in ("queued", "active") else "none"
        out.append(Section("sandbox", [("state", none)]))
    else:
        out += _sandbox(own, now, several, settings)
    out += tool_sections(view, boxes)
    for box in boxes:
        if box is not own:
            out += _sandbox(box, now, several or box.attempt != view.attempt, "" if box.serves else settings)
    return out


def _shared(box: SandboxView, view: RolloutView) -> bool:
    return not box.rollout and any(s.shared and s.place != "external" for s in view.served.values())


_PLACES = {"host": "on this host", "sandbox": "in the agent's sandbox", "external": "elsewhere"}


def tool_sections(view: RolloutView, boxes: Sequence[SandboxView]) -> list[Section]:
    """The attempt's tool servers: where each is, what its sandbox is in, and its tools; nothing without any."""
    if not view.served:
        return []
    rows: list[tuple[str, str | Line]] = []
    for name, served in view.served.items():
        box = next((b for b in boxes if b.attempt in (0, view.attempt) and _serves(b, name, view)), None)
        word, style = status.teardown_words(box)
        place = (
            f"in a {box.kind} sandbox" if box and box.kind != "subprocess" else _PLACES.get(served.place, "")
        )
        where = f"{place or cell(served.place, 20)}{', shared by all rollouts' if served.shared else ''}"
        state: Line = ((f"{word}  ", style),) if word else ()
        rows.append((name or "(no prefix)", (*state, (where, "text"))))
        more = served.count - len(served.tools)
        tools = ", ".join(cell(tool, 60) for tool in served.tools) + (
            f" and {more:,} more" if more > 0 else ""
        )
        rows.append(("", f"tools: {tools}" if tools else "its tools are not known yet"))
    return [Section("tool servers", rows)]


def _serves(box: SandboxView, name: str, view: RolloutView) -> bool:
    """`box` is the server's; one that has no name is known by being no other's."""
    if view.served[name].place == "external":
        return False
    return box.serves == name if name else bool(box.serves) and box.serves not in view.served


def _sandbox(box: SandboxView, now: float, several: bool, settings: str) -> list[Section]:
    word, style = status.teardown_words(box)
    age = f"  {timefmt.span(now - box.since)}" if not box.state.settled else ""
    rows: list[tuple[str, str | Line]] = [
        ("provider", box.kind),
        ("id", box.id or "not given yet"),
        ("name", box.name),
        ("state", ((word, style), (age, "dim"))),
    ]
    if box.image:
        rows.append(("image", box.image))
    if settings:
        rows.append(("settings", settings))
    if ends := ends_words(box, now):
        rows.append(("lifetime", ends))
    if box.proof:
        rows.append(("proof", box.proof))
    if box.detail:
        rows.append(("detail", box.detail))
    title = f"sandbox of attempt {box.attempt}" if several and box.rollout else "sandbox"
    if box.serves:
        title = (
            f"{title} of tool server {box.serves}"
            if title == "sandbox"
            else f"{title}, tool server {box.serves}"
        )
    return [Section(title, rows), Section("states", lines=[_state(*entry) for entry in box.history])]


def ends_words(box: SandboxView, now: float) -> str:
    """`ends by itself in 23 h 10 m, at 20:44:02`; blank when its provider does not end it, or it is gone."""
    if box.ends is None or box.state is State.GONE:
        return ""
    if box.ends <= now:
        return f"its provider was to end it at {timefmt.at(box.ends)}"
    return f"ends by itself in {timefmt.span(box.ends - now)}, at {timefmt.at(box.ends)}"


def runtime_words(table: Mapping[str, object]) -> str:
    """The runtime table of a run's config in one line: `cpu 2, memory 4 GB, timeout 3600 s`."""
    units = {"memory": " GB", "disk": " GB", "timeout": " s", "idle_timeout": " s", "grace": " s"}
    return ", ".join(
        f"{name} {value}{units.get(name, '')}"
        for name, value in table.items()
        if name not in ("type", "image") and isinstance(value, str | int | float) and value != ""
    )


def _state(state: State, t: float, remark: str) -> Line:
    return (
        (f"{timefmt.at(t)}  ", "faint"),
        (fit(state.word, 10), status.SANDBOX_STYLES[state]),
        (cell(remark, 400), "dim"),
    )


def attempt_sections(view: RolloutView, now: float) -> list[Section]:
    """One section an attempt, the newest first."""
    if not view.attempts:
        return [Section("attempts", [("", "none yet")])]
    return [_attempt(attempt, now) for attempt in reversed(view.attempts)]


def _attempt(a: AttemptView, now: float) -> Section:
    outcome = a.outcome or "running"
    style = status.STATUS_STYLES.get(outcome, "run")
    rows: list[tuple[str, str | Line]] = [
        ("outcome", ((cell(outcome, 40), style),)),
        ("why", a.reason),
        ("started", timefmt.at(a.started)),
        ("took", timefmt.clock(max(0.0, (a.ended if a.ended is not None else now) - a.started))),
    ]
    optional = (
        ("reward", timefmt.reward(a.reward)), ("program", a.exit_meaning), ("stopped by", a.stop_condition),
        ("error", a.error), ("sandbox", a.sandbox), ("trace", a.trace),
    )  # fmt: skip
    rows += [(name, value) for name, value in optional if value]
    return Section(f"attempt {a.number}", rows)


def score_sections(view: RolloutView) -> list[Section]:
    """Rewards, metrics, what judges used, and errors."""
    out: list[Section] = []
    if status.unscored(view):
        # Not a zero: there is no number at all.
        why = ((f"unscored: {cell(view.error_type, 40)}", "error"),)
        out.append(Section("rewards", [("total", why), ("", view.error)]))
    if view.rewards or view.reward is not None:
        rows = [(cell(name, 60), f"{value:.4g}") for name, value in view.rewards.items()]
        total = timefmt.reward(view.reward)
        out.append(Section("rewards", [*rows, ("total", ((total, "strong"),))]))
    if view.metrics:
        out.append(
            Section("metrics", [(cell(name, 60), f"{value:.4g}") for name, value in view.metrics.items()])
        )
    if judges := status.judged(view):
        out.append(Section("judges", [("used", judges)]))
    if errors := status.errors(view):
        out.append(Section("errors", [(timefmt.at(t), f"{kind}: {text}") for t, kind, text in errors]))
    return out


def overview_sections(view: RolloutView, now: float) -> list[Section]:
    """What the list and the pane leave out, and the timeline."""
    exit_text, exit_style = status.exit_words(view)
    word, word_style = status.teardown_words(view.sandbox)
    spent = timefmt.money(view.cost)
    fed = view.prompt_tokens + view.cached_tokens
    counts = f"{timefmt.count(fed)} in ({timefmt.count(view.cached_tokens)} cached), "
    rows: list[tuple[str, str | Line]] = [
        ("rollout", view.id), ("task", f"{view.task} {view.name}".strip()), ("sample", str(view.sample)),
        ("status", ((view.status, status.STATUS_STYLES[view.status]),)),
        ("program", ((exit_text or "not started", exit_style),)),
        ("sandbox", ((word or "none", word_style),)),
        ("turns", str(view.turns)), ("tool calls", str(view.tool_count)),
        ("tokens", counts + f"{timefmt.count(view.completion_tokens)} out"),
    ]  # fmt: skip
    if spent:
        rows.append(("cost", spent))
    if judges := status.judged(view):
        rows.append(("judges", judges))
    if view.stop_condition:
        rows.append(("stopped by", view.stop_condition))
    if view.error:
        rows.append(("error", f"{view.error_type}: {view.error}"))
    return [Section("rollout", rows), Section("phases", lines=phase_table(view, now))]


def phases(view: RolloutView, now: float) -> list[tuple[str, float, float]]:
    """(phase, start, seconds) of the current attempt; the last goes on until the end or now."""
    end = view.ended if view.ended is not None else max(now, view.phase_since)
    out: list[tuple[str, float, float]] = []
    for i, (name, start) in enumerate(view.phases):
        until = view.phases[i + 1][1] if i + 1 < len(view.phases) else max(end, start)
        out.append((name, start, max(0.0, until - start)))
    return out


PHASE_STYLES = {
    "boot": "phase_a", "setup": "phase_b", "install": "phase_a", "tools": "phase_b", "running": "phase_c",
    "finalize": "phase_b", "scoring": "phase_a",
    "teardown": "phase_d",
}  # fmt: skip


def phase_bar(view: RolloutView, cells: int, now: float) -> Line:
    """The phases as one bar of exactly `cells` cells; each has at least one, named where there is room."""
    parts = phases(view, now)
    if not parts or cells < len(parts):
        return clip((), cells)
    total = sum(seconds for _, _, seconds in parts) or 1.0
    room = cells - len(parts)
    sizes = [1 + int(room * seconds / total) for _, _, seconds in parts]
    sizes[max(range(len(parts)), key=lambda i: sizes[i])] += cells - sum(sizes)
    out: list[Segment] = []
    for (name, _, seconds), size in zip(parts, sizes, strict=True):
        label = f" {cell(name, 20)} {timefmt.took(seconds)}"
        if width(label) >= size:
            label = f" {cell(name, 20)}"
        text = label if width(label) < size else ""
        out.append((fit(text, size), PHASE_STYLES.get(name, "phase_a")))
    return tuple(out)


def phase_table(view: RolloutView, now: float) -> list[Line]:
    """A line a phase: when it began and how long it took."""
    return [
        ((f"{timefmt.at(start)}  ", "faint"), (fit(cell(name, 20), 12), "text"),
         (f"{timefmt.took(seconds):>8}", "dim"))
        for name, start, seconds in phases(view, now)
    ]  # fmt: skip


def section_lines(sections: Sequence[Section], cells: int) -> list[Line]:
    """`sections` as lines of `cells` cells: names in one column, long values wrapped under themselves."""
    names = [width(cell(name, 40)) for section in sections for name, _ in section.rows]
    column = min(max(names, default=0), max(6, cells // 3))
    out: list[Line] = []
    for section in sections:
        if out:
            out.append(clip((), cells))
        out.append(_section_title(section.title, cells))
        for name, value in section.rows:
            out += _fact(cell(name, 40), value, column, cells)
        out += [clip([("  ", ""), *line], cells) for line in section.lines]
    return out


def _section_title(title: str, cells: int) -> Line:
    return ruled(cell(title, 60), cells)


def _fact(name: str, value: str | Line, column: int, cells: int) -> list[Line]:
    lead: Line = (("  ", ""), (fit(name, column), "dim"), ("  ", ""))
    room = max(4, cells - column - 5)
    if not isinstance(value, str):
        return [clip([*lead, *value], cells)]
    pieces = [piece for line in lines(value[:20_000])[:200] for piece in wrap(line, room)] or [""]
    blank: Line = (("  ", ""), (" " * column, ""), ("  ", ""))
    return [clip([*(blank if i else lead), (piece, "text")], cells) for i, piece in enumerate(pieces)]
