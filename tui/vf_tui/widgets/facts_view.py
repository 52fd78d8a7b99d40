"""Named facts in sections, for the tabs that hold no stream."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from textual.binding import Binding, BindingType

from vf_core.events.state import RolloutView
from vf_tui.render import facts
from vf_tui.render.line import EMPTY, Line
from vf_tui.widgets.paint import LineView, LineWidget


class FactsView(LineView):
    """Shows `facts.Section`s; see `render.facts` for those of a rollout."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "move(-1)", "Up", show=False, id="facts.up"),
        Binding("down,j", "move(1)", "Down", show=False, id="facts.down"),
        Binding("pageup", "turn(-1)", "Page up", show=False, id="facts.page_up"),
        Binding("pagedown", "turn(1)", "Page down", show=False, id="facts.page_down"),
        Binding("home,g", "edge(-1)", "First", show=False, id="facts.first"),
        Binding("end,G", "edge(1)", "Last", show=False, id="facts.last"),
    ]

    def __init__(self, *, id: str | None = None, classes: str | None = None) -> None:
        super().__init__(id=id, classes=classes)
        self._sections: Sequence[facts.Section] = ()
        self._lines: list[Line] = []

    def show(self, sections: Sequence[facts.Section]) -> None:
        """Show these instead; the place is kept."""
        self._sections = sections
        self._lay()
        self.update_lines()

    def _lay(self) -> None:
        self._lines = facts.section_lines(self._sections, self.area.width) if self.area.width else []
        self.set_rows(len(self._lines))

    def resized(self) -> None:
        """Wrap anew."""
        self._lay()

    def line_at(self, row: int) -> Line:
        """See `LineView`."""
        return self._lines[row] if 0 <= row < len(self._lines) else EMPTY

    def action_move(self, step: int) -> None:
        """Scroll by a line."""
        self.jump(self.scroll_offset.y + step)

    def action_turn(self, step: int) -> None:
        """Scroll by a window."""
        self.jump(self.scroll_offset.y + step * max(1, self.area.height - 2))

    def action_edge(self, step: int) -> None:
        """Go to the start or the end."""
        self.jump(0 if step < 0 else self.max_scroll_y)


class PhaseBar(LineWidget):
    """The phases of a rollout's attempt as one coloured bar."""

    DEFAULT_CSS = "PhaseBar { height: 1; width: 1fr; }"

    def __init__(self, *, id: str | None = None, classes: str | None = None) -> None:
        super().__init__(id=id, classes=classes)
        self._view: RolloutView | None = None
        self._now = 0.0

    def show(self, view: RolloutView, now: float) -> None:
        """Show `view`'s phases as of `now`."""
        self._view, self._now = view, now
        self.update_lines()

    def lines(self, width: int, height: int) -> Sequence[Line]:
        """See `LineWidget`."""
        if self._view is None:
            return [EMPTY] * height
        return [facts.phase_bar(self._view, width, self._now), *[EMPTY] * (height - 1)]
