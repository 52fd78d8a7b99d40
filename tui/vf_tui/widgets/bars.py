"""The bottom of a screen: its keys, and its remarks."""

from __future__ import annotations

from collections.abc import Sequence

from vf_tui.render import bars
from vf_tui.render.bars import KeyHint
from vf_tui.render.line import EMPTY, Line
from vf_tui.widgets.paint import LineWidget

__all__ = ["KeyBar", "KeyHint", "Notice"]


class KeyBar(LineWidget):
    """The keys of a screen in one line; those that do nothing now are faint."""

    DEFAULT_CSS = "KeyBar { height: 1; width: 1fr; }"

    def __init__(
        self,
        keys: Sequence[KeyHint | tuple[str, str, bool]] = (),
        *,
        id: str | None = None,
        classes: str | None = None,
    ) -> None:
        super().__init__(id=id, classes=classes)
        self._keys = keys

    def show(self, keys: Sequence[KeyHint | tuple[str, str, bool]]) -> None:
        """Show these keys: (key, label, enabled), most important first, help last."""
        self._keys = keys
        self.update_lines()

    def lines(self, width: int, height: int) -> Sequence[Line]:
        """See `LineWidget`."""
        return [bars.key_bar(self._keys, width), *[EMPTY] * (height - 1)]


class Notice(LineWidget):
    """One line for what has just happened. Hidden while there is nothing to say."""

    DEFAULT_CSS = "Notice { height: 1; width: 1fr; display: none; } Notice.-shown { display: block; }"

    def __init__(self, *, id: str | None = None, classes: str | None = None) -> None:
        super().__init__(id=id, classes=classes)
        self._text, self._kind = "", "info"
        self._until: float | None = None

    @property
    def text(self) -> str:
        """What is being said."""
        return self._text

    def show(self, text: str, kind: str = "info", until: float | None = None) -> None:
        """Say `text` (not trusted) until `until` in Unix seconds, or until told otherwise; "" hides it.

        `kind`: info, warn or error.
        """
        self._text, self._kind, self._until = text, kind, until
        self.set_class(bool(text), "-shown")
        self.update_lines()

    def tick(self, now: float) -> None:
        """Hide what has been said long enough."""
        if self._until is not None and now >= self._until:
            self.show("")

    def lines(self, width: int, height: int) -> Sequence[Line]:
        """See `LineWidget`."""
        return [bars.notice(self._text, self._kind, width), *[EMPTY] * (height - 1)]
