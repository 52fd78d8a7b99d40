"""A run that is being started while the screen is already drawn."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from vf_core.errors import LinkError, VfError
from vf_core.events.command import Reply
from vf_core.link.base import Batch, Description, Link

if TYPE_CHECKING:
    from vf_core.events.state import RunState
    from vf_tui.launch import Launched


class Starting:
    """Calls `start` on a thread, once somebody waits for it. The process does not end before that is done: what was
    asked for is started, whether or not anybody still looks."""

    def __init__(self, start: Callable[[], Launched]) -> None:
        self._future: Future[Launched] = Future()
        # A viewer that is cancelled while it waits must not take the start with it.
        self._future.set_running_or_notify_cancel()
        self._thread = threading.Thread(target=self._run, args=(start,), name="starting")

    def _begin(self) -> Future[Launched]:
        if self._thread.ident is None:
            self._thread.start()
        return self._future

    def _run(self, start: Callable[[], Launched]) -> None:
        try:
            self._future.set_result(start())
        except BaseException as e:
            self._future.set_exception(e)

    @property
    def done(self) -> bool:
        """It is started, or failed."""
        return self._future.done()

    def launched(self) -> Launched:
        """Wait for it. Raises what `start` raised."""
        return self._begin().result()

    async def wait(self) -> Launched:
        """As `launched`, on a loop."""
        return await asyncio.wrap_future(self._begin())


class StartingLink:
    """The link to a run that is being started. `about` describes it until then."""

    read_only = False

    def __init__(self, starting: Starting, about: Description) -> None:
        self._starting = starting
        self._about = about
        self._link: Link | None = None
        self._watched: set[str] = set()
        self._closed = False

    async def connect(self) -> RunState:
        """See `Link.connect`. Raises `LinkError` also when the run could not be started."""
        try:
            launched = await self._starting.wait()
        except LinkError:
            raise
        except VfError as e:
            raise LinkError(str(e)) from e
        if self._closed:
            raise LinkError("the viewer has left")
        from vf_tui.launch import connect

        self._link, state = await connect(launched)
        self._link.watch(self._watched)
        return state

    async def batches(self) -> AsyncIterator[Batch]:
        """See `Link.batches`."""
        if self._link is not None:
            async for batch in self._link.batches():
                yield batch

    async def command(self, name: str, targets: Sequence[str] = (), **args: Any) -> Reply:
        """See `Link.command`."""
        if self._link is None:
            return Reply(False, "the run is still being started")
        return await self._link.command(name, targets, **args)

    def watch(self, rollouts: set[str]) -> None:
        """See `Link.watch`."""
        self._watched = set(rollouts)
        if self._link is not None:
            self._link.watch(rollouts)

    async def trace(self, rollout: str, attempt: int = 0) -> dict[str, Any] | None:
        """See `Link.trace`."""
        return await self._link.trace(rollout, attempt) if self._link is not None else None

    def describe(self) -> Description:
        """See `Link.describe`."""
        return self._link.describe() if self._link is not None else self._about

    async def close(self) -> None:
        """See `Link.close`; the run goes on, also one that is still being started."""
        self._closed = True
        if self._link is not None:
            await self._link.close()
