"""The run's header: bar, reward, spend, time left, waits and troubles."""

from __future__ import annotations

from collections.abc import Sequence

from textual.geometry import Size

from vf_core.events.state import RunState
from vf_tui.attention import STALL_SECONDS
from vf_tui.render import header
from vf_tui.render.line import Line
from vf_tui.widgets.paint import LineWidget

WIDE = 80
MANY = 100


class RunHeader(LineWidget):
    """Shows a `RunState`: one line when narrow, three from 80 columns on."""

    DEFAULT_CSS = """
    RunHeader { height: auto; width: 1fr; }
    """

    def __init__(self, *, id: str | None = None, classes: str | None = None) -> None:
        super().__init__(id=id, classes=classes)
        self.stall_seconds = STALL_SECONDS
        self._state = RunState()
        self._survey = header.Survey()
        self._surveyed: tuple[object, ...] = ()
        self._now = 0.0
        self._note = ""

    def show(self, state: RunState, now: float, note: str = "") -> None:
        """Show `state` as of `now` (Unix seconds); `note` is a remark of the screen (filter, link lost, …)."""
        # A walk over all rollouts: once a second while many are live, else whenever anything changed.
        many = not state.over and state.totals.active + len(state.unconfirmed) > MANY
        key = (int(now), state.over, 0 if many else state.revision)
        if key != self._surveyed or state is not self._state:
            self._surveyed = key
            self._survey = header.survey(state, now, self.stall_seconds)
        self._state, self._now, self._note = state, now, note
        self.update_lines()

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        """One line when narrow or low, three otherwise."""
        if width < WIDE or viewport.height < 16:
            return 1
        return 3

    def lines(self, width: int, height: int) -> Sequence[Line]:
        """See `LineWidget`."""
        return header.header(self._state, self._survey, width, height, self._now, note=self._note)
