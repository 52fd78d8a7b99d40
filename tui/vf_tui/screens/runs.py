"""Home: the runs there are, live ones first, and what is known of the one under the cursor."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from typing import ClassVar

from textual.widget import Widget

from vf_core.runs.find import RunSummary
from vf_tui import actions
from vf_tui.filter import FilterError, words
from vf_tui.render.facts import Section
from vf_tui.render.line import Line
from vf_tui.render.runs import run_row, run_sections, titles
from vf_tui.screens.banner import Banner
from vf_tui.screens.base import BaseScreen
from vf_tui.screens.prompt import Prompt
from vf_tui.screens.rows import Rows
from vf_tui.widgets.facts_view import FactsView
from vf_tui.widgets.paint import LineWidget

REFRESH_SECONDS = 2.0


class RunsScreen(BaseScreen):
    """Lists runs; looks again every two seconds while it is on top."""

    SCOPE: ClassVar[str] = actions.RUNS

    def __init__(self) -> None:
        super().__init__()
        self._runs: list[RunSummary] = []
        self._looked = False
        self._filter = ""
        self._problem = ""

    def body(self) -> Iterable[Widget]:
        """Titles, rows, details, filter."""
        yield Banner("head", id="count")
        yield Banner("warn", id="left")
        yield Titles(id="titles")
        yield Rows(id="rows")
        yield FactsView(id="details")
        yield Prompt(_problem, id="filter")

    def on_mount(self) -> None:
        """The rows have the keys; begin to look."""
        super().on_mount()
        self.rows.focus()
        self.rows.empty_text = "looking for runs"
        self.run_worker(self._keep_looking(), group="runs")

    @property
    def rows(self) -> Rows:
        """The rows."""
        return self.query_one("#rows", Rows)

    async def _keep_looking(self) -> None:
        while True:
            if self.is_current:
                await self.look()
            await asyncio.sleep(REFRESH_SECONDS)

    async def look(self) -> None:
        """Look for runs once."""
        try:
            runs = await asyncio.to_thread(self.tui.runs.list)
        except OSError as e:
            self._problem = str(e)
            return
        self._problem = ""
        self.tui.cleaning.look()
        if runs != self._runs or not self._looked:
            self._runs, self._looked = runs, True
        self.refresh_all()

    @property
    def shown(self) -> list[RunSummary]:
        """The runs that the filter lets through."""
        if not self._filter:
            return self._runs
        return [run for run in self._runs if _matches(run, self._filter)]

    def flush(self, changed: AbstractSet[str] | None, now: float) -> None:
        """See `BaseScreen`."""
        if changed is not None:
            return
        now = self.tui.clock()
        runs, live = self.shown, sum(1 for run in self._runs if run.live)
        count = f"{len(self._runs)} run{'s' * (len(self._runs) != 1)}, {live} live"
        if self._filter:
            count += f" · filter {self._filter}: {len(runs)} shown"
        self.query_one("#count", Banner).show(self._problem or count)
        left = self.tui.cleaning.left
        key = self.tui.keymap.first("go.sandboxes")
        self.query_one("#left", Banner).show(f"{left}: press {key}" if left else "")
        self.query_one("#titles", Titles).update_lines()
        if self._looked:
            self.rows.empty_text = "no runs yet: `vf-tui demo` makes one, `vf-tui run CONFIG` starts yours"
        self.rows.show(
            [(str(run.dir), (run, run.live and int(now))) for run in runs],
            lambda n, cells: run_row(runs[n], cells, now),
        )
        self._details(now)

    def _details(self, now: float) -> None:
        run = self.current()
        sections: Sequence[Section] = run_sections(run, now) if run is not None else ()
        self.query_one("#details", FactsView).show(sections)

    def current(self) -> RunSummary | None:
        """The run under the cursor."""
        return next((run for run in self._runs if str(run.dir) == self.rows.cursor), None)

    # -- messages and acts

    def on_rows_highlighted(self, event: Rows.Highlighted) -> None:
        """Another run."""
        self._details(self.tui.clock())
        self.show_keys()

    def on_rows_opened(self, event: Rows.Opened) -> None:
        """Open it."""
        self.do_runs_open()

    def do_runs_open(self) -> None:
        """Attach to the run under the cursor if it lives, else open its files."""
        run = self.current()
        if run is None:
            self.say("there is no run to open", "warn")
            return
        if not (self.tui.bridge is not None and self.tui.dir == run.dir and not self.tui.bridge.lost):
            self.tui.open_link(self.tui.runs.open(run))
        self.tui.go(actions.RUN)

    def do_list_filter(self) -> None:
        """Type a filter."""
        self.query_one("#filter", Prompt).ask(self._filter)

    def on_prompt_changed(self, event: Prompt.Changed) -> None:
        """Show what matches while it is being typed."""
        self._filter = event.text
        self.refresh_all()

    def on_prompt_closed(self, event: Prompt.Closed) -> None:
        """Back to the rows."""
        self._filter = event.text
        self.rows.focus()
        self.refresh_all()

    def back(self) -> bool:
        """Forget the filter."""
        if self._filter:
            self._filter = ""
            self.refresh_all()
            return True
        return False

    def copy_text(self) -> str:
        """The run's directory."""
        run = self.current()
        return str(run.dir) if run is not None else ""


class Titles(LineWidget):
    """The line over the rows."""

    DEFAULT_CSS = "Titles { height: 1; width: 1fr; }"

    def lines(self, width: int, height: int) -> Sequence[Line]:
        """See `LineWidget`."""
        # The rows below leave a column to their scrollbar.
        return [(*titles(width - 1), (" ", "head"))]


def _matches(run: RunSummary, text: str) -> bool:
    hay = " ".join(
        (run.id, run.name, run.status, run.model, run.taskset, run.harness, run.runtime, str(run.dir))
    )
    hay = hay.casefold()
    return all((word in hay) is not inverted for inverted, word in words(text))


def _problem(text: str) -> str:
    try:
        words(text)
    except FilterError as e:
        return str(e)
    return ""
