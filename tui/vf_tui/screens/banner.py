"""A line across the screen for what must not be overlooked: the engine died, the list is filtered."""

from __future__ import annotations

from collections.abc import Sequence

from vf_tui.render.line import EMPTY, Line, clip, squeeze
from vf_tui.safe_text import cell
from vf_tui.widgets.paint import LineWidget


class Banner(LineWidget):
    """One line in one style; not there while it has nothing to say."""

    DEFAULT_CSS = "Banner { height: 1; width: 1fr; display: none; } Banner.-shown { display: block; }"

    def __init__(self, style: str = "alarm", *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._style = style
        self._text = ""

    @property
    def text(self) -> str:
        """What it says."""
        return self._text

    def show(self, text: str) -> None:
        """Say `text` (not trusted); "" takes the line away."""
        if text == self._text:
            return
        self._text = text
        self.set_class(bool(text), "-shown")
        self.update_lines()

    def lines(self, width: int, height: int) -> Sequence[Line]:
        """See `LineWidget`."""
        text = squeeze(cell(self._text, 400), width - 1)
        line = clip([(" ", self._style), (text, self._style)], width, self._style)
        return [line, *[EMPTY] * (height - 1)]
