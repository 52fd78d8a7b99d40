"""One rollout and its sandbox, in tabs."""

from __future__ import annotations

import asyncio
import re
import tomllib
from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import Any, ClassVar

from textual.css.query import NoMatches
from textual.widget import Widget
from textual.widgets import ContentSwitcher

from vf_core.errors import VfError
from vf_core.events.state import RolloutView
from vf_core.runs.layout import RunDir
from vf_tui import actions
from vf_tui.filter import FilterError, of_lines
from vf_tui.render import facts
from vf_tui.render.transcript import json_tree, transcript
from vf_tui.screens.banner import Banner
from vf_tui.screens.base import BaseScreen
from vf_tui.screens.follower import OutputFollower
from vf_tui.screens.prompt import Prompt
from vf_tui.screens.rollout_header import RolloutHeader
from vf_tui.screens.tabs import TabRow
from vf_tui.screens.texts import copy_line, pane_text
from vf_tui.widgets.activity_view import ActivityView
from vf_tui.widgets.facts_view import FactsView, PhaseBar
from vf_tui.widgets.log_pane import LogPane

TABS = (
    ("activity", "Activity"),
    ("transcript", "Transcript"),
    ("output", "Output"),
    ("sandbox", "Sandbox"),
    ("attempts", "Attempts"),
    ("trace", "Trace"),
)
NAMES = [name for name, _ in TABS]


class FocusScreen(BaseScreen):
    """The rollout `rollout_id`; stays with it through restarts, and shows its last state when it is over."""

    SCOPE: ClassVar[str] = actions.FOCUS

    def __init__(self) -> None:
        super().__init__()
        self.rollout_id = ""
        self.tab = NAMES[0]
        self._loaded: tuple[object, ...] = ()
        self._loading = False
        self._search = self._filter = ""
        self._settings_of: Path | None = None
        self._settings_text = ""
        self.output = OutputFollower()

    def body(self) -> Iterable[Widget]:
        """Header, timeline, tabs and their panes."""
        yield RolloutHeader(id="rollout")
        yield PhaseBar(id="phases")
        yield Banner(id="banner")
        yield TabRow(TABS, id="tabs")
        with ContentSwitcher(initial=self.tab, id="panes"):
            yield ActivityView(id="activity")
            yield LogPane(id="transcript", empty_text="no message has been recorded yet")
            yield LogPane(id="output", colour=True, empty_text="the program has written nothing yet")
            yield FactsView(id="sandbox")
            yield FactsView(id="attempts")
            yield LogPane(id="trace", empty_text="no trace has been recorded yet")
        yield Banner("notice", id="filtered")
        yield Prompt(self._problem, id="search")

    def on_mount(self) -> None:
        """The chosen tab has the keys."""
        super().on_mount()
        self.query_one("#trace", LogPane).following = False
        self._bring_forward()

    def look_at(self, id: str, tab: str | None = None) -> None:
        """Show rollout `id`, in `tab` if given."""
        if id != self.rollout_id:
            self.rollout_id = id
            self._loaded = ()
            self.output.forget()
            if self.is_mounted:
                for name in ("transcript", "output", "trace"):
                    self.query_one(f"#{name}", LogPane).clear()
                self._filter = ""
                self.query_one("#output", LogPane).only(None)
                self.query_one("#trace", LogPane).follow(False)
        if tab is not None:
            self.choose(tab)
        self.refresh_all()

    def choose(self, tab: str) -> None:
        """Bring a tab to the front."""
        self.tab = tab
        if self.is_mounted:
            self._bring_forward()

    def _bring_forward(self) -> None:
        self.query_one("#panes", ContentSwitcher).current = self.tab
        self.query_one("#tabs", TabRow).show(self.tab)
        self.pane().focus()
        self.call_after_refresh(self.refresh_all)

    def pane(self) -> Widget:
        """The widget of the chosen tab."""
        return self.query_one(f"#{self.tab}")

    @property
    def rollout(self) -> RolloutView | None:
        """The rollout as the run has it now."""
        return self.tui.state.rollouts.get(self.rollout_id)

    # -- drawing

    def flush(self, changed: AbstractSet[str] | None, now: float) -> None:
        """See `BaseScreen`."""
        r = self.rollout
        if r is None:
            # The run was replaced under us, or the journal lost its head.
            self.tui.go_run(f"rollout {self.rollout_id} is not in this run")
            return
        self.tui.watch_rollouts({r.id})
        self.query_one(RolloutHeader).show(r, now, self.tui.stall_seconds, self.tui.remark())
        self.query_one(PhaseBar).show(r, now)
        self.query_one("#banner", Banner).show(self.tui.alarm())
        self._show_tab(r, now)
        self.query_one("#filtered", Banner).show(self._filtered())

    def _show_tab(self, r: RolloutView, now: float) -> None:
        match self.tab:
            case "activity":
                self.query_one(ActivityView).show(r, now)
            case "sandbox":
                sections = facts.sandbox_sections(r, self.tui.state, now, self._settings())
                self.query_one("#sandbox", FactsView).show([*sections, *facts.overview_sections(r, now)])
            case "attempts":
                sections = [*facts.attempt_sections(r, now), *facts.score_sections(r)]
                self.query_one("#attempts", FactsView).show(sections)
            case "output":
                if self.output.follow(self.query_one("#output", LogPane), r, self.tui.dir, now):
                    self.tui.wake()
            case _:
                self._load_trace(r)

    def _settings(self) -> str:
        """What the run's config says of its sandboxes; read once a run, and blank until it is."""
        where = self.tui.dir
        if where != self._settings_of:
            self._settings_of, self._settings_text = where, ""
            if where is not None:
                self.run_worker(self._read_settings(where), group="settings")
        return self._settings_text

    async def _read_settings(self, where: Path) -> None:
        text = await asyncio.to_thread(runtime_settings, where)
        if where == self._settings_of:
            self._settings_text = text
            self.tui.wake()

    def _load_trace(self, r: RolloutView) -> None:
        """Fetch the record when it can have changed since it was last shown."""
        wanted = (self.tab, r.id, r.attempt, r.turns, r.status, r.reward, len(r.errors))
        if wanted == self._loaded or self._loading:
            return
        self._loading, self._loaded = True, wanted
        self.run_worker(self._fetch(r.id, r.attempt, self.tab), group="trace")

    async def _fetch(self, id: str, attempt: int, tab: str) -> None:
        try:
            record = await self.tui.trace(id, attempt)
            if record is None:
                return
            make = transcript if tab == "transcript" else json_tree
            # A record may hold many megabytes: laid out where no key waits for it.
            lines = await asyncio.to_thread(make, record)
            if id == self.rollout_id and self.is_mounted:
                self.query_one(f"#{tab}", LogPane).set_lines(lines)
        except NoMatches:
            pass  # the app is closing
        except VfError as e:
            self.say(f"the trace could not be read: {e}", "error")
        finally:
            self._loading = False
            self.tui.wake()

    # -- what actions need to know

    def targets(self) -> list[RolloutView]:
        """The rollout that is looked at."""
        return [r] if (r := self.rollout) is not None else []

    def copy_text(self) -> str:
        """The text of the tab: all of a log, else the rollout's facts."""
        pane = self.pane()
        if isinstance(pane, LogPane) and len(pane.buffer):
            return pane_text(pane)
        r = self.rollout
        return copy_line(r) if r is not None else ""

    def context(self) -> actions.Context:
        """See `BaseScreen`."""
        return self.tui.context(self.SCOPE, self.targets(), tab=self.tab, shown=len(self.tui.state.rollouts))

    def mention(self, text: str, kind: str, rollout: str = "") -> None:
        """Only news of this rollout belong here."""
        if rollout == self.rollout_id:
            super().mention(text, kind, rollout)

    # -- messages

    def on_tab_row_chosen(self, event: TabRow.Chosen) -> None:
        """A click on a tab."""
        self.choose(event.name)

    def on_prompt_changed(self, event: Prompt.Changed) -> None:
        """Light up what is being searched for."""
        self._find(event.text)

    def on_prompt_closed(self, event: Prompt.Closed) -> None:
        """Go to the first match; in the output stay where its lines are shown."""
        pane = self.pane()
        pane.focus()
        found = self._find(event.text)
        if self.tab == "output":
            return
        if event.kept and event.text and isinstance(pane, LogPane):
            if found:
                pane.next_match()
                self.say(f"{found} line{'s' * (found != 1)} match; n and N go on")
            else:
                self.say(f"nothing matches {event.text}", "warn")

    def _find(self, text: str) -> int:
        """Look for `text`; how many lines have it. Of the output the others are hidden."""
        pane = self.pane()
        if self.tab == "output" and isinstance(pane, LogPane):
            wanted, light = of_lines(text)
            self._filter = wanted.text
            found = pane.only(wanted if wanted else None, light)
            self.tui.wake()
            return found
        self._search = text
        return pane.search(_pattern(text)) if isinstance(pane, LogPane) else 0

    def _problem(self, text: str) -> str:
        return _no_filter(text) if self.tab == "output" else _no_pattern(text)

    def _filtered(self) -> str:
        """That the output is filtered, and how much of it is shown."""
        pane = self.pane()
        if not (self._filter and self.tab == "output" and isinstance(pane, LogPane)):
            return ""
        return f"{len(pane.buffer):,} of {pane.held:,} lines match {self._filter} (esc shows all)"

    # -- acts

    def back(self) -> bool:
        """Forget the filter or the search of this tab; then back to the run."""
        if self._filter if self.tab == "output" else self._search:
            self._find("")
            return True
        return False

    def do_list_filter(self) -> None:
        """Search in the text; filter the output."""
        self.query_one("#search", Prompt).ask(self._filter if self.tab == "output" else self._search)

    def do_list_match_next(self) -> None:
        """The next match."""
        self._match(1)

    def do_list_match_previous(self) -> None:
        """The match before."""
        self._match(-1)

    def _match(self, step: int) -> None:
        pane = self.pane()
        if isinstance(pane, LogPane) and not pane.next_match(step):
            text = self._filter if self.tab == "output" else self._search
            self.say(f"nothing matches {text}" if text else "search with / first")

    def do_rollout_next(self) -> None:
        """The next rollout of the list."""
        self._go(1)

    def do_rollout_previous(self) -> None:
        """The one before."""
        self._go(-1)

    def do_failing_next(self) -> None:
        """The next that needs attention."""
        self._go(1, failing=True)

    def do_failing_previous(self) -> None:
        """The one before that needs attention."""
        self._go(-1, failing=True)

    def _go(self, step: int, *, failing: bool = False) -> None:
        id = self.tui.neighbour(self.rollout_id, step, failing=failing)
        if id is None:
            self.say("nothing needs attention" if failing else "there is no other rollout")
        else:
            self.look_at(id)

    def do_tab_next(self) -> None:
        """The tab to the right."""
        self.choose(NAMES[(NAMES.index(self.tab) + 1) % len(NAMES)])

    def do_tab_previous(self) -> None:
        """The tab to the left."""
        self.choose(NAMES[(NAMES.index(self.tab) - 1) % len(NAMES)])

    def do_text_follow(self) -> None:
        """Stay at the end, or stay here."""
        if isinstance(pane := self.pane(), LogPane):
            pane.follow(not pane.following)
            self.say("following" if pane.following else "not following: End follows again")

    def do_text_wrap(self) -> None:
        """Wrap or cut long lines."""
        if isinstance(pane := self.pane(), LogPane):
            self.say("long lines are wrapped" if pane.toggle_wrap() else "long lines are cut: ← → shift")

    def do_text_times(self) -> None:
        """When each line came."""
        if isinstance(pane := self.pane(), LogPane):
            on = pane.toggle_timestamps()
            self.say("times: of what came while it was shown" if on else "no times")


def runtime_settings(where: Path) -> str:
    """What the config in the run directory `where` says of its sandboxes; blank where there is none to be read."""
    try:
        data: Any = tomllib.loads(RunDir(where).config.read_text(encoding="utf-8"))
        return facts.runtime_words(data["env"]["agent"]["runtime"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return ""


def _pattern(text: str) -> re.Pattern[str] | str | None:
    """`/regex/` as a pattern, anything else literally. Raises `re.error`."""
    if len(text) > 2 and text.startswith("/") and text.endswith("/"):
        return re.compile(text[1:-1], re.IGNORECASE)
    return text or None


def _no_pattern(text: str) -> str:
    try:
        _pattern(text)
    except re.error as e:
        return f"no regular expression: {e}"
    return ""


def _no_filter(text: str) -> str:
    try:
        of_lines(text)
    except FilterError as e:
        return str(e)
    return ""
