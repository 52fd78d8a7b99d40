"""Event loops for coroutines of others, on threads of their own.

Hooks share one loop, so that what an object keeps for its loop (a client, a lock) stays usable from call to call. One
that blocks its loop (`time.sleep`, a long computation) is found by those that wait behind it: they begin on another
loop, and what blocked gets a loop to itself from then on. Those that are under way on a loop can't leave it: when it
stays blocked they fail, and the error names what blocks it. Calls that may take as long as an agent ask for a loop to
themselves at once. All threads are daemons: hung code can't keep the process alive.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import threading
from collections.abc import Callable, Coroutine, Hashable
from typing import Any

log = logging.getLogger(__name__)

BLOCKED_SECONDS = 1.0
"""A loop that has not begun a call after this long is blocked by another one."""
HELD_SECONDS = 60.0
"""A call that is under way fails when another one blocks their loop for longer than this."""
CANCEL_SECONDS = 1.0
"""How long a cancelled call may take to clean up; later it has lost its sandbox."""
LOOPS_LIMIT = 512
"""How many loops there may be at once: as many calls may block before others are held up."""


def tamed(error: BaseException) -> RuntimeError:
    """What others' code must not do to the process (`sys.exit`) or to its caller (raise CancelledError)."""
    out = RuntimeError(f"{type(error).__name__}: {error}")
    out.__cause__ = error
    return out


def tell(loop: asyncio.AbstractEventLoop, future: asyncio.Future[Any], act: Callable[[], None]) -> None:
    """Settle `future`, which belongs to `loop`, from another thread, unless that has been done."""

    def settle() -> None:
        if not future.done():
            act()

    try:
        loop.call_soon_threadsafe(settle)
    except RuntimeError:
        pass  # the loop that asked is closed


async def _tame(coroutine: Coroutine[Any, Any, Any], on: _PluginLoop) -> Any:
    on.fresh = False
    try:
        return await coroutine
    except (SystemExit, KeyboardInterrupt) as e:
        raise tamed(e) from e


class _PluginLoop:
    """An event loop on a daemon thread. `retire` ends it when nothing runs on it any more.

    `fresh`: a call was taken and has not come to its first step; whoever is taken next waits for that. `private`: it
    is there for one call only.
    """

    def __init__(self, number: int, ended: Callable[[], None]) -> None:
        self.loop = asyncio.new_event_loop()
        self.fresh = self.private = False
        self._running = 0
        self._retired = False
        self._ended = ended
        threading.Thread(target=self._run, name=f"plugins {number}", daemon=True).start()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_forever()
        finally:
            self.loop.close()
            self._ended()

    def begin(self) -> None:
        self._running += 1

    def end(self) -> None:
        self._running -= 1
        self._leave()

    def retire(self) -> None:
        self.loop.call_soon_threadsafe(self._retire)

    def _retire(self) -> None:
        self._retired = True
        self._leave()

    def _leave(self) -> None:
        if self._retired and not self._running:
            self.loop.call_soon(self.loop.stop)

    def busy_with(self) -> Work | None:
        """The call that runs on it at this moment."""
        try:
            task = asyncio.current_task(self.loop)
        except RuntimeError:
            return None
        return getattr(task, "vf_work", None)


class _Task(asyncio.Task[Any]):
    """A task that knows what it is a call of."""

    vf_work: Work | None = None


class Loops:
    """The shared loop, made when first needed and replaced when it is blocked; and loops for one call each."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._shared: _PluginLoop | None = None
        self._made = self._live = 0
        self._blockers: set[Hashable] = set()

    def offer(self, work: Work) -> _PluginLoop:
        """Give `work` to the loop that is there for it."""
        with self._lock:
            alone = (work.alone or work.key in self._blockers) and self._live < LOOPS_LIMIT
            if alone:
                on = self._make()
                on.private = True
            else:
                on = self._shared = self._shared or self._make()
        work.offer(on)
        if alone:
            on.retire()  # it ends with its only call
        return on

    def again(self, work: Work, waited_for: _PluginLoop) -> _PluginLoop:
        """`work` did not begin on `waited_for`: offer it to another loop when that one is blocked and there may be
        more of them."""
        with self._lock:
            if self._live >= LOOPS_LIMIT or waited_for.private:
                return waited_for
            self._leave(waited_for)
        log.warning("plugin code blocks its event loop; %s gets another one", work.what)
        return self.offer(work)

    def blocked(self, on: _PluginLoop) -> None:
        """Nothing more is to begin on `on`; what runs there at this moment gets loops to itself from now on."""
        with self._lock:
            self._leave(on)

    def _leave(self, on: _PluginLoop) -> None:
        if on is self._shared:
            if (work := on.busy_with()) is not None:
                self._blockers.add(work.key)
            self._shared = None
            on.retire()

    def _make(self) -> _PluginLoop:
        self._made += 1
        self._live += 1
        return _PluginLoop(self._made, self._one_less)

    def _one_less(self) -> None:
        with self._lock:
            self._live -= 1


class Work:
    """One coroutine: run by the first plugin loop that takes it, waited for by the loop that asked. `key` tells calls
    of the same code; `alone`: on a loop of its own; `what` is how messages name it."""

    def __init__(
        self, coroutine: Coroutine[Any, Any, Any], key: Hashable, what: str, *, alone: bool = False
    ) -> None:
        self.key = key
        self.alone = alone
        self.what = what
        self.home = asyncio.get_running_loop()
        self.begun: asyncio.Future[None] = self.home.create_future()
        self.done: asyncio.Future[Any] = self.home.create_future()
        self._coroutine: Coroutine[Any, Any, Any] | None = coroutine
        self._context = contextvars.copy_context()
        self._lock = threading.Lock()
        self._task: asyncio.Task[Any] | None = None
        self._on: _PluginLoop | None = None

    def offer(self, to: _PluginLoop) -> None:
        """Let `to` run it, unless another loop has begun to."""
        to.loop.call_soon_threadsafe(self._take, to)

    def _take(self, on: _PluginLoop) -> None:
        if on.fresh:
            on.loop.call_soon(self._take, on)
            return
        with self._lock:
            coroutine, self._coroutine = self._coroutine, None
        if coroutine is None:
            return
        on.begin()
        on.fresh = True
        self._on = on
        task = _Task(_tame(coroutine, on), loop=on.loop, context=self._context)
        task.vf_work = self
        self._task = task
        task.add_done_callback(self._ended)
        tell(self.home, self.begun, lambda: self.begun.set_result(None))

    def _ended(self, task: asyncio.Task[Any]) -> None:
        if self._on is not None:
            self._on.end()
        error = asyncio.CancelledError("it cancelled itself") if task.cancelled() else task.exception()
        if error is not None:
            raised = error if isinstance(error, Exception) else tamed(error)
            tell(self.home, self.done, lambda: self.done.set_exception(raised))
        else:
            tell(self.home, self.done, lambda: self.done.set_result(task.result()))

    async def held_up(self) -> Work | None:
        """The other call that has had this one's loop to itself for `HELD_SECONDS` from now, if there is one."""
        on = self._on
        other = on.busy_with() if on is not None else None
        if on is None or other is None or other is self:
            return None
        moved: asyncio.Future[None] = self.home.create_future()
        on.loop.call_soon_threadsafe(tell, self.home, moved, lambda: moved.set_result(None))
        await asyncio.wait({moved, self.done}, timeout=HELD_SECONDS, return_when="FIRST_COMPLETED")
        if moved.done() or self.done.done():
            return None
        _loops.blocked(on)
        return other

    def cancel(self) -> bool:
        """Cancel it wherever it is; whether it was running."""
        with self._lock:
            coroutine, self._coroutine = self._coroutine, None
        if coroutine is not None:
            coroutine.close()
            return False
        if self._on is not None and self._task is not None:
            try:
                self._on.loop.call_soon_threadsafe(self._task.cancel)
            except RuntimeError:
                return False  # it has just ended, and its loop with it
        return True


_loops = Loops()


async def on_plugin_loop(
    coroutine: Coroutine[Any, Any, Any], key: Hashable, what: str, *, alone: bool = False
) -> Any:
    """Run a coroutine of others on a loop for them and give what it gives, or raise what it raises.

    Calls of the same `key` are calls of the same code; `alone`: on a loop of its own. Cancelled, it cancels the
    coroutine and waits `CANCEL_SECONDS` for it, no longer.
    """
    work = Work(coroutine, key, what, alone=alone)
    loop = _loops.offer(work)
    try:
        while not work.begun.done() and not work.done.done():
            await asyncio.wait(
                {work.begun, work.done}, timeout=BLOCKED_SECONDS, return_when="FIRST_COMPLETED"
            )
            if not work.begun.done():
                loop = _loops.again(work, loop)
        while not work.done.done():
            # Awaited itself, it would be cancelled with this task.
            await asyncio.wait({work.done}, timeout=HELD_SECONDS)
            if not work.done.done() and (other := await work.held_up()) is not None:
                work.cancel()
                raise RuntimeError(f"held up: {other.what} blocks the event loop that they share")
        return work.done.result()
    except asyncio.CancelledError:
        if not work.done.done() and work.cancel():
            await asyncio.wait({work.done}, timeout=CANCEL_SECONDS)
        if work.done.done():
            work.done.exception()  # seen: what a cancelled call raises is nobody's
        raise
