"""Asking for the inventory and ending leftovers, for a screen: it goes on while other screens are looked at."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from vf_core.errors import VfError
from vf_core.runtimes.lifecycle import State
from vf_tui.inventory_source import InventorySource, left_text
from vf_tui.inventory_view import InventoryView
from vf_tui.render import timefmt
from vf_tui.render.boxes import outcome_counts

if TYPE_CHECKING:
    from vf_core.sandboxes.items import Outcome, ProviderReport
    from vf_tui.app import VfTuiApp

log = logging.getLogger(__name__)

LOOK_SECONDS = 15.0
"""Between two looks into the ledger for what dead runs left, while a screen tells of it."""


class Cleaning:
    """One at a time: it asks, or it ends what was confirmed. `view` is what is known.

    `left` tells of the sandboxes of dead runs, as far as the ledger knows them; "" when there are none. `problem` is
    why nothing could be asked at all.
    """

    def __init__(self, app: VfTuiApp, source: InventorySource | None = None) -> None:
        self._app = app
        self.source = source or InventorySource()
        self.view = InventoryView()
        self.left = ""
        self.problem = ""
        self.asking = False
        self.ending = 0
        self._since = 0.0
        self._round = 0
        self._looked = float("-inf")
        self._looking = False
        self._news = False

    @property
    def busy(self) -> bool:
        """Something is under way, and its age is shown."""
        return self.asking or bool(self.ending)

    @property
    def has_news(self) -> bool:
        """Something has changed that nobody has taken note of."""
        return self._news

    def take_news(self) -> bool:
        """Something has changed since the last call."""
        news, self._news = self._news, False
        return news

    def waited(self, now: float) -> float:
        """Seconds since it began to ask, or to end."""
        return max(0.0, now - self._since)

    def progress(self, now: float) -> str:
        """`cleaning up 3 of 12: 2 GONE, 1 UNKNOWN · oldest 4 s`."""
        view = self.view
        done = self.ending - len(view.working)
        told = outcome_counts(view.counts())
        oldest = min(view.working.values(), default=now)
        return (
            f"cleaning up: {done} of {self.ending}{f' ({told})' if told else ''}, "
            f"oldest {timefmt.span(now - oldest)}"
        )

    # -- what dead runs left

    def look(self) -> None:
        """See in the ledger what dead runs left, unless that was done just now; asks nobody."""
        now = self._app.monotonic()
        if self._looking or now - self._looked < LOOK_SECONDS:
            return
        self._looking = True
        self._app.run_worker(self._look(), group="leftovers", exit_on_error=False)

    async def _look(self) -> None:
        try:
            text = left_text(await asyncio.to_thread(self.source.leftover_kinds))
        except Exception as e:
            text = f"the ledger of sandboxes can't be read: {_why(e)}"
        finally:
            self._looking, self._looked = False, self._app.monotonic()
        if text != self.left:
            self.left = text
            self._app.left_changed()

    # -- asking

    def ask_if_old(self, seconds: float) -> None:
        """Ask unless what is known is younger than `seconds`, or there are results to be read."""
        taken = self.view.taken
        if taken is None or (not self.view.outcomes and self._app.clock() - taken > seconds):
            self.ask()

    def ask(self) -> None:
        """Ask everybody."""
        if self.busy:
            return
        self.asking, self.problem, self._since = True, "", self._app.clock()
        self._round += 1
        self.view.reports.clear()
        self._changed()
        self._app.run_worker(self._ask(self._round), group="inventory")

    async def _ask(self, round: int) -> None:
        got, problem = None, ""
        try:
            got = await self.source.take(self._reported)
        except Exception as e:
            problem = f"the sandboxes could not be listed: {_why(e)}"
        if round != self._round:
            return  # what was confirmed meanwhile is not to be shown as it was before
        self.problem = problem
        if got is not None:
            lost = self.view.take(got.items, got.reports, self._app.clock())
            if lost:
                self._app.base.say(
                    f"{len(lost)} {'is' if len(lost) == 1 else 'are'} no longer left over and left the selection"
                )
        self.asking = False
        self._changed()

    def _reported(self, report: ProviderReport) -> None:
        if self.asking:
            self.view.report(report)
            self._changed()

    def _changed(self) -> None:
        self._news = True
        self._app.wake()

    # -- ending

    def confirm(self, keys: Sequence[str], *, hidden: int) -> None:
        """Ask whether `keys` are to be ended, and end them."""
        from vf_tui.screens.cleanup_dialogs import EndDialog

        dialog = EndDialog(keys, self.view, hidden=hidden)
        self._app.push_screen(dialog, self._answered(dialog.confirmed, claimed=False))

    def claim(self, key: str) -> None:
        """Ask whether one is to be ended that is not proven to be a leftover, and end it."""
        from vf_tui.screens.cleanup_dialogs import ClaimDialog

        dialog = ClaimDialog([key], self.view)
        self._app.push_screen(dialog, self._answered(dialog.confirmed, claimed=True))

    def _answered(
        self, confirmed: Callable[[], Sequence[str]], *, claimed: bool
    ) -> Callable[[str | None], None]:
        def answered(answer: str | None) -> None:
            keys = [key for key in confirmed() if key in self.view.items]
            if keys and self.ending:
                self._app.base.say("not begun: another cleanup is still under way", "error")
            elif keys:
                self._end(keys, claimed=claimed)

        return answered

    def _end(self, keys: Sequence[str], *, claimed: bool) -> None:
        now = self._app.clock()
        self.ending, self._since = len(keys), now
        self._round += 1
        self.asking = False
        self.view.outcomes = {}
        self.view.begin(keys, now)
        self._changed()
        self._app.run_worker(self._clean(keys, claimed), group="cleanup")

    async def _clean(self, keys: Sequence[str], claimed: bool) -> None:
        items = [self.view.items[key] for key in keys]
        problem = ""
        try:
            outcomes = await self.source.clean(items, keys if claimed else (), self._came)
        except Exception as e:
            problem = _why(e)
        else:
            for outcome in outcomes:
                self._came(outcome)
        self._over(problem)

    def _came(self, outcome: Outcome) -> None:
        if self.ending:
            self.view.ended(outcome)
            self._changed()

    def _over(self, problem: str) -> None:
        view, lost = self.view, len(self.view.working)
        view.working.clear()
        self.ending = 0
        counts = view.counts()
        said = f"cleanup: {outcome_counts(counts) or 'nothing came of it'}"
        if lost:
            said += f"; of {lost} nothing is known: {problem or 'no answer'} (r asks again)"
        good = not lost and set(counts) <= {State.GONE.word}
        self._app.base.say(said, "info" if good else "error", None if not good else 20.0)
        self._looked = float("-inf")
        self.look()
        if self._app.bridge is not None:
            self._app.run_worker(self._app.bridge.settle(), group="proofs")
        self._changed()

    @property
    def farewell(self) -> str:
        """What is to be said when the app ends while something is being cleaned up."""
        waiting = len(self.view.working)
        if not waiting:
            return ""
        one = waiting == 1
        return (
            f"cleanup was left: {waiting} sandbox{' was' if one else 'es were'} asked to go and "
            f"{'is' if one else 'are'} not proven gone; `vf-tui cleanup` goes on"
        )


def _why(error: Exception) -> str:
    """What a failure says; one that nobody expected is in the log too, with its traceback."""
    if isinstance(error, VfError):
        return str(error)
    log.error("unexpected failure", exc_info=error)
    return f"{type(error).__name__}: {error}"
