"""All sandboxes there are: the ledger joined with what each provider lists, and what is left over of dead runs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING, ClassVar

from textual.widget import Widget

from vf_tui import actions, glyphs
from vf_tui.cleaning import Cleaning
from vf_tui.filter import Filter, FilterError, parse_with
from vf_tui.inventory_view import ITEMS, SORTS, InventoryView, in_order
from vf_tui.render import boxes, timefmt
from vf_tui.render.line import Line, clip
from vf_tui.screens.banner import Banner
from vf_tui.screens.base import BaseScreen
from vf_tui.screens.cleanup_dialogs import CommandsSheet
from vf_tui.screens.prompt import Prompt
from vf_tui.screens.rows import Rows
from vf_tui.widgets.facts_view import FactsView
from vf_tui.widgets.paint import LineWidget

if TYPE_CHECKING:
    from vf_core.sandboxes.items import Item

FRESH_SECONDS = 60.0
"""Coming back to an inventory older than this asks the providers again."""
PACE = 0.25
"""Seconds between two looks at all rows."""
REPORTS = 8
"""A screen has one line for the providers' answers for so many of its own."""


class CleanupScreen(BaseScreen):
    """A line a sandbox, of whatever run and owner; the proven leftovers can be marked and ended."""

    SCOPE: ClassVar[str] = actions.CLEANUP

    def __init__(self) -> None:
        super().__init__()
        self._shown: list[Item] = []
        self._drawn = float("-inf")

    def body(self) -> Iterable[Widget]:
        """Answers of the providers, titles, rows, details, filter."""
        yield Banner("head", id="count")
        yield Reports(id="reports")
        yield Titles(id="titles")
        yield Rows(id="rows")
        yield FactsView(id="details")
        yield Prompt(_problem, id="filter")

    def on_mount(self) -> None:
        """The rows have the keys; begin to ask."""
        super().on_mount()
        self.rows.focus()

    def arrived(self) -> None:
        """See `BaseScreen`: what is shown may be old."""
        self.cleaning.ask_if_old(FRESH_SECONDS)

    @property
    def rows(self) -> Rows:
        """The rows."""
        return self.query_one("#rows", Rows)

    @property
    def cleaning(self) -> Cleaning:
        """What asks, and what ends; it goes on while other screens are looked at."""
        return self.tui.cleaning

    @property
    def view(self) -> InventoryView:
        """What is known."""
        return self.cleaning.view

    @property
    def ticking(self) -> bool:
        """See `BaseScreen`."""
        return self.cleaning.busy or self.cleaning.has_news

    # -- drawing

    def flush(self, changed: AbstractSet[str] | None, now: float) -> None:
        """See `BaseScreen`."""
        now, view = self.tui.clock(), self.view
        if changed is not None:
            if self.cleaning.busy:
                self._head(now)
            # Results may come by the hundred: the rows follow when the pace allows.
            if abs(now - self._drawn) < PACE or not self.cleaning.take_news():
                return
        self._drawn = now
        self._shown = view.shown()
        self._head(now)
        self.query_one("#titles", Titles).update_lines()
        self.rows.empty_text = self._empty()
        shown, minute = self._shown, int(now // 5)
        self.rows.show(
            [(item.key, self._stamp(item, minute)) for item in shown],
            lambda n, cells: boxes.row(shown[n], view, cells, now),
        )
        self._details(now)

    def _head(self, now: float) -> None:
        self.query_one("#count", Banner).show(self._count(now))
        self.query_one("#reports", Reports).show(self.cleaning, now, max(1, self.app.size.height // REPORTS))

    def _stamp(self, item: Item, minute: int) -> tuple[object, ...]:
        view = self.view
        outcome = view.outcomes.get(item.key)
        return (item, item.key in view.marks, item.key in view.working, outcome, minute)

    def _count(self, now: float) -> str:
        view = self.view
        parts = []
        if self.cleaning.ending:
            parts.append(self.cleaning.progress(now))
        if view.taken is not None:
            total = len(view.items)
            parts.append(f"{total} sandbox{'es' * (total != 1)}, {len(view.leftovers)} left over")
        elif self.cleaning.asking:
            parts.append("all sandboxes: asking who has any")
        if view.marks:
            hidden = view.hidden(view.marks)
            parts.append(f"{len(view.marks)} marked" + (f", {hidden} of them hidden" if hidden else ""))
        if view.arranged:
            what = [f"filter {view.filter.text}"] if view.filter else []
            what += ["only leftovers and doubtful"] if view.only_doubtful else []
            parts.append(f"{', '.join(what)}: {len(self._shown)} shown")
        if view.sort != SORTS[0] or view.reverse:
            parts.append(f"sorted by {view.sort}{' reversed' if view.reverse else ''}")
        if view.outcomes and not self.cleaning.ending:
            parts.append(boxes.outcome_counts(view.counts()))
        if view.taken is not None:
            parts.append(f"as of {timefmt.at(view.taken)}")
        return glyphs.between().join(parts)

    def _empty(self) -> str:
        if self.cleaning.problem:
            return self.cleaning.problem
        if self.view.items:
            return "nothing matches the filter"
        return "asking" if self.cleaning.asking else "no sandbox is known, and nothing is left over"

    def _details(self, now: float) -> None:
        item = self.item()
        sections = boxes.sections(item, self.view, now) if item is not None else ()
        self.query_one("#details", FactsView).show(sections)

    # -- what actions need to know

    def item(self) -> Item | None:
        """The sandbox under the cursor."""
        return self.view.items.get(self.rows.cursor or "")

    def chosen(self) -> list[str]:
        """The marked leftovers, those that the filter hides last; else the one under the cursor."""
        marks = self.view.marks
        if not marks:
            item = self.item()
            return [item.key] if item is not None and self.view.markable(item.key) else []
        shown = [item.key for item in self._shown if item.key in marks]
        return [*shown, *sorted(marks.difference(shown))]

    def context(self) -> actions.Context:
        """See `BaseScreen`."""
        item = self.item()
        return self.tui.context(
            self.SCOPE,
            (),
            marks=len(self.view.marks),
            shown=len(self._shown),
            filtered=bool(self.view.filter),
            unmarkable=self.view.why_not(item) if item else "no sandbox is selected",
            unclaimable=self.view.why_no_claim(item) if item else "no sandbox is selected",
            asking=self.cleaning.asking,
            ending=self.cleaning.ending,
        )

    def copy_text(self) -> str:
        """The sandbox's id."""
        item = self.item()
        return (item.id or item.name) if item is not None else ""

    def copy_command(self) -> str:
        """The command that shows this from a shell."""
        return "vf-tui sandboxes"

    # -- messages

    def on_rows_highlighted(self, event: Rows.Highlighted) -> None:
        """Another sandbox."""
        self._details(self.tui.clock())
        self.show_keys()

    def on_rows_opened(self, event: Rows.Opened) -> None:
        """Show or hide what is known of it."""
        self.do_cleanup_open()

    def on_prompt_changed(self, event: Prompt.Changed) -> None:
        """Show what matches while it is being typed."""
        self._use_filter(event.text)

    def on_prompt_closed(self, event: Prompt.Closed) -> None:
        """Back to the rows."""
        self._use_filter(event.text)
        self.rows.focus()

    def _use_filter(self, text: str) -> None:
        try:
            self.view.filter = parse_with(text, ITEMS)
        except FilterError:
            return
        self.refresh_all()

    # -- acts

    def back(self) -> bool:
        """Details, then the filter, then the marks."""
        view = self.view
        if self.has_class("-details") or self.has_class("-without"):
            self.do_cleanup_open()
        elif view.arranged:
            view.filter, view.only_doubtful = Filter(), False
        elif view.marks:
            view.marks.clear()
        else:
            return False
        self.refresh_all()
        return True

    def do_cleanup_open(self) -> None:
        """Where there is room the details come and go; on a low screen they take the place of the rows."""
        low = self.has_class("-low")
        self.toggle_class("-details" if low else "-without")
        shown = self.query_one("#details", FactsView)
        (shown if low and self.has_class("-details") else self.rows).focus()
        self.call_after_refresh(self.refresh_all)

    def do_cleanup_refresh(self) -> None:
        """Ask everybody again."""
        self.cleaning.ask()

    def do_cleanup_commands(self) -> None:
        """What would be run."""
        keys = self.chosen()
        self.tui.push_screen(CommandsSheet([self.view.items[key] for key in keys if key in self.view.items]))

    def do_cleanup_clean(self) -> None:
        """End what is chosen, once its number was typed."""
        keys = self.chosen()
        self.cleaning.confirm(keys, hidden=self.view.hidden(keys))

    def do_cleanup_claim(self) -> None:
        """End one that is not proven to be a leftover, once that was confirmed."""
        item = self.item()
        if item is not None:
            self.cleaning.claim(item.key)

    def do_mark_toggle(self) -> None:
        """Mark or unmark, and go on to the next."""
        item = self.item()
        if item is not None:
            self.view.toggle(item.key)
            self.rows.action_move(1)
            self.refresh_all()

    def do_mark_down(self) -> None:
        """Extend the marks downwards."""
        self._extend(1)

    def do_mark_up(self) -> None:
        """Extend the marks upwards."""
        self._extend(-1)

    def _extend(self, step: int) -> None:
        for move in (0, step):
            if move:
                self.rows.action_move(move)
            item = self.item()
            if item is not None and self.view.markable(item.key):
                self.view.marks.add(item.key)
        self.refresh_all()

    def do_mark_all(self) -> None:
        """Mark every proven leftover that is shown."""
        n = self.view.mark_shown()
        self.refresh_all()
        if not n:
            self.say("none of what is shown is a proven leftover", "warn")

    def do_mark_none(self) -> None:
        """Forget every mark."""
        self.view.marks.clear()
        self.refresh_all()

    def do_list_filter(self) -> None:
        """Type a filter."""
        self.query_one("#filter", Prompt).ask(self.view.filter.text)

    def do_list_sort(self) -> None:
        """The next sort order."""
        self.view.sort = SORTS[(SORTS.index(self.view.sort) + 1) % len(SORTS)]
        self.refresh_all()
        self.say(f"sorted by {self.view.sort}")

    def do_list_reverse(self) -> None:
        """Turn the order round."""
        self.view.reverse = not self.view.reverse
        self.refresh_all()

    def do_list_attention(self) -> None:
        """Only leftovers and what may be one, or everything."""
        self.view.only_doubtful = not self.view.only_doubtful
        self.refresh_all()


class Titles(LineWidget):
    """The line over the rows."""

    DEFAULT_CSS = "Titles { height: 1; width: 1fr; }"

    def lines(self, width: int, height: int) -> Sequence[Line]:
        """See `LineWidget`."""
        # The rows below leave a column to their scrollbar.
        return [(*boxes.titles(width - 1), (" ", "head"))]


class Reports(LineWidget):
    """A line a provider: how many it lists and how fast, or why it could not be asked."""

    DEFAULT_CSS = "Reports { height: 1; width: 1fr; }"

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._lines: list[Line] = []

    def show(self, cleaning: Cleaning, now: float, limit: int) -> None:
        """Show the reports in at most `limit` lines; those that tell of trouble stay."""
        told = boxes.report_lines(in_order(cleaning.view.reports.values()), cleaning.waited(now), limit)
        if not told and cleaning.asking:
            told = [((f"asking {timefmt.span(cleaning.waited(now))}", "dim"),)]
        if told != self._lines:
            if max(1, len(told)) != max(1, len(self._lines)):
                self.styles.height = max(1, len(told))
            self._lines = told
            self.update_lines()

    def lines(self, width: int, height: int) -> Sequence[Line]:
        """See `LineWidget`."""
        out = [clip([(" ", ""), *line], width) for line in self._lines]
        return [*out, *[clip((), width)] * height][:height]


def _problem(text: str) -> str:
    try:
        parse_with(text, ITEMS)
    except FilterError as e:
        return str(e)
    return ""
