"""From a link to the screen: one task reads batches and folds them into the state that the widgets draw.

It runs on the app's own loop and in small helpings, so that a flood of events never holds up a key. Nobody
is told event by event: `on_change` is called once a batch, and whoever draws takes what changed.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from vf_core.errors import EngineSilentError, VfError
from vf_core.events import types as ev
from vf_core.events.fold import apply
from vf_core.events.state import RunState
from vf_core.link.base import Description, Events, Link, Lost, Reply, Silent, Snapshot
from vf_tui.notable import KEPT, Note, note_of, notes_of
from vf_tui.proofs import proofs_of, settle

HELPING = 400
"""Events folded before the loop gets its turn."""


class Bridge:
    """One open run. `changed` collects ids of rollouts until `take_changed`; `notes` is the notable events' log,
    `notes_seen` counts all ever added; `fresh` counts snapshots, so that a reader knows to start over.

    `lost` says why the engine can't be reached any more ("" while it can). `silent_since`: since when an engine that
    is there has not answered; None while it does.
    """

    def __init__(self, link: Link, *, clock: Callable[[], float] = time.time) -> None:
        self.link = link
        self.state = RunState()
        self.on_change: Callable[[], None] = lambda: None
        self.connected = False
        self.lost = ""
        self.silent_since: float | None = None
        self.fresh = 0
        self.notes: deque[Note] = deque(maxlen=KEPT)
        self.notes_seen = 0
        self.news: list[Note] = []
        self._clock = clock
        self._live = True

    @property
    def alive(self) -> bool:
        """The engine could be reached when last heard of."""
        return self._live

    @property
    def about(self) -> Description:
        """Which engine this is."""
        return self.link.describe()

    def now(self) -> float:
        """The time to measure ages against: the clock while the engine lives, else its last word.

        Never before the last event, so that no age is negative when a clock is set back.
        """
        if self.ticking:
            return max(self.state.now, self._clock())
        return self.state.now

    @property
    def ticking(self) -> bool:
        """Time matters: the run is not over and its engine can be reached."""
        return self.connected and self._live and not self.lost and not self.state.over

    async def run(self) -> None:
        """Connect and follow until the link is closed. A link that can't be had is told in `lost`."""
        try:
            self._take(await self._connect())
            self._live = self.about.alive
            self._give_up()
            await self.settle()
            self.connected = True
            self.on_change()
            async for batch in self.link.batches():
                match batch:
                    case Snapshot():
                        self._take(batch.state)
                        self._give_up()
                        await self.settle()
                    case Events():
                        await self._fold(batch.events)
                    case Silent():
                        self._silent(not batch.over)
                    case Lost():
                        self._engine_lost(batch)
                        await self.settle()
                self.on_change()
        except VfError as e:
            self.lost = str(e)
            self.on_change()

    async def _connect(self) -> RunState:
        """Connect, however long an engine that is there takes to answer."""
        while True:
            try:
                state = await self.link.connect()
            except EngineSilentError:
                self._silent(True)
                self.on_change()
            else:
                self._silent(False)
                return state

    def _silent(self, silent: bool) -> None:
        if not silent:
            self.silent_since = None
        elif self.silent_since is None:
            self.silent_since = self._clock()

    def _take(self, state: RunState) -> None:
        """Start over from a snapshot."""
        self.state = state
        state.changed = set(state.rollouts)
        self.fresh += 1
        notes = notes_of(state)
        if self.notes:
            # What was seen live says more than what a snapshot can tell.
            last = self.notes[-1].t
            notes = [note for note in notes if note.t > last]
        self._add_notes(notes)

    async def _fold(self, events: Sequence[ev.Event]) -> None:
        for start in range(0, len(events), HELPING):
            if start:
                await asyncio.sleep(0)
            notes = []
            for event in events[start : start + HELPING]:
                known = event.seq and event.seq <= self.state.seq
                apply(self.state, event)
                if known:
                    continue
                if note := note_of(event, self.state):
                    notes.append(note)
            self._add_notes(notes)
            self.news += [note for note in notes if note.level in ("error", "warning")][-1:]

    def _add_notes(self, notes: Iterable[Note]) -> None:
        for note in notes:
            self.notes.append(note)
            self.notes_seen += 1

    def _engine_lost(self, lost: Lost) -> None:
        if not lost.clean and not self.state.over:
            self.lost = lost.reason
            self.state.abandon()
            self._add_notes([Note(self._clock(), "error", f"engine lost: {lost.reason}")])
        self._live = False
        self._silent(False)

    def _give_up(self) -> None:
        """Of an engine that was dead before it was asked, nothing more is to be expected."""
        if not self._live and not self.state.over and (self.about.pid or self.state.pid):
            self.state.abandon()

    async def settle(self) -> None:
        """An engine that has gone can't say what was proven since of its sandboxes; the ledger can."""
        state = self.state
        if self._live or not state.left_over():
            return
        proofs = await asyncio.to_thread(proofs_of, state.run)
        touched = settle(state, proofs)
        state.changed |= touched
        if touched:
            self.on_change()

    def take_changed(self) -> set[str]:
        """The rollouts that changed since the last call."""
        changed, self.state.changed = self.state.changed, set()
        return changed

    def take_news(self) -> list[Note]:
        """Warnings and errors since the last call, the last of each helping."""
        news, self.news = self.news, []
        return news

    async def command(self, name: str, targets: Sequence[str] = (), **args: Any) -> Reply:
        """Send a command; a link that breaks under it is a refusal, not an exception."""
        try:
            return await self.link.command(name, targets, **args)
        except VfError as e:
            return Reply(False, str(e))

    async def close(self) -> None:
        """Leave the engine."""
        self._live = False
        await self.link.close()
