"""One rollout of real parts, without an engine: local sandbox, interception server, harness, scoring."""

from __future__ import annotations

import asyncio
import secrets
from dataclasses import dataclass, field
from typing import Any

from vf_core.harnesses.base import ExitMeaning, Harness, ModelContext
from vf_core.interception import InterceptionServer, Limits, Session
from vf_core.interception.upstream import Upstream
from vf_core.runtimes.base import ProgramResult, Runtime
from vf_core.runtimes.subprocess import SubprocessConfig, SubprocessRuntime
from vf_core.tasks import Task
from vf_core.tasks.scoring import invoke, score
from vf_core.trace.record import Trace, new_trace
from vf_core.trace.types import SamplingConfig


@dataclass
class Rolled:
    """What came of it. `output` is what the program printed, as it came."""

    trace: Trace[Any, Any]
    result: ProgramResult | None = None
    meaning: ExitMeaning | None = None
    output: list[tuple[str, bytes]] = field(default_factory=list)

    @property
    def out(self) -> str:
        """All of its standard output."""
        return b"".join(data for stream, data in self.output if stream == "stdout").decode()


async def roll(
    task: Task[Any, Any, Any],
    harness: Harness[Any],
    base_url: str,
    *,
    limits: Limits | None = None,
    box: Runtime | None = None,
) -> Rolled:
    """Run `harness` on `task` against the model at `base_url`, score it, and prove the sandbox gone: `box`, or a
    local one."""
    trace = new_trace(
        task_type=type(task).__name__,
        data=task.data,
        model="scripted",
        sampling=SamplingConfig(),
        harness=harness.config,
        run="test",
    )
    rolled = Rolled(trace)
    local = SubprocessConfig(grace=0.5)
    runtime = box or SubprocessRuntime(local, name=f"vf-test-{secrets.token_hex(4)}")
    async with InterceptionServer(Upstream(base_url, api_key=None)) as server:
        session = Session("r", 1, trace, model="scripted", limits=limits)
        secret = server.register(session)
        await runtime.start()
        try:
            await invoke(task.setup, {"trace": trace, "runtime": runtime, "task": task.data}, what="setup")
            await harness.setup(runtime)
            await _launch(rolled, harness, runtime, server.base_url, secret)
            await score(task, harness, trace, runtime)
        finally:
            server.unregister(secret)
            await runtime.stop_confirmed()
    return rolled


async def _launch(
    rolled: Rolled, harness: Harness[Any], runtime: Runtime, endpoint: str, secret: str
) -> None:
    trace = rolled.trace
    try:
        async with asyncio.timeout(trace.task.data.timeout.harness):
            rolled.result = await harness.launch(
                ModelContext("scripted"),
                trace,
                runtime,
                endpoint,
                secret,
                {},
                lambda stream, data: rolled.output.append((stream, data)),
            )
    except TimeoutError:
        trace.stop("harness_timeout")
        return
    rolled.meaning = harness.exit_meaning(rolled.result.exit_code)
    if rolled.meaning.kind != "failed":
        trace.stop("agent_declined" if rolled.meaning.kind == "declined" else "agent_completed")
