"""The tunnel contract: a public URL that leads to the interception server, for sandboxes on other machines.

Opened before the first sandbox is asked for and closed after the last one is gone. Meanwhile it is watched: a tunnel
that was cut is told, and what a rollout lost by it is known as that.
"""

from __future__ import annotations

import asyncio
import logging
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import ClassVar

from vf_core.config.interception import TunnelConfig
from vf_core.errors import TunnelError
from vf_core.interception.tunnel.probe import NO_ANSWER, Door, try_url

log = logging.getLogger(__name__)

Say = Callable[[str, str], None]
"""Told what a user must know: the level (info, warning or error) and the text."""


@dataclass(frozen=True, slots=True)
class Pace:
    """Seconds: `check` for the URL to answer at first, `one` for one try of it, `pause` between two; `watch` between
    two looks later on; `wait` for a tunnel that is down before a new rollout fails."""

    check: float = 30.0
    one: float = 8.0
    pause: float = 0.5
    watch: float = 15.0
    wait: float = 60.0


PACE = Pace()
# As many tries in a row must fail before a tunnel that worked counts as cut.
_TRIES = 3


@dataclass(slots=True)
class Outage:
    """A time without a way in, on the monotonic clock; `ended` is None while it lasts."""

    began: float
    why: str
    ended: float | None = None


class Tunnel(ABC):
    """One way in. `async with` opens and closes it, on the loop of the server that it leads to."""

    kind: ClassVar[str]

    def __init__(self, config: TunnelConfig, *, say: Say | None = None, pace: Pace = PACE) -> None:
        self.config = config
        self.pace = pace
        self.on_cut: Callable[[TunnelError], None] | None = None
        self.on_back: Callable[[], None] | None = None
        self._say = say or _unheard
        self._door: Door | None = None
        self._url = ""
        self._outages: deque[Outage] = deque(maxlen=64)
        self._up = asyncio.Event()
        self._watching: asyncio.Task[None] | None = None
        self._looking: asyncio.Task[str] | None = None

    # ------------------------------------------------------------------ what there is to know

    @property
    def bind(self) -> tuple[str, int]:
        """Host and port that the server must listen on; port 0: any."""
        return "127.0.0.1", 0

    @property
    def url(self) -> str:
        """The public URL, without `/v1`. Raises `TunnelError` while there is no way in."""
        if not self._up.is_set():
            raise self._cut_now()
        return self._url

    async def ready(self) -> str:
        """The public URL, as soon as the tunnel is up. Raises `TunnelError` after `pace.wait` seconds."""
        with suppress(TimeoutError):
            async with asyncio.timeout(self.pace.wait):
                await self._up.wait()
        return self.url

    async def failure(self, since: float) -> TunnelError | None:
        """Whether there was no way in at any moment since `since` (monotonic): what a program that failed meanwhile
        may have failed of. It looks now, too."""
        if self._up.is_set() and self.config.check:
            await self._look()
        for outage in reversed(self._outages):
            if outage.ended is None or outage.ended >= since:
                return self._told(outage)
        return None

    # ------------------------------------------------------------------ opening and closing

    async def open(self, door: Door) -> None:
        """Have the URL lead to `door`. Bounded; raises `TunnelError` saying what was tried and what to do."""
        self._door = door
        try:
            self._url = await self._open(door)
            if self.config.check:
                await self._first_check()
        except BaseException:
            await self._close()
            raise
        self._up.set()
        plain = ", not encrypted" if self._url.startswith("http:") else ""
        self._say("info", f"sandboxes reach this host at {self._url} ({self.kind} tunnel{plain})")
        self._watching = asyncio.create_task(self._watch(), name=f"{self.kind} tunnel")

    async def close(self) -> None:
        """End it, within a bounded time. Idempotent."""
        self._up.clear()
        tasks = [task for task in (self._watching, self._looking) if task is not None]
        self._watching = self._looking = None
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._close()

    async def __aenter__(self) -> Tunnel:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    @abstractmethod
    async def _open(self, door: Door) -> str:
        """Make the way and return its URL."""

    async def _close(self) -> None:  # noqa: B027 - most have nothing to end
        """End what `_open` made, or half made."""

    @abstractmethod
    def _advice(self, *, cut: bool) -> str:
        """What a user can do when the URL does not lead here, or (`cut`) does not any more."""

    def _mend(self) -> None:  # noqa: B027 - what is not ours can't be mended here
        """The URL does not lead here any more: do something about it."""

    async def _first_check(self) -> None:
        problem = await self._try(self._url, self.pace.one)
        if not problem:
            return
        self._say(
            "warning", f"{self._url} does not lead here yet ({problem}); trying for {self.pace.check:g} s"
        )
        problem = await self._problem(self._url, problem)
        if problem:
            raise TunnelError(
                f"{self._url} does not lead to the interception server on port {self._port}: {problem} "
                f"(tried for {self.pace.check:g} s)",
                hint=self._advice(cut=False),
            )

    async def _leads_here(self, url: str = "") -> bool:
        """Whether `url` (default: this tunnel's) leads here within `pace.check` seconds; taken at its word where
        nothing is to be checked."""
        return not self.config.check or not await self._problem(url or self._url)

    async def _problem(self, url: str, problem: str = NO_ANSWER) -> str:
        """Try `url` until it leads here, or `pace.check` seconds are over; "" or what is wrong."""
        deadline = time.monotonic() + self.pace.check
        while (left := deadline - time.monotonic()) > 0:
            found = await self._try(url, min(self.pace.one, left))
            if not found:
                return ""
            # A try that was cut short by the end says less than those before.
            problem = problem if found.startswith(NO_ANSWER) and left < self.pace.one else found
            await asyncio.sleep(min(self.pace.pause, left))
        return problem

    # ------------------------------------------------------------------ watching

    async def _watch(self) -> None:
        """Look now and then; while it is cut, more often."""
        while True:
            up = self._up.is_set()
            await asyncio.sleep(self.pace.watch if up else max(self.pace.pause, self.pace.watch / 8))
            if self.config.check:
                await self._look()

    async def _look(self) -> str:
        """Whether the URL leads here; "" or what is wrong. Who asks meanwhile gets the same answer."""
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._look_once())
        return await asyncio.shield(self._looking)

    async def _look_once(self) -> str:
        problem = ""
        for _ in range(_TRIES if self._up.is_set() else 1):
            problem = await self._try(self._url, self.pace.one)
            if not problem:
                break
            await asyncio.sleep(self.pace.pause)
        if problem and self._up.is_set():
            self._cut(problem)
            self._mend()
        elif not problem and not self._up.is_set() and self._door is not None:
            self._restored(self._url)
        return problem

    async def _try(self, url: str, seconds: float) -> str:
        if self._door is None:
            return "the interception server is not up"
        return await try_url(url, self._door, seconds)

    @property
    def _port(self) -> int:
        return self._door.port if self._door is not None else 0

    # ------------------------------------------------------------------ being cut

    def _cut(self, why: str) -> None:
        """There is no way in any more."""
        if not self._up.is_set():
            return
        self._up.clear()
        self._outages.append(Outage(time.monotonic(), why))
        error = self._cut_now()
        self._say("warning", f"{error.message}; new rollouts wait for it")
        if self.on_cut is not None:
            self.on_cut(error)

    def _restored(self, url: str) -> None:
        """The way is there again, at `url`."""
        if self._up.is_set():
            return
        changed, self._url = url != self._url, url
        seconds = 0.0
        if self._outages and self._outages[-1].ended is None:
            self._outages[-1].ended = time.monotonic()
            seconds = self._outages[-1].ended - self._outages[-1].began
        self._up.set()
        which = f"a new {self.kind} tunnel is open" if changed else f"the {self.kind} tunnel is back"
        self._say("info", f"{which} after {seconds:.0f} s: {url}")
        if self.on_back is not None:
            self.on_back()

    def _cut_now(self) -> TunnelError:
        if self._outages and self._outages[-1].ended is None:
            return self._told(self._outages[-1])
        return TunnelError(f"the {self.kind} tunnel is not open")

    def _told(self, outage: Outage) -> TunnelError:
        what = f"the {self.kind} tunnel {self._url} is cut: {outage.why}"
        if outage.ended is not None:
            what = f"the {self.kind} tunnel was cut for {outage.ended - outage.began:.0f} s: {outage.why}"
        return TunnelError(what, hint=self._advice(cut=True))


def _unheard(level: str, text: str) -> None:
    log.log(logging.INFO if level == "info" else logging.WARNING, "%s", text)
