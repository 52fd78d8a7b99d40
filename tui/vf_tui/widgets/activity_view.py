"""A rollout's tool calls, each a row that opens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from textual import events
from textual.binding import Binding, BindingType

from vf_core.events.state import RolloutView, ToolView
from vf_tui.render import activity
from vf_tui.render.line import EMPTY, Line, clip, on
from vf_tui.render.pane import now_line
from vf_tui.widgets.paint import LineView


class ActivityView(LineView):
    """Newest last. The cursor is on a call, not on a row; at the last one it follows new ones."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "cursor(-1)", "Up", show=False, id="activity.up"),
        Binding("down,j", "cursor(1)", "Down", show=False, id="activity.down"),
        Binding("pageup", "page(-1)", "Page up", show=False, id="activity.page_up"),
        Binding("pagedown", "page(1)", "Page down", show=False, id="activity.page_down"),
        Binding("home,g", "edge(-1)", "First", show=False, id="activity.first"),
        Binding("end,G", "edge(1)", "Last", show=False, id="activity.last"),
        Binding("enter,space", "fold", "Open or close", show=False, id="activity.fold"),
        Binding("plus", "fold_all(True)", "Open all", show=False, id="activity.open_all"),
        Binding("minus", "fold_all(False)", "Close all", show=False, id="activity.close_all"),
    ]

    def __init__(self, *, id: str | None = None, classes: str | None = None) -> None:
        super().__init__(id=id, classes=classes)
        self.following = True
        self._tools: Sequence[ToolView] = ()
        self._view: RolloutView | None = None
        self._note = ""
        self._trouble: list[Line] = []
        self._attempt = 0
        self._now = 0.0
        self._open: set[str] = set()
        self._cursor = -1
        self._rows: list[tuple[int, int]] = []
        self._bodies: dict[str, tuple[tuple[object, ...], list[Line]]] = {}

    def show(self, view: RolloutView, now: float) -> None:
        """Show the calls that `view` keeps, and what it is doing."""
        if self._view is not None and (view.id, view.attempt) != (self._view.id, self._attempt):
            self._open.clear()
            self.following, self._cursor = True, -1
        self._attempt = view.attempt
        self._view = view
        self._note = activity.unknown_before(view.tool_count, view.tools)
        self.show_calls(list(view.tools), now)

    def show_calls(self, tools: Sequence[ToolView], now: float) -> None:
        """Show these calls (from a trace, say)."""
        self._tools, self._now = tools, now
        if self.following or self._cursor >= len(tools):
            self._cursor = len(tools) - 1
        self._lay()
        if self.following:
            self.jump(self.max_scroll_y)
        self.update_lines()

    def _lay(self) -> None:
        rows: list[tuple[int, int]] = [(-1, 0)] if self._note else []
        for i, tool in enumerate(self._tools):
            rows.append((i, 0))
            if activity.key(tool, i) in self._open:
                rows += [(i, n + 1) for n in range(len(self._body(i)))]
        rows.append((-2, 0))
        self._trouble = activity.trouble(self._view, self.area.width) if self._view is not None else []
        rows += [(-3, n) for n in range(len(self._trouble))]
        self._rows = rows
        self.set_rows(len(rows))

    def _body(self, i: int) -> list[Line]:
        tool = self._tools[i]
        name = activity.key(tool, i)
        stamp = (self.area.width, len(tool.arguments), len(tool.result), tool.ended)
        got = self._bodies.get(name)
        if got is None or got[0] != stamp:
            if len(self._bodies) > 64:
                self._bodies.clear()
            got = self._bodies[name] = (stamp, activity.body(tool, self.area.width))
        return got[1]

    def resized(self) -> None:
        """Wrap anew."""
        self._lay()

    def line_at(self, row: int) -> Line:
        """See `LineView`."""
        width = self.area.width
        if not 0 <= row < len(self._rows):
            return EMPTY
        i, n = self._rows[row]
        if i == -1:
            return clip([("   ", ""), (self._note, "faint")], width)
        if i == -2:
            if self._view is None:
                return clip((), width)
            return ((" " * 3, ""), *now_line(self._view, max(1, width - 4), self._now), (" ", ""))
        if i == -3:
            return self._trouble[n]
        tool = self._tools[i]
        if n:
            return self._body(i)[n - 1]
        line = activity.head(tool, width, self._now, unfolded=activity.key(tool, i) in self._open)
        return on(line, "cursor" if self.has_focus else "blur") if i == self._cursor else line

    # -- acts

    def _row_of(self, i: int) -> int:
        return next((r for r, (at, n) in enumerate(self._rows) if at == i and n == 0), 0)

    def _go(self, i: int) -> None:
        if not self._tools:
            return
        self._cursor = min(max(0, i), len(self._tools) - 1)
        self.following = self._cursor == len(self._tools) - 1
        self.reveal(self._row_of(self._cursor), margin=1)
        self.update_lines()

    def action_cursor(self, step: int) -> None:
        """Move by one call."""
        self._go(self._cursor + step)

    def action_page(self, step: int) -> None:
        """Scroll by a window, through long results too."""
        self.following = False
        self.jump(self.scroll_offset.y + step * max(1, self.area.height - 2))

    def action_edge(self, step: int) -> None:
        """Go to the first or last call."""
        self._go(0 if step < 0 else len(self._tools) - 1)

    def action_fold(self) -> None:
        """Open or close the call under the cursor."""
        if not 0 <= self._cursor < len(self._tools):
            return
        name = activity.key(self._tools[self._cursor], self._cursor)
        self._open ^= {name}
        self.following = False
        self._lay()
        self.reveal(self._row_of(self._cursor))
        self.update_lines()

    def action_fold_all(self, unfolded: bool) -> None:
        """Open or close all calls."""
        names = {activity.key(tool, i) for i, tool in enumerate(self._tools)}
        self._open = names if unfolded else set()
        self._lay()
        self.update_lines()

    def on_click(self, event: events.Click) -> None:
        """A click goes to a call; on the fold mark, or again, opens it."""
        row = self.row_at(event.y)
        if 0 <= row < len(self._rows):
            i, n = self._rows[row]
            if i >= 0 and n == 0:
                again = i == self._cursor
                self._go(i)
                if again or event.x < 4:
                    self.action_fold()

    def on_focus(self) -> None:
        """The cursor's row shows where keys go."""
        self.update_lines()

    def on_blur(self) -> None:
        """See `on_focus`."""
        self.update_lines()
