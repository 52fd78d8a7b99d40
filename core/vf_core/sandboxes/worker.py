"""The one thread that writes the ledger: whoever asks at the same time shares a transaction."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import logging
import os
import queue
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from vf_core.errors import SandboxError
from vf_core.sandboxes.file import BusyError
from vf_core.sandboxes.rows import Change, Row
from vf_core.sandboxes.spill import Spill
from vf_core.sandboxes.store import Store

log = logging.getLogger(__name__)

T = TypeVar("T")

LINGER = 0.02
"""Seconds that a change waits for others; a row that is to be on disk waits for none."""
RETRY = 1.0
"""Seconds until changes that could not be written are tried again."""
PATIENCE = 3.0
"""Seconds that a write waits for other processes; then it goes beside the ledger."""
FORGET_DAYS = 14.0
"""Days after which a proven end need not be remembered."""
_LOCAL = "subprocess"


@dataclass(slots=True)
class Write:
    """Rows and changes to be written together. `done` hears what became of them; without it, they may wait."""

    new: list[Row] = field(default_factory=list)
    changes: list[Change] = field(default_factory=list)
    done: Future[None] | Waiter | None = None


@dataclass(slots=True)
class Waiter:
    """A future of an event loop, to be set from the thread."""

    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[None]


@dataclass(slots=True)
class _Read:
    act: Callable[[Store], None]


_Item = Write | _Read | None


class Worker:
    """Writes to the file at `path` in the order it is asked to. Thread-safe; a thread runs from the first request to
    `close`, and another when more is asked after that."""

    def __init__(self, path: Path, *, patience: float = PATIENCE) -> None:
        self.path = path
        self.patience = patience
        self._lock = threading.Lock()
        self._back: _Back | None = None

    def put(self, item: Write) -> None:
        """Have it written. Never blocks (but when the interpreter ends, and no thread can be had)."""
        self._submit(item)

    def read(self, act: Callable[[Store], T]) -> Future[T]:
        """Have `act` called with the store, after what was asked before it (but for what waits for others)."""
        future: Future[T] = Future()

        def run(store: Store) -> None:
            if not future.set_running_or_notify_cancel():
                return  # whoever asked has gone away
            try:
                future.set_result(act(store))
            except BaseException as e:
                future.set_exception(e)

        self._submit(_Read(run))
        return future

    def close(self) -> None:
        """Write what is left, as far as that can be done, and end the thread. Idempotent, blocks, never raises."""
        with self._lock:
            back, self._back = self._back, None
            _OPEN.discard(self)
            if back is None or back.pid != os.getpid():
                return
            back.items.put(None)
        back.thread.join()

    def _submit(self, item: Write | _Read) -> None:
        with self._lock:
            # Neither thread nor connection lives on in a forked child.
            if self._back is None or self._back.pid != os.getpid():
                back = _Back(self.path, self.patience)
                back.items.put(item)
                try:
                    back.thread.start()
                except RuntimeError:
                    # The interpreter is ending, or has no thread left.
                    back.items.put(None)
                    back.run()
                    return
                self._back = back
                _OPEN.add(self)
                return
            self._back.items.put(item)


class _Back:
    """One thread with its connection, and what it has to do."""

    def __init__(self, path: Path, patience: float) -> None:
        self.pid = os.getpid()
        self.items: queue.SimpleQueue[_Item] = queue.SimpleQueue()
        self.thread = threading.Thread(target=self.run, name="ledger", daemon=True)
        self._path = path
        self._patience = patience
        self._store = Store(path)
        self._spill = Spill(path)
        # What could not be written to the ledger yet (new rows stand beside it); and what was put off meanwhile.
        self._beside: list[Row] = []
        self._held: dict[int, Change] = {}
        self._later: list[_Item] = []
        self._wrote = False

    def run(self) -> None:
        """Do what is asked until the end (None) is."""
        going = True
        while going:
            items = self._next()
            going = None not in items
            try:
                self._handle(items)
            except Exception:
                log.exception("the ledger's thread met what it does not know")
            going = going and None not in self._later
        self._handle(self._later)
        if self._held and not self._spill.used:
            lost = len(self._held)
            log.error("ledger %s: what became of %d sandboxes could not be written", self._path, lost)
        elif self._wrote:
            with contextlib.suppress(SandboxError):
                self._store.forget(time.time() - FORGET_DAYS * 86_400)
        self._spill.close()
        self._store.close()

    def _next(self) -> list[_Item]:
        """What there is to do: at least one thing, or time to try what failed."""
        items, self._later = self._later, []
        waiting = self._held or self._beside
        wait: float | None = 0.0 if items else RETRY if waiting else None
        until = time.monotonic() + LINGER if items else 0.0
        while True:
            with contextlib.suppress(queue.Empty):
                while True:
                    items.append(self.items.get(wait is None or wait > 0, wait))
                    until = until or time.monotonic() + LINGER
                    wait = 0.0
            patient = bool(items) and all(isinstance(item, Write) and item.done is None for item in items)
            wait = until - time.monotonic()
            if not patient or wait <= 0:
                return items

    def _handle(self, items: Iterable[_Item]) -> None:
        batch: list[Write] = []
        for item in items:
            if isinstance(item, Write):
                batch.append(item)
            elif isinstance(item, _Read):
                self._write(batch)
                batch = []
                item.act(self._store)
        self._write(batch)

    def _write(self, batch: list[Write]) -> None:
        if not batch and not self._held and not self._beside:
            return
        new = [row for write in batch for row in write.new]
        fresh = _merged({}, (change for write in batch for change in write.changes))
        changes = _merged(self._held, fresh.values())
        error: SandboxError | None = None
        try:
            self._put(new, fresh.values(), changes)
        except SandboxError as e:
            error = e
        except Exception as e:
            error = SandboxError(f"the ledger of sandboxes {self._path} failed: {type(e).__name__}: {e}")
        if error is not None:
            if not self._held:
                log.warning("%s; trying again", error)
            lost = {row.key for row in new}
            self._held = {key: change for key, change in changes.items() if key not in lost}
        _answer([write.done for write in batch if write.done is not None], error)

    def _put(self, new: list[Row], fresh: Collection[Change], changes: dict[int, Change]) -> None:
        """Into the ledger; or, when others do not let go of it, beside it. `fresh` are the latest of `changes`."""
        durable = any(row.kind != _LOCAL for row in new)
        until = time.monotonic() + (0.0 if self._spill.used else self._patience)
        try:
            self._store.write(
                [*self._beside, *new],
                changes.values(),
                durable=durable or self._spill.used,
                until=until,
                meanwhile=self._serve_readers,
            )
        except BusyError as busy:
            added = fresh if self._spill.used else changes.values()
            try:
                if new or added:
                    self._spill.append(new, added, durable=durable)
            except OSError as e:
                raise BusyError(f"{busy.message}, and beside it: {e.strerror or e}", hint=busy.hint) from e
            self._beside += new
            self._held = changes
        else:
            self._wrote = self._wrote or bool(new)
            self._beside, self._held = [], {}
            self._spill.clear()

    def _serve_readers(self) -> None:
        """While others write: who only reads need not wait."""
        with contextlib.suppress(queue.Empty):
            while True:
                item = self.items.get_nowait()
                if isinstance(item, _Read):
                    item.act(self._store)
                else:
                    self._later.append(item)


def _merged(held: Mapping[int, Change], changes: Iterable[Change]) -> dict[int, Change]:
    """The changes of each row in one, after those that are `held`."""
    out = dict(held)
    for change in changes:
        out[change.key] = change.after(out.get(change.key))
    return out


def _answer(waiting: list[Future[None] | Waiter], error: SandboxError | None) -> None:
    loops: dict[asyncio.AbstractEventLoop, list[asyncio.Future[None]]] = {}
    for done in waiting:
        if isinstance(done, Waiter):
            loops.setdefault(done.loop, []).append(done.future)
        elif error is None:
            done.set_result(None)
        else:
            done.set_exception(error)
    for loop, futures in loops.items():
        with contextlib.suppress(RuntimeError):  # it is closed: nobody waits any more
            loop.call_soon_threadsafe(_set, futures, error)


def _set(futures: list[asyncio.Future[None]], error: SandboxError | None) -> None:
    for future in futures:
        if future.done():
            continue
        if error is None:
            future.set_result(None)
        else:
            future.set_exception(type(error)(error.message, hint=error.hint))


_OPEN: set[Worker] = set()


def _close_all() -> None:
    for worker in list(_OPEN):
        worker.close()


# Exit hooks run in reverse order: registered on import, this one comes after the end of the sandboxes.
atexit.register(_close_all)
