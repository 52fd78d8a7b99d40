"""Every sandbox of the open run, those that may still cost money first."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from typing import ClassVar

from textual.timer import Timer
from textual.widget import Widget

from vf_core.events.state import RolloutView, RunState, SandboxView
from vf_core.runtimes.lifecycle import State
from vf_tui import actions
from vf_tui.render import status, timefmt
from vf_tui.render.line import Line, Segment, clip, fit
from vf_tui.safe_text import cell
from vf_tui.screens.banner import Banner
from vf_tui.screens.base import BaseScreen
from vf_tui.screens.rows import Rows
from vf_tui.widgets.run_header import RunHeader

PACE = 0.5
"""Seconds between two looks at all sandboxes."""

_ORDER = {
    state: n
    for n, state in enumerate(
        (State.SURVIVED, State.UNKNOWN, State.FAILED, State.CHECKING, State.SENT, State.STOPPING, State.STARTING,
         State.LIVE, State.NEW, State.GONE)
    )
}  # fmt: skip


class SandboxesScreen(BaseScreen):
    """A line a sandbox: what it is, whose, its teardown word, and the proof."""

    SCOPE: ClassVar[str] = actions.SANDBOXES

    def __init__(self) -> None:
        super().__init__()
        self._drawn = float("-inf")
        self._later: Timer | None = None

    def body(self) -> Iterable[Widget]:
        """Header, banner, rows."""
        yield RunHeader(id="header")
        yield Banner(id="banner")
        yield Banner("head", id="count")
        yield Rows(id="rows")

    def on_mount(self) -> None:
        """The rows have the keys."""
        super().on_mount()
        self.rows.focus()

    @property
    def rows(self) -> Rows:
        """The rows."""
        return self.query_one("#rows", Rows)

    def flush(self, changed: AbstractSet[str] | None, now: float) -> None:
        """See `BaseScreen`."""
        state = self.tui.state
        self.tui.watch_rollouts(set())
        if changed is not None and abs(now - self._drawn) < PACE:
            # A long run has thousands; its last state is drawn when the pace allows.
            if self._later is None:
                self._later = self.set_timer(PACE, self.refresh_all)
            return
        self._drawn, self._later = now, None
        self.query_one("#header", RunHeader).show(state, now, self.tui.remark())
        self.query_one("#banner", Banner).show(self.tui.alarm())
        boxes = sorted(state.sandboxes.values(), key=lambda box: (_ORDER[box.state], -box.since))
        left = [box for box in boxes if not box.state.settled]
        doubt = sum(1 for box in left if box.name in state.unconfirmed)
        count = f"{len(boxes)} sandbox{'es' * (len(boxes) != 1)}, {len(left) - doubt} at work, {doubt} unconfirmed"
        self.query_one("#count", Banner).show(count)
        self.rows.empty_text = "this run has made no sandbox yet"
        self.rows.show(
            [(box.name, _stamp(box, now)) for box in boxes], lambda n, cells: _row(boxes[n], cells, now)
        )

    def box(self) -> SandboxView | None:
        """The sandbox under the cursor."""
        return self.tui.state.sandboxes.get(self.rows.cursor or "")

    def targets(self) -> list[RolloutView]:
        """The rollout whose sandbox is under the cursor."""
        box = self.box()
        r = _owner(self.tui.state, box) if box is not None else None
        return [r] if r is not None else []

    def copy_text(self) -> str:
        """The sandbox's id."""
        box = self.box()
        return (box.id or box.name) if box is not None else ""

    def on_rows_opened(self, event: Rows.Opened) -> None:
        """Look at the rollout."""
        self.do_rollout_open()

    def on_rows_highlighted(self, event: Rows.Highlighted) -> None:
        """Another sandbox."""
        self.show_keys()

    def do_rollout_open(self) -> None:
        """Look at the sandbox in the focus screen."""
        for r in self.targets():
            self.tui.focus_on(r.id, "sandbox")


def _owner(state: RunState, box: SandboxView) -> RolloutView | None:
    return state.rollouts.get(box.rollout)


def _stamp(box: SandboxView, now: float) -> tuple[object, ...]:
    """What a row rests on: it is drawn again when this changes."""
    return (box.state, box.since, box.id, box.proof, box.detail, 0 if box.state.settled else int(now))


def _row(box: SandboxView, cells: int, now: float) -> Sequence[Segment] | Line:
    word, style = status.teardown_words(box)
    age = "" if box.state.settled else timefmt.span(now - box.since)
    out: list[Segment] = [(fit(word, 9), style), (" ", ""), (fit(age, 9), "dim"), (" ", "")]
    whose = f"{cell(box.rollout, 30)} #{box.attempt}" if box.rollout else "shared"
    out += [(fit(whose, 13), "text"), (" ", "")]
    out += [(fit(cell(box.kind, 20), 10), "dim"), (" ", "")]
    if cells >= 70:
        out += [(fit(cell(box.id, 60) or "no id yet", 16 if cells < 110 else 31), "text"), (" ", "")]
    if box.serves:
        out += [("tools ", "dim"), (cell(box.serves, 20), "tool"), (" ", "")]
    out.append((cell(box.proof or box.detail, 300), "gone" if box.proof else "warn"))
    return clip(out, cells)
