"""Who lives in which sandbox, counted for all that ask at once; and burying the orphans that this process adopted.

A look at the process table costs time in proportion to the host's processes, so concurrent stops share one, and
looks are spaced so that they take at most a small share of a core.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from weakref import WeakKeyDictionary

from vf_core.runtimes import tree
from vf_core.runtimes.identity import adopt_orphans, engine
from vf_core.runtimes.tree import Mark, Proc, mark_text

log = logging.getLogger(__name__)

# Looks take at most a twentieth of the time, but none waits longer than this for its turn (seconds).
_SHARE = 20
_LONGEST_WAIT = 0.25
_BURIAL_INTERVAL = 5.0


class Registry:
    """What this process started for its sandboxes: groups (by the pid that leads them), children, directories (the
    sandbox by path); and what was found out about processes."""

    def __init__(self) -> None:
        self.groups: dict[int, Mark] = {}
        self.children: set[int] = set()
        self.directories: dict[str, str] = {}
        # Members by pid and start: what shows whose they are may go before they do.
        self.known: dict[tuple[int, int], tree.Marks] = {}
        self.adopts = False
        self.sacrifice = tree.Sacrifice()
        self._session = 0

    def ready(self) -> None:
        """Before the first sandbox: orphans of its programs become children of this process."""
        if not self._session:
            self._session = os.getsid(0)
            self.adopts = adopt_orphans()

    def forget(self, sandbox: str) -> None:
        """A sandbox is gone: none of its groups is ours any more."""
        # Copies: another thread's engine may share this registry.
        for pid, mark in list(self.groups.items()):
            if mark[0] == sandbox:
                self.groups.pop(pid, None)
        for path, owner in list(self.directories.items()):
            if owner == sandbox:
                self.directories.pop(path, None)

    def adopted(self, proc: Proc) -> bool:
        """A child that nobody in this process started: its parent died, and nobody else will wait for it.

        Others' children (a plugin's own subprocess) must be left to them: they are in our session, or at the head of
        one of their own, and not marked.
        """
        if proc.parent != engine().pid or proc.pid in self.children or not self.adopts:
            return False
        if proc.session not in (proc.pid, self._session) or (proc.pid, proc.start) in self.known:
            return True
        return self.sacrifice.is_marked(proc.pid)

    def worker(self, proc: Proc) -> tree.Marks:
        """Whose an orphan is that dropped its environment and its session: it may still work where its sandbox is."""
        if proc.dead or proc.pid in self.children or not self.sacrifice.is_marked(proc.pid):
            return ()
        return tree.by_directory(proc, self.directories)


REGISTRY = Registry()


@dataclass(frozen=True, slots=True)
class Count:
    """One look at the process table: all processes, and whose each is (marks by pid)."""

    procs: dict[int, Proc]
    marks: dict[int, tree.Marks]

    def of(self, sandbox: str) -> list[Proc]:
        """The living processes of a sandbox."""
        prefix = f"{sandbox}/"
        return self._living(lambda mark: mark.startswith(prefix))

    def of_command(self, mark: Mark) -> list[Proc]:
        """The living processes of one command."""
        text = mark_text(mark)
        return self._living(lambda other: other == text)

    def _living(self, match: Callable[[str], bool]) -> list[Proc]:
        return [
            self.procs[pid]
            for pid, marks in self.marks.items()
            if not self.procs[pid].dead and any(match(mark) for mark in marks)
        ]


_tables: dict[int, tree.Table] = {}


def _look() -> Iterator[dict[int, Proc]]:
    me = engine()
    table = _tables.get(me.pid)
    if table is None:
        _tables.clear()
        table = _tables[me.pid] = tree.Table(me.start)
    return table.look(me.pid)


def count_now() -> Count:
    """One look, without letting anything else run meanwhile."""
    procs: dict[int, Proc] = {}
    for procs in _look():  # noqa: B007 - the last one is complete
        pass
    return _judge(procs)


def _judge(procs: dict[int, Proc]) -> Count:
    marks = tree.owners(procs, engine().pid, REGISTRY.groups, REGISTRY.known, REGISTRY.worker)
    REGISTRY.known = {(pid, procs[pid].start): of for pid, of in marks.items()}
    bury(proc for proc in procs.values() if proc.dead)
    return Count(procs, marks)


def bury(dead: Iterable[Proc]) -> None:
    """Wait for adopted orphans that ended."""
    for proc in dead:
        if REGISTRY.adopted(proc):
            with contextlib.suppress(ChildProcessError):
                os.waitpid(proc.pid, os.WNOHANG)


class Census:
    """Shared looks at the process table, for one event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._next: asyncio.Future[Count] | None = None
        self._running: asyncio.Task[None] | None = None
        self._began = 0.0
        self._cost = 0.0
        self._sandboxes = 0
        self._timer: asyncio.TimerHandle | None = None

    async def count(self) -> Count:
        """A look that begins after this call."""
        if self._next is None:
            self._next = self._loop.create_future()
        waited_for = self._next
        if self._running is None:
            self._running = self._loop.create_task(self._run(), name="process census")
        return await asyncio.shield(waited_for)

    async def _run(self) -> None:
        try:
            while self._next is not None:
                pause = min(self._cost * _SHARE, _LONGEST_WAIT) - (self._loop.time() - self._began)
                await asyncio.sleep(max(0.0, pause))
                asked, self._next = self._next, None
                self._began = self._loop.time()
                try:
                    result = await self._take()
                except Exception as e:
                    asked.set_exception(e)
                    asked.exception()  # whoever asked may have gone away
                except asyncio.CancelledError:
                    asked.cancel()
                    raise
                else:
                    asked.set_result(result)
        finally:
            self._running = None
            if self._next is not None:
                self._next.cancel()
                self._next = None

    async def _take(self) -> Count:
        procs: dict[int, Proc] = {}
        spent = 0.0
        began = time.perf_counter()
        for procs in _look():  # noqa: B007 - the last one is complete
            spent += time.perf_counter() - began
            await asyncio.sleep(0)
            began = time.perf_counter()
        result = _judge(procs)
        self._cost = spent + time.perf_counter() - began
        return result

    # ------------------------------------------------------------------ between stops

    def opened(self) -> None:
        """A sandbox came to live: look after orphans now and then while there is one."""
        self._sandboxes += 1
        if self._timer is None:
            self._timer = self._loop.call_later(_BURIAL_INTERVAL, self._tick)

    def closed(self) -> None:
        """A sandbox is over."""
        self._sandboxes -= 1
        if self._sandboxes <= 0 and self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _tick(self) -> None:
        self._timer = self._loop.call_later(_BURIAL_INTERVAL, self._tick)
        if _some_child_ended() and self._running is None:
            self._loop.create_task(self._bury(), name="bury orphans").add_done_callback(_note)

    async def _bury(self) -> None:
        await self.count()


def _some_child_ended() -> bool:
    """A child of this process is waiting to be buried, by whomever. One cheap call, which buries nobody."""
    if not hasattr(os, "waitid"):
        return False
    try:
        return os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:
        return False


def _note(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and task.exception() is not None:
        log.warning("orphans could not be looked after: %s", task.exception())


_censuses: WeakKeyDictionary[asyncio.AbstractEventLoop, Census] = WeakKeyDictionary()


def census() -> Census:
    """The running event loop's census."""
    loop = asyncio.get_running_loop()
    found = _censuses.get(loop)
    if found is None:
        found = _censuses[loop] = Census(loop)
    return found
