"""Drawing by lines, and sending only the cells that changed.

A painter holds the lines it shows. Given new ones it asks for a repaint of exactly the cells that differ, so
that a tick on which nothing changed sends nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

from rich.segment import Segment
from textual.geometry import Region, Size
from textual.scroll_view import ScrollView
from textual.scrollbar import ScrollBarRender
from textual.strip import Strip
from textual.widget import Widget

from vf_tui import glyphs
from vf_tui.palette import Palette
from vf_tui.render.line import EMPTY, Line, changed_spans, line_width

if TYPE_CHECKING:
    _Base = Widget
else:
    _Base = object

_MANY = 6
"""More changed spans than this in one line are sent as the whole line."""


class Painter(_Base):
    """Mixin for a widget whose content is a list of lines, each exactly as wide as the widget."""

    _painter_palette: Palette | None = None
    _painter_lines: list[Line]
    _painter_outer: Size | None = None
    _painter_area: Size = Size(0, 0)
    _painter_stale = True

    @property
    def area(self) -> Size:
        """The cells that lines are drawn in: without borders and scrollbars. (0, 0) before the first layout.

        Measured when it is asked for: a layout is not always followed by a resize event.
        """
        outer = self.outer_size
        if outer != self._painter_outer:
            self._painter_outer = outer
            self._painter_area = self.inner(outer)
            self._painter_stale = True
        return self._painter_area

    def inner(self, outer: Size) -> Size:
        """What is left of `outer` for lines."""
        return outer.region.shrink(self.styles.gutter).size

    def resized(self) -> None:
        """The area has changed: lay out anew. Everything is drawn again afterwards."""

    def make_lines(self) -> Sequence[Line]:
        """All lines of the area."""
        return ()

    def update_lines(self) -> None:
        """Draw what changed; all of it after a change of size."""
        if not self.area.width:
            return
        if self._painter_stale:
            self._painter_stale = False
            self.resized()
            self.repaint(self.make_lines())
        else:
            self.paint(self.make_lines())

    def on_resize(self) -> None:
        """Measure anew."""
        self._painter_outer = None
        self.update_lines()

    def palette(self) -> Palette:
        """The styles in use; made again after a change of theme or style."""
        if self._painter_palette is None:
            _, background = self.background_colors
            app = self.app
            self._painter_palette = Palette(
                app.theme_variables, background, ansi=app.native_ansi_color, colourless=app.no_color
            )
        return self._painter_palette

    def notify_style_update(self) -> None:
        """Textual's hook: colours may have changed."""
        self._painter_palette = None
        super().notify_style_update()

    def paint(self, lines: Sequence[Line]) -> None:
        """Show `lines`; only cells that differ from what is shown are drawn again."""
        old = getattr(self, "_painter_lines", None)
        new = list(lines)
        self._painter_lines = new
        if old is None or len(old) != len(new):
            self.refresh()
            return
        regions: list[Region] = []
        for y, line in enumerate(new):
            before = old[y]
            if before is line or before == line:
                continue
            spans = changed_spans(before, line)
            if not spans or line_width(before) != line_width(line) or len(spans) > _MANY:
                regions.append(Region(0, y, self.area.width, 1))
            else:
                regions += [Region(start, y, end - start, 1) for start, end in spans]
        if regions:
            self.refresh(*regions)

    def repaint(self, lines: Sequence[Line]) -> None:
        """Show `lines` and draw all of them."""
        self._painter_lines = list(lines)
        self.refresh()

    def painted(self, y: int) -> Line:
        """The line shown at `y`, counted from the widget's top."""
        lines: list[Line] = getattr(self, "_painter_lines", [])
        return lines[y] if 0 <= y < len(lines) else EMPTY

    def strip(self, y: int) -> Strip:
        """Line `y` as Textual wants it."""
        style = self.palette().style
        cells = self.area.width
        if self._painter_stale:
            self.call_next(self.update_lines)
        line = self.painted(y)
        strip = Strip([Segment(text, style(name)) for text, name in line])
        return strip.crop_extend(0, cells, style(""))


class LineWidget(Painter, Widget):
    """A fixed block of lines. Subclasses implement `lines(width, height)` and call `update_lines`."""

    can_focus = False

    def lines(self, width: int, height: int) -> Sequence[Line]:
        """What to show, as `height` lines of `width` cells."""
        return ()

    def make_lines(self) -> Sequence[Line]:
        """See `Painter`."""
        return self.lines(*self.area)

    def render_line(self, y: int) -> Strip:
        """Textual's Line API."""
        return self.strip(y)


class WholeCells(ScrollBarRender):
    """A scrollbar without the characters that are parts of a cell."""

    VERTICAL_BARS: ClassVar[list[str]] = [" "] * 8


class LineView(Painter, ScrollView, can_focus=True):
    """A scrolling window on lines that are made when they are looked at.

    Subclasses implement `line_at(row)` and `resized()`, and call `set_rows(n)` and `update_lines`.
    """

    DEFAULT_CSS = """
    LineView {
        overflow-x: hidden;
        overflow-y: auto;
        scrollbar-size-vertical: 1;
        scrollbar-gutter: stable;
    }
    """

    def line_at(self, row: int) -> Line:
        """Content line `row`, exactly `self.area.width` cells wide."""
        return EMPTY

    def on_mount(self) -> None:
        """In ASCII the scrollbar is drawn in whole cells."""
        if glyphs.current().ascii:
            setattr(self.vertical_scrollbar, "renderer", WholeCells)  # noqa: B010  a class variable to mypy

    def heads(self) -> Sequence[Line]:
        """Lines that stay at the top while the rest scrolls."""
        return ()

    @property
    def window(self) -> int:
        """How many content lines are in sight."""
        return max(0, self.area.height - len(self.heads()))

    def set_rows(self, rows: int) -> None:
        """Set how many content lines there are."""
        size = Size(self.area.width, rows + len(self.heads()))
        if self.virtual_size != size:
            # A new length moves nothing but the scrollbar: no layout of the whole screen for it.
            self.set_reactive(Widget.virtual_size, size)
            if self.area.width:
                self._scroll_update(size)

    def view_rows(self) -> list[Line]:
        """The lines in the window."""
        heads = self.heads()
        top = self.scroll_offset.y
        rows = range(top, top + self.area.height - len(heads))
        return [*heads, *(self.line_at(row) for row in rows)]

    def inner(self, outer: Size) -> Size:
        """See `Painter`; the scrollbar's place is kept free."""
        return outer.region.shrink(self.styles.gutter).shrink(self.scrollbar_gutter).size

    def make_lines(self) -> Sequence[Line]:
        """See `Painter`."""
        return self.view_rows()

    def redraw(self) -> None:
        """Make all lines again and draw them."""
        self.repaint(self.view_rows())

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        """Draw the window where it is now."""
        if self.show_vertical_scrollbar:
            self.vertical_scrollbar.position = new_value
        if round(old_value) != round(new_value):
            self.update_lines()

    def render_line(self, y: int) -> Strip:
        """Textual's Line API."""
        return self.strip(y)

    def row_at(self, y: int) -> int:
        """The content line that is drawn `y` cells below the top; -1 for a head."""
        row = y - len(self.heads())
        return row + self.scroll_offset.y if row >= 0 else -1

    def jump(self, row: int) -> None:
        """Put content line `row` at the top of the window, or as near to it as there are lines."""
        self.scroll_to(y=row, animate=False, force=True)

    def reveal(self, row: int, *, margin: int = 0) -> None:
        """Scroll as little as needed to show `row`."""
        top = self.scroll_offset.y
        height = max(1, self.window)
        margin = min(margin, (height - 1) // 2)
        if row < top + margin:
            self.jump(max(0, row - margin))
        elif row >= top + height - margin:
            self.jump(row - height + 1 + margin)
