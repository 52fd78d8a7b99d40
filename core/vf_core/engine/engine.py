"""A whole run: rollouts through their attempts, commands through one door, and an end that names what is left."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any

from vf_core.engine.commands import Commands
from vf_core.engine.jobs import Job, begin, run_job
from vf_core.engine.launching import Launching
from vf_core.engine.plan import Plan
from vf_core.engine.recording import Recording
from vf_core.engine.results import Results, exit_code, is_unreachable
from vf_core.engine.saved import Saved
from vf_core.engine.scheduler import Scheduler
from vf_core.engine.shared_tools import SharedTools
from vf_core.errors import TunnelError, VfError
from vf_core.events import types as ev
from vf_core.events.bus import Bus
from vf_core.events.command import Reply
from vf_core.events.state import RunState
from vf_core.interception.reach import make_server
from vf_core.rollout import Attempt, Result, RolloutSpec, RunContext
from vf_core.rollout.context import TUNNEL
from vf_core.rollout.sandboxes import stop_all
from vf_core.runs.layout import RunDir
from vf_core.runtimes.base import Runtime
from vf_core.sandboxes.ledger import Ledger
from vf_core.sandboxes.owners import Owner
from vf_core.trace.writer import TraceWriter

log = logging.getLogger(__name__)


class Engine:
    """Runs a plan in a run directory. Make it, `run` it once on its loop, send it commands meanwhile.

    After the last rollout it stays as long as somebody watches, so that rollouts can still be restarted. With what an
    earlier engine `saved` (whose state `bus` goes on with) it runs what is owed.
    """

    def __init__(
        self, plan: Plan, run_dir: RunDir, bus: Bus, ledger: Ledger | None = None, saved: Saved | None = None
    ) -> None:
        self.plan = plan
        self.run_dir = run_dir
        self.bus = bus
        self._ledger = ledger
        config = plan.config
        self._saved = saved
        self._announced = False
        self._begun = asyncio.Event()
        self.jobs = {spec.id: _job(spec, saved) for spec in plan.specs}
        self.scheduler = Scheduler(config.max_concurrent, self._launch)
        self.launching = Launching(
            self.scheduler, self.publish, lambda: self._viewers > 0, self._provider_is_down
        )
        self.closing = False
        self.close_reason = ""
        self._interrupted = False
        self._broken: str | None = None
        self._down: str | None = None
        self._out_of_reach = False
        self._output_lost = False
        self._unreachable: set[str] = set()
        self._watched: frozenset[str] = frozenset()
        self._viewers = 0
        self._wake = asyncio.Event()
        self._door = Commands(self)
        kept = {} if saved is None else {id: stand.trace for id, stand in saved.kept.items()}
        self._results = Results(TraceWriter(run_dir.traces), self.publish, self.cannot_write, kept)
        self._server = make_server(
            config,
            run=run_dir.run_id,
            publish=self.publish,
            works=lambda: self.launching.used("", TUNNEL, ""),
        )
        self._context = self._make_context()
        self._tools = SharedTools(plan.shared_tools, self._context)
        if plan.shared_tools:
            self._context.shared_tools = self._tools.servers

    # ------------------------------------------------------------------ what links talk to

    @property
    def state(self) -> RunState:
        """The fold of everything published so far."""
        return self.bus.state

    @property
    def ending(self) -> bool:
        """Nothing new is launched any more."""
        return self.state.status == "stopping" or self.closing

    @property
    def stop_condition(self) -> str:
        """What a rollout that is stopped now is stopped by: the user, or the run's own failure."""
        return "run_failed" if self._broken or self._down else "user_stopped"

    @property
    def busy(self) -> bool:
        """Attempts run, wait for a place, or are about to."""
        return self.scheduler.busy

    async def command(
        self, name: str, targets: Sequence[str] = (), args: Mapping[str, Any] | None = None, by: str = ""
    ) -> Reply:
        """Carry out a command and wait for its end; a caller that goes away does not undo it.

        One that comes before it is decided what runs waits for that.
        """

        async def carry_out() -> Reply:
            await self._begun.wait()
            return await self._door(name, targets, args, by)

        return await asyncio.shield(asyncio.ensure_future(carry_out()))

    def trace_record(self, rollout: str, attempt: int) -> dict[str, Any] | None:
        """The trace so far of an attempt that is under way; None when it is not (it is on disk, or not at all)."""
        job = self.jobs.get(rollout)
        if job is None or job.attempt is None or attempt not in (0, job.attempt.number):
            return None
        return job.attempt.record().to_record()

    def watch(self, rollouts: frozenset[str]) -> None:
        """The rollouts that somebody is looking at (all screens together)."""
        changed, self._watched = rollouts ^ self._watched, rollouts
        for rollout in changed:
            job = self.jobs.get(rollout)
            if job is not None and job.attempt is not None:
                job.attempt.watched(rollout in rollouts)

    def viewers(self, count: int) -> None:
        """How many screens that may send commands are attached now."""
        self._viewers = count
        self._wake.set()

    # ------------------------------------------------------------------ the run

    async def run(self) -> int:
        """Run to the end; returns the exit code."""
        self.scheduler.closed = True
        opening = asyncio.create_task(self._open(), name="interception")
        try:
            self._announce()
            self._results.expect(self.plan.specs)
            self.scheduler.add(job for job in self.jobs.values() if job.result is None)
            self._begun.set()
            while True:
                await self.scheduler.quiet()
                if await self._finish() and not await self._linger():
                    return self.state.exit_code or 0
        finally:
            self.closing = self.scheduler.closed = True
            self._begun.set()
            opening.cancel()
            await asyncio.gather(opening, return_exceptions=True)
            self.launching.close()
            await self._tools.close()
            await self._results.close()
            await self._server.stop()

    def publish(self, event: ev.Event) -> None:
        """Put an event on the bus."""
        self.bus.publish(event)

    def begin_stopping(self, reason: str) -> None:
        """Launch nothing more."""
        if self.state.status != "stopping" and not self.state.over:
            self.publish(ev.RunStopping(reason=reason))

    def begin_closing(self, reason: str) -> None:
        """The engine will end once the run has."""
        if not self.closing:
            self.closing = True
            self.close_reason = reason
            self._wake.set()
            self.begin_stopping(reason)

    def interrupt(self, name: str) -> None:
        """A signal asked for the end: graceful, visible; a further one changes nothing."""
        if self.closing:
            self.publish(
                ev.Log(level="warning", message=f"{name}: already cleaning up; nothing is cut short")
            )
            return
        # What is taken up may have been over before.
        self._interrupted = not (self._announced and self.state.over)
        task = asyncio.ensure_future(self.command("shutdown", (), {"reason": f"by {name}"}, by=name))
        task.add_done_callback(_log_failure)

    def relaunch(self, job: Job) -> None:
        """Give `job` the next free place; a run that was over goes on."""
        if self.state.over:
            self._announce()
        self.scheduler.add([job], first=True)
        self._wake.set()

    # ------------------------------------------------------------------ what jobs need

    def new_attempt(self, job: Job) -> Attempt:
        """Make the next attempt of `job`."""
        return Attempt(job.spec, job.number, self._context, job.reason)

    async def keep(self, job: Job, attempt: Attempt, result: Result, *, again: bool) -> None:
        """Write the attempt's trace and note what the exit code needs of it."""
        error = attempt.trace.error
        if error is not None and is_unreachable(error):
            self._unreachable.add(job.spec.id)
            self.launching.used(job.spec.id, "the model provider", error.message)
        else:
            self._unreachable.discard(job.spec.id)
            if attempt.trace.num_turns:
                self.launching.used(job.spec.id, "the model provider", "")
        self.launching.ended(job.spec.id)
        await self._results.keep(attempt, result, again=again)

    # ------------------------------------------------------------------ inner parts

    def _make_context(self) -> RunContext:
        config, owner = self.plan.config, Owner.this_process(self.run_dir.run_id, self.run_dir.path)
        ledger = self._ledger
        return RunContext(
            run=self.run_dir.run_id,
            config=config,
            harness=self.plan.harness,
            server=self._server,
            publish=self.publish,
            run_dir=self.run_dir,
            watched=lambda rollout: rollout in self._watched,
            labels=owner.labels(),
            recorder=None if ledger is None else Recording(ledger, owner, self.publish),
            used=self.launching.used,
        )

    async def _open(self) -> None:
        """Be reachable for sandboxes, then launch. Nothing has been asked for when that fails."""
        try:
            await self._server.start()
        except Exception as e:
            if not isinstance(e, VfError):
                log.exception("the interception server could not be started")
            # Whatever leads here from outside is somebody's service, and may be back the next time.
            self._out_of_reach = isinstance(e, TunnelError)
            self._fail(str(e) if isinstance(e, VfError) else f"{type(e).__name__}: {e}")
        else:
            self.scheduler.closed = False
            self.scheduler.pump()

    def _announce(self) -> None:
        config, saved, first = self.plan.config, self._saved, not self._announced
        self._announced = True
        agent = config.env.agent
        caps = {
            name: float(value)
            for name in ("max_turns", "max_input_tokens", "max_output_tokens", "max_total_tokens")
            if (value := getattr(agent, name)) is not None
        }
        self.publish(
            ev.RunStarted(
                run=self.run_dir.run_id,
                name=config.run_name,
                model=config.model,
                taskset=config.env.taskset.id,
                harness=agent.harness.id,
                runtime=agent.runtime.type,
                concurrency=self.scheduler.concurrency,
                total=len(self.jobs),
                host=socket.gethostname(),
                pid=os.getpid(),
                caps=caps,
                kept=len(saved.kept) if saved is not None else 0,
                owed=saved.owed if saved is not None and first else (),
            )
        )
        if not first:
            return
        for warning in self.plan.warnings:
            self.publish(ev.Log(level="warning", message=warning))
        for note in saved.notes if saved is not None else ():
            self.publish(ev.Log(level="info", message=note))
        for job in self.jobs.values():
            spec = job.spec
            if spec.id in self.state.rollouts:
                continue
            self.publish(
                ev.RolloutQueued(rollout=spec.id, task=spec.position, sample=spec.sample, name=spec.name)
            )

    def _launch(self, job: Job) -> Coroutine[Any, Any, None]:
        attempt = begin(job, self)
        return run_job(job, attempt, self, self.plan.config.retries.rollout, self._requeue)

    def _requeue(self, job: Job) -> None:
        self.scheduler.add([job], first=True)

    async def _finish(self) -> bool:
        """Bring every sandbox to proof, and say how the run ended; False when a restart came in between, at whatever
        moment: it is asked again after each wait."""
        left = self._unsettled()
        if left:
            them = f"{len(left)} sandboxes are" if len(left) > 1 else "1 sandbox is"
            self.publish(ev.Log(level="info", message=f"waiting for proof that {them} gone"))
            await asyncio.gather(stop_all(left, confirm=True), self._tools.close())
        if self.scheduler.busy:
            return False
        await self._results.flush()
        if self.busy:
            return False
        if self.state.over:
            return True
        totals = self.state.totals
        names = {runtime.name for runtime in self._unsettled()}
        unconfirmed = tuple(sorted(names.union(self._saved.left() if self._saved is not None else ())))
        code = exit_code(
            errors=totals.error,
            max_errors=self.plan.config.max_errors,
            unconfirmed=len(unconfirmed),
            unreachable=self._down is not None
            or self._out_of_reach
            or (bool(totals.error) and len(self._unreachable) >= totals.ended - self.state.kept),
            interrupted=self._interrupted,
            failed=self._broken is not None and not self._out_of_reach,
        )
        broken = self._broken or self._down
        status = "failed" if broken else "stopped" if self.state.status == "stopping" else "completed"
        self.publish(
            ev.RunFinished(
                status=status,
                exit_code=code,
                unconfirmed=unconfirmed,
                message=broken or self.close_reason,
            )
        )
        return True

    def _unsettled(self) -> list[Runtime]:
        own = [runtime for job in self.jobs.values() for runtime in job.unsettled]
        return [*own, *self._tools.unsettled]

    async def _linger(self) -> bool:
        """Wait while somebody watches; True when a restart gave the run more to do."""
        while self._viewers > 0 and not self.closing:
            if self.busy:
                return True
            self._wake.clear()
            await self._wake.wait()
        return self.busy

    def cannot_keep_output(self, error: OSError) -> None:
        """Output is not kept from here on; the results are not in danger, so the run goes on."""
        if self._output_lost:
            return
        self._output_lost = True
        what = f"programs' output can't be written to {self.run_dir.logs}: {error.strerror or error}"
        self.publish(ev.Log(level="warning", message=f"{what}; the run goes on without it"))

    def _provider_is_down(self, reason: str) -> None:
        """Nobody is there to act on it: end the run, so that what is left can be run later."""
        if self._down is None:
            self._down = reason
            self.publish(ev.Log(level="error", message=f"{reason}; the run is being stopped"))
            task = asyncio.ensure_future(self.command("shutdown", (), {"reason": reason}))
            task.add_done_callback(_log_failure)

    def cannot_write(self, error: Exception) -> None:
        """Results can't be kept: launch nothing more, and end what runs."""
        what = error.strerror if isinstance(error, OSError) else None
        self._fail(f"cannot write to {self.run_dir.path}: {what or error}")

    def _fail(self, what: str) -> None:
        """The run cannot go on: end it as failed."""
        if self._broken is None:
            self._broken = what
            self.publish(ev.Log(level="error", message=f"{what}; the run is being stopped"))
            task = asyncio.ensure_future(self.command("shutdown", (), {"reason": what}))
            task.add_done_callback(_log_failure)


def _job(spec: RolloutSpec, saved: Saved | None) -> Job:
    """The job of a rollout: one that was kept has its result already, one that is owed goes on counting attempts."""
    job = Job(spec)
    if saved is not None:
        job.number = saved.numbers.get(spec.id, 0)
        job.reason = "resume" if job.number else "first"
        stand = saved.kept.get(spec.id)
        if stand is not None:
            job.result = Result(stand.outcome, stand.stop_condition, stand.reward)
    return job


def _log_failure(task: asyncio.Future[Reply]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        log.error("a command failed unexpectedly", exc_info=error)
