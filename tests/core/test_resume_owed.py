"""What stands of a run and what is owed, by its traces and its journal."""

from __future__ import annotations

from itertools import count
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vf_core.engine.saved import settle
from vf_core.errors import ConfigError
from vf_core.events.fold import fold
from vf_core.events.state import RolloutView, RunState
from vf_core.rollout import RolloutSpec
from vf_core.runs.foreign import Teller
from vf_core.runs.stands import Stands, stand_of
from vf_core.tasks import Task, TaskConfig, TaskData, group_reward, reward


class Alone(Task[TaskData]):
    @reward
    def solved(self) -> float:
        return 1.0


class Together(Alone):
    @group_reward
    def share(self, traces: list[Any]) -> list[float]:
        return [1.0] * len(traces)


def specs(kinds: list[type[Alone]], samples: int = 2) -> list[RolloutSpec]:
    return [
        RolloutSpec(
            f"{n:04d}-{s}", kind(TaskData(idx=10 + n, name=f"n{n}", prompt=""), TaskConfig()), n, s, f"n{n}"
        )
        for n, kind in enumerate(kinds)
        for s in range(samples)
    ]


def record(id: str, attempt: int, outcome: str, **more: Any) -> dict[str, Any]:
    """A record as this project writes it; of a finished one with all rewards."""
    return {
        "id": f"{id}/{attempt}",
        "task": {"data": {"idx": 10 + int(id[:4])}},
        "rewards": {"solved": 1.0, "share": 0.5} if outcome in ("completed", "declined") else {},
        "errors": [{"type": "TaskError"}] if outcome == "error" else [],
        "info": {"vf_tui": {"rollout": id, "attempt": attempt, "outcome": outcome}},
        **more,
    }


def stands(records: list[dict[str, Any]]) -> Stands:
    out, places = Stands(), count()
    for entry in records:
        out.add(stand_of(entry, next(places)))
    return out


IDS = [f"{n:04d}-{s}" for n in range(3) for s in range(2)]
LINES = st.lists(
    st.tuples(
        st.sampled_from(IDS),
        st.integers(1, 3),
        st.sampled_from(["completed", "completed", "completed", "declined", "error", "stopped"]),
    ),
    max_size=14,
)


@given(
    LINES,
    st.dictionaries(st.sampled_from(IDS), st.integers(1, 4)),
    st.lists(st.booleans(), min_size=3, max_size=3),
)
@settings(max_examples=200, deadline=None)
def test_each_rollout_is_kept_or_owed_and_groups_whole(
    lines: list[tuple[str, int, str]], begun: dict[str, int], grouped: list[bool]
) -> None:
    state = RunState(rollouts={id: RolloutView(id=id, attempt=n) for id, n in begun.items()})
    saved = settle(
        specs([Together if g else Alone for g in grouped]), stands([record(*line) for line in lines]), state
    )
    latest = {id: max((n for i, n, _ in lines if i == id), default=0) for id in IDS}
    ends = {id: [o for i, n, o in lines if (i, n) == (id, latest[id])][-1:] for id in IDS}
    well = {id for id in IDS if ends[id] in (["completed"], ["declined"]) and begun.get(id, 0) <= latest[id]}
    for n, whole in enumerate(grouped):
        members = {id for id in IDS if int(id[:4]) == n}
        if whole and not members <= well:
            well -= members
    assert set(saved.kept) == well
    assert list(saved.owed) == [id for id in IDS if id not in well]
    assert {id: saved.numbers.get(id, 0) for id in IDS} == {
        id: max(latest[id], begun.get(id, 0)) for id in IDS
    }
    assert sum(saved.why().values()) == len(saved.owed)
    assert set(saved.reasons) == set(saved.owed)


def test_an_unscored_rollout_is_owed() -> None:
    bare = record("0000-0", 1, "completed", rewards={})
    half = record("0001-0", 1, "completed", rewards={"solved": 1.0})
    saved = settle(specs([Alone, Together], samples=1), stands([bare, half]), RunState())
    assert saved.owed == ("0000-0", "0001-0")
    assert saved.why() == {"unscored": 2}


def test_attempts_that_only_the_ledger_knows_are_counted() -> None:
    """The journal's last lines were lost: a sandbox of that name was asked for already."""
    saved = settle(specs([Alone], 1), stands([record("0000-0", 1, "error")]), RunState(), {"0000-0": 2})
    assert saved.numbers == {"0000-0": 2}


def foreign(idx: int, good: bool = True) -> dict[str, Any]:
    """A record as verifiers writes it."""
    errors = [] if good else [{"type": "ProviderError"}]
    return {
        "id": "x",
        "task": {"data": {"idx": idx}},
        "is_completed": True,
        "rewards": {"solved": 1.0, "share": 1.0} if good else {},
        "errors": errors,
    }


def test_records_that_name_no_rollout_are_placed_by_their_task() -> None:
    there = [foreign(11), foreign(10, good=False), foreign(10), foreign(99), foreign(11), foreign(11)]
    ours = record("0000-1", 2, "error")
    saved = settle(specs([Alone, Alone]), stands([*there, ours]), RunState())
    assert set(saved.kept) == {"0000-0", "0001-0", "0001-1"}
    assert saved.owed == ("0000-1",)
    # A group of theirs that ours has replaced is not taken for its samples again.
    again = [record(f"0000-{s}", 1, "completed") for s in range(2)]
    saved = settle(specs([Together]), stands([foreign(10), *again]), RunState())
    assert {stand.trace for stand in saved.kept.values()} == {"0000-0/1", "0000-1/1"}


@pytest.mark.parametrize(
    ("entry", "outcome"),
    [
        ({"is_completed": True}, "completed"),
        ({"is_completed": True, "stop_condition": "agent_declined"}, "declined"),
        ({"is_completed": True, "errors": [{}]}, "error"),
        ({"is_completed": False}, "stopped"),
        ({"is_completed": True, "stop_condition": "user_stopped"}, "stopped"),
        ({"errors": [{}], "info": {"vf_tui": {"outcome": "completed"}}}, "error"),
        ({"errors": [{}], "info": {"vf_tui": {"outcome": "stopped"}}}, "stopped"),
        ({"task": 3, "info": [], "rewards": "x"}, "completed"),
    ],
)
def test_how_a_record_stands(entry: dict[str, Any], outcome: str) -> None:
    assert stand_of(entry, 0).outcome == outcome


def test_other_tasks_are_refused() -> None:
    entry = record("0000-0", 1, "completed")
    entry["task"]["data"]["idx"] = 3
    with pytest.raises(ConfigError, match="rollout 0000-0 was of another task"):
        settle(specs([Alone]), stands([entry]), RunState())


def test_fewer_more_and_renamed_tasks_are_refused() -> None:
    """Also where no trace tells of them."""
    known = [RolloutView(id=f"{n:04d}-0", attempt=1, name=f"n{n}") for n in range(2)]
    state = RunState(rollouts={view.id: view for view in known}, total=2, host="here")
    assert settle(specs([Alone, Alone], 1), Stands(), state).owed == ("0000-0", "0001-0")
    with pytest.raises(ConfigError, match="no task of rollout 0001-0, and there are 1 rollouts now"):
        settle(specs([Alone], 1), Stands(), state)
    with pytest.raises(ConfigError, match="no task of rollout 0001-0"):
        settle(specs([Alone], 1), stands([record("0001-0", 1, "completed")]), RunState())
    with pytest.raises(ConfigError, match="the run had 2 rollouts, and there are 3"):
        settle(specs([Alone] * 3, 1), Stands(), state)
    known[1].name = "another"
    with pytest.raises(ConfigError, match="rollout 0001-0 was of another task than 'n1'"):
        settle(specs([Alone, Alone], 1), Stands(), state)


HUGE = 10**400


@pytest.mark.parametrize(
    ("rewards", "reward"),
    [
        ({"a": HUGE, "b": float("nan"), "c": 1.5}, 1.5),
        ({"a": 1e308, "b": 1e308}, None),
        ({"a": float("inf")}, None),
        ({"a": "1", "b": None}, None),
    ],
)
def test_numbers_that_are_none_are_left_out(rewards: dict[str, Any], reward: float | None) -> None:
    """Nobody promises what another hand wrote: the totals stay numbers, and none is negative."""
    usage = {"prompt_tokens": -5, "completion_tokens": HUGE, "cost": -1.0}
    entry = record("0000-0", 1, "completed", rewards=rewards) | {
        "timing": {"start": HUGE, "boot": {"start": float("nan"), "end": []}},
        "calls": [3, {"node": HUGE, "usage": usage, "time": {"start": -1, "end": float("inf")}}],
        "extra_usage": [usage],
    }
    state = fold(Teller().tell(entry))
    totals, view = state.totals, state.rollouts["0000-0"]
    assert (stand_of(entry, 0).reward, view.reward, totals.scored) == (
        reward,
        reward,
        int(reward is not None),
    )
    assert (totals.prompt_tokens, totals.completion_tokens, totals.cost, totals.judge_cost) == (
        0,
        0,
        None,
        0.0,
    )
    for number in (HUGE, -1, True, "2", None):
        entry["info"]["vf_tui"]["attempt"] = number
        assert type(stand_of(entry, 0).attempt) is int
        assert stand_of(entry, 0).attempt == 1
