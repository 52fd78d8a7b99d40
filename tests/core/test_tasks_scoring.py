"""Scoring: all rewards or none, errors and never zeros (P06), nothing leaks between rollouts (X11)."""

from __future__ import annotations

import asyncio
import math
from typing import Any

import pytest

from doubles.traces import Row, blank
from vf_core.errors import HarnessError, SandboxError, TaskError
from vf_core.tasks import State, Task, TaskConfig, TaskData, group_reward, metric, reward
from vf_core.tasks.scoring import invoke, score, score_group
from vf_core.trace.record import Trace, new_trace


class Good(Task[Row, State, TaskConfig]):
    @reward(weight=2)
    async def exact(self, task: Row, trace: Trace) -> float:
        assert task is self.data
        assert task is trace.task.data
        return float(task.answer == "hi")

    @reward(weight=0.5)
    def parts(self) -> dict[str, float]:
        return {"style": 1.0, "tone": 0.0}

    @metric
    async def length(self, trace: Trace) -> int:
        return len(trace.nodes)

    @metric
    def more(self) -> dict[str, float]:
        return {"one": 1, "two": 2.5}


async def test_rewards_are_weighted_and_metrics_recorded() -> None:
    trace = blank()
    await score(Good(trace.task.data), None, trace)
    assert trace.rewards == {"exact": 2.0, "style": 0.5, "tone": 0.0}
    assert trace.metrics == {"length": 0.0, "one": 1.0, "two": 2.5}
    assert (trace.score, trace.errors) == (2.5, [])


@pytest.mark.parametrize(
    ("result", "told"),
    [
        (None, "ValueError: reward 'judged' is None, not a number"),
        ("None", "ValueError: reward 'judged' is 'None', not a number"),
        ("1.0", "not a number"),
        (math.nan, "ValueError: reward 'judged' is nan, not a finite number"),
        ({"a": None}, "ValueError: reward 'a' is None, not a number"),
        ([1.0], "not a number"),
        (ValueError("bad JSON"), "@reward judged of Mine: ValueError: bad JSON"),
        (TimeoutError(), "@reward judged of Mine: TimeoutError: "),
    ],
)
async def test_a_reward_that_fails_is_an_error_and_never_a_zero(result: Any, told: str) -> None:
    """P06."""

    class Mine(Good):
        @reward
        async def judged(self) -> Any:
            if isinstance(result, Exception):
                raise result
            return result

    trace = blank()
    with pytest.raises(TaskError) as e:
        await score(Mine(trace.task.data), None, trace)
    assert told in str(e.value)
    assert (trace.rewards, trace.score) == ({}, None)
    assert [(error.type, error.message) for error in trace.errors] == [("TaskError", str(e.value))]
    assert trace.extra["partial_rewards"] == {"exact": 1.0, "style": 1.0, "tone": 0.0}
    assert trace.metrics["two"] == 2.5
    assert "judged" in (trace.errors[0].traceback or "")


async def test_every_failure_is_recorded_and_a_failed_metric_costs_no_reward() -> None:
    class Mine(Good):
        @metric
        async def wrong(self) -> None:
            return None

        @metric
        def broken(self) -> float:
            raise KeyError("x")

    trace = blank()
    with pytest.raises(TaskError, match="@metric broken of Mine: KeyError: 'x'"):
        await score(Mine(trace.task.data), None, trace)
    assert [error.message for error in trace.errors] == [
        "@metric broken of Mine: KeyError: 'x'",
        "@metric wrong of Mine: ValueError: metric 'wrong' is None, not a number",
    ]
    assert trace.score == 2.5


async def test_what_a_sandbox_raised_stays_what_it_is() -> None:
    class Mine(Task[Row]):
        @reward
        async def r(self) -> float:
            raise SandboxError("the sandbox is gone")

    trace = blank()
    with pytest.raises(SandboxError):
        await score(Mine(trace.task.data), None, trace)
    assert trace.errors[0].type == "SandboxError"


async def test_the_harness_metrics_are_recorded_under_its_boundary() -> None:
    class Harness:
        @metric
        async def commands(self, trace: Trace, runtime: Any) -> int:
            return await runtime.count()

    class Bad:
        @metric
        async def commands(self) -> float:
            raise OSError("no log")

    class Box:
        async def count(self) -> int:
            return 4

    trace = blank()
    await score(Good(trace.task.data), Harness(), trace, Box())
    assert trace.metrics["commands"] == 4.0
    with pytest.raises(HarnessError, match="@metric commands of Bad: OSError: no log"):
        await score(Good(trace.task.data), Bad(), trace, Box())


async def test_without_a_sandbox_what_needs_one_is_left_out() -> None:
    class Mine(Good):
        @reward
        async def in_the_box(self, runtime: Any) -> float:
            raise AssertionError

        @reward
        async def either_way(self, runtime: Any = None) -> float:
            assert runtime is None
            return 1.0

    trace = blank()
    await score(Mine(trace.task.data), None, trace)
    assert "in_the_box" not in trace.rewards
    assert trace.rewards["either_way"] == 1.0
    assert trace.extra["left_out"] == ["in_the_box"]


async def test_a_cancelled_scoring_ends_at_once() -> None:
    class Mine(Task[Row]):
        @reward
        async def r(self) -> float:
            await asyncio.sleep(600)
            return 1.0

    trace = blank()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await score(Mine(trace.task.data), None, trace)
    assert (trace.rewards, trace.errors) == ({}, [])


# -- groups ------------------------------------------------------------------------------------------------------


class Group(Good):
    @group_reward(weight=0.5)
    async def rank(self, traces: list[Trace]) -> list[float]:
        return [float(i) for i in range(len(traces))]

    @group_reward
    def tie(self, task: Row, traces: list[Trace]) -> tuple[float, ...]:
        return tuple(1.0 for _ in traces)


async def test_group_rewards_give_each_trace_its_share() -> None:
    task = Group(Row(idx=0, prompt="p", answer="hi"))
    traces = [new_trace(task_type="Group", data=task.data) for _ in range(3)]
    for trace in traces:
        await score(task, None, trace)
    await score_group(task, traces)
    assert [trace.rewards["rank"] for trace in traces] == [0.0, 0.5, 1.0]
    assert [trace.score for trace in traces] == [3.5, 4.0, 4.5]
    await score_group(Good(task.data), traces)
    await score_group(task, [])


@pytest.mark.parametrize(
    ("result", "told"),
    [
        ([1.0], "it gave 1 numbers for 2 rollouts"),
        (None, "it gave None for 2 rollouts"),
        ("ab", "it gave 'ab' for 2 rollouts"),
        ([1.0, None], "group_reward 'judged[1]' is None"),
        (ValueError("x"), "@group_reward judged of Mine: ValueError: x"),
    ],
)
async def test_a_group_reward_that_fails_leaves_no_trace_scored(result: Any, told: str) -> None:
    """P06: half a reward would poison the average as a zero does."""

    class Mine(Group):
        @group_reward
        async def judged(self, traces: list[Trace]) -> Any:
            if isinstance(result, Exception):
                raise result
            return result

    task = Mine(Row(idx=0, prompt="p", answer="hi"))
    traces = [new_trace(task_type="Mine", data=task.data) for _ in range(2)]
    for trace in traces:
        await score(task, None, trace)
    with pytest.raises(TaskError) as e:
        await score_group(task, traces)
    assert told in str(e.value)
    for trace in traces:
        assert (trace.score, trace.errors[-1].message) == (None, str(e.value))
        assert trace.extra["partial_rewards"]["exact"] == 2.0


# -- isolation ---------------------------------------------------------------------------------------------------


class Inner(TaskConfig):
    seen: dict[str, int] = {}
    names: list[str] = ["a"]


class Hoard(TaskData):
    tests: list[str] = []
    meta: dict[str, Any] = {"deep": {"n": 0}}


class Greedy(Task[Hoard, State, Inner]):
    """Changes all that it can reach."""

    shared_client = object()

    def __init__(self, data: Hoard, config: Inner | None = None) -> None:
        super().__init__(data, config)
        self.notes: list[str] = []
        self.count = 0

    async def setup(self, trace: Trace) -> None:
        self.data.tests.append("t")
        self.data.meta["deep"]["n"] += 1
        trace.task.data.tests.append("u")
        self.config.seen["x"] = self.config.seen.get("x", 0) + 1
        self.config.names.append("b")
        self.notes.append("n")
        await asyncio.sleep(0)
        self.count += 1

    @reward
    def counted(self, trace: Trace) -> float:
        self.count += 1
        return float(self.count + len(self.notes) + len(self.data.tests) + self.config.seen["x"])


async def test_what_hooks_change_stays_in_their_rollout() -> None:
    """X11: 32 rollouts of one task."""
    task = Greedy(Hoard(idx=0, prompt="p"))
    before = task.data.model_dump(), task.config.model_dump()

    async def rollout() -> Trace:
        trace = new_trace(task_type="Greedy", data=task.data)
        own = trace.own_task(task)
        assert own.shared_client is task.shared_client
        await invoke(own.setup, {"trace": trace})
        await score(task, None, trace)
        return trace

    traces = await asyncio.gather(*(rollout() for _ in range(32)))
    assert [trace.rewards["counted"] for trace in traces] == [2 + 1 + 2 + 1] * 32
    assert (task.data.model_dump(), task.config.model_dump()) == before
    assert (task.notes, task.count, Hoard(idx=1).tests, Inner().seen) == ([], 0, [], {})
