"""What the engine had to say: failures, commands, restarts, sandboxes that would not go."""

from __future__ import annotations

import re
from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from typing import ClassVar

from textual.widget import Widget

from vf_tui import actions
from vf_tui.notable import Note
from vf_tui.render import timefmt
from vf_tui.render.line import Line
from vf_tui.safe_text import cell
from vf_tui.screens.banner import Banner
from vf_tui.screens.base import BaseScreen
from vf_tui.screens.prompt import Prompt
from vf_tui.screens.texts import pane_text
from vf_tui.widgets.log_pane import LogPane
from vf_tui.widgets.run_header import RunHeader

_STYLES = {"error": "error", "warning": "warn", "critical": "error"}


class EventsScreen(BaseScreen):
    """The log of notable events of the open run, newest last."""

    SCOPE: ClassVar[str] = actions.EVENTS

    def __init__(self) -> None:
        super().__init__()
        self._seen = 0
        self._bridge: object = None
        self._search = ""

    def body(self) -> Iterable[Widget]:
        """Header, banner, log, search."""
        yield RunHeader(id="header")
        yield Banner(id="banner")
        yield LogPane(id="log", empty_text="nothing notable has happened yet")
        yield Prompt(id="search")

    def on_mount(self) -> None:
        """The log has the keys."""
        super().on_mount()
        self.log_pane.focus()

    @property
    def log_pane(self) -> LogPane:
        """The log."""
        return self.query_one("#log", LogPane)

    def flush(self, changed: AbstractSet[str] | None, now: float) -> None:
        """See `BaseScreen`."""
        bridge = self.tui.bridge
        if bridge is None:
            return
        self.tui.watch_rollouts(set())
        self.query_one("#header", RunHeader).show(bridge.state, now, self.tui.remark())
        self.query_one("#banner", Banner).show(self.tui.alarm())
        if bridge is not self._bridge:
            self._bridge, self._seen = bridge, 0
            self.log_pane.clear()
        new = min(bridge.notes_seen - self._seen, len(bridge.notes))
        if new:
            self._seen = bridge.notes_seen
            self.log_pane.append_lines([_line(note) for note in list(bridge.notes)[-new:]])

    def on_prompt_changed(self, event: Prompt.Changed) -> None:
        """Light up what is being searched for."""
        self._search = event.text
        self.log_pane.search(event.text)

    def on_prompt_closed(self, event: Prompt.Closed) -> None:
        """Go to the first match."""
        self._search = event.text
        self.log_pane.focus()
        if self.log_pane.search(event.text) and event.kept:
            self.log_pane.next_match()

    def copy_text(self) -> str:
        """The log."""
        return pane_text(self.log_pane)

    def back(self) -> bool:
        """Forget the search."""
        if self._search:
            self._search = ""
            self.log_pane.search(None)
            return True
        return False

    def do_list_filter(self) -> None:
        """Search in the log."""
        self.query_one("#search", Prompt).ask(self._search)

    def do_list_match_next(self) -> None:
        """The next match."""
        self.log_pane.next_match(1)

    def do_list_match_previous(self) -> None:
        """The match before."""
        self.log_pane.next_match(-1)

    def do_text_follow(self) -> None:
        """Stay at the end, or stay here."""
        self.log_pane.follow(not self.log_pane.following)

    def do_text_wrap(self) -> None:
        """Wrap or cut long lines."""
        self.log_pane.toggle_wrap()


def _line(note: Note) -> Line:
    style = _STYLES.get(note.level.lower(), "text")
    stamp = f" {timefmt.at(note.t) or '':<8}  "
    who = ((f"{cell(note.rollout, 40)}  ", "accent"),) if note.rollout else ()
    text = re.sub(r"\s+", " ", cell(note.text, 1_000))
    return ((stamp, "time"), *who, (text, style))
