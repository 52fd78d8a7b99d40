"""A virtual list of keyed rows with a cursor, for screens that list something else than rollouts."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from textual import events
from textual.binding import Binding, BindingType
from textual.message import Message

from vf_tui import glyphs
from vf_tui.render.line import EMPTY, Line, clip, on
from vf_tui.widgets.paint import LineView

Draw = Callable[[int, int], Sequence[tuple[str, str]]]


class Rows(LineView):
    """The cursor sits on a key, never on a position."""

    DEFAULT_CSS = """
    Rows { overflow-x: hidden; overflow-y: auto; scrollbar-size-vertical: 1; scrollbar-gutter: stable; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "move(-1)", show=False, id="rows.up"),
        Binding("down,j", "move(1)", show=False, id="rows.down"),
        Binding("pageup", "page(-1)", show=False, id="rows.page_up"),
        Binding("pagedown", "page(1)", show=False, id="rows.page_down"),
        Binding("home,g", "edge(-1)", show=False, id="rows.first"),
        Binding("end,G", "edge(1)", show=False, id="rows.last"),
        Binding("enter", "open", show=False, id="rows.open"),
    ]

    @dataclass
    class Highlighted(Message):
        """The cursor is on another row (None: on none)."""

        key: str | None
        source: Rows

        @property
        def control(self) -> Rows:
            """Where it comes from."""
            return self.source

    @dataclass
    class Opened(Message):
        """The user wants to look into a row."""

        key: str
        source: Rows

        @property
        def control(self) -> Rows:
            """Where it comes from."""
            return self.source

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.cursor: str | None = None
        self.empty_text = ""
        self._keys: list[str] = []
        self._stamps: list[Hashable] = []
        self._draw: Draw = lambda n, cells: EMPTY
        self._cache: dict[str, tuple[Hashable, Line]] = {}

    def show(self, rows: Sequence[tuple[str, Hashable]], draw: Draw) -> None:
        """Show `rows` as (key, stamp): a row is drawn again by `draw(n, cells)` when its stamp changes."""
        at = self._keys.index(self.cursor) if self.cursor in self._keys else 0
        self._keys = [key for key, _ in rows]
        self._stamps = [stamp for _, stamp in rows]
        self._draw = draw
        self.set_rows(max(1, len(rows)))
        if self.cursor not in self._keys:
            self._set(self._keys[min(at, len(self._keys) - 1)] if self._keys else None)
        self.update_lines()

    def move_to(self, key: str) -> None:
        """Put the cursor on `key`."""
        if key in self._keys:
            self._set(key)
            self.reveal(self._keys.index(key))
            self.update_lines()

    def _set(self, key: str | None) -> None:
        if key != self.cursor:
            self.cursor = key
            self.post_message(self.Highlighted(key, self))

    def line_at(self, row: int) -> Line:
        """See `LineView`."""
        cells = self.area.width
        if not self._keys:
            return clip([(f" {self.empty_text}", "faint")], cells) if row == 0 else EMPTY
        if not 0 <= row < len(self._keys):
            return EMPTY
        key = self._keys[row]
        here = (2 if self.has_focus else 1) if key == self.cursor else 0
        stamp = (self._stamps[row], cells, here)
        got = self._cache.get(key)
        if got is not None and got[0] == stamp:
            return got[1]
        lead = glyphs.current().cursor if here else " "
        line = clip([(lead, "accent"), *self._draw(row, cells - 1)], cells)
        if here:
            line = on(line, "cursor" if here == 2 else "blur")
        if len(self._cache) > 1_000:
            self._cache.clear()
        self._cache[key] = (stamp, line)
        return line

    def _at(self) -> int:
        return self._keys.index(self.cursor) if self.cursor in self._keys else 0

    def _go(self, row: int) -> None:
        if self._keys:
            self.move_to(self._keys[min(max(0, row), len(self._keys) - 1)])

    def action_move(self, step: int) -> None:
        """Move by a row."""
        self._go(self._at() + step)

    def action_page(self, step: int) -> None:
        """Move by a window."""
        self._go(self._at() + step * max(1, self.area.height - 1))

    def action_edge(self, step: int) -> None:
        """Go to the first or last row."""
        self._go(0 if step < 0 else len(self._keys) - 1)

    def action_open(self) -> None:
        """Ask for the row under the cursor to be opened."""
        if self.cursor is not None and self.cursor in self._keys:
            self.post_message(self.Opened(self.cursor, self))

    def on_click(self, event: events.Click) -> None:
        """A click moves the cursor, a double click opens."""
        row = event.y + self.scroll_offset.y
        if 0 <= row < len(self._keys):
            self.focus()
            self._go(row)
            if event.chain == 2:
                self.action_open()

    def on_focus(self) -> None:
        """The cursor's row shows where keys go."""
        self.update_lines()

    def on_blur(self) -> None:
        """See `on_focus`."""
        self.update_lines()
