"""An attempt's session with the interception server."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vf_core.rollout.context import RolloutSpec, RunContext
from vf_core.tasks import stop_hooks

if TYPE_CHECKING:
    from vf_core.interception import Session
    from vf_core.runtimes.base import Runtime
    from vf_core.trace.record import Trace


def make_session(
    spec: RolloutSpec, number: int, trace: Trace[Any, Any], runtime: Runtime, context: RunContext
) -> Session:
    """The session of attempt `number`, not registered, with the limits that the config sets."""
    from vf_core.interception import Limits, Session

    agent = context.config.env.agent
    return Session(
        rollout=spec.id,
        attempt=number,
        trace=trace,
        model=context.config.model,
        sampling=context.config.sampling,
        limits=Limits(
            max_turns=agent.max_turns,
            max_input_tokens=agent.max_input_tokens,
            max_output_tokens=agent.max_output_tokens,
            max_total_tokens=agent.max_total_tokens,
        ),
        stops=stop_hooks(spec.task),
        emit=context.publish,
        emit_live=context.watched(spec.id),
        hosted_tools=getattr(runtime.config, "network_access", True) is not False,
    )
