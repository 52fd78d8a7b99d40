"""The live pane grid: a pane a sandbox, in fixed slots that do not move while they are shown."""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import ClassVar

from textual import events
from textual.binding import Binding, BindingType
from textual.message import Message
from textual.timer import Timer

from vf_core.events.state import RolloutView, RunState
from vf_tui.attention import STALL_SECONDS
from vf_tui.render import pane, status
from vf_tui.render.line import Line
from vf_tui.widgets.paint import LineView

GAP = 1
PACE = 0.2
SLOW_PACE = 0.5


@dataclass(frozen=True, slots=True)
class _Drawn:
    """A pane as it was drawn at `t`, and what that rested on."""

    view: RolloutView
    place: tuple[object, ...]
    stamp: tuple[int, int]
    t: float
    lines: list[Line]


class PaneGrid(LineView):
    """Panes in rows of as many as fit. More slots than fit are scrolled by whole pages.

    `pace`: seconds between two drawings of a pane whose rollout changes all the time.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("left", "step(-1, 0)", "Left", show=False, id="grid.left"),
        Binding("right", "step(1, 0)", "Right", show=False, id="grid.right"),
        Binding("up,k", "step(0, -1)", "Up", show=False, id="grid.up"),
        Binding("down,j", "step(0, 1)", "Down", show=False, id="grid.down"),
        Binding("pageup", "page(-1)", "Page up", show=False, id="grid.page_up"),
        Binding("pagedown", "page(1)", "Page down", show=False, id="grid.page_down"),
        Binding("enter", "open", "Open", show=False, id="grid.open"),
    ]

    @dataclass
    class Highlighted(Message):
        """The user moved to another pane."""

        id: str
        source: PaneGrid

        @property
        def control(self) -> PaneGrid:
            """The widget it comes from, for `@on` selectors."""
            return self.source

    @dataclass
    class Opened(Message):
        """The user wants to look into a rollout."""

        id: str
        source: PaneGrid

        @property
        def control(self) -> PaneGrid:
            """The widget it comes from, for `@on` selectors."""
            return self.source

    def __init__(self, *, id: str | None = None, classes: str | None = None) -> None:
        super().__init__(id=id, classes=classes)
        self.stall_seconds = STALL_SECONDS
        self.zoomed = False
        self.pace = PACE
        self.focus_id: str | None = None
        self.empty_text = "nothing is running"
        self._state = RunState()
        self._slots: Sequence[str | None] = ()
        self._now = 0.0
        self._cache: dict[int, _Drawn] = {}
        self._later: Timer | None = None
        self._columns, self._rows = 1, 1
        self._sizes: list[int] = [1]
        self._heights: list[int] = [1]

    # -- data down

    def show(
        self,
        state: RunState,
        slots: Sequence[str | None],
        focus_id: str | None = None,
        changed: AbstractSet[str] | None = None,
        now: float = 0.0,
    ) -> None:
        """Show the rollouts of `slots` (None: an empty slot), with `focus_id`'s frame lit.

        Slot n stays where it is: give the same id in the same slot for as long as it should not move.
        """
        moved = focus_id != self.focus_id
        self._state, self._slots, self._now, self.focus_id = state, slots, now, focus_id
        self._arrange()
        if moved and focus_id is not None:
            self._reveal_focus()
        self.update_lines()

    def capacity(self) -> int:
        """How many panes the window shows at once."""
        return self._columns * self._rows

    def visible_ids(self) -> list[str]:
        """The rollouts whose panes are in sight: those worth live text."""
        if self.zoomed:
            return [self.focus_id] if self.focus_id is not None else []
        first = self._first_slot()
        shown = self._slots[first : first + self.capacity()]
        return [id for id in shown if id is not None]

    def zoom(self, on: bool) -> None:
        """One pane fills the grid, or all share it."""
        if on != self.zoomed:
            self.zoomed = on
            self._cache.clear()
            self._arrange()
            self._reveal_focus()
            self.update_lines()

    # -- geometry

    def _arrange(self) -> None:
        width, height = self.area.width, self.area.height
        if width <= 0 or height <= 0:
            return
        wanted = max(1, len(self._slots))
        columns = max(1, (width + GAP) // (pane.MIN_WIDTH + GAP))
        rows = max(1, height // pane.MIN_HEIGHT)
        if self.zoomed:
            columns = rows = wanted = 1
        columns = min(columns, wanted)
        needed = -(-wanted // columns)
        rows = min(rows, needed)
        self._columns, self._rows = columns, rows
        self._sizes = _share(width - GAP * (columns - 1), columns)
        self._heights = _share(height, rows)
        pages = -(-needed // rows)
        self.set_rows(height * pages)

    def _first_slot(self) -> int:
        page = self.scroll_offset.y // max(1, self.area.height)
        return page * self.capacity()

    def _reveal_focus(self) -> None:
        if self.focus_id is None or self.zoomed:
            return
        try:
            at = list(self._slots).index(self.focus_id)
        except ValueError:
            return
        page = at // self.capacity()
        target = page * self.area.height
        if self.scroll_offset.y != target:
            self.jump(target)

    def resized(self) -> None:
        """Arrange anew."""
        self._cache.clear()
        self._arrange()
        self._reveal_focus()

    # -- lines

    def view_rows(self) -> list[Line]:
        """See `LineView`: all panes of the page, side by side."""
        out: list[Line] = []
        first = self._first_slot()
        for r in range(self._rows):
            height = self._heights[r]
            blocks = [
                self._block(first + r * self._columns + c, self._sizes[c], height)
                for c in range(self._columns)
            ]
            gap: Line = ((" " * GAP, ""),)
            for y in range(height):
                line: list[tuple[str, str]] = []
                for c, block in enumerate(blocks):
                    if c:
                        line += gap
                    line += block[y]
                out.append(tuple(line))
        return out

    def _block(self, slot: int, width: int, height: int) -> list[Line]:
        id = self.focus_id if self.zoomed else self._slots[slot] if slot < len(self._slots) else None
        view = self._state.rollouts.get(id) if id is not None else None
        if view is None:
            note = self.empty_text if slot == 0 and not any(self._slots) else ""
            return pane.empty(width, height, note)
        focused = id == self.focus_id
        place = (width, height, focused, self.stall_seconds)
        stamp = (view.revision, int(self._now) if status.ticking(view) else 0)
        got = self._cache.get(slot)
        if got is not None and got.view is view and got.place == place:
            if got.stamp == stamp:
                return got.lines
            if view.status == "active" and 0 <= self._now - got.t < self.pace:
                self._draw_later()
                return got.lines
        lines = pane.pane(view, width, height, self._now, focused=focused, stall=self.stall_seconds)
        self._cache[slot] = _Drawn(view, place, stamp, self._now, lines)
        return lines

    def _draw_later(self) -> None:
        """A pane that changes faster than can be read is drawn `pace` apart; its last state is never missed."""
        if self._later is None:
            self._later = self.set_timer(self.pace, self._draw_now)

    def _draw_now(self) -> None:
        self._later = None
        self._now += self.pace
        self.update_lines()

    # -- acts

    def _at(self) -> int:
        try:
            return list(self._slots).index(self.focus_id)
        except ValueError:
            return -1

    def _go(self, slot: int) -> None:
        if 0 <= slot < len(self._slots) and (id := self._slots[slot]) is not None:
            self.focus_id = id
            self._reveal_focus()
            self.update_lines()
            self.post_message(self.Highlighted(id, self))

    def action_step(self, dx: int, dy: int) -> None:
        """Move to the next pane that holds something, in a direction."""
        by = dx + dy * self._columns
        slot = self._at() + by
        while 0 <= slot < len(self._slots) and self._slots[slot] is None:
            slot += by
        self._go(slot)

    def action_page(self, step: int) -> None:
        """Move by a page of panes."""
        size = self.capacity()
        page = max(0, self._at()) // size + step
        slots = range(max(0, page * size), min(len(self._slots), (page + 1) * size))
        self._go(next((slot for slot in slots if self._slots[slot] is not None), -1))

    def action_open(self) -> None:
        """Ask for the lit pane's rollout to be opened."""
        if self.focus_id is not None and self.focus_id in self._state.rollouts:
            self.post_message(self.Opened(self.focus_id, self))

    def on_click(self, event: events.Click) -> None:
        """A click lights a pane, a double click opens it."""
        slot = self._slot_at(event.x, event.y)
        if slot is None:
            return
        self.focus()
        self._go(slot)
        if event.chain == 2:
            self.action_open()

    def _slot_at(self, x: int, y: int) -> int | None:
        column = row = 0
        while column < len(self._sizes) and x >= self._sizes[column]:
            x -= self._sizes[column] + GAP
            column += 1
        while row < len(self._heights) and y >= self._heights[row]:
            y -= self._heights[row]
            row += 1
        if column >= self._columns or row >= self._rows or x < 0:
            return None
        return self._first_slot() + row * self._columns + column

    def on_mouse_scroll_down(self, event: events.MouseScrollDown) -> None:
        """The wheel turns pages."""
        event.stop()
        event.prevent_default()
        self._turn(1)

    def on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        """The wheel turns pages."""
        event.stop()
        event.prevent_default()
        self._turn(-1)

    def _turn(self, step: int) -> None:
        height = max(1, self.area.height)
        y = (self.scroll_offset.y // height + step) * height
        self.jump(min(max(0, y), max(0, self.virtual_size.height - height)))


def _share(cells: int, parts: int) -> list[int]:
    """`cells` shared out evenly, the remainder to the first."""
    each, more = divmod(max(cells, parts), parts)
    return [each + (1 if i < more else 0) for i in range(parts)]
