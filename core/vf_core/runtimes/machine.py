"""Driving a sandbox through its lifecycle: start, stop, proof. Written once; providers add a few small hooks.

    _admit(box)      wait for a turn to ask (cancelled by a stop: nothing was asked for yet)
    _create(box)     make the sandbox; say `box.identify(id)` as soon as its id is known
    _terminate(box)  ask the provider to end it (by id, else by name and labels); "not found" is success
    _probe(box)      ask the provider whether it is still there

Everything that is known of one sandbox lives in its `Box`; a new start makes a new one, so nothing of the old
sandbox can remain.
"""

from __future__ import annotations

import asyncio
import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Coroutine
from typing import Any, ClassVar, Generic, TypeVar

from vf_core.errors import RolloutError, SandboxError, SandboxUnconfirmedError
from vf_core.runtimes import at_exit
from vf_core.runtimes.box import CUT_SHORT, NEVER_ASKED, Answer, Box, say
from vf_core.runtimes.lifecycle import Lifecycle, LifecycleError, Observer, Recorder, State, Transition

log = logging.getLogger(__name__)

T = TypeVar("T")
HandleT = TypeVar("HandleT")

STOP_TIMEOUT = 30.0
CONFIRM_TIMEOUT = 60.0


class Machine(ABC, Generic[HandleT]):
    """At most one sandbox at a time, and its lifecycle. Not thread-safe: belongs to one event loop."""

    kind: ClassVar[str]
    # Ending one at exit asks a provider, and may take its time.
    cleanup_asks: ClassVar[bool] = True
    # Waits between two looks at a sandbox that is still there, in seconds; the last one repeats.
    probe_delays: ClassVar[tuple[float, ...]] = (0.02, 0.05, 0.1, 0.2, 0.5, 1.0)

    def __init__(self, *, name: str, observer: Observer | None = None) -> None:
        self._name = name
        self._observer = observer
        self.recorder: Recorder | None = None
        self._box: Box[HandleT] = Box(Lifecycle(name, self.kind, self._tell), self._new_handle())
        self._left: list[Box[HandleT]] = []
        self._forced_starts = 0
        self._tasks: set[asyncio.Task[Any]] = set()

    # ------------------------------------------------------------------ hooks of a provider

    @abstractmethod
    def _new_handle(self) -> HandleT:
        """The provider's data of a sandbox that does not exist yet."""

    def _foreseen_id(self, handle: HandleT) -> str:
        """The id that the sandbox will have, where that is known before it is made."""
        return ""

    async def _admit(self, box: Box[HandleT]) -> None:
        """Wait until the provider may be asked: a limiter's queue, an image. May be cancelled."""

    @abstractmethod
    async def _create(self, box: Box[HandleT]) -> None:
        """Make the sandbox. Never cancelled by its caller: an answer that is lost is a sandbox that is lost."""

    @abstractmethod
    async def _terminate(self, box: Box[HandleT]) -> None:
        """Ask for its end. Returns when that was asked (or nothing is there); raises when it could not be."""

    @abstractmethod
    async def _probe(self, box: Box[HandleT]) -> Answer:
        """Whether it is still there, said by who must know. Raises when it could not be asked."""

    def _place(self, box: Box[HandleT]) -> str:
        """Where it is about to be asked for, when that is known better than before."""
        return ""

    def _release(self, box: Box[HandleT]) -> None:
        """Its end is proven: let go of local things (clients, files). Must not raise."""

    def _cleanup(self, box: Box[HandleT]) -> Answer | None:
        """End it synchronously, at interpreter exit. None: nothing can be said about its end."""
        return None

    # ------------------------------------------------------------------ what is known

    @property
    def name(self) -> str:
        """The current sandbox's name."""
        return self._box.name

    @property
    def state(self) -> State:
        """The current sandbox's state."""
        return self._box.state

    @property
    def sandbox_id(self) -> str:
        """The provider's id of the current sandbox; empty when there is none or it is not known."""
        return self._box.id

    @property
    def proof(self) -> str:
        """Who said that the sandbox is gone, and what; empty unless `gone`."""
        return self._box.life.proof

    @property
    def left(self) -> tuple[Lifecycle, ...]:
        """Sandboxes that a forced start left behind, as what they are."""
        return tuple(box.life for box in self._left if not box.state.settled)

    # ------------------------------------------------------------------ start

    async def start(self, *, force: bool = False) -> None:
        """Create the sandbox. Raises `SandboxError` when that fails, `LifecycleError` unless new or gone.

        `force` starts a fresh sandbox, under a name of its own, whatever became of the old one: that is asked
        to stop and stays listed in `left`. A cancelled start stops what it began, in the background:
        `stop_confirmed` joins that.
        """
        if not self.state.settled:
            if not force:
                raise LifecycleError(
                    f"sandbox {self.name} is {self.state.word}; another one beside it must be asked for",
                    hint="confirm its stop first, or force a new one",
                )
            await self._set_aside()
        life = self._box.life
        box = Box(life, self._new_handle())
        life.to(State.STARTING, id=self._foreseen_id(box.handle))
        self._box = box
        at_exit.hold(self)
        box.creating = self._spawn(self._creation(box), "create")
        try:
            await asyncio.wait({box.creating})
        except asyncio.CancelledError:
            self._begin_stop(box, STOP_TIMEOUT)
            raise
        box.creating.result()

    async def _set_aside(self) -> None:
        box = self._box
        await self.stop()
        if self._box is not box:
            raise LifecycleError(f"sandbox {self.name} was started again meanwhile")
        if not box.state.settled:
            self._left.append(box)
            self._forced_starts += 1
            life = Lifecycle(f"{self._name}.{self._forced_starts + 1}", self.kind, self._tell)
            self._box = Box(life, self._new_handle())

    async def _creation(self, box: Box[HandleT]) -> None:
        life = box.life
        try:
            await self._admit(box)
            if self.recorder is not None:
                await self.recorder.reserve(
                    Transition(
                        box.name, self.kind, State.STARTING, time.time(), box.id, account=self._place(box)
                    )
                )
            box.asked = life.state is State.STARTING
            if box.asked:
                await self._create(box)
        except asyncio.CancelledError as e:
            if box.asked:
                raise
            raise SandboxError(f"sandbox {box.name} was stopped before it was asked for") from e
        except BaseException as e:
            if life.state is State.STARTING:
                life.to(State.FAILED, detail=say(e))
            if isinstance(e, RolloutError) or not isinstance(e, Exception):
                raise
            raise SandboxError(f"sandbox {box.name} could not be created: {say(e)}") from e
        if life.state is State.STARTING:
            life.to(State.LIVE)
            return
        # Its stop was asked while it was being made, perhaps given up since: it must not live on.
        self._begin_stop(box, STOP_TIMEOUT)
        raise SandboxError(f"sandbox {box.name} was stopped while it started")

    # ------------------------------------------------------------------ stop

    async def stop(self, timeout: float = STOP_TIMEOUT) -> None:
        """Ask for the sandbox's end; returns with `sent`, or `unknown` when it could not be asked. Never raises.

        Shielded: it goes on when the caller is cancelled, who then gets the cancellation when it is over.
        Idempotent, and concurrent calls are one. `timeout` in seconds.
        """
        box = self._box
        if box.state.settled or box.state is State.SENT:
            return
        task = self._begin_stop(box, timeout)
        while task is not None:
            await _shielded(task)
            # One that came later may have taken its place.
            task = box.stopping if box.stopping is not task else None

    def force(self) -> None:
        """Wait no longer for a graceful end, of a stop under way or to come."""
        for box in (self._box, *self._left):
            box.forced.set()

    def _begin_stop(self, box: Box[HandleT], timeout: float) -> asyncio.Task[None] | None:
        """The stop under way, or a new one; None when its result is already being checked or proven."""
        task = box.stopping
        if box.state is State.STOPPING:
            if task is not None and not task.done():
                return task
            box.life.to(State.UNKNOWN, detail=CUT_SHORT)
        if not box.life.may(State.STOPPING):
            return None
        if task is not None:
            task.cancel()
        box.life.to(State.STOPPING)
        box.stopping = self._spawn(self._stopping(box, timeout), "stop")
        return box.stopping

    async def _stopping(self, box: Box[HandleT], timeout: float) -> None:
        deadline = _now() + timeout
        detail = ""
        try:
            if box.creating is not None and not box.creating.done():
                if not box.asked:
                    box.creating.cancel()
                await asyncio.wait({box.creating}, timeout=timeout)
                if not box.creating.done():
                    raise TimeoutError("its creation is still under way")
            if box.asked:
                await self._bounded(self._terminate(box), deadline)
        except Exception as e:
            detail = f"could not be asked to stop: {say(e)}"
            log.warning("sandbox %s %s", box.name, detail)
        except asyncio.CancelledError:
            detail = CUT_SHORT
            if box.stopping is asyncio.current_task():
                raise
            # Another stop took its place; whoever waits for this one is not to be cancelled by that.
        finally:
            if box.state is State.STOPPING and box.stopping is asyncio.current_task():
                box.life.to(State.UNKNOWN if detail else State.SENT, detail=detail)

    # ------------------------------------------------------------------ proof

    async def stop_confirmed(self, timeout: float = CONFIRM_TIMEOUT) -> None:
        """Stop, and wait for the provider's proof that the sandbox is gone. `timeout` in seconds for both.

        Returns at once when it never started or is known to be gone. Raises `SandboxUnconfirmedError` when it
        survived, or when that could not be found out in time; it may then be called again. Shielded, idempotent
        and coalescing as `stop`.
        """
        box = self._box
        if not box.state.settled:
            await _shielded(self._begin_confirm(box, timeout))

    async def confirm_left(self, timeout: float = CONFIRM_TIMEOUT) -> None:
        """As `stop_confirmed`, for the sandboxes that forced starts left behind; the proven ones leave `left`."""
        tasks = [self._begin_confirm(box, timeout) for box in self._left]
        try:
            for task in tasks:
                await _shielded(task)
        finally:
            self._left = [box for box in self._left if not box.state.settled]
            at_exit.let_go(self)

    def _begin_confirm(self, box: Box[HandleT], timeout: float) -> asyncio.Task[None]:
        if box.confirming is None or box.confirming.done():
            box.confirming = self._spawn(self._confirming(box, timeout), "confirm")
        return box.confirming

    async def _confirming(self, box: Box[HandleT], timeout: float) -> None:
        deadline = _now() + timeout
        life = box.life
        if life.state.settled:
            return
        if life.state is State.CHECKING:
            life.to(State.UNKNOWN, detail=CUT_SHORT)
        if life.state is not State.SENT:
            stop = self._begin_stop(box, timeout)
            if stop is not None:
                await asyncio.wait({stop}, timeout=timeout)
        if life.state is State.STOPPING:
            life.to(State.UNKNOWN, detail=f"its stop did not end within {timeout:g} s")
        if life.state is State.UNKNOWN:
            raise self._unconfirmed(box)
        life.to(State.CHECKING)
        state, detail = State.UNKNOWN, CUT_SHORT
        try:
            state, detail = await self._check(box, deadline)
        finally:
            proven = state is State.GONE
            life.to(state, proof=detail if proven else "", detail="" if proven else detail)
        if not proven:
            raise self._unconfirmed(box)
        self._release(box)
        at_exit.let_go(self)

    async def _check(self, box: Box[HandleT], deadline: float) -> tuple[State, str]:
        """Ask until it is gone or `deadline` passes: the state to move to, and what was said."""
        if not box.asked:
            return State.GONE, NEVER_ASKED
        said = ""
        for turn in range(1_000_000):
            try:
                answer = await self._bounded(self._probe(box), deadline)
            except TimeoutError as e:
                # What was said before the silence still holds.
                return (State.SURVIVED, said) if said else (State.UNKNOWN, f"no answer in time: {say(e)}")
            except Exception as e:
                return State.UNKNOWN, f"could not be asked: {say(e)}"
            if answer.gone:
                return State.GONE, answer.text
            said = answer.text
            pause = self.probe_delays[min(turn, len(self.probe_delays) - 1)]
            if _now() + pause >= deadline:
                break
            await asyncio.sleep(pause)
        return State.SURVIVED, said

    def _unconfirmed(self, box: Box[HandleT]) -> SandboxUnconfirmedError:
        return SandboxUnconfirmedError(
            f"{self.kind} sandbox {box.name}{f' ({box.id})' if box.id else ''} is {box.state.word}: "
            f"{box.life.detail}",
            hint="confirm its stop again; until then it stays listed",
        )

    # ------------------------------------------------------------------ loss and exit

    def _lost(self, detail: str) -> None:
        """It no longer answers: nothing more is placed in it, and its stop finds out what became of it."""
        if self.state is State.LIVE:
            self._box.life.to(State.UNKNOWN, detail=f"lost: {detail}")

    def cleanup(self) -> None:
        """End what is there, synchronously: for interpreter exit, when no event loop runs. Best effort."""
        at_exit.clean_up([self])

    # ------------------------------------------------------------------ tasks

    def _tell(self, move: Transition) -> None:
        if self.recorder is not None:
            self.recorder.note(move)
        if self._observer is not None:
            self._observer(move)

    def _spawn(self, work: Coroutine[Any, Any, T], what: str) -> asyncio.Task[T]:
        task = asyncio.create_task(work, name=f"{what} {self.name}")
        self._tasks.add(task)
        task.add_done_callback(self._reap)
        return task

    def _reap(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # whoever waited has it; nobody may have

    async def _bounded(self, work: Coroutine[Any, Any, T], deadline: float) -> T:
        """`work`, or TimeoutError at `deadline`, also when it does not let itself be cancelled."""
        task = self._spawn(work, "ask")
        try:
            await asyncio.wait({task}, timeout=max(0.0, deadline - _now()))
        finally:
            if not task.done():
                task.cancel()
        if not task.done():
            raise TimeoutError("no answer within the time allowed")
        return task.result()


async def _shielded(task: asyncio.Task[None]) -> None:
    """Wait for the end of `task`, however often the caller is cancelled; then pass the cancellation on."""
    cancelled = False
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError:
            cancelled = True
    if cancelled:
        raise asyncio.CancelledError
    await task


def _now() -> float:
    return asyncio.get_running_loop().time()
