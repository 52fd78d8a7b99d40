"""Whether rollouts are launched: paused by the user, or held back while a provider is down."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from vf_core.engine.breaker import Breaker, Circuit
from vf_core.engine.scheduler import Scheduler
from vf_core.events import types as ev

log = logging.getLogger(__name__)


class Launching:
    """The switch in front of the scheduler. Every change is published.

    `viewed` says whether somebody is there who could act; a provider that never worked in this run, or does not come
    back for long, ends an unwatched run: `give_up` is called with the reason.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        publish: Callable[[ev.Event], None],
        viewed: Callable[[], bool],
        give_up: Callable[[str], None],
    ) -> None:
        self._scheduler = scheduler
        self._publish = publish
        self._viewed = viewed
        self._give_up = give_up
        self._breaker = Breaker(self._changed)
        self._held = False
        self._trial = ""
        self._timer: asyncio.TimerHandle | None = None

    def set(self, *, paused: bool | None = None, concurrency: int | None = None, reason: str = "") -> None:
        """What the user wants counts: a pause stays until it is lifted, lifting it tries at once."""
        if paused is not None:
            self._held = False
            self._breaker.reset()
            self.close()
            self._scheduler.paused = paused
        if concurrency is not None:
            self._scheduler.concurrency = concurrency
        self._tell(reason)

    @property
    def paused_by_user(self) -> bool:
        """Paused, and not by a provider's fault."""
        return self._scheduler.paused and not self._held

    def used(self, rollout: str, what: str, why: str) -> None:
        """A rollout used `what`: why that failed, empty when it worked."""
        trial = rollout == self._trial
        if why:
            self._breaker.failed(what, why, trial=trial)
        else:
            self._breaker.worked(what)

    def ended(self, rollout: str) -> None:
        """An attempt is over; a trial that said nothing of the provider is followed by another."""
        if rollout == self._trial and self._held and self._timer is None:
            self._try_after(self._breaker.open()[0].pause if self._breaker.open() else 0.0)

    def close(self) -> None:
        """No more trials."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._trial = ""

    def _tell(self, reason: str) -> None:
        scheduler = self._scheduler
        self._publish(
            ev.RunLaunching(paused=scheduler.paused, concurrency=scheduler.concurrency, reason=reason)
        )
        scheduler.pump()

    def _changed(self, circuit: Circuit) -> None:
        still = self._breaker.open()
        if not still:
            if self._held:
                self._held = self._scheduler.paused = False
                self.close()
                self._publish(ev.Log(level="info", message=f"{circuit.what} works again"))
                self._tell("")
            return
        if self.paused_by_user:
            return
        self._held = self._scheduler.paused = True
        if (circuit.exhausted or not circuit.ever) and not self._viewed():
            self._give_up(circuit.reason)
            return
        self._publish(ev.Log(level="error", message=f"{circuit.reason}; launching is paused"))
        self._tell(f"{circuit.reason}; next try in {still[0].pause:g} s, unpause to try now")
        self._try_after(still[0].pause)

    def _try_after(self, seconds: float) -> None:
        self.close()
        self._timer = asyncio.get_running_loop().call_later(seconds, self._try)

    def _try(self) -> None:
        self._timer = None
        job = self._scheduler.launch_one()
        if job is not None:
            self._trial = job.spec.id
            log.info("trying whether the provider is back with rollout %s", self._trial)
