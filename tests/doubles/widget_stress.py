"""Every widget of the screen, changed at random: `python -m doubles.widget_stress OUT SEED [hostile]`.

After so many changes it stands still and writes to OUT what the terminal must show: for every line the cells as
[character, foreground, background, bold, reversed]. Then it waits for `q`.
"""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path
from typing import ClassVar

from textual.app import App, ComposeResult
from textual.containers import Horizontal, Vertical
from textual.timer import Timer

from doubles.screen_states import NOW, Rollout, Story, hostile
from vf_core.events import types as ev
from vf_core.events.fold import apply, fold
from vf_tui import theme
from vf_tui.render import facts
from vf_tui.widgets.activity_view import ActivityView
from vf_tui.widgets.bars import KeyBar, Notice
from vf_tui.widgets.facts_view import FactsView, PhaseBar
from vf_tui.widgets.log_pane import LogPane
from vf_tui.widgets.pane_grid import PaneGrid
from vf_tui.widgets.rollout_list import Heading, RolloutList
from vf_tui.widgets.run_header import RunHeader
from vf_tui.widgets.tight import TightDisplay

STEPS = 120
WORDS = ("one", "zwei 日本", "drei 🙂", "a longer text that is cut somewhere", "")


class Stress(TightDisplay, App[None]):
    CSS = """
    Screen { background: $background; }
    RolloutList { width: 42; }
    PaneGrid { width: 1fr; }
    Vertical { width: 44; }
    Vertical > * { height: 1fr; }
    """
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar = [("q", "quit", "quit")]

    def __init__(self, out: Path, seed: int, attacks: list[str]) -> None:
        super().__init__()
        self.out, self.random, self.attacks = out, random.Random(seed), attacks
        self.story = Story()
        self.story.say(ev.RunStarted, 0, run=self.word(), name=self.word(), total=30)
        self.rollouts = [Rollout(self.story, f"r{i}", i, self.word(), i % 3) for i in range(30)]
        for r in self.rollouts[:20]:
            r.begin(1).run(2)
        self.state = fold(self.story.events)
        self.at = len(self.story.events)
        self.order: list[str | Heading] = list(self.state.rollouts)
        self.slots: list[str | None] = [r.id for r in self.rollouts[:8]]
        self.left = STEPS
        self.now = NOW
        self.timer: Timer

    def word(self) -> str:
        return self.random.choice(self.attacks or WORDS)

    def get_theme_variable_defaults(self) -> dict[str, str]:
        return theme.variable_defaults()

    def compose(self) -> ComposeResult:
        yield RunHeader()
        yield PhaseBar()
        with Horizontal():
            yield RolloutList()
            yield PaneGrid()
            with Vertical():
                yield ActivityView()
                yield LogPane(colour=True)
                yield FactsView()
        yield Notice()
        yield KeyBar([("x", self.word(), True), ("?", "help", True)])

    def on_mount(self) -> None:
        theme.install(self, "dark")
        self.query_one(RolloutList).focus()
        self.timer = self.set_interval(0.01, self.step)

    def step(self) -> None:
        if self.left <= 0:
            self.timer.stop()
            self.call_after_refresh(self.report)
            return
        self.left -= 1
        self.change()
        for event in self.story.events[self.at :]:
            apply(self.state, event)
        self.at = len(self.story.events)
        self.now += self.random.choice((0.0, 0.3, 1.0))
        self.show()

    def show(self) -> None:
        view = self.state.rollouts[self.query_one(RolloutList).cursor_id or "r0"]
        rows = self.query_one(RolloutList)
        self.query_one(RunHeader).show(self.state, self.now, self.word())
        rows.show(self.state, self.order, marks={"r3", "r5"}, changed=None, now=self.now)
        self.query_one(PaneGrid).show(self.state, self.slots, rows.cursor_id, None, self.now)
        self.query_one(PhaseBar).show(view, self.now)
        self.query_one(ActivityView).show(view, self.now)
        self.query_one(FactsView).show(
            [*facts.sandbox_sections(view, self.state, self.now), *facts.overview_sections(view, self.now)]
        )

    def change(self) -> None:
        """One random thing happens."""
        r = self.random.choice(self.rollouts[:20])
        t = self.now - NOW + 600
        match self.random.randrange(12):
            case 0 | 1:
                call = self.random.randrange(100)
                r.turn(t, call, self.word(), self.random.choice([None, self.word()]), name=self.word())
            case 2 | 3:
                r.say(ev.TextDelta, t, call=0, text=self.word() + " ", reasoning=self.random.random() < 0.5)
            case 4:
                r.say(ev.ToolDelta, t, call=0, index=0, name=self.word(), arguments=self.word())
            case 5:
                self.random.shuffle(self.order)
                self.order = [*self.order]
            case 6:
                self.order = [*self.order[:3], Heading(self.word()), *self.order[5:]]
            case 7:
                rest = [id for id in self.state.rollouts if id not in self.order]
                self.order = [*(item for item in self.order if isinstance(item, str)), *rest]
            case 8:
                self.query_one(RolloutList).action_cursor(self.random.choice((-1, 1, 1, 1)))
            case 9:
                r.exit(t, 1, self.word(), "failed").end(t, "error", error_type="X", error=self.word())
                r.box(t, self.random.choice(("stopping", "sent", "checking", "survived")))
            case 10:
                slot = self.random.randrange(8)
                self.slots[slot] = self.random.choice([None, r.id]) if r.id not in self.slots else None
            case _:
                self.query_one(Notice).show(self.word(), self.random.choice(("info", "warn", "error")))
        for _ in range(self.random.randrange(4)):
            self.query_one(LogPane).append(self.word() + self.random.choice(("", "\n", "\r\n")))

    def report(self) -> None:
        lines = []
        for strip in self.screen._compositor.render_strips():
            cells = []
            for text, style, _ in strip:
                for ch in text:
                    if style is None:
                        cells.append([ch, "default", "default", False, False])
                        continue
                    colours = [
                        c.get_truecolor().hex[1:] if c else "default" for c in (style.color, style.bgcolor)
                    ]
                    cells.append([ch, *colours, bool(style.bold), bool(style.reverse)])
            lines.append(cells)
        self.out.with_suffix(".part").write_text(json.dumps(lines))
        self.out.with_suffix(".part").rename(self.out)


def main() -> None:
    attacks = list(hostile()) if sys.argv[3:] else []
    Stress(Path(sys.argv[1]), int(sys.argv[2]), attacks).run()


if __name__ == "__main__":
    main()
