"""One attempt of one rollout: one sandbox, one program run, one trace, through its phases.

An attempt never raises for what goes wrong in it: failures are recorded on its trace under the boundary they
crossed. It owns its runtime; whoever started it tears it down with `teardown`.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from vf_core.errors import (
    HarnessError,
    RolloutError,
    SandboxError,
    TaskError,
    ToolsetError,
    TunnelError,
    boundary,
)
from vf_core.events import types as ev
from vf_core.harnesses.base import ExitMeaning, ModelContext, describe_exit
from vf_core.rollout import harness_calls
from vf_core.rollout.context import TUNNEL, Result, RolloutSpec, RunContext
from vf_core.rollout.limits import program_seconds, stage_seconds
from vf_core.rollout.reach import check_reach, endpoint, find_way
from vf_core.rollout.sandboxes import make_sandbox, moved, stop_all
from vf_core.rollout.session import make_session
from vf_core.rollout.tools import AttemptTools
from vf_core.runtimes.base import ProgramResult, Runtime
from vf_core.runtimes.lifecycle import State, Transition
from vf_core.tasks.base import state_type
from vf_core.tasks.calls import own_copy
from vf_core.tasks.judging import judged, judging
from vf_core.tasks.scoring import invoke, score
from vf_core.trace.record import Trace, new_trace

if TYPE_CHECKING:
    from vf_core.interception import Session
    from vf_core.runs.output import OutputLog

log = logging.getLogger(__name__)

# A program that was told to stop gets this long to be seen ending before its phase is cancelled.
_STOP_PATIENCE = 3.0
# Code that swallows its cancellation is asked again this often, then left behind.
_CANCEL_TRIES = 3
_CANCEL_PATIENCE = 1.5
_OUTPUT_TAIL = 2_000
_KILLED = 128 + 9
_LIVE_CHUNK = 4_000


class Attempt:
    """Drives one attempt. `run` once, `stop` at any time and as often as asked, then `teardown`."""

    def __init__(self, spec: RolloutSpec, number: int, context: RunContext, reason: str = "first") -> None:
        self.spec = spec
        self.number = number
        self.reason = reason
        self.context = context
        config = context.config
        self.trace: Trace[Any, Any] = new_trace(
            task_type=type(spec.task).__name__,
            data=spec.task.data,
            model=config.model,
            sampling=config.sampling,
            harness=context.harness.config,
            run=context.run,
        )
        self.harness = own_copy(context.harness)
        self.trace.state = state_type(type(spec.task))()
        self.runtime: Runtime = make_sandbox(spec, number, context, self._observe)
        self.tools = AttemptTools(spec, number, context, self.runtime)
        self.phase = ""
        self.stop_reason: str | None = None
        self.exit: ExitMeaning | None = None
        self.exit_code: int | None = None
        self._lifecycle: list[dict[str, Any]] = []
        self._work: asyncio.Task[None] | None = None
        self._session: Session | None = None
        self._abandoned = asyncio.Event()
        self._stopping: asyncio.Task[None] | None = None

    # ------------------------------------------------------------------ what the engine calls

    async def run(self) -> Result:
        """Go through the phases up to the result; the sandbox is still there afterwards."""
        self._emit(ev.AttemptStarted, trace=self.trace.id, reason=self.reason)
        with judging(self.trace, self.spec.panel):  # what hooks ask of judges belongs to this trace
            self._work = asyncio.create_task(self._phases(), name=f"rollout {self.spec.id}")
        gone = asyncio.create_task(self._abandoned.wait())
        await asyncio.wait({self._work, gone}, return_when=asyncio.FIRST_COMPLETED)
        gone.cancel()
        self._close_session()
        if self._work.done() and not self._work.cancelled():
            self._record_failure(self._work.exception())
        if self.stop_reason is not None:
            self.trace.stop(self.stop_reason)
        self.trace.finish()
        return self._result()

    async def stop(self, reason: str = "user_stopped") -> None:
        """End what is under way; returns when it has ended. Idempotent, and shielded from its caller.

        `reason` becomes the trace's stop condition; the first one counts.
        """
        if self.stop_reason is None:
            self.stop_reason = reason
        if self._stopping is None:
            self._stopping = asyncio.create_task(self._stop())
        await asyncio.shield(self._stopping)

    @property
    def runtimes(self) -> list[Runtime]:
        """Its sandboxes: the agent's, then those of its tool servers."""
        return [self.runtime, *self.tools.runtimes]

    async def teardown(self, *, confirm: bool) -> bool:
        """Stop the sandboxes, and with `confirm` wait for proof. True when their state asks for nothing more."""
        if any(runtime.state is not State.NEW for runtime in self.runtimes):
            self._enter("teardown")
        errors = await stop_all(self.runtimes, confirm=confirm)
        for e in errors:
            self._emit(ev.ErrorRaised, kind=type(e).__name__, message=str(e)[: ev.MESSAGE_LIMIT])
        return not errors

    def watched(self, watched: bool) -> None:
        """Whether somebody looks at this rollout while it generates."""
        if self._session is not None:
            self._session.emit_live = watched

    def record(self) -> Trace[Any, Any]:
        """The trace with all that is known now of its sandbox and its program."""
        trace = self.trace
        trace.runtime = self.runtime.info()
        trace.extra.update(
            rollout=self.spec.id,
            position=self.spec.position,
            sample=self.spec.sample,
            attempt=self.number,
            reason=self.reason,
            outcome=self._result().outcome if self.trace.is_completed else "",
            exit_code=self.exit_code,
            exit_meaning=self.exit.text if self.exit else None,
            sandbox=self.runtime.name,
            lifecycle=list(self._lifecycle),
        )
        return trace

    # ------------------------------------------------------------------ stopping

    async def _stop(self) -> None:
        work = self._work
        if work is None or work.done():
            return
        if self._session is not None:
            self._session.close()
        if self.phase == "running":
            # The program is told first, so that its own exit code is seen.
            try:
                await self.runtime.stop()
            except SandboxError as e:
                log.warning("rollout %s: %s", self.spec.id, e)
            await asyncio.wait({work}, timeout=_STOP_PATIENCE)
        for _ in range(_CANCEL_TRIES):
            if work.done():
                return
            work.cancel()
            await asyncio.wait({work}, timeout=_CANCEL_PATIENCE)
        if not work.done():
            log.error("rollout %s: %s does not end when cancelled; left behind", self.spec.id, self.phase)
            self._abandoned.set()

    # ------------------------------------------------------------------ phases

    async def _phases(self) -> None:
        runtime = self.runtime
        # A copy of its own: what hooks change on it stays in this attempt.
        task = self.trace.own_task(self.spec.task)
        timing = self.trace.timing
        available = {"trace": self.trace, "runtime": runtime, "task": task.data}
        async with self._phase("boot", timing.boot):
            await self._boot()
        async with self._phase("setup", timing.setup, self._seconds("setup"), TaskError):
            async with boundary(TaskError, "task setup"):
                await invoke(task.setup, available)
            # Steps of the setup that may take long by themselves are told by their names.
            self._enter("install")
            await harness_calls.set_up(self.harness, runtime)
            session = self._open_session()
            if self.tools.wanted:
                self._enter("tools")
            async with boundary(ToolsetError, "tool servers"):
                mcp_urls = await self.tools.start(session)
        async with self._phase("running", timing.generation):
            try:
                await self._run_program(session, mcp_urls)
            finally:
                if self.stop_reason is None:
                    await self.tools.tell_dead()
        async with (
            self._phase("finalize", timing.finalize, self._seconds("finalize"), TaskError),
            boundary(TaskError, "task finalize"),
        ):
            await invoke(task.finalize, available)
        try:
            async with self._phase("scoring", timing.scoring, self._seconds("scoring"), TaskError):
                await score(self.spec.task, self.harness, self.trace, runtime, self.spec.panel)
        except BaseException:
            if judged(self.trace):  # what judges used is paid for, verdict or not
                self._scored()
            raise
        self._scored()

    def _scored(self) -> None:
        trace = self.trace
        self._emit(
            ev.Scored,
            reward=trace.score,
            rewards=dict(trace.rewards),
            metrics=dict(trace.metrics),
            judged=judged(trace),
        )

    async def _boot(self) -> None:
        kind = f"sandbox provider {self.runtime.kind}"
        try:
            await find_way(self.spec.id, self.runtime, self.context)
        except TunnelError as e:
            if self.stop_reason is None:
                self.context.used(self.spec.id, TUNNEL, e.message)
            raise
        try:
            await self.runtime.start()
        except SandboxError as e:
            if self.stop_reason is None:
                self.context.used(self.spec.id, kind, str(e))
            raise
        self.context.used(self.spec.id, kind, "")
        await check_reach(self.runtime, self.context)

    @asynccontextmanager
    async def _phase(
        self, name: str, span: Any, seconds: float | None = None, error: type[RolloutError] = RolloutError
    ) -> AsyncIterator[None]:
        """Announce a phase, stamp its span, and hold it to its limit."""
        if self.stop_reason is not None:
            raise asyncio.CancelledError
        self._enter(name)
        span.start = time.time()
        try:
            async with asyncio.timeout(seconds) as limit:
                yield
        except TimeoutError as e:
            if limit.expired():
                raise error(f"{name} timed out after {seconds:g} s") from e
            raise
        finally:
            span.end = time.time()

    def _seconds(self, stage: str) -> float | None:
        return stage_seconds(self.context.config.env.agent.timeout, self.spec.task.data, stage)

    def _open_session(self) -> Session:
        session = self._session = make_session(self.spec, self.number, self.trace, self.runtime, self.context)
        self.context.server.register(session)
        return session

    async def _run_program(self, session: Session, mcp_urls: Mapping[str, str]) -> None:
        context, harness = self.context, self.harness
        live_since = self.trace.timing.boot.end or time.time()
        seconds = program_seconds(self._seconds("rollout"), self.runtime.config.lifetime, live_since)
        self._emit(ev.ProgramStarted, program=harness.config.id)
        started = time.monotonic()
        output = context.run_dir.open_output(self.spec.id, self.number)
        try:
            async with asyncio.timeout(seconds) as limit:
                result = await harness_calls.launch(
                    harness,
                    ModelContext(
                        model=context.config.model, sampling=context.config.sampling.model_copy(deep=True)
                    ),
                    self.trace,
                    self.runtime,
                    endpoint(self.runtime, context),
                    session.secret,
                    mcp_urls,
                    self._sink(output),
                )
            meaning = await self._meaning(result.exit_code, started)
            cut = await self._cut_off(meaning, session)
        except TimeoutError:
            if not limit.expired():
                raise
            self.trace.stop("harness_timeout")
            meaning = ExitMeaning("failed", f"timeout after {seconds:g} s")
            self._exited(_KILLED, meaning, time.monotonic() - started)
            return
        finally:
            self._close_session()
            await output.close()
        self._exited(result.exit_code, meaning, time.monotonic() - started)
        self._judge(result, meaning, session, cut)

    async def _cut_off(self, meaning: ExitMeaning, session: Session) -> TunnelError | None:
        """What kept a program that failed from asking its model again, if something did."""
        if meaning.kind != "failed" or self.stop_reason is not None:
            return None
        return await self.context.server.failure(self.runtime.is_local, session.heard)

    def _judge(
        self, result: ProgramResult, meaning: ExitMeaning, session: Session, cut: TunnelError | None
    ) -> None:
        """What the program's end means for the rollout. The cause that was seen here goes before its exit code."""
        if self.stop_reason is not None or self.trace.stop_condition is not None:
            return
        if session.error is not None and cut is None:
            raise session.error
        if meaning.kind == "failed":
            detail = (result.stderr or result.stdout).strip()[-_OUTPUT_TAIL:] or "it printed nothing"
            text = f"harness {self.harness.config.id!r}: {meaning.text}: {detail}"
            if cut is not None:
                raise TunnelError(f"{cut.message}; {text}", hint=cut.hint)
            raise HarnessError(text)
        self.trace.stop("agent_declined" if meaning.kind == "declined" else "agent_completed")

    # ------------------------------------------------------------------ small parts

    async def _meaning(self, code: int, started: float) -> ExitMeaning:
        try:
            return await harness_calls.exit_meaning(self.harness, code)
        except HarnessError:
            self._exited(code, ExitMeaning("failed", describe_exit(code)), time.monotonic() - started)
            raise

    def _exited(self, code: int, meaning: ExitMeaning, seconds: float) -> None:
        self.exit, self.exit_code = meaning, code
        self._emit(ev.ProgramExited, code=code, meaning=meaning.text, kind=meaning.kind, seconds=seconds)

    def _sink(self, output: OutputLog) -> Callable[[str, bytes], None]:
        watched, rollout = self.context.watched, self.spec.id

        def sink(stream: str, data: bytes) -> None:
            output.write(stream, data)
            if watched(rollout):
                text = data[-_LIVE_CHUNK:].decode(errors="replace")
                self._emit(ev.OutputChunk, stream=stream, text=text)

        return sink

    def _close_session(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            session.close()
            self.context.server.unregister(session.secret)

    def _record_failure(self, error: BaseException | None) -> None:
        if error is None or self.stop_reason is not None:
            return
        if not isinstance(error, Exception):
            raise error
        if not isinstance(error, RolloutError):
            log.error("rollout %s: unexpected error", self.spec.id, exc_info=error)
        self.trace.capture_error(error)
        self._emit(
            ev.ErrorRaised,
            kind=type(error).__name__,
            message=str(error)[: ev.MESSAGE_LIMIT],
            status_code=getattr(error, "status_code", None),
        )

    def _result(self) -> Result:
        trace = self.trace
        condition = trace.stop_condition or ""
        if self.stop_reason is not None:
            return Result("stopped", condition)
        error = trace.error
        if error is not None:
            return Result("error", condition, error_type=error.type, error=error.message[: ev.MESSAGE_LIMIT])
        outcome = "declined" if condition == "agent_declined" else "completed"
        return Result(outcome, condition, trace.score)

    def _enter(self, phase: str) -> None:
        self.phase = phase
        self._emit(ev.PhaseChanged, phase=phase)

    def _emit(self, event: type[ev.RolloutEvent], **fields: Any) -> None:
        if self._abandoned.is_set() and self.phase != "teardown":
            return
        self.context.publish(event(rollout=self.spec.id, attempt=self.number, **fields))

    def _observe(self, move: Transition) -> None:
        state = move.state.value
        if not self._lifecycle or self._lifecycle[-1]["state"] != state:
            self._lifecycle.append(
                {k: v for k, v in (("state", state), ("t", move.t), ("proof", move.proof)) if v}
            )
        self.context.publish(moved(move, self.runtime.config, self.spec.id, self.number))
