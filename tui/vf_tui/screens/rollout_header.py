"""The head of the focus screen: which rollout, what it does, and the two facts that count."""

from __future__ import annotations

from collections.abc import Sequence

from textual.geometry import Size

from vf_core.events.state import RolloutView
from vf_tui import glyphs
from vf_tui.attention import STALL_SECONDS
from vf_tui.render import status, timefmt
from vf_tui.render.line import EMPTY, Line, Segment, line_width, split
from vf_tui.safe_text import cell
from vf_tui.widgets.paint import LineWidget


class RolloutHeader(LineWidget):
    """Two lines; one where the screen is low."""

    DEFAULT_CSS = "RolloutHeader { height: auto; width: 1fr; }"

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._view: RolloutView | None = None
        self._now, self._stall, self._note = 0.0, STALL_SECONDS, ""

    def show(self, view: RolloutView, now: float, stall: float = STALL_SECONDS, note: str = "") -> None:
        """Show `view` as of `now`; `note` is a remark of the screen."""
        self._view, self._now, self._stall, self._note = view, now, stall, note
        self.update_lines()

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        """One line when the screen is low, two otherwise."""
        return 1 if viewport.height < 16 else 2

    def lines(self, width: int, height: int) -> Sequence[Line]:
        """See `LineWidget`."""
        if self._view is None:
            return [EMPTY] * height
        return rollout_header(self._view, width, height, now=self._now, stall=self._stall, note=self._note)


def rollout_header(
    r: RolloutView, cells: int, height: int, *, now: float, stall: float, note: str = ""
) -> list[Line]:
    """`r` in `height` (1 or 2) lines of `cells` cells."""
    g = glyphs.current()
    left: list[Segment] = [(" ", ""), (status.label(r), "title"), (f"  {cell(r.id, 40)}", "faint")]
    if r.attempt > 1 or len(r.attempts) > 1:
        left.append((f"  attempt {r.attempt}", "warn"))
    why = status.attention(r, now, stall)
    if why is not None:
        left += [("  ", ""), (why.word, why.style)]
    elif r.command:
        left += [("  ", ""), (cell(r.command, 30).replace("_", " "), "warn")]
    exit_text, exit_style = status.exit_words(r)
    word, word_style = status.teardown_words(r.sandbox)
    feet: list[Segment] = [(exit_text or "not started", exit_style), (f" {g.dot} ", "faint"),
                           (word or "no sandbox", word_style), (" ", "")]  # fmt: skip
    if line_width(left) + line_width(feet) >= cells:
        # What is the matter counts more than the id.
        left.pop(2)
    if height <= 1:
        return [split(left, feet, cells)]
    doing = status.doing(r)
    second: list[Segment] = [(" ", ""), (doing.verb, doing.style)]
    if doing.what:
        second += [(" ", ""), (doing.what, "text")]
    second.append((f" {doing.age(now)}", "dim"))
    numbers = [f"{r.turns} turn{'s' * (r.turns != 1)}", f"{status.tokens(r) or '0'} tok"]
    if r.reward is not None:
        numbers.append(f"reward {timefmt.reward(r.reward)}")
    numbers.append(timefmt.clock(timefmt.elapsed(r, now)))
    tail: list[Segment] = [(f" {g.dot} ".join(n for n in numbers if n), "dim"), (" ", "")]
    if note:
        tail = [(cell(note, 100), "accent"), ("  ", ""), *tail]
    return [split(left, feet, cells), split(second, tail, cells)]
