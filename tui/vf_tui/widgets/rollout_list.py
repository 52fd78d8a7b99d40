"""The list of rollouts: virtual, so that ten thousand rows cost no more than those in sight."""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import ClassVar

from textual import events
from textual.binding import Binding, BindingType
from textual.message import Message

from vf_core.events.state import RunState
from vf_tui.attention import STALL_SECONDS
from vf_tui.render import row as rows
from vf_tui.render import status
from vf_tui.render.line import EMPTY, Line, clip, on
from vf_tui.safe_text import cell
from vf_tui.widgets.paint import LineView

TITLES_FROM = 60


@dataclass(frozen=True, slots=True)
class Heading:
    """A row that heads a group. (Anything with a `text` will do.)"""

    text: str


class RolloutList(LineView):
    """Rollouts in the order given. The cursor sits on a rollout's id, never on a position.

    When the rollout under the cursor leaves the list, the cursor goes to the nearest one that was below it,
    else above, and `Highlighted` says so.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "cursor(-1)", "Up", show=False, id="list.up"),
        Binding("down,j", "cursor(1)", "Down", show=False, id="list.down"),
        Binding("pageup", "page(-1)", "Page up", show=False, id="list.page_up"),
        Binding("pagedown", "page(1)", "Page down", show=False, id="list.page_down"),
        Binding("home,g", "edge(-1)", "First", show=False, id="list.first"),
        Binding("end,G", "edge(1)", "Last", show=False, id="list.last"),
        Binding("enter", "open", "Open", show=False, id="list.open"),
    ]

    @dataclass
    class Highlighted(Message):
        """The cursor is on another rollout (None: on none)."""

        id: str | None
        source: RolloutList

        @property
        def control(self) -> RolloutList:
            """The widget it comes from, for `@on` selectors."""
            return self.source

    @dataclass
    class Opened(Message):
        """The user wants to look into a rollout."""

        id: str
        source: RolloutList

        @property
        def control(self) -> RolloutList:
            """The widget it comes from, for `@on` selectors."""
            return self.source

    @dataclass
    class Marked(Message):
        """The user toggles the mark of a rollout (a click on the mark's column)."""

        id: str
        source: RolloutList

        @property
        def control(self) -> RolloutList:
            """The widget it comes from, for `@on` selectors."""
            return self.source

    def __init__(self, *, id: str | None = None, classes: str | None = None) -> None:
        super().__init__(id=id, classes=classes)
        self.stall_seconds = STALL_SECONDS
        self.cursor_id: str | None = None
        self.empty_text = "no rollouts"
        self._state = RunState()
        self._order: Sequence[object] = ()
        self._index: dict[str, int] = {}
        self._marks: AbstractSet[str] = frozenset()
        self._now = 0.0
        self._cache: dict[str, tuple[tuple[object, ...], Line]] = {}

    # -- data down

    def show(
        self,
        state: RunState,
        order: Sequence[object],
        *,
        marks: AbstractSet[str] = frozenset(),
        changed: AbstractSet[str] | None = None,
        now: float,
    ) -> None:
        """Show `order` (rollout ids, and headings) of `state`. `order` is not copied: give a new one when it
        changes. `changed` is a hint (None: anything); rows are told apart by their revision."""
        self._state, self._marks, self._now = state, marks, now
        if order is not self._order:
            self._reorder(order)
        self.update_lines()

    def _reorder(self, order: Sequence[object]) -> None:
        before, at = self._order, self._index.get(self.cursor_id or "", -1)
        offset = at - self.scroll_offset.y
        self._order = order
        self._index = {item: i for i, item in enumerate(order) if isinstance(item, str)}
        self.set_rows(len(order))
        if self.cursor_id in self._index:
            # What the eye rests on stays on its line when rows above come or go; but the top stays the top:
            # what needs attention appears there.
            now_at = self._index[self.cursor_id]
            if at >= 0 and now_at != at and 0 <= offset < self.window and self.scroll_offset.y:
                self.jump(max(0, now_at - offset))
            return
        self._set_cursor(self._neighbour(before, at))

    def _neighbour(self, before: Sequence[object], at: int) -> str | None:
        """The rollout nearest to where the cursor was that is still here: below first, then above."""
        if at >= 0:
            for item in (*before[at + 1 : at + 200], *reversed(before[max(0, at - 200) : at])):
                if isinstance(item, str) and item in self._index:
                    return item
        return next(iter(self._index), None)

    # -- the cursor

    def move_to(self, id: str | None) -> bool:
        """Put the cursor on rollout `id` and show it; False when it is not in the list."""
        if id is None or id not in self._index:
            return False
        self._set_cursor(id)
        self.reveal(self._index[id], margin=1)
        return True

    def _set_cursor(self, id: str | None) -> None:
        if id == self.cursor_id:
            return
        self.cursor_id = id
        self.post_message(self.Highlighted(id, self))
        self.update_lines()

    def _step(self, start: int, step: int) -> str | None:
        """The first rollout from row `start` in direction `step`."""
        i = start
        while 0 <= i < len(self._order):
            item = self._order[i]
            if isinstance(item, str):
                return item
            i += step
        return None

    def action_cursor(self, step: int) -> None:
        """Move by one rollout; from out of sight, to the first or last in sight."""
        at = self._index.get(self.cursor_id or "", -1) + step
        top = self.scroll_offset.y
        if not top - 1 <= at <= top + self.window:
            at = top if step > 0 else top + self.window - 1
        self.move_to(self._step(min(at, len(self._order) - 1), step))

    def action_page(self, step: int) -> None:
        """Move by a window."""
        size = max(1, self.window - 1)
        at = self._index.get(self.cursor_id or "", 0) + step * size
        at = min(max(at, 0), len(self._order) - 1)
        self.move_to(self._step(at, step) or self._step(at, -step))

    def action_edge(self, step: int) -> None:
        """Move to the first or last rollout."""
        if step < 0:
            self.move_to(self._step(0, 1))
            self.jump(0)
        else:
            self.move_to(self._step(len(self._order) - 1, -1))

    def action_open(self) -> None:
        """Ask for the rollout under the cursor to be opened."""
        if self.cursor_id is not None and self.cursor_id in self._index:
            self.post_message(self.Opened(self.cursor_id, self))

    def on_click(self, event: events.Click) -> None:
        """A click moves the cursor, one on the mark's column marks, a double click opens."""
        row = self.row_at(event.y)
        item = self._order[row] if 0 <= row < len(self._order) else None
        if not isinstance(item, str):
            return
        self.focus()
        self._set_cursor(item)
        if event.chain == 2:
            self.action_open()
        elif event.x < rows.MARGIN:
            self.post_message(self.Marked(item, self))

    def on_focus(self) -> None:
        """The cursor's row shows where keys go."""
        self.update_lines()

    def on_blur(self) -> None:
        """See `on_focus`."""
        self.update_lines()

    # -- lines

    def heads(self) -> Sequence[Line]:
        """Column titles, where there is room for columns."""
        if self.area.width < TITLES_FROM or self.area.height < 8:
            return ()
        return (rows.titles(self.area.width),)

    def resized(self) -> None:
        """Keep the cursor in sight."""
        self._cache.clear()
        self.set_rows(len(self._order))
        if self.cursor_id in self._index:
            self.reveal(self._index[self.cursor_id])

    def view_rows(self) -> list[Line]:
        """See `LineView`; an empty list says why it is."""
        out = super().view_rows()
        if not self._order and out:
            out[0] = clip([("  ", ""), (cell(self.empty_text), "faint")], self.area.width)
        return out

    def line_at(self, row: int) -> Line:
        """See `LineView`."""
        width = self.area.width
        item = self._order[row] if 0 <= row < len(self._order) else None
        if not isinstance(item, str):
            return EMPTY if item is None else rows.heading(str(getattr(item, "text", item)), width)
        view = self._state.rollouts.get(item)
        if view is None:
            return clip([("  ", ""), (cell(item), "faint")], width)
        cursor = item == self.cursor_id
        marked = item in self._marks
        second = int(self._now) if status.ticking(view) else 0
        key = (view, view.revision, second, width, cursor and (2 if self.has_focus else 1), marked)
        got = self._cache.get(item)
        if got is not None and got[0] == key:
            return got[1]
        line = rows.rollout_row(
            view, width, self._now, marked=marked, cursor=cursor, stall=self.stall_seconds
        )
        if cursor:
            line = on(line, "cursor" if self.has_focus else "blur")
        if len(self._cache) > 4 * max(64, self.area.height):
            self._cache.clear()
        self._cache[item] = (key, line)
        return line
