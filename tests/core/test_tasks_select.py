"""Tasksets: which tasks a run takes, in which order, and what is refused (S04)."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest

from doubles.traces import Row
from vf_core.errors import ConfigError, PluginError
from vf_core.plugins import config_class
from vf_core.tasks import Task, TaskConfig, TaskData, Taskset, TasksetConfig, reward


class Options(TaskConfig):
    level: int = 1


class CountConfig(TasksetConfig):
    size: int = 10
    task: Options = Options()


class Count(Taskset[Task[Row], CountConfig]):
    made = 0

    def load(self) -> Iterator[Task[Row]]:
        for i in range(self.config.size):
            self.made += 1
            yield Task(Row(idx=i, prompt=f"p{i}"), self.config.task)


class Endless(Taskset[Task[Row]]):
    INFINITE = True

    def load(self) -> Iterator[Task[Row]]:
        return (Task(Row(idx=i, prompt="p")) for i in itertools.count())


def picked(tasks: list[Task[Row]]) -> list[int]:
    return [task.data.idx for task in tasks]


def test_the_first_ones_are_taken_and_no_more_are_made() -> None:
    taskset = Count(CountConfig(id="count", task=Options(level=4)))
    tasks = taskset.select(3)
    assert picked(tasks) == [0, 1, 2]
    assert taskset.made == 3
    assert tasks[0].config.level == 4
    assert picked(Count(CountConfig()).select()) == list(range(10))
    assert picked(Count(CountConfig()).select(99)) == list(range(10))
    assert Count(CountConfig()).select(0) == []


def test_a_shuffle_is_the_same_for_the_same_seed_and_as_in_verifiers() -> None:
    orders = [picked(Count(CountConfig()).select(None, True, seed)) for seed in (0, 0, 1)]
    assert orders[0] == orders[1] != orders[2]
    assert orders[0] == [7, 8, 1, 5, 3, 4, 2, 0, 9, 6]  # random.Random(0), which verifiers uses
    assert picked(Count(CountConfig()).select(4, True, 0)) == orders[0][:4]
    assert sorted(orders[2]) == list(range(10))


def test_an_endless_taskset_needs_a_bound() -> None:
    taskset = Endless(TasksetConfig(id="endless"))
    assert picked(taskset.select(3)) == [0, 1, 2]
    with pytest.raises(ConfigError, match="'endless' never ends"):
        taskset.select()
    with pytest.raises(ConfigError, match="can't be shuffled"):
        taskset.select(3, shuffle=True)
    with pytest.raises(ConfigError, match="can't take -1 tasks"):
        taskset.select(-1)


def test_what_load_gives_is_checked() -> None:
    class Rows(Taskset[Any]):
        def load(self) -> list[Any]:
            return [Row(idx=0)]

    with pytest.raises(PluginError, match=r"load\(\) gave a Row, not a Task"):
        Rows(TasksetConfig(id="rows")).select()

    class Typo(Task[Row]):
        @reward
        async def r(self, respons: str) -> float:
            return 0.0

    class Typos(Taskset[Typo]):
        def load(self) -> list[Typo]:
            return [Typo(Row(idx=0))]

    with pytest.raises(PluginError, match="r of Typo asks for an argument 'respons'"):
        Typos(TasksetConfig()).select()


def test_the_config_class_is_read_off_the_parameter() -> None:
    assert config_class(Count) is CountConfig
    assert config_class(Endless) is TasksetConfig
    with pytest.raises(TypeError):
        Taskset(TasksetConfig())  # type: ignore[abstract]


def test_a_row_is_frozen_and_strict() -> None:
    """X11."""
    row = Row(idx=0)
    with pytest.raises(ValueError, match="frozen"):
        row.answer = "x"  # type: ignore[misc]
    with pytest.raises(ValueError, match="Extra inputs"):
        TaskData(idx=0, anwser="x")  # type: ignore[call-arg]
    with pytest.raises(ValueError, match="frozen"):
        CountConfig().size = 3  # type: ignore[misc]


@pytest.mark.parametrize("name", ["../../x", "/etc/x", "a/b", "con", "x" * 300, "a\nb", "", "\ud800", "[/]"])
def test_any_name_is_kept_as_it_is(name: str) -> None:
    """S04: what is safe as a path is made where paths are made."""
    task = Task(TaskData(idx=0, name=name, prompt="p"))
    assert task.data.name == name
