"""The one door for commands: each is acknowledged, carried out, and ends in an event and a reply."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from vf_core.engine.jobs import Intent, Job, announce_dequeued, make_final
from vf_core.errors import SandboxError, VfError
from vf_core.events import types as ev
from vf_core.events.command import COMMAND_NAMES, Reply
from vf_core.rollout.sandboxes import stop_all
from vf_core.runtimes.base import Runtime
from vf_core.runtimes.lifecycle import State

if TYPE_CHECKING:
    from vf_core.engine.engine import Engine

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Outcome:
    """What a command did: targets that changed, and what went wrong for which target (or for the run: `""`)."""

    changed: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    message: str = ""

    def note(self, target: str, error: SandboxError) -> None:
        """What went wrong for a target, of which a part may have been done."""
        self.failed[target] = str(error)
        if isinstance(error, _UnconfirmedError) and error.changed:
            self.changed.append(target)


class _UnconfirmedError(SandboxError):
    """Its rollout was stopped (`changed`), and its sandbox not proven gone."""

    def __init__(self, error: SandboxError, changed: bool) -> None:
        super().__init__(error.message, hint=error.hint)
        self.changed = changed


class Commands:
    """Carries out commands on an engine. The last command on a rollout wins."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._ids = itertools.count(1)
        self._proofs: set[asyncio.Task[list[SandboxError]]] = set()
        self._run: dict[str, Callable[[Mapping[str, Any]], Awaitable[Outcome]]] = {
            "pause": lambda args: self._pause(True),
            "unpause": lambda args: self._pause(False),
            "stop_all": lambda args: self._stop_all(bool(args.get("confirm", False))),
            "set_concurrency": self._set_concurrency,
            "shutdown": lambda args: self._shutdown(str(args.get("reason", "shut down"))),
        }
        self._each: dict[str, Callable[[Job, Mapping[str, Any]], Awaitable[bool]]] = {
            "stop": lambda job, args: self.stop(job, confirm=False),
            "confirm_stop": lambda job, args: self.stop(job, confirm=True),
            "kill": lambda job, args: self._kill(job),
            "restart": lambda job, args: self.restart(job, force=bool(args.get("force", False))),
            "retry_failed": lambda job, args: self.restart(job, force=False),
        }

    async def __call__(
        self, name: str, targets: Sequence[str] = (), args: Mapping[str, Any] | None = None, by: str = ""
    ) -> Reply:
        """Carry out `name`; never raises for what the command or its targets did wrong."""
        ident = f"c{next(self._ids)}"
        jobs = self._engine.jobs
        if name == "retry_failed" and not targets:
            targets = [job.spec.id for job in jobs.values() if job.result and job.result.outcome == "error"]
        targets = tuple(dict.fromkeys(targets))
        publish = self._engine.publish
        publish(ev.CommandAccepted(command=ident, name=name, targets=targets, by=by))
        problem = self._refuse(name, targets)
        if problem:
            publish(ev.CommandFailed(command=ident, name=name, message=problem))
            return Reply(False, problem, (), ident)
        try:
            outcome = await self._carry_out(name, targets, args or {})
        except VfError as e:
            outcome = Outcome(failed={"": str(e)})
        except Exception as e:
            log.exception("command %s failed", name)
            outcome = Outcome(failed={"": f"internal error, see engine.log: {type(e).__name__}: {e}"})
        changed = tuple(outcome.changed)
        if outcome.failed:
            message = "; ".join(f"{who}: {what}" if who else what for who, what in outcome.failed.items())
            message = message[: ev.MESSAGE_LIMIT]
            publish(
                ev.CommandFailed(
                    command=ident, name=name, message=message, targets=tuple(filter(None, outcome.failed))
                )
            )
            return Reply(False, message, changed, ident)
        publish(ev.CommandDone(command=ident, name=name, changed=changed, message=outcome.message))
        return Reply(True, outcome.message, changed, ident)

    def _refuse(self, name: str, targets: Sequence[str]) -> str:
        if name not in COMMAND_NAMES:
            return f"no command {name!r}; there are {', '.join(COMMAND_NAMES)}"
        if name in self._run:
            return f"{name} is for the whole run and takes no rollouts" if targets else ""
        unknown = [target for target in targets if target not in self._engine.jobs]
        if unknown:
            return f"no rollout {', '.join(unknown[:5])} in this run; `vf-tui show` lists them"
        if not targets and name != "retry_failed":
            return f"{name} needs at least one rollout"
        if self._engine.ending and name in ("restart", "retry_failed"):
            return "the run is ending; nothing new is launched (`vf-tui resume` runs what is owed, once it has ended)"
        return ""

    async def _carry_out(self, name: str, targets: Sequence[str], args: Mapping[str, Any]) -> Outcome:
        if name in self._run:
            return await self._run[name](args)
        outcome = Outcome()
        act = self._each[name]

        async def one(target: str) -> None:
            try:
                if await act(self._engine.jobs[target], args):
                    outcome.changed.append(target)
            except SandboxError as e:
                outcome.note(target, e)

        await asyncio.gather(*(one(target) for target in targets))
        if not outcome.changed and not outcome.failed:
            outcome.message = "nothing to do"
        return outcome

    # ------------------------------------------------------------------ on one rollout

    async def stop(self, job: Job, *, confirm: bool) -> bool:
        """End the rollout, and with `confirm` wait for proof that its sandboxes are gone.

        Raises `SandboxError` when they can't be proven gone; it can be asked again.
        """
        was = job.intent
        job.ask(Intent.STOP)
        # A later restart may have begun by the time that this goes on: its sandbox is not the one that was meant.
        meant = list(job.leftovers)
        changed = was is Intent.RESTART
        if job.queued and self._engine.scheduler.remove(job):
            announce_dequeued(job, self._engine, self._engine.stop_condition)
            changed = True
        attempt = job.attempt
        if attempt is not None:
            job.confirm = job.confirm and confirm if job.result is None else job.confirm
            if job.result is None:
                changed = changed or attempt.stop_reason is None
                await attempt.stop(self._engine.stop_condition)
            await job.idle.wait()
        if job.intent is Intent.STOP:
            make_final(job, self._engine)
        if confirm:
            unsettled = [runtime for runtime in meant if not runtime.state.settled]
            changed = changed or bool(unsettled)
            errors = await stop_all(unsettled, confirm=True)
            job.forget_gone()
            if errors:
                raise _UnconfirmedError(errors[0], changed)
        else:
            self._seek_proof(job, meant)
        return changed

    def _seek_proof(self, job: Job, meant: list[Runtime]) -> None:
        """Nobody waits for it, and yet what was asked to go is not left in doubt."""
        if not any(runtime.state is State.SENT for runtime in meant):
            return
        task = asyncio.create_task(stop_all([r for r in meant if not r.state.settled], confirm=True))
        self._proofs.add(task)
        task.add_done_callback(self._proofs.discard)
        task.add_done_callback(lambda _: job.forget_gone())

    async def restart(self, job: Job, *, force: bool) -> bool:
        """A new attempt in a new sandbox, once the old one is proven gone (`force`: whatever became of it).

        Raises `SandboxError` when the old sandbox can't be proven gone: nothing is launched then.
        """
        if job.intent is Intent.RESTART or (job.queued and job.intent is Intent.RUN):
            return False
        # The run must not end between the old sandbox's end and the new attempt.
        with self._engine.scheduler.promise():
            return await self._restart(job, force=force)

    async def _restart(self, job: Job, *, force: bool) -> bool:
        asked = job.ask(Intent.RESTART)
        attempt, meant = job.attempt, list(job.leftovers)
        if attempt is not None:
            if job.result is None:
                await attempt.stop()
            await job.idle.wait()
        errors = [] if force else await stop_all(meant, confirm=True)
        if job.asked != asked:
            return False
        if errors:
            job.ask(Intent.STOP)
            make_final(job, self._engine)
            names = ", ".join(f"{r.name} is {r.state.word}" for r in job.unsettled)
            hint = "confirm-stop it again, or restart with force and the old one stays listed"
            raise SandboxError(f"not restarted: {names}: {errors[0]}", hint=hint)
        if self._engine.ending:
            job.ask(Intent.STOP)
            make_final(job, self._engine)
            return False
        make_final(job, self._engine, final=False)
        job.intent, job.retries, job.reason = Intent.RUN, 0, "restart"
        self._engine.relaunch(job)
        return True

    async def _kill(self, job: Job) -> bool:
        stopping = [r for r in (*job.unsettled,) if r.state in (State.STOPPING, State.SENT, State.CHECKING)]
        for runtime in stopping:
            runtime.force()
        return bool(stopping)

    # ------------------------------------------------------------------ on the run

    async def _pause(self, paused: bool) -> Outcome:
        engine = self._engine
        if engine.launching.paused_by_user if paused else not engine.scheduler.paused:
            return Outcome(message="already paused" if paused else "not paused")
        engine.launching.set(paused=paused, reason="by the user" if paused else "")
        return Outcome(["run"])

    async def _set_concurrency(self, args: Mapping[str, Any]) -> Outcome:
        value = args.get("value")
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise VfError(f"concurrency must be a whole number from 1, not {value!r}")
        if value == self._engine.scheduler.concurrency:
            return Outcome(message=f"already {value}")
        self._engine.launching.set(concurrency=value)
        return Outcome(["run"], message=f"up to {value} at once")

    async def _stop_all(self, confirm: bool) -> Outcome:
        engine = self._engine
        if engine.state.over and not engine.busy:
            return Outcome(message="the run is over")
        engine.begin_stopping("by the user")
        outcome = Outcome()

        async def one(job: Job) -> None:
            try:
                if await self.stop(job, confirm=confirm):
                    outcome.changed.append(job.spec.id)
            except SandboxError as e:
                outcome.note(job.spec.id, e)

        waiting = engine.scheduler.clear()
        for job in waiting:
            job.ask(Intent.STOP)
            announce_dequeued(job, engine, engine.stop_condition)
        outcome.changed += [job.spec.id for job in waiting]
        await asyncio.gather(*(one(job) for job in engine.jobs.values() if job.active or job.unsettled))
        return outcome

    async def _shutdown(self, reason: str) -> Outcome:
        engine = self._engine
        first = not engine.closing
        engine.begin_closing(reason)
        if engine.busy or not engine.state.over:
            stopped = await self._stop_all(confirm=True)
            if stopped.failed:
                return stopped
        return Outcome(["run"] if first else [], message="" if first else "already shutting down")
