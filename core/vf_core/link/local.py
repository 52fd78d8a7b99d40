"""The link to an engine in this process, which runs on a thread and loop of its own: a screen that stalls (a
terminal that does not read blocks its loop) must not hold up a rollout."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Protocol, TypeVar

from vf_core import __version__
from vf_core.errors import LinkError
from vf_core.events.snapshot import Loading
from vf_core.events.state import RunState
from vf_core.link.base import Batch, Description, EnginePort, Events, Lost, Reply, Snapshot
from vf_core.link.feed import FAREWELL, Feed, Part
from vf_core.link.loop import run_loop
from vf_core.link.traces import Traces

AHEAD = 4
"""Batches on their way to a screen before the engine's side waits for it."""
PATIENCE = 1.0
"""Seconds after which a screen that hears nothing looks whether the engine's loop is still there."""

T = TypeVar("T")


class HasEngine(Protocol):
    """An engine and the loop it runs on."""

    @property
    def port(self) -> EnginePort: ...

    @property
    def loop(self) -> asyncio.AbstractEventLoop: ...


class EngineThread:
    """Runs an engine on a thread and loop of its own.

    `main` is called on that loop with a function to be given the engine once it is up; the thread ends when
    `main` returns.
    """

    def __init__(self, main: Callable[[Callable[[EnginePort], None]], Awaitable[None]]) -> None:
        self._main = main
        self._up: Future[EnginePort] = Future()
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self.loop: asyncio.AbstractEventLoop = asyncio.new_event_loop()
        self.error: BaseException | None = None

    def start(self) -> EnginePort:
        """Start, and wait until the engine is up. Raises what `main` raised before it came to that."""
        self._thread.start()
        return self._up.result()

    @property
    def port(self) -> EnginePort:
        """The engine. Raises what `main` raised before the engine was up."""
        return self._up.result()

    @property
    def alive(self) -> bool:
        """`main` has not returned yet."""
        return self._thread.is_alive()

    def join(self, timeout: float | None = None) -> bool:
        """Wait for `main` to return; whether it did within `timeout` seconds."""
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            run_loop(self._until_done(), self.loop)
        except BaseException as e:
            self.error = e
            if not self._up.done():
                self._up.set_exception(e)

    async def _until_done(self) -> None:
        await self._main(self._is_up)
        if not self._up.done():
            raise LinkError("the engine ended before it was up")
        await self._up.result().bus.drained(FAREWELL)

    def _is_up(self, port: EnginePort) -> None:
        if not self._up.done():
            self._up.set_result(port)


class LocalLink:
    """A link to the engine of `host`, which may run on this loop or, as it should, on another thread's.

    With `run_dir`, traces of attempts that are over are read from there.
    """

    def __init__(
        self,
        host: HasEngine,
        *,
        run_dir: Path | None = None,
        read_only: bool = False,
        by: str = "this screen",
    ) -> None:
        self.read_only = read_only
        self._host = host
        self._by = by
        self._dir = run_dir
        self._traces = Traces(run_dir)
        self._arrived: asyncio.Queue[Part | list[Any] | Lost] = asyncio.Queue()
        self._watching: set[str] = set()
        self._pending: set[Future[Any]] = set()
        self._feed: Feed | None = None
        self._credit: asyncio.Semaphore | None = None
        self._pump: asyncio.Task[None] | None = None
        self._screen: asyncio.AbstractEventLoop | None = None
        self._lost = False
        self._closed = False

    async def connect(self) -> RunState:
        """See `Link.connect`."""
        self._screen = asyncio.get_running_loop()
        if not self._to_engine(self._start):
            raise LinkError("the engine in this process has ended")
        while True:
            try:
                item = await asyncio.wait_for(self._next(), PATIENCE)
            except TimeoutError:
                if self._host.loop.is_closed():
                    raise LinkError("the engine in this process has ended") from None
                continue
            if isinstance(item, Lost):
                raise LinkError(item.reason)
            if isinstance(item, Part):
                return await self._snapshot(item)

    async def batches(self) -> AsyncIterator[Batch]:
        """See `Link.batches`."""
        while not self._closed:
            item = await self._next()
            if isinstance(item, Lost):
                yield item
                return
            if isinstance(item, Part):
                yield Snapshot(await self._snapshot(item))
            elif not self._closed:
                self._traces.see(item)
                yield Events(item)

    async def command(self, name: str, targets: Sequence[str] = (), **args: Any) -> Reply:
        """See `Link.command`."""
        if self.read_only:
            return Reply(False, "this viewer is read-only")
        reply = await self._ask(self._host.port.command(name, tuple(targets), args, self._by))
        return reply if reply is not None else Reply(False, "the engine has ended")

    async def trace(self, rollout: str, attempt: int = 0) -> dict[str, Any] | None:
        """See `Link.trace`."""

        number = self._traces.number(rollout, attempt)

        async def read() -> dict[str, Any] | None:
            return self._host.port.trace_record(rollout, number)

        return await self._ask(read()) or await self._traces.get(rollout, number)

    def watch(self, rollouts: set[str]) -> None:
        """See `Link.watch`."""
        self._watching = set(rollouts)
        self._to_engine(self._watch)

    def describe(self) -> Description:
        """See `Link.describe`."""
        state = self._host.port.state
        return Description(
            "local",
            run=state.run,
            name=state.name,
            host=socket.gethostname(),
            dir=str(self._dir or ""),
            pid=os.getpid(),
            version=__version__,
            alive=not self._lost,
        )

    async def close(self) -> None:
        """See `Link.close`."""
        if not self._closed:
            self._closed = True
            self._to_engine(self._stop)
            self._fail_pending()
            self._arrived.put_nowait(Lost("closed", clean=True))

    # On the engine's loop.

    def _start(self) -> None:
        self._credit = asyncio.Semaphore(AHEAD)
        self._feed = Feed(self._host.port, read_only=self.read_only)
        self._watch()
        self._pump = asyncio.get_running_loop().create_task(self._pumping(self._feed, self._credit))

    def _watch(self) -> None:
        if self._feed is not None:
            self._feed.watch(self._watching)

    def _stop(self) -> None:
        if self._pump is not None:
            self._pump.cancel()
        if self._feed is not None:
            self._feed.close()

    async def _pumping(self, feed: Feed, credit: asyncio.Semaphore) -> None:
        try:
            async for item in feed.items():
                await credit.acquire()
                self._to_screen(item)
            self._to_screen(Lost("the engine has ended", clean=True))
        except asyncio.CancelledError:
            self._to_screen(Lost("the engine has ended"))
            raise
        except Exception as e:
            self._to_screen(Lost(f"the engine's side of the link failed: {type(e).__name__}: {e}"))
        finally:
            feed.close()

    def _to_screen(self, item: Part | list[Any] | Lost) -> None:
        try:
            if self._screen is not None:
                self._screen.call_soon_threadsafe(self._arrive, item)
        except RuntimeError:
            self._stop()

    # On the screen's loop.

    def _to_engine(self, call: Callable[[], object]) -> bool:
        try:
            self._host.loop.call_soon_threadsafe(call)
        except RuntimeError:
            return False
        return True

    def _arrive(self, item: Part | list[Any] | Lost) -> None:
        if isinstance(item, Lost):
            # Whoever waits for an answer may be the one who would read this.
            self._lost = True
            self._fail_pending()
        self._arrived.put_nowait(item)

    async def _next(self) -> Part | list[Any] | Lost:
        item = await self._arrived.get()
        if not isinstance(item, Lost) and self._credit is not None:
            self._to_engine(self._credit.release)
        return item

    async def _snapshot(self, part: Part) -> RunState:
        loading = Loading()
        while not part.last:
            loading.add(part.data)
            item = await self._next()
            if not isinstance(item, Part):
                raise LinkError("the engine ended while it described itself")
            part = item
        state = loading.finish(part.data)
        self._traces.take(state)
        return state

    async def _ask(self, coroutine: Coroutine[Any, Any, T]) -> T | None:
        """The result of `coroutine`, run on the engine's loop; None when the engine ends before it is done."""
        if self._lost or self._closed:
            coroutine.close()
            return None
        try:
            future = asyncio.run_coroutine_threadsafe(coroutine, self._host.loop)
        except RuntimeError:
            coroutine.close()
            return None
        self._pending.add(future)
        try:
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            if future.cancelled():
                return None
            raise
        finally:
            self._pending.discard(future)

    def _fail_pending(self) -> None:
        for future in list(self._pending):
            future.cancel()
