"""A rollout as the engine handles it: its attempts one after another, and the last thing that was asked of it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from vf_core.errors import RolloutError
from vf_core.eval_config import RolloutRetryConfig
from vf_core.events import types as ev
from vf_core.rollout import Attempt, Result, RolloutSpec
from vf_core.runtimes.base import Runtime
from vf_core.runtimes.lifecycle import State

log = logging.getLogger(__name__)


class Intent(StrEnum):
    """The last thing that was asked of a rollout; a stop is never undone by a retry."""

    RUN = "run"
    STOP = "stop"
    RESTART = "restart"


@dataclass(slots=True)
class Job:
    """One rollout. `active` from the launch of an attempt until its teardown is over."""

    spec: RolloutSpec
    intent: Intent = Intent.RUN
    asked: int = 0
    number: int = 0
    retries: int = 0
    reason: str = "first"
    queued: bool = False
    attempt: Attempt | None = None
    result: Result | None = None
    leftovers: list[Runtime] = field(default_factory=list)
    idle: asyncio.Event = field(default_factory=asyncio.Event)
    confirm: bool = True
    final: bool = True

    def __post_init__(self) -> None:
        self.idle.set()

    @property
    def active(self) -> bool:
        """An attempt is under way, or its sandbox is being torn down."""
        return not self.idle.is_set()

    @property
    def unsettled(self) -> list[Runtime]:
        """Sandboxes of this rollout that are not proven gone."""
        return [runtime for runtime in self.leftovers if not runtime.state.settled]

    def forget_gone(self) -> None:
        """Let go of sandboxes that are proven gone; one that is about to start is still this rollout's."""
        self.leftovers = [runtime for runtime in self.leftovers if runtime.state is not State.GONE]

    def ask(self, intent: Intent) -> int:
        """Note what is asked now; returns a number that tells whether something newer was asked since."""
        self.intent = intent
        self.asked += 1
        return self.asked


class Host(Protocol):
    """What a job needs of the engine."""

    def publish(self, event: ev.Event) -> None:
        """Put an event on the bus."""

    def new_attempt(self, job: Job) -> Attempt:
        """Make the next attempt of `job`; its number is already counted up."""

    async def keep(self, job: Job, attempt: Attempt, result: Result, *, again: bool) -> None:
        """Write the attempt's trace; `again`: another attempt follows by itself."""


def retry_wanted(job: Job, result: Result, policy: RolloutRetryConfig) -> bool:
    """Whether the rollout is tried again by itself: it errored, nobody asked for anything, and policy allows.

    A type of error stands for those that are kinds of it: TaskError for JudgeError, too.
    """
    if result.outcome != "error" or job.intent is not Intent.RUN or job.retries >= policy.max_retries:
        return False
    kinds = kinds_of(result.error_type)
    if not kinds.isdisjoint(policy.exclude):
        return False
    return not policy.include or not kinds.isdisjoint(policy.include)


def kinds_of(error_type: str) -> set[str]:
    """The names of the types that an error of type `error_type` is of: its own, and its base classes'."""
    kinds, todo = {error_type}, [RolloutError]
    while todo:
        cls = todo.pop()
        todo += cls.__subclasses__()
        if cls.__name__ == error_type:
            kinds.update(base.__name__ for base in cls.__mro__ if issubclass(base, RolloutError))
    return kinds


def begin(job: Job, host: Host) -> Attempt:
    """Make the next attempt of `job`, so that it can be stopped from this moment on."""
    job.idle.clear()
    job.queued = False
    job.number += 1
    job.confirm = True
    job.result = None
    attempt = job.attempt = host.new_attempt(job)
    job.forget_gone()
    job.leftovers += attempt.runtimes
    return attempt


async def run_job(
    job: Job, attempt: Attempt, host: Host, policy: RolloutRetryConfig, requeue: Callable[[Job], None]
) -> None:
    """Run `attempt` of `job` to its end, teardown included, and requeue the job when it is to be retried."""
    retry = False
    try:
        result = job.result = await attempt.run()
        retry = retry_wanted(job, result, policy)
        _announce(job, host, attempt.number, result, final=not retry and job.intent is not Intent.RESTART)
        settled = await attempt.teardown(confirm=job.confirm)
        if retry and not (settled and all(runtime.state.settled for runtime in attempt.runtimes)):
            # Another sandbox beside one that may still be there is a decision for the user.
            retry = False
            _announce(job, host, attempt.number, result, final=True)
        await host.keep(job, attempt, result, again=retry)
    finally:
        job.attempt = None
        job.leftovers = job.unsettled
        job.idle.set()
    if retry and job.intent is Intent.RUN:
        job.retries += 1
        job.reason = "retry"
        requeue(job)


def make_final(job: Job, host: Host, *, final: bool = True) -> None:
    """Say anew whether the last result stands (`final`), or another attempt follows, where that has changed."""
    if job.result is not None and job.final is not final:
        _announce(job, host, job.number, job.result, final=final)


def _announce(job: Job, host: Host, number: int, result: Result, *, final: bool) -> None:
    job.final = final
    host.publish(
        ev.AttemptFinished(
            rollout=job.spec.id,
            attempt=number,
            outcome=result.outcome,
            stop_condition=result.stop_condition,
            reward=result.reward,
            error_type=result.error_type,
            error=result.error,
            final=final,
        )
    )


def announce_dequeued(job: Job, host: Host, condition: str) -> None:
    """A rollout that waited for a place will not get one."""
    job.queued = False
    job.result = Result("stopped", condition)
    _announce(job, host, job.number, job.result, final=True)
