"""Scoring: running a task's rewards and metrics over a trace, and its group rewards over all its traces.

A failing reward is an error on the trace, never a zero: either all rewards of a rollout count or none, and what the
others gave is kept in `info["vf_tui"]["partial_rewards"]`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from vf_core.errors import HarnessError, JudgeError, RolloutError, SandboxError, TaskError
from vf_core.tasks.base import Task
from vf_core.tasks.calls import invoke, own_copy
from vf_core.tasks.decorators import Hook, hooks
from vf_core.tasks.judging import Panel, judging
from vf_core.trace.record import Trace, finite

__all__ = ["group_rewards", "invoke", "score", "score_group", "stop_hooks"]

AnyTask = Task[Any, Any, Any]
AnyTrace = Trace[Any, Any]
T = TypeVar("T")
Found = list[tuple[Hook, type[RolloutError]]]
"""Hooks, and under which boundary the failure of each is recorded."""


async def score(
    task: AnyTask,
    harness: object | None,
    trace: AnyTrace,
    runtime: Any = None,
    panel: Panel | None = None,
) -> None:
    """Run the task's and the harness's `@metric`s, then the task's `@reward`s, then the judges of `panel`, each kind
    at once, and record them. Where a reward failed no judge is asked: the rollout stays unscored anyway.

    Without a `runtime`, those that need one are left out and named in `info["vf_tui"]["left_out"]`. Failures are
    recorded on the trace (TaskError; HarnessError for the harness's metrics; JudgeError; what a sandbox raised stays
    what it is) when everything has run; the first one is raised.
    """
    own = trace.own_task(task)
    available = {"task": own.data, "trace": trace} | ({} if runtime is None else {"runtime": runtime})
    theirs = [] if harness is None else hooks(harness, "metric")
    metrics: Found = [(hook, TaskError) for hook in hooks(own, "metric")]
    metrics += [(hook, HarnessError) for hook in theirs]
    rewards: Found = [(hook, TaskError) for hook in hooks(own, "reward")]
    judges = _judges(panel)
    if runtime is None:
        metrics, rewards, judges = (_without_runtime(found, trace) for found in (metrics, rewards, judges))

    with judging(trace, panel):
        measured, errors = await _run(metrics, available, _numbers)
        for _, numbers in measured:
            trace.record_metrics(numbers)
        given, failed = await _run(rewards, available, _numbers)
        if not failed and judges:
            verdicts, failed = await _run(judges, available, _numbers)
            failed += _namesakes(given, verdicts)
            given += verdicts
    if failed:
        _set_apart(trace, {name: value for _, numbers in given for name, value in numbers.items()})
    else:
        for hook, numbers in given:
            for name, value in numbers.items():
                trace.record_reward(name, value, hook.weight)
    _raise([trace], errors + failed)


@dataclass(frozen=True, slots=True)
class _Asked(Hook):
    """A judge's `score`, as a hook."""

    scale: tuple[float, float] | None = None

    @property
    def what(self) -> str:
        return f"judge {self.name!r}"


def _judges(panel: Panel | None) -> Found:
    """The judges of a run, a copy of each for this rollout."""
    own = [own_copy(judge) for judge in panel.judges] if panel is not None else []
    return [
        (
            _Asked("reward", j.reward_name, type(j).__name__, j.config.weight, j.score, j.scale),
            JudgeError,
        )
        for j in own
    ]


def _namesakes(
    given: list[tuple[Hook, dict[str, float]]], verdicts: list[tuple[Hook, dict[str, float]]]
) -> list[RolloutError]:
    """One error for each name that would be given twice: neither number may replace the other."""
    taken, errors = {name: hook.what for hook, numbers in given for name in numbers}, list[RolloutError]()
    for hook, numbers in verdicts:
        for name in numbers:
            if (other := taken.setdefault(name, hook.what)) != hook.what:
                errors.append(JudgeError(f"{hook.what} gave a reward {name!r}, which {other} gave, too"))
    return errors


async def score_group(task: AnyTask, traces: Sequence[AnyTrace], panel: Panel | None = None) -> None:
    """Run the task's `@group_reward`s over all traces of the task and record each one's share. A trace with an error
    stays unscored: its share is set apart.

    When one fails, none of the traces is scored: the error (TaskError) is recorded on each, and raised.
    """
    if not traces or not group_rewards(task):
        return
    own = task.copy_for(task.data.model_copy(deep=True))
    found: Found = [(hook, TaskError) for hook in hooks(own, "group_reward")]
    available = {"task": own.data, "traces": list(traces)}
    with judging(None, panel):
        shared, failed = await _run(found, available, lambda hook, result: _shares(hook, result, len(traces)))
    if failed:
        for trace in traces:
            apart = dict(trace.rewards)
            trace.rewards.clear()
            _set_apart(trace, apart)
    else:
        for hook, shares in shared:
            for trace, share in zip(traces, shares, strict=True):
                if trace.has_error:
                    _set_apart(trace, {hook.name: share})
                else:
                    trace.record_reward(hook.name, share, hook.weight)
    _raise(traces, failed)


def group_rewards(task: AnyTask) -> list[Hook]:
    """The task's `@group_reward`s; a rollout of a task that has some is scored when its group is whole."""
    return hooks(task, "group_reward")


def stop_hooks(task: AnyTask) -> list[Callable[[AnyTrace], Awaitable[bool]]]:
    """The task's `@stop` hooks as `async (trace) -> bool`; `__name__` is the stop condition."""

    def bind(name: str, what: str) -> Callable[[AnyTrace], Awaitable[bool]]:
        async def ask(trace: AnyTrace) -> bool:
            own = trace.own_task(task)
            return bool(await invoke(getattr(own, name), {"task": own.data, "trace": trace}, what=what))

        ask.__name__ = name
        return ask

    return [bind(hook.name, hook.what) for hook in hooks(task, "stop")]


async def _run(
    found: Found,
    available: Mapping[str, Any],
    read: Callable[[Hook, Any], T],
) -> tuple[list[tuple[Hook, T]], list[RolloutError]]:
    """Call all hooks at once; what each gave, as `read`, and the errors of those that failed."""

    async def call(hook: Hook, error: type[RolloutError]) -> T | RolloutError:
        try:
            # A judge that blocks its loop must not hold up the hooks that are under way there.
            alone = isinstance(hook, _Asked)
            return read(hook, await invoke(hook.fn, available, what=hook.what, alone=alone))
        except Exception as e:
            # A judge's own model calls are no business of the run's provider, whatever error it raises.
            kept = (JudgeError, SandboxError) if error is JudgeError else RolloutError
            if isinstance(e, kept) and isinstance(e, RolloutError):
                return e
            told = error(f"{hook.what}: {type(e).__name__}: {e}")
            told.__cause__ = e
            return told

    results = await asyncio.gather(*(call(hook, error) for hook, error in found))
    good = [(hook, r) for (hook, _), r in zip(found, results, strict=True) if not isinstance(r, RolloutError)]
    return good, [result for result in results if isinstance(result, RolloutError)]


def _numbers(hook: Hook, result: Any) -> dict[str, float]:
    """A hook's result by name. Raises ValueError for what is no finite number, None included, and for a judge's
    verdict beyond its scale."""
    values = result if isinstance(result, Mapping) else {hook.name: result}
    numbers = {str(name): finite(hook.kind, str(name), value) for name, value in values.items()}
    if isinstance(hook, _Asked) and hook.scale is not None:
        low, high = hook.scale
        for name, number in numbers.items():
            if not low <= number <= high:
                raise ValueError(f"{name!r} is {number:g}, beyond its scale from {low:g} to {high:g}")
    return numbers


def _shares(hook: Hook, result: Any, count: int) -> list[float]:
    plain = isinstance(result, str | bytes | Mapping) or not isinstance(result, Iterable)
    values = None if plain else list(result)
    if values is None or len(values) != count:
        told = f"{len(values)} numbers" if values is not None else repr(result)
        raise ValueError(f"it gave {told} for {count} rollouts; it must give one each")
    return [finite(hook.kind, f"{hook.name}[{i}]", value) for i, value in enumerate(values)]


def _without_runtime(found: Found, trace: AnyTrace) -> Found:
    left = [hook.name for hook, _ in found if hook.needs("runtime")]
    if left:
        trace.extra.setdefault("left_out", []).extend(left)
    return [entry for entry in found if not entry[0].needs("runtime")]


def _set_apart(trace: AnyTrace, rewards: Mapping[str, float]) -> None:
    if rewards:
        trace.extra.setdefault("partial_rewards", {}).update(rewards)


def _raise(traces: Sequence[AnyTrace], errors: Sequence[RolloutError]) -> None:
    for trace in traces:
        for error in errors:
            trace.capture_error(error)
    if errors:
        raise errors[0]
