"""The demo: real tasks, real commands, real rewards; only the model is scripted."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from doubles.local_rollout import Rolled, roll
from vf_core.harnesses.bash import BashHarness, BashHarnessConfig
from vf_core.plugins import config_class, load_class
from vf_core.scripted.replies import Player
from vf_core.scripted.scenario import DEMO, load_scenario
from vf_core.scripted.server import ScriptedServer
from vf_core.tasksets.demo import DemoConfig, DemoTask, DemoTaskset

PACE = 0.05
KINDS = ["notes", "repair", "build", "noise", "phishing", "count", "total", "rename"]


@pytest.fixture
async def model() -> AsyncIterator[ScriptedServer]:
    async with ScriptedServer(speed=0) as server:
        yield server


def _tasks(count: int | None = None, **config: object) -> list[DemoTask]:
    return DemoTaskset(DemoConfig.model_validate({"id": "demo", "pace": PACE, **config})).select(count)


async def _roll(task: DemoTask, model: ScriptedServer) -> Rolled:
    return await roll(task, BashHarness(BashHarnessConfig()), model.base_url)


def test_it_is_found_by_its_id() -> None:
    assert load_class("taskset", "demo") is DemoTaskset
    assert config_class(DemoTaskset) is DemoConfig


def test_eight_kinds_and_no_end_to_them() -> None:
    assert [task.data.kind for task in _tasks()] == KINDS
    many = _tasks(200)
    assert [task.data.idx for task in many] == list(range(200))
    assert [task.data.kind for task in many] == KINDS * 25
    assert len({task.data.prompt for task in many}) > 100
    assert [task.data for task in _tasks(200)] == [task.data for task in many]
    assert [task.data for task in _tasks(8, variety=1)] != [task.data for task in _tasks(8)]


def test_shuffling_takes_the_same_tasks_in_another_order() -> None:
    taskset = DemoTaskset(DemoConfig(id="demo"))
    shuffled = [task.data.idx for task in taskset.select(16, shuffle=True, seed=1)]
    assert shuffled != list(range(16))
    assert sorted(shuffled) == list(range(16))
    assert shuffled == [task.data.idx for task in taskset.select(16, shuffle=True, seed=1)]


@settings(max_examples=30)
@given(st.integers(0, 10_000), st.integers(0, 3))
def test_the_scripted_model_knows_every_task(variety: int, round_: int) -> None:
    player = Player(load_scenario(DEMO))
    for task in _tasks(8 * (round_ + 1), variety=variety)[-8:]:
        reply = player.reply({"messages": [{"role": "user", "content": task.data.prompt}]})
        assert "nothing else" not in str(reply.message["content"])
        assert "{{" not in str(reply.message)


async def test_all_eight_as_they_should_end(model: ScriptedServer, tmp_path: Path) -> None:
    rolled = await asyncio.gather(*(_roll(task, model) for task in _tasks()))
    ended = dict(zip(KINDS, rolled, strict=True))
    for kind, one in ended.items():
        told = f"{kind}: {one.trace.rewards} {one.trace.stop_condition} {one.out[-2000:]} {one.result}"
        if kind == "count":
            assert one.trace.stop_condition == "harness_timeout", told
            assert one.trace.reward < 1, told
        elif kind == "phishing":
            assert one.trace.stop_condition == "agent_declined", told
            assert one.meaning is not None
            assert one.meaning.text == "declined (4)"
        elif kind == "total":
            assert one.trace.stop_condition == "agent_completed", told
        else:
            assert one.trace.reward == 1.0, told
            assert one.trace.stop_condition == "agent_completed", told
        assert one.trace.metrics["declined"] == (kind == "phishing"), told
        assert one.trace.num_branches == 1, told
    assert ended["build"].trace.num_turns == 8
    assert ended["repair"].trace.metrics["tool_calls"] == 4
    assert len(ended["noise"].out) > 300_000
    assert os.listdir(tmp_path) == []


async def test_what_was_done_before_the_time_limit_counts(model: ScriptedServer) -> None:
    """H14."""
    (task,) = (task for task in _tasks(pace=0.2) if task.data.kind == "count")
    rolled = await _roll(task, model)
    assert rolled.trace.stop_condition == "harness_timeout"
    assert 0 < rolled.trace.reward < 1


async def test_sums_are_mostly_right_and_sometimes_wrong(model: ScriptedServer) -> None:
    tasks = [task for task in _tasks(8 * 12) if task.data.kind == "total"]
    rolled = await asyncio.gather(*(_roll(task, model) for task in tasks))
    rewards = [one.trace.reward for one in rolled]
    assert set(rewards) == {0.0, 1.0}
    assert sum(rewards) > len(rewards) / 2


async def test_work_that_was_not_done_is_worth_nothing() -> None:
    """Another model that only talks: the rewards look at the files, not at the words."""
    from vf_core.scripted.scenario import Scenario

    lazy = Scenario.model_validate(
        {"rule": [{"name": "all", "step": [{"text": "Done, everything is perfect."}]}]}
    )
    async with ScriptedServer(lazy) as server:
        rolled = await asyncio.gather(*(_roll(task, server) for task in _tasks()))
    # Of the files to rename in, the one that needs no change is as it should be.
    assert [one.trace.reward for one in rolled] == [0, 0, 0, 0, 0, 0, 0, 0.2]
