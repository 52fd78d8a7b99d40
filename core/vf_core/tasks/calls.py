"""Calling code that belongs to others without letting it hold up the event loop.

A plain function gets a thread of its own. A coroutine runs on a loop kept for plugins, on another thread, so that one
that blocks (`time.sleep`, a long computation) stops neither the interception server nor other rollouts; when it
blocks that loop, the next call gets a new one. The sandbox's coroutines are carried back to the loop they belong
to. Every such thread is a daemon: hung code can't keep the process alive.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import logging
import threading
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from vf_core.errors import SandboxError
from vf_core.tasks.decorators import arguments

log = logging.getLogger(__name__)

BLOCKED_SECONDS = 1.0
"""A loop that has not begun a call after this long is blocked by another one."""
CANCEL_SECONDS = 1.0
"""How long a cancelled call may take to clean up; later it has lost its sandbox."""
LOOPS_LIMIT = 16


async def invoke(fn: Callable[..., Any], available: Mapping[str, Any], *, what: str = "") -> Any:
    """Call a hook with those of `available` that it asks for by name, and return what it returns.

    `fn` is a function, `async` or not. `trace` and `task` are handed over as they are; `runtime` stands for the real
    one and is dead once this returns. Raises what `fn` raises, TaskError when it asks for something else.
    """
    if getattr(fn, "does_nothing", False):
        return None
    what = what or f"{getattr(fn, '__qualname__', fn)}"
    if _is_ours(fn):
        result = fn(**arguments(fn, available, what))
        return await result if inspect.isawaitable(result) else result
    with _Lent(available) as lent:
        given = arguments(fn, lent, what)
        if not inspect.iscoroutinefunction(fn):
            result = await in_thread(fn, **given)
            return await _on_plugin_loop(_wait_for(result), what) if inspect.isawaitable(result) else result
        return await _on_plugin_loop(fn(**given), what)


def _is_ours(fn: Callable[..., Any]) -> bool:
    """A hook of this project's own tasks: it is known not to block."""
    owner = getattr(fn, "__self__", None)
    return owner is not None and type(owner).__module__.startswith("vf_core.")


async def _wait_for(awaitable: Any) -> Any:
    return await awaitable


async def in_thread(fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """Run a blocking function in a daemon thread of its own. A cancelled call returns at once; its thread goes on
    by itself, and what it gives or raises then is dropped."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[Any] = loop.create_future()
    context = contextvars.copy_context()

    def run() -> None:
        try:
            result = context.run(fn, *args, **kwargs)
        except BaseException as e:
            error = e if isinstance(e, Exception) and not isinstance(e, StopIteration) else _tamed(e)
            _tell(loop, done, lambda: done.set_exception(error))
        else:
            _tell(loop, done, lambda: done.set_result(result))

    name = f"call {getattr(fn, '__name__', fn)}"
    threading.Thread(target=run, name=name, daemon=True).start()
    return await done


def _tamed(error: BaseException) -> RuntimeError:
    """What others' code must not do to the process (`sys.exit`) or to its caller (raise CancelledError)."""
    tamed = RuntimeError(f"{type(error).__name__}: {error}")
    tamed.__cause__ = error
    return tamed


async def _tame(coroutine: Coroutine[Any, Any, Any]) -> Any:
    try:
        return await coroutine
    except (SystemExit, KeyboardInterrupt) as e:
        raise _tamed(e) from e


def _tell(loop: asyncio.AbstractEventLoop, future: asyncio.Future[Any], act: Callable[[], None]) -> None:
    def settle() -> None:
        if not future.done():
            act()

    try:
        loop.call_soon_threadsafe(settle)
    except RuntimeError:
        pass  # the loop that asked is closed


class _PluginLoop:
    """An event loop on a daemon thread. `retire` ends it when nothing runs on it any more."""

    def __init__(self, number: int) -> None:
        self.loop = asyncio.new_event_loop()
        self._running = 0
        self._retired = False
        threading.Thread(target=self._run, name=f"plugins {number}", daemon=True).start()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_forever()
        finally:
            self.loop.close()

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


class _Loops:
    """The plugin loop in use, made when first needed, replaced when it is blocked."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._current: _PluginLoop | None = None
        self._made = 0

    def get(self) -> _PluginLoop:
        with self._lock:
            if self._current is None:
                self._made += 1
                self._current = _PluginLoop(self._made)
            return self._current

    def replace(self, blocked: _PluginLoop) -> _PluginLoop:
        """Another loop than `blocked`, as long as there may be more; it is left to end by itself."""
        with self._lock:
            if self._current is blocked and self._made < LOOPS_LIMIT:
                self._current = None
                blocked.retire()
        return self.get()


_loops = _Loops()


class _Work:
    """One coroutine: run by the first plugin loop that takes it, waited for by the loop that asked."""

    def __init__(self, coroutine: Coroutine[Any, Any, Any]) -> None:
        self.home = asyncio.get_running_loop()
        self.begun: asyncio.Future[None] = self.home.create_future()
        self.done: asyncio.Future[Any] = self.home.create_future()
        self._coroutine: Coroutine[Any, Any, Any] | None = coroutine
        self._context = contextvars.copy_context()
        self._lock = threading.Lock()
        self._task: asyncio.Task[Any] | None = None
        self._on: _PluginLoop | None = None

    def offer(self, to: _PluginLoop) -> None:
        to.loop.call_soon_threadsafe(self._take, to)

    def _take(self, on: _PluginLoop) -> None:
        with self._lock:
            coroutine, self._coroutine = self._coroutine, None
        if coroutine is None:
            return
        on.begin()
        self._on = on
        self._task = on.loop.create_task(_tame(coroutine), context=self._context)
        self._task.add_done_callback(self._ended)
        _tell(self.home, self.begun, lambda: self.begun.set_result(None))

    def _ended(self, task: asyncio.Task[Any]) -> None:
        if self._on is not None:
            self._on.end()
        error = asyncio.CancelledError("it cancelled itself") if task.cancelled() else task.exception()
        if error is not None:
            raised = error if isinstance(error, Exception) else _tamed(error)
            _tell(self.home, self.done, lambda: self.done.set_exception(raised))
        else:
            _tell(self.home, self.done, lambda: self.done.set_result(task.result()))

    def cancel(self) -> bool:
        """Cancel it wherever it is; whether it was running."""
        with self._lock:
            coroutine, self._coroutine = self._coroutine, None
        if coroutine is not None:
            coroutine.close()
            return False
        if self._on is not None and self._task is not None:
            self._on.loop.call_soon_threadsafe(self._task.cancel)
        return True


async def _on_plugin_loop(coroutine: Coroutine[Any, Any, Any], what: str) -> Any:
    work = _Work(coroutine)
    loop = _loops.get()
    work.offer(loop)
    try:
        while not work.begun.done() and not work.done.done():
            await asyncio.wait(
                {work.begun, work.done}, timeout=BLOCKED_SECONDS, return_when="FIRST_COMPLETED"
            )
            if not work.begun.done() and (other := _loops.replace(loop)) is not loop:
                log.warning("plugin code blocks its event loop; %s gets another one", what)
                loop = other
                work.offer(loop)
        await asyncio.wait({work.done})  # awaited itself, it would be cancelled with this task
        return work.done.result()
    except asyncio.CancelledError:
        if not work.done.done() and work.cancel():
            await asyncio.wait({work.done}, timeout=CANCEL_SECONDS)
        if work.done.done():
            work.done.exception()  # seen: what a cancelled call raises is nobody's
        raise


class _Lent:
    """`available` with its runtime replaced by one that may be used from another loop, until the block ends."""

    def __init__(self, available: Mapping[str, Any]) -> None:
        self._available = available
        self._open = True

    def __enter__(self) -> dict[str, Any]:
        out = dict(self._available)
        if out.get("runtime") is not None:
            out["runtime"] = Elsewhere(out["runtime"], asyncio.get_running_loop(), lambda: self._open)
        return out

    def __exit__(self, *_: object) -> None:
        self._open = False


class Elsewhere:
    """Stands for an object whose coroutines belong to another loop: awaiting one runs it there."""

    def __init__(self, target: Any, loop: asyncio.AbstractEventLoop, alive: Callable[[], bool]) -> None:
        object.__setattr__(self, "_vf_target", target)
        object.__setattr__(self, "_vf_loop", loop)
        object.__setattr__(self, "_vf_alive", alive)

    @property  # type: ignore[misc]
    def __class__(self) -> type:  # isinstance() in a hook asks about the real thing
        return type(self._vf_target)

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._vf_target, name)
        if not inspect.iscoroutinefunction(value):
            return value
        home: asyncio.AbstractEventLoop = self._vf_loop

        async def carried(*args: Any, **kwargs: Any) -> Any:
            if not self._vf_alive():
                raise SandboxError(f"{name}: this hook's time is over")
            if asyncio.get_running_loop() is home:
                return await value(*args, **kwargs)
            return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(value(*args, **kwargs), home))

        carried.__name__ = name
        return carried

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._vf_target, name, value)
