"""Calling code that belongs to others without letting it hold up the event loop.

A plain function gets a thread of its own, a coroutine a loop on another thread (`plugin_loops`): one that blocks
stops neither the interception server nor other rollouts. The sandbox's coroutines are carried back to the loop they
belong to, its output back to whoever asked. Every such thread is a daemon: hung code can't keep the process alive.
"""

from __future__ import annotations

import asyncio
import contextvars
import copy
import inspect
import threading
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, TypeVar

from vf_core.errors import SandboxError
from vf_core.tasks.carrying import Sink, carried_sinks
from vf_core.tasks.decorators import arguments
from vf_core.tasks.plugin_loops import on_plugin_loop, tamed, tell

PluginT = TypeVar("PluginT")


async def invoke(
    fn: Callable[..., Any], available: Mapping[str, Any], *, what: str = "", alone: bool = False
) -> Any:
    """Call a hook with those of `available` that it asks for by name, and return what it returns.

    `fn` is a function, `async` or not; `alone` gives it a loop of its own at once. `trace` and `task` are handed over
    as they are; `runtime` stands for the real one and is dead once this returns. Raises what `fn` raises, TaskError
    when it asks for something else.
    """
    if getattr(fn, "does_nothing", False):
        return None
    what = what or f"{getattr(fn, '__qualname__', fn)}"
    if is_ours(getattr(fn, "__self__", None)):
        result = fn(**arguments(fn, available, what))
        return await result if inspect.isawaitable(result) else result
    with _Lent(available) as lent:
        return await _elsewhere(fn, (), arguments(fn, lent, what), what, alone=alone)


async def call(fn: Callable[..., Any], args: Sequence[Any], *, runtime: Any, what: str) -> Any:
    """Call a method of others with `args` by position, each on a thread or loop of its own, and return what it
    returns. Where `runtime` stands among them they get one that is dead once this returns; a `Sink` among them
    reaches whoever it belongs to. Raises what `fn` raises."""
    with _Lent({"runtime": runtime}) as lent:
        given = [lent["runtime"] if arg is runtime and runtime is not None else arg for arg in args]
        return await _elsewhere(fn, given, {}, what, alone=True)


async def _elsewhere(
    fn: Callable[..., Any], args: Sequence[Any], named: Mapping[str, Any], what: str, *, alone: bool = False
) -> Any:
    key: Hashable = getattr(getattr(fn, "__func__", fn), "__code__", None)
    if inspect.iscoroutinefunction(fn):
        return await on_plugin_loop(fn(*args, **named), key, what, alone=alone)
    result = await in_thread(fn, *args, **named)
    if not inspect.isawaitable(result):
        return result
    return await on_plugin_loop(_wait_for(result), key, what, alone=alone)


def own_copy(plugin: PluginT) -> PluginT:
    """A harness or judge for one rollout: what it changes on itself or its config stays there. What it holds (a
    client, a list) is shared."""
    own: Any = copy.copy(plugin)
    own.config = own.config.model_copy(deep=True)
    return own  # type: ignore[no-any-return]


def is_ours(plugin: object) -> bool:
    """It comes with us: its hooks are known not to block."""
    return type(plugin).__module__.startswith("vf_core.")


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
            error = e if isinstance(e, Exception) and not isinstance(e, StopIteration) else tamed(e)
            tell(loop, done, lambda: done.set_exception(error))
        else:
            tell(loop, done, lambda: done.set_result(result))

    name = f"call {getattr(fn, '__name__', fn)}"
    threading.Thread(target=run, name=name, daemon=True).start()
    return await done


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
    """Stands for an object whose coroutines belong to another loop: awaiting one runs it there, and functions that it
    is given to call (`on_output`) are called where they came from."""

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
            args, kwargs, sinks = carried_sinks(args, kwargs)
            done = asyncio.run_coroutine_threadsafe(value(*args, **kwargs), home)
            result = await asyncio.wrap_future(done)
            for sink in sinks:
                sink.close()
            return result

        carried.__name__ = name
        return carried

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._vf_target, name, value)


__all__ = ["Elsewhere", "Sink", "call", "in_thread", "invoke", "is_ours", "own_copy"]
