"""Sandboxes of a rollout's attempt, under the name and with the labels by which they are found again."""

from __future__ import annotations

from vf_core.rollout.context import RolloutSpec, RunContext
from vf_core.runtimes import make_runtime
from vf_core.runtimes.base import Runtime
from vf_core.runtimes.lifecycle import Observer


def make_sandbox(spec: RolloutSpec, number: int, context: RunContext, observer: Observer) -> Runtime:
    """The sandbox of attempt `number`, not started; it is in the ledger before it is asked for."""
    box = context.config.env.agent.runtime.for_task(spec.task.data)
    labels = {**context.labels, "rollout": spec.id, "attempt": str(number)}
    if box.lifetime is not None:
        labels["lifetime"] = str(int(box.lifetime))
    name = f"vf-{context.run[:8]}-{spec.id}-a{number}"
    runtime = make_runtime(box, name=name, labels=labels, observer=observer)
    if context.recorder is not None:
        runtime.recorder = context.recorder(runtime, spec.id, number)
    return runtime
