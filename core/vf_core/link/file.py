"""The link to a run that is only on disk: over, dead, on another machine, or another program's. Read-only."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

from vf_core.errors import LinkError, RunDirError
from vf_core.events import types as ev
from vf_core.events.command import Reply
from vf_core.events.fold import apply
from vf_core.events.state import RunState
from vf_core.link.base import Batch, Description, Events, Lost, Snapshot
from vf_core.link.traces import Traces
from vf_core.runs.find import RunSummary, summarise
from vf_core.runs.open import STALE, JournalSource, Progress, Source, load, open_source

EAGER, LAZY = 0.2, 1.0
"""Seconds between two looks at the file: while it grows, and when it has not for a while."""
CHECK = 2.0
"""Seconds between two looks at whether the engine is still there."""


class FileLink:
    """Follows the run in `run_dir` by its files. `progress` is called, on a thread, while it is read for the
    first time; `note` is shown with it."""

    read_only = True

    def __init__(self, run_dir: Path, *, progress: Progress | None = None, note: str = "") -> None:
        self._dir = run_dir.absolute()
        self._progress = progress
        self._note = note
        self._source: Source | None = None
        self._traces = Traces(self._dir)
        self._about: RunSummary | None = None
        self._alive = False
        self._over = False
        self._closed = threading.Event()
        self._wake = asyncio.Event()

    @classmethod
    def after(cls, run_dir: Path, seq: int, *, over: bool, traces: Traces) -> FileLink:
        """The continuation of another link: what the journal holds beyond the event numbered `seq`."""
        link = cls(run_dir)
        link._source = JournalSource(link._dir / "events.jsonl", after=seq)
        link._over, link._traces = over, traces
        return link

    async def connect(self) -> RunState:
        """See `Link.connect`. Raises `LinkError` when there is no run, or it can't be read."""
        return await self._open()

    async def batches(self) -> AsyncIterator[Batch]:
        """See `Link.batches`: what is appended from here on, and `Lost` when the engine is found dead."""
        quiet = 0.0
        checked = 0.0
        loop = asyncio.get_running_loop()
        while not self._closed.is_set():
            if self._source is None or await asyncio.to_thread(self._source.replaced):
                yield Snapshot(await self._open())
            events = await self._more()
            if events:
                quiet = 0.0
                yield Events(events)
                continue
            if self._alive and loop.time() - checked > CHECK:
                checked = loop.time()
                if (lost := await self._look()) is not None:
                    yield lost
            await self._rest(EAGER if quiet < LAZY else LAZY)
            quiet += EAGER

    async def command(self, name: str, targets: Sequence[str] = (), **args: Any) -> Reply:
        """See `Link.command`: always refused."""
        return Reply(False, self._note or "no engine is attached: this run is read from its files")

    def watch(self, rollouts: set[str]) -> None:
        """See `Link.watch`: the files say nothing of what is not finished."""

    async def trace(self, rollout: str, attempt: int = 0) -> dict[str, Any] | None:
        """See `Link.trace`."""
        return await self._traces.get(rollout, attempt)

    def describe(self) -> Description:
        """See `Link.describe`."""
        about = self._about
        note = self._note
        if about is None:
            return Description("file", dir=str(self._dir), alive=self._alive, note=note)
        if about.liveness == "elsewhere" and not note:
            note = f"its engine ran on {about.host}: what its files say is shown"
        return Description(
            "file",
            run=about.id,
            name=about.name,
            host=about.host,
            dir=str(about.dir),
            pid=about.pid,
            version=about.version,
            alive=self._alive,
            note=note,
        )

    async def close(self) -> None:
        """See `Link.close`."""
        self._closed.set()
        self._wake.set()

    async def _open(self) -> RunState:
        self._about = await asyncio.to_thread(summarise, self._dir)
        try:
            source = await asyncio.to_thread(open_source, self._dir)
            state = await asyncio.to_thread(
                load, source, RunState(), progress=self._progress, stop=self._closed.is_set
            )
        except RunDirError as e:
            raise LinkError(e.message, hint=e.hint) from e
        if self._closed.is_set():
            raise LinkError("closed while the run was read")
        self._source = source
        self._over = state.over
        self._alive = not self._over and self._is_alive()
        if not self._alive:
            for event in await asyncio.to_thread(source.last_words):
                apply(state, event)
        self._traces = Traces(self._dir)
        self._traces.take(state)
        return state

    def _is_alive(self) -> bool:
        about = self._about
        if about is None:
            return False
        if about.producer == "verifiers" or not about.known:
            # Nobody says who writes it: it lives as long as it grows.
            return _age(about.changed) < STALE
        return about.liveness in ("live", "elsewhere")

    async def _more(self) -> list[ev.Event]:
        assert self._source is not None  # noqa: S101
        try:
            events = await asyncio.to_thread(self._source.read)
        except FileNotFoundError:
            return []
        except OSError as e:
            raise LinkError(f"cannot read {self._source.path}: {e.strerror or e}") from e
        self._seen(events)
        return events

    def _seen(self, events: list[ev.Event]) -> None:
        self._traces.see(events)
        for event in events:
            if isinstance(event, ev.RunStarted):
                self._over, self._alive = False, True
            elif isinstance(event, ev.RunFinished):
                self._over = True

    async def _look(self) -> Lost | None:
        """Whether the engine is still there; the word of its end when it is not."""
        self._about = await asyncio.to_thread(summarise, self._dir)
        if self._is_alive():
            return None
        self._alive = False
        about = self._about
        if about is None:
            return Lost("the run directory is gone")
        return Lost(
            "the run is over" if self._over else f"the engine (pid {about.pid}) is gone", clean=self._over
        )

    async def _rest(self, seconds: float) -> None:
        try:
            await asyncio.wait_for(self._wake.wait(), seconds)
        except TimeoutError:
            pass


def _age(t: float) -> float:
    return time.time() - t
