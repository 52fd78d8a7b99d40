"""What judges used, in the fold: told as a whole each time, apart from the agent's, each rollout counted once."""

from __future__ import annotations

from vf_core.events import types as ev
from vf_core.events.fold import apply, fold
from vf_core.events.snapshot import dump, load
from vf_core.events.state import RunState

USED = {"calls": 2, "prompt_tokens": 30, "cached_tokens": 4, "completion_tokens": 6, "cost": 0.5}


def started(**fields: object) -> ev.RunStarted:
    return ev.RunStarted(
        run="r", name="n", model="m", taskset="t", harness="h", runtime="s", concurrency=1, total=1, **fields
    )  # type: ignore[arg-type]


def scored(attempt: int, **used: float) -> ev.Scored:
    return ev.Scored(rollout="a", attempt=attempt, reward=1.0, rewards={"x": 1.0}, judged=used)


def use(state: RunState) -> tuple[object, ...]:
    t = state.totals
    return (
        t.judge_calls,
        t.judge_prompt_tokens,
        t.judge_cached_tokens,
        t.judge_completion_tokens,
        t.judge_cost,
    )


def begun() -> RunState:
    return fold(
        [
            started(),
            ev.RolloutQueued(rollout="a", task=0, sample=0),
            ev.AttemptStarted(rollout="a", attempt=1, trace="t1"),
        ]
    )


def test_the_latest_word_counts_and_attempts_add_up() -> None:
    state = begun()
    apply(state, scored(1, calls=1, prompt_tokens=10))
    assert use(state) == (1, 10, 0, 0, None)
    apply(state, scored(1, **USED))
    assert use(state) == (2, 30, 4, 6, 0.5)
    apply(state, scored(1))
    assert use(state) == (2, 30, 4, 6, 0.5), "an event of a group's scoring may tell nothing of judges"
    apply(state, ev.AttemptStarted(rollout="a", attempt=2, trace="t2"))
    assert state.rollouts["a"].judge_calls == 0
    apply(state, scored(2, **USED))
    assert use(state) == (4, 60, 8, 12, 1.0)
    assert (state.rollouts["a"].judge_calls, state.rollouts["a"].judge_cost) == (2, 0.5)
    assert (state.totals.prompt_tokens, state.totals.cost, state.rollouts["a"].calls) == (0, None, 0)
    restored = load(dump(state))
    assert (use(restored), restored.rollouts["a"].judge_cost) == (use(state), 0.5)


def test_a_failed_scoring_tells_what_it_used() -> None:
    state = begun()
    apply(state, ev.Scored(rollout="a", attempt=1, judged=USED))
    assert (use(state)[0], state.totals.scored, state.rollouts["a"].reward) == (2, 0, None)


def test_what_a_resume_replaces_stands_apart() -> None:
    state = begun()
    apply(state, scored(1, **USED))
    apply(state, started(kept=0, owed=("a",)))
    assert use(state) == (0, 0, 0, 0, None)
    assert (state.totals.redone["judge_calls"], state.totals.redone["judge_cost"]) == (2, 0.5)
    assert state.totals.redone_tokens == 0


def test_odd_numbers_are_left_out() -> None:
    state = begun()
    apply(state, scored(1, calls=float("nan"), prompt_tokens=-5, cost=float("inf")))
    assert use(state) == (0, 0, 0, 0, None)
