"""The main screen: the run's header, the list of its rollouts, and the live pane grid."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from typing import ClassVar

from textual.containers import Container
from textual.widget import Widget

from vf_core.events.state import RolloutView, RunState
from vf_tui import actions, glyphs
from vf_tui.attention import attention
from vf_tui.filter import Filter, FilterError, parse
from vf_tui.screens.banner import Banner
from vf_tui.screens.base import NARROW, WIDE, BaseScreen
from vf_tui.screens.prompt import Prompt
from vf_tui.screens.texts import copy_line
from vf_tui.view_state import GROUPS, SORTS, ListView, Slots
from vf_tui.widgets.pane_grid import SLOW_PACE, PaneGrid
from vf_tui.widgets.rollout_list import RolloutList
from vf_tui.widgets.run_header import RunHeader

TOO_LOW_FOR_BOTH = 19


class RunScreen(BaseScreen):
    """Rollouts of the open run: what they do now, and what can be done about them."""

    SCOPE: ClassVar[str] = actions.RUN

    def __init__(self) -> None:
        super().__init__()
        self.view = ListView()
        self.slots = Slots()
        self._fresh = -1
        self._touched = False

    def body(self) -> Iterable[Widget]:
        """Header, banner, list and grid, filter."""
        yield RunHeader(id="header")
        yield Banner(id="banner")
        with Container(id="main"):
            yield RolloutList(id="list")
            yield PaneGrid(id="grid")
        yield Banner("notice", id="arranged")
        yield Prompt(_problem, id="filter")

    def on_mount(self) -> None:
        """The list has the keys."""
        super().on_mount()
        if self.tui.slow:
            self.grid.pace = SLOW_PACE
        self.rollout_list.focus()

    @property
    def rollout_list(self) -> RolloutList:
        """The list of rollouts."""
        return self.query_one("#list", RolloutList)

    @property
    def grid(self) -> PaneGrid:
        """The pane grid."""
        return self.query_one("#grid", PaneGrid)

    # -- drawing

    def on_resize(self) -> None:
        """List beside grid, over it, or one of the two."""
        size = self.app.size
        beside = size.width >= WIDE
        single = not beside and (size.height < TOO_LOW_FOR_BOTH or size.width < NARROW)
        self.set_class(beside, "-beside")
        self.set_class(single, "-single")
        self.set_class(not beside and not single, "-over")
        super().on_resize()

    def flush(self, changed: AbstractSet[str] | None, now: float) -> None:
        """See `BaseScreen`."""
        bridge = self.tui.bridge
        if bridge is None:
            return
        state = bridge.state
        if bridge.fresh != self._fresh:
            self._fresh, changed = bridge.fresh, None
        touched = state.rollouts.keys() if changed is None else changed
        self.view.stall_seconds = self.tui.stall_seconds
        ended = self.view.marks.drop_ended(state, touched)
        if ended:
            self.say(f"{_few(ended)} ended and left the selection")
        moved = self.view.refresh(state, touched, now)
        self.slots.arrange(state, self.view, touched if not moved else None)
        self.query_one("#header", RunHeader).show(state, now, self.tui.remark())
        self.query_one("#banner", Banner).show(self.tui.alarm())
        self.query_one("#arranged", Banner).show(self._arranged(state))
        self.rollout_list.empty_text = (
            "nothing matches the filter" if state.rollouts else self.tui.waiting_text()
        )
        self.rollout_list.show(state, self.view.rows, marks=self.view.marks.ids, changed=changed, now=now)
        if not self._touched and self.view.ids:
            self.rollout_list.move_to(self.view.ids[0])
        self._show_grid(state, changed, now)

    def _show_grid(self, state: RunState, changed: AbstractSet[str] | None, now: float) -> None:
        grid = self.grid
        grid.empty_text = "" if not state.rollouts else "nothing is running"
        if grid.display and grid.size.width:
            grid.show(state, self.slots.ids, self.rollout_list.cursor_id, changed, now)
            self.tui.watch_rollouts(set(grid.visible_ids()))
        else:
            self.tui.watch_rollouts(set())

    def _arranged(self, state: RunState) -> str:
        """What keeps the list from being everything in the usual order."""
        view, parts = self.view, []
        if view.filter:
            parts.append(f"filter {view.filter.text}")
        if view.attention_only:
            parts.append("only attention")
        if parts:
            parts.append(f"{len(view.ids)} of {len(state.rollouts)} shown")
        if view.sort != SORTS[0] or view.reverse:
            parts.append(f"sorted by {view.sort}{' reversed' if view.reverse else ''}")
        if view.group != GROUPS[0]:
            parts.append(f"grouped by {view.group}")
        if view.marks:
            hidden = view.hidden(view.marks.ids)
            parts.append(f"{len(view.marks)} marked" + (f", {hidden} of them hidden" if hidden else ""))
        return glyphs.between().join(parts)

    def rearranged(self) -> None:
        """The user changed the arrangement."""
        self.refresh_all()

    # -- what actions need to know

    def targets(self) -> list[RolloutView]:
        """The marked rollouts, or else the one under the cursor."""
        rollouts = self.tui.state.rollouts
        marks = self.view.marks.ids
        if not marks:
            return [r] if (r := rollouts.get(self.rollout_list.cursor_id or "")) is not None else []
        # In the order of the list; those that the filter hides come last.
        shown = [id for id in self.view.ids if id in marks]
        return [rollouts[id] for id in (*shown, *sorted(marks.difference(shown))) if id in rollouts]

    def current_id(self) -> str:
        """The rollout under the cursor, marks or not."""
        return self.rollout_list.cursor_id or ""

    def copy_text(self) -> str:
        """The rollouts in question, one a line: id, task, status, how it exited, reward, error."""
        return "\n".join(copy_line(r) for r in self.targets())

    def context(self) -> actions.Context:
        """See `BaseScreen`."""
        return self.tui.context(
            self.SCOPE,
            self.targets(),
            marks=len(self.view.marks),
            shown=len(self.view.ids),
            filtered=bool(self.view.filter),
        )

    # -- messages

    def key_pressed(self) -> None:
        """From the first key on the cursor stays where the user has it; before, it is on the first row."""
        self._touched = True

    def on_click(self) -> None:
        """A click is as good as a key."""
        self._touched = True

    def on_rollout_list_highlighted(self, event: RolloutList.Highlighted) -> None:
        """The grid lights the pane of the rollout under the cursor."""
        self._show_grid(self.tui.state, set(), self.tui.now())
        self.show_keys()

    def on_pane_grid_highlighted(self, event: PaneGrid.Highlighted) -> None:
        """The list follows the grid."""
        self.rollout_list.move_to(event.id)
        self.tui.watch_rollouts(set(self.grid.visible_ids()))
        self.show_keys()

    def on_rollout_list_opened(self, event: RolloutList.Opened) -> None:
        """Look into a rollout."""
        self.tui.focus_on(event.id)

    def on_pane_grid_opened(self, event: PaneGrid.Opened) -> None:
        """Look into a rollout."""
        self.tui.focus_on(event.id)

    def on_rollout_list_marked(self, event: RolloutList.Marked) -> None:
        """A click on a mark."""
        if (r := self.tui.state.rollouts.get(event.id)) is not None:
            self.view.marks.toggle(r)
            self.rearranged()

    def on_prompt_changed(self, event: Prompt.Changed) -> None:
        """The list shows what the filter lets through while it is being typed."""
        self._use_filter(event.text)

    def on_prompt_closed(self, event: Prompt.Closed) -> None:
        """Back to the list."""
        self._use_filter(event.text)
        self.rollout_list.focus()

    def _use_filter(self, text: str) -> None:
        try:
            self.view.filter = parse(text)
        except FilterError:
            return
        self.rearranged()

    # -- acts

    def back(self) -> bool:
        """Zoom, then the filter, then the marks."""
        if self.grid.zoomed:
            self.do_view_zoom()
        elif self.view.filter or self.view.attention_only:
            self.view.filter, self.view.attention_only = Filter(), False
        elif self.view.marks:
            self.view.marks.clear()
        else:
            return False
        self.rearranged()
        return True

    def do_rollout_open(self) -> None:
        """Look into the rollout under the cursor."""
        if self.rollout_list.cursor_id is not None:
            self.tui.focus_on(self.rollout_list.cursor_id)

    def do_mark_toggle(self) -> None:
        """Mark or unmark the rollout under the cursor, and go on to the next."""
        if (r := self.tui.state.rollouts.get(self.rollout_list.cursor_id or "")) is not None:
            self.view.marks.toggle(r)
            self.rollout_list.action_cursor(1)
            self.rearranged()

    def do_mark_down(self) -> None:
        """Extend the marks downwards."""
        self._extend(1)

    def do_mark_up(self) -> None:
        """Extend the marks upwards."""
        self._extend(-1)

    def _extend(self, step: int) -> None:
        rollouts = self.tui.state.rollouts
        for move in (0, step):
            if move:
                self.rollout_list.action_cursor(move)
            if (r := rollouts.get(self.rollout_list.cursor_id or "")) is not None:
                self.view.marks.set(r)
        self.rearranged()

    def do_mark_all(self) -> None:
        """Mark everything that is shown."""
        for id in self.view.ids:
            self.view.marks.set(self.tui.state.rollouts[id])
        self.rearranged()

    def do_mark_none(self) -> None:
        """Forget every mark."""
        self.view.marks.clear()
        self.rearranged()

    def do_list_filter(self) -> None:
        """Type a filter."""
        self.query_one("#filter", Prompt).ask(self.view.filter.text)

    def do_list_match_next(self) -> None:
        """The next rollout that is shown."""
        self._go(1)

    def do_list_match_previous(self) -> None:
        """The one before."""
        self._go(-1)

    do_rollout_next = do_list_match_next
    do_rollout_previous = do_list_match_previous

    def do_failing_next(self) -> None:
        """The next rollout that needs attention."""
        self._go(1, failing=True)

    def do_failing_previous(self) -> None:
        """The one before that needs attention."""
        self._go(-1, failing=True)

    def _go(self, step: int, *, failing: bool = False) -> None:
        id = self.tui.neighbour(self.rollout_list.cursor_id, step, failing=failing)
        if id is None:
            self.say("nothing needs attention" if failing else "the list is empty")
        else:
            self.rollout_list.move_to(id)

    def needs_attention(self, id: str) -> bool:
        """Whether a rollout is one that `}` stops at."""
        r = self.tui.state.rollouts.get(id)
        return r is not None and bool(attention(r, self.tui.now(), self.tui.stall_seconds))

    def do_list_sort(self) -> None:
        """The next sort order."""
        self.view.sort = SORTS[(SORTS.index(self.view.sort) + 1) % len(SORTS)]
        self.rearranged()
        self.say(f"sorted by {self.view.sort}")

    def do_list_reverse(self) -> None:
        """Turn the order round."""
        self.view.reverse = not self.view.reverse
        self.rearranged()

    def do_list_group(self) -> None:
        """The next grouping."""
        self.view.group = GROUPS[(GROUPS.index(self.view.group) + 1) % len(GROUPS)]
        self.rearranged()
        self.say("not grouped" if self.view.group == GROUPS[0] else f"grouped by {self.view.group}")

    def do_list_attention(self) -> None:
        """Only what needs attention, or everything."""
        self.view.attention_only = not self.view.attention_only
        self.rearranged()

    def do_view_zoom(self) -> None:
        """One pane on the whole screen, or everything again."""
        grid = self.grid
        on = not grid.zoomed
        self.set_class(on, "-zoomed")
        grid.zoom(on)
        (grid if on or self.has_class("-grid") else self.rollout_list).focus()
        self.call_after_refresh(self.refresh_all)

    def do_view_switch(self) -> None:
        """Between list and grid; where only one has room, show the other."""
        to_grid = not self.grid.has_focus
        self.set_class(to_grid, "-grid")
        self.call_after_refresh((self.grid if to_grid else self.rollout_list).focus)
        self.call_after_refresh(self.refresh_all)


def _problem(text: str) -> str:
    try:
        parse(text)
    except FilterError as e:
        return str(e)
    return ""


def _few(ids: list[str]) -> str:
    return ", ".join(ids[:3]) + (f" and {len(ids) - 3} more" if len(ids) > 3 else "")
