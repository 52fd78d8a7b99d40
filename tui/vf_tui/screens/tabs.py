"""A row of tab names, one of them chosen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from textual import events
from textual.message import Message

from vf_tui.render.line import EMPTY, Line, Segment, clip, width
from vf_tui.widgets.paint import LineWidget


class TabRow(LineWidget):
    """Names in one line. Where they don't all fit, those around the chosen one are shown."""

    DEFAULT_CSS = "TabRow { height: 1; width: 1fr; }"

    @dataclass
    class Chosen(Message):
        """A name was clicked."""

        name: str
        source: TabRow

        @property
        def control(self) -> TabRow:
            """Where it comes from."""
            return self.source

    def __init__(self, names: Sequence[tuple[str, str]], *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._names = list(names)
        self._chosen = self._names[0][0]
        self._spans: list[tuple[int, int, str]] = []

    def show(self, chosen: str) -> None:
        """Light up `chosen`."""
        self._chosen = chosen
        self.update_lines()

    def lines(self, width_: int, height: int) -> Sequence[Line]:
        """See `LineWidget`."""
        at = next(i for i, (name, _) in enumerate(self._names) if name == self._chosen)
        first = 0
        while first < at and sum(width(label) + 3 for _, label in self._names[first : at + 1]) > width_ - 2:
            first += 1
        out: list[Segment] = [("‹" if first else " ", "faint")]
        self._spans, x = [], 1
        for name, label in self._names[first:]:
            text = f" {label} "
            out += [(text, "tab_on" if name == self._chosen else "tab"), (" ", "")]
            self._spans.append((x, x + width(text), name))
            x += width(text) + 1
        return [clip(out, width_), *[EMPTY] * (height - 1)]

    def on_click(self, event: events.Click) -> None:
        """Choose what is under the pointer."""
        for start, end, name in self._spans:
            if start <= event.x < end:
                self.post_message(self.Chosen(name, self))
