"""A window on lines that keep coming: output, transcript, events."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import ClassVar

from textual import events
from textual.binding import Binding, BindingType
from textual.message import Message

from vf_tui import glyphs
from vf_tui.render import timefmt
from vf_tui.render.line import Line, clip, line_width
from vf_tui.render.log_buffer import CHARACTERS_KEPT, LINES_KEPT, LogBuffer, Sieve, highlight, slice_runs
from vf_tui.widgets.paint import LineView

TIME_CELLS = 9


class LogPane(LineView):
    """Follows its end until the user scrolls up; then counts what is new until End is pressed.

    Memory is bounded by `max_lines` and `max_chars`; a longer line than `safe_text.LINE_LIMIT` is cut.
    `colour`: SGR colours of the text are shown (program output), else removed.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "scroll(-1)", "Up", show=False, id="log.up"),
        Binding("down,j", "scroll(1)", "Down", show=False, id="log.down"),
        Binding("pageup", "page(-1)", "Page up", show=False, id="log.page_up"),
        Binding("pagedown", "page(1)", "Page down", show=False, id="log.page_down"),
        Binding("home,g", "edge(-1)", "First", show=False, id="log.first"),
        Binding("end,G", "edge(1)", "Last", show=False, id="log.last"),
        Binding("left", "shift(-8)", "Left", show=False, id="log.left"),
        Binding("right", "shift(8)", "Right", show=False, id="log.right"),
    ]

    @dataclass
    class FollowChanged(Message):
        """Following began or paused."""

        following: bool
        source: LogPane

        @property
        def control(self) -> LogPane:
            """The widget it comes from, for `@on` selectors."""
            return self.source

    def __init__(
        self,
        *,
        colour: bool = False,
        max_lines: int = LINES_KEPT,
        max_chars: int = CHARACTERS_KEPT,
        empty_text: str = "",
        id: str | None = None,
        classes: str | None = None,
    ) -> None:
        super().__init__(id=id, classes=classes)
        self._source = LogBuffer(max_lines=max_lines, max_chars=max_chars, colour=colour)
        self._buffer = self._source
        self._sieve: Sieve | None = None
        self.empty_text = empty_text
        self.following = True
        self.wrapping = True
        self.timestamps = False
        self.new_lines = 0
        self._pattern: re.Pattern[str] | None = None
        self._match: int | None = None
        self._left = 0

    @property
    def buffer(self) -> LogBuffer:
        """The lines that are shown."""
        return self._buffer

    @property
    def held(self) -> int:
        """How many lines there are, those that a filter hides too."""
        return len(self._source)

    # -- data down

    def append(self, text: str, t: float = 0.0) -> None:
        """Add a chunk of raw text; it may begin and end within a line."""
        first = self._buffer.first_row
        touched = self._source.feed(text, t)
        self._added(self._sift(touched), first)

    def append_lines(self, lines: Iterable[str | Line], t: float = 0.0, *, style: str = "") -> None:
        """Add whole lines: raw strings, or styled lines whose text is clean already."""
        first, n = self._buffer.first_row, 0
        for line in lines:
            if isinstance(line, str):
                self._source.add(line, t, style=style)
            else:
                self._source.add_line(line, t)
            n += 1
        self._source.trim()
        self._added(self._sift(n), first)

    def set_lines(self, lines: Iterable[str | Line]) -> None:
        """Show these instead; the place is kept where possible."""
        top = self.scroll_offset.y
        self._source.clear()
        for line in lines:
            if isinstance(line, str):
                self._source.add(line)
            else:
                self._source.add_line(line)
        self._source.trim()
        self._match = None
        if self._sieve is not None:
            self._sieve.again()
        self._fit()
        if not self.following:
            self.jump(min(top, self.max_scroll_y))
        self._settle()

    def clear(self) -> None:
        """Show nothing, and follow."""
        self._source.clear()
        if self._sieve is not None:
            self._sieve.again()
        self.new_lines, self._match, self._left = 0, None, 0
        self._fit()
        self.follow()

    def _added(self, touched: int, first: int) -> None:
        if not touched:
            return
        self._fit()
        gone = self._buffer.first_row - first
        if not self.following:
            self.new_lines += touched
            if gone:
                # What is being read stays where it is while older lines go.
                self.jump(max(0, self.scroll_offset.y - gone))
        self._settle()

    def _sift(self, touched: int) -> int:
        """Bring the filtered lines up to date; how many were added to those that are shown."""
        return touched if self._sieve is None else self._sieve.sift()

    def only(self, wanted: Callable[[str], bool] | None, light: re.Pattern[str] | None = None) -> int:
        """Show only the lines that `wanted` lets through (None: all), with what `light` finds in them lit up; how
        many there are. The first one that was in sight stays in sight."""
        top = self._buffer.entry(self._buffer.row(self.scroll_offset.y)[0]) if len(self._buffer) else None
        self._sieve = None if wanted is None else Sieve(self._source, wanted)
        self._buffer = self._source if self._sieve is None else self._sieve.kept
        self._pattern, self._match, self.new_lines = light, None, 0
        self._fit()
        line = self._buffer.index(top) if top is not None and not self.following else None
        self.jump(self._buffer.row_of(line) if line is not None else self.max_scroll_y)
        self.redraw()
        return len(self._buffer)

    def _fit(self) -> None:
        width = self.area.width - (TIME_CELLS if self.timestamps else 0)
        self._buffer.wrap_at(max(8, width) if self.wrapping and self.area.width else 0)
        self.set_rows(self._buffer.rows)

    def _settle(self) -> None:
        if self.following:
            self.jump(self.max_scroll_y)
        self.update_lines()

    def resized(self) -> None:
        """Wrap anew; what was at the top stays there."""
        line = self._buffer.row(self.scroll_offset.y)[0] if len(self._buffer) else 0
        self._fit()
        if self.following:
            self.jump(self.max_scroll_y)
        else:
            self.jump(min(self._buffer.row_of(line), self.max_scroll_y))

    # -- follow, wrap, timestamps, search

    def follow(self, on: bool = True) -> None:
        """Stick to the end, or stay here."""
        changed = on != self.following
        self.following = on
        if on:
            self.new_lines = 0
            self.jump(self.max_scroll_y)
        self.update_lines()
        if changed:
            self.post_message(self.FollowChanged(on, self))

    def toggle_wrap(self) -> bool:
        """Wrap long lines, or cut them; whether they are wrapped now."""
        self.wrapping, self._left = not self.wrapping, 0
        self.resized()
        self.redraw()
        return self.wrapping

    def toggle_timestamps(self) -> bool:
        """Show when lines came; whether they are shown now."""
        self.timestamps = not self.timestamps
        self.resized()
        self.redraw()
        return self.timestamps

    def search(self, pattern: re.Pattern[str] | str | None) -> int:
        """Light up what `pattern` finds (a str is taken literally; None or "": nothing); lines with a match."""
        if isinstance(pattern, str):
            pattern = re.compile(re.escape(pattern), re.IGNORECASE) if pattern else None
        self._pattern, self._match = pattern, None
        self.update_lines()
        return self._buffer.count(pattern) if pattern is not None else 0

    def next_match(self, step: int = 1) -> bool:
        """Go to the next (-1: previous) line with a match, round the end; False when there is none."""
        if self._pattern is None or not len(self._buffer):
            return False
        at = self._match
        if at is None:
            at = self._buffer.row(self.scroll_offset.y)[0] - (1 if step > 0 else -1)
        found = self._buffer.find(self._pattern, at + step, step)
        if found is None:
            found = self._buffer.find(self._pattern, 0 if step > 0 else len(self._buffer) - 1, step)
        if found is None:
            return False
        self._match = found
        self.follow(False)
        self.reveal(self._buffer.row_of(found), margin=3)
        self.update_lines()
        return True

    # -- moving

    def _scroll_by(self, rows: int) -> None:
        target = min(max(0, self.scroll_offset.y + rows), self.max_scroll_y)
        if rows < 0:
            if self.following and self.max_scroll_y > 0:
                self.follow(False)
        elif target >= self.max_scroll_y and not self.following:
            self.follow()
            return
        self.jump(target)

    def action_scroll(self, step: int) -> None:
        """Scroll by rows."""
        self._scroll_by(step)

    def action_page(self, step: int) -> None:
        """Scroll by a window."""
        self._scroll_by(step * max(1, self.area.height - 2))

    def action_edge(self, step: int) -> None:
        """Go to the start, or to the end and follow."""
        if step < 0:
            self.follow(False)
            self.jump(0)
        else:
            self.follow()

    def action_shift(self, step: int) -> None:
        """Look further right or left in lines that are not wrapped."""
        if not self.wrapping:
            self._left = max(0, self._left + step)
            self.update_lines()

    def on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        """The wheel scrolls, and pauses following."""
        event.stop()
        event.prevent_default()
        self._scroll_by(-3)

    def on_mouse_scroll_down(self, event: events.MouseScrollDown) -> None:
        """See `on_mouse_scroll_up`."""
        event.stop()
        event.prevent_default()
        self._scroll_by(3)

    # -- lines

    def line_at(self, row: int) -> Line:
        """See `LineView`."""
        width = self.area.width
        at, part = self._buffer.row(row)
        entry = self._buffer.entry(at)
        if entry is None:
            return clip((), width)
        line = self._buffer.piece(entry, part)
        if self._left:
            line = slice_runs(line, self._left, self._left + width * 2)
        if self._pattern is not None:
            line = highlight(line, self._pattern, "match_now" if at == self._match else "match")
        if self.timestamps:
            stamp = timefmt.at(entry.t) if part == 0 else ""
            line = ((f"{stamp:<{TIME_CELLS}}", "time"), *line)
        return clip(line, width)

    def view_rows(self) -> list[Line]:
        """See `LineView`; the last row tells how much is new while following is paused."""
        rows = super().view_rows()
        width = self.area.width
        if not len(self._buffer) and rows and (self.empty_text or self.held):
            empty = f"none of {self.held:,} lines matches" if self.held else self.empty_text
            rows[0] = clip([(empty, "faint")], width)
        elif self.new_lines and not self.following and rows:
            mark: Line = ((f" {self.new_lines:,} new {glyphs.current().down} End ", "new"),)
            keep = width - line_width(mark)
            if keep > 0:
                rows[-1] = (*clip(rows[-1], keep), *mark)
        return rows
