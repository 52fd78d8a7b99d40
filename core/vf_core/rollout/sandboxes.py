"""Sandboxes of a rollout's attempt, under the name and with the labels by which they are found again."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping

from vf_core.errors import SandboxError
from vf_core.events import types as ev
from vf_core.rollout.context import RolloutSpec, RunContext
from vf_core.runtimes import make_runtime
from vf_core.runtimes.base import Runtime, RuntimeConfig
from vf_core.runtimes.lifecycle import Observer, State, Transition


def make_sandbox(spec: RolloutSpec, number: int, context: RunContext, observer: Observer) -> Runtime:
    """The sandbox of attempt `number`, not started; it is in the ledger before it is asked for."""
    box = context.config.env.agent.runtime.for_task(spec.task.data)
    name = f"vf-{context.run[:8]}-{spec.id}-a{number}"
    return make_box(box, name, context, observer, rollout=spec.id, number=number)


def make_box(
    box: RuntimeConfig,
    name: str,
    context: RunContext,
    observer: Observer,
    *,
    rollout: str = "",
    number: int = 0,
    more: Mapping[str, str] | None = None,
) -> Runtime:
    """A sandbox of an attempt of `rollout` (empty: of the whole run), not started; `more` are further labels."""
    labels = {**context.labels, **(more or {})}
    if rollout:
        labels.update(rollout=rollout, attempt=str(number))
    if box.lifetime is not None:
        labels["lifetime"] = str(int(box.lifetime))
    runtime = make_runtime(box, name=name, labels=labels, observer=observer)
    if context.recorder is not None:
        runtime.recorder = context.recorder(runtime, rollout, number)
    return runtime


def moved(
    move: Transition, box: RuntimeConfig, rollout: str, number: int, serves: str = ""
) -> ev.RuntimeChanged:
    """The event that tells of a sandbox's move."""
    return ev.RuntimeChanged(
        rollout=rollout,
        attempt=number,
        sandbox=move.sandbox,
        kind=move.kind,
        state=move.state.value,
        id=move.id,
        proof=move.proof,
        detail=move.detail[: ev.MESSAGE_LIMIT],
        image=str(getattr(box, "image", "")) if move.state is State.STARTING else "",
        ends=move.t + box.lifetime if box.lifetime and move.state is State.LIVE else None,
        serves=serves,
    )


async def stop_all(runtimes: Iterable[Runtime], *, confirm: bool) -> list[SandboxError]:
    """Stop sandboxes, all at once, and with `confirm` wait for proof; what stood in the way, which is in their states
    too."""

    async def one(runtime: Runtime) -> SandboxError | None:
        try:
            await (runtime.stop_confirmed() if confirm else runtime.stop())
        except SandboxError as e:
            return e
        return None

    return [error for error in await asyncio.gather(*map(one, runtimes)) if error is not None]
