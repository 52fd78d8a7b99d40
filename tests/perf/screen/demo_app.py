"""The run screen's widgets over a synthetic feed: `python demo_app.py [LIVE] [EVENTS_PER_SECOND] [SECONDS]`.

Environment: TICKS (repaints a second), THEME, TIGHT=0 (stock frames), SVG (write a picture there and leave).
"""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from pathlib import Path

from feed import Feed
from textual.app import App, ComposeResult
from textual.containers import Horizontal

from vf_core.events.fold import apply, fold
from vf_tui import theme
from vf_tui.widgets.bars import KeyBar
from vf_tui.widgets.pane_grid import PaneGrid
from vf_tui.widgets.rollout_list import RolloutList
from vf_tui.widgets.run_header import RunHeader
from vf_tui.widgets.tight import TightDisplay

KEYS = [("x", "stop", True), ("X", "confirm-stop", True), ("r", "restart", False), ("/", "filter", True),
        ("e", "attention", True), ("P", "pause", True), ("z", "zoom", True), ("q", "leave", True),
        ("?", "help", True)]  # fmt: skip


class Plain(App[None]):
    CSS = """
    Screen { background: $background; }
    RolloutList { width: 41; }
    PaneGrid { width: 1fr; }
    """
    ENABLE_COMMAND_PALETTE = False

    def __init__(self, live: int, rate: float, seconds: float) -> None:
        super().__init__()
        self.feed = Feed(live, total=live + live // 4)
        self.state = fold(self.feed.begin())
        if os.environ.get("GALLERY"):
            sys.path.insert(0, str(Path(__file__).parents[2]))
            from doubles import screen_states

            self.state, self.feed.t = screen_states.gallery(), screen_states.NOW
        self.order = list(self.state.rollouts)
        self.rate, self.seconds = rate, seconds
        self.ticks = float(os.environ.get("TICKS", "10"))
        self.started = self.last = 0.0
        self.sent = 0

    def get_theme_variable_defaults(self) -> dict[str, str]:
        return theme.variable_defaults()

    def compose(self) -> ComposeResult:
        yield RunHeader()
        with Horizontal():
            yield RolloutList()
            yield PaneGrid()
        yield KeyBar(KEYS)

    def on_mount(self) -> None:
        theme.install(self, os.environ.get("THEME", "dark"))
        self.query_one(RolloutList).focus()
        self.call_after_refresh(self._begin)

    def _begin(self) -> None:
        if os.environ.get("SVG") and not os.environ.get("GALLERY"):
            for event in self.feed.events(len(self.state.rollouts) * 7, 47.0):
                apply(self.state, event)
        self._show(frozenset(self.state.rollouts))
        if path := os.environ.get("SVG"):
            self.call_after_refresh(self._picture, path)
        self.started = self.last = time.monotonic()
        self.cpu = time.process_time()
        self.set_interval(1 / self.ticks, self._tick)

    def _picture(self, path: str) -> None:
        self.save_screenshot(path)
        self.exit()

    def _tick(self) -> None:
        now = time.monotonic()
        if self.seconds and now - self.started > self.seconds:
            used = time.process_time() - self.cpu
            usage = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
            report = {"cpu_share": used / (now - self.started), "seconds": now - self.started,
                      "events": self.sent, "rss": usage}  # fmt: skip
            if path := os.environ.get("REPORT"):
                with open(path, "w") as out:
                    json.dump(report, out)
            self.exit()
            return
        due = int((now - self.started) * self.rate) - self.sent
        events = self.feed.events(due, now - self.last) if due > 0 else []
        self.last = now
        self.sent += len(events)
        for event in events:
            apply(self.state, event)
        changed, self.state.changed = self.state.changed, set()
        if not self.rate:
            return
        self._show(changed)

    def _show(self, changed: set[str] | frozenset[str]) -> None:
        now = self.feed.t
        grid = self.query_one(PaneGrid)
        self.query_one(RunHeader).show(self.state, now)
        rows = self.query_one(RolloutList)
        rows.show(self.state, self.order, changed=changed, now=now)
        grid.show(self.state, self.order[:24], rows.cursor_id, changed, now)

    def on_rollout_list_highlighted(self) -> None:
        self._show(frozenset())


class Tight(TightDisplay, Plain):
    pass


def main() -> None:
    live, rate, seconds = (float(value) for value in [*sys.argv[1:], "100", "1000", "0"][:3])
    cls = Plain if os.environ.get("TIGHT") == "0" else Tight
    app = cls(int(live), rate, seconds)
    if os.environ.get("SVG"):
        columns, rows = (int(n) for n in os.environ.get("SIZE", "120x40").split("x"))
        app.run(headless=True, size=(columns, rows))
    else:
        app.run()


if __name__ == "__main__":
    main()
