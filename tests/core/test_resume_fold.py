"""What a resume makes of the state: each rollout counts once, whatever came before (X05)."""

from __future__ import annotations

import copy

from hypothesis import given, settings
from hypothesis import strategies as st

from doubles.event_streams import ROLLOUTS, plausible, published, through_json, without_live
from vf_core.events import types as ev
from vf_core.events.bus import Bus
from vf_core.events.fold import fold
from vf_core.events.fold_resume import USES, used
from vf_core.events.snapshot import dump, load
from vf_core.events.state import RunState


def taken_up(owed: tuple[str, ...], pid: int = 7) -> ev.RunStarted:
    return ev.RunStarted(
        run="r", name="n", total=3, host="h", pid=pid, kept=len(ROLLOUTS) - len(owed), owed=owed
    )


def check_sums(state: RunState) -> None:
    """The totals are the sums over the rollouts."""
    uses = [used(r) for r in state.rollouts.values()]
    for name in USES:
        expected = sum(use.get(name, 0) for use in uses)
        got = getattr(state.totals, name) or 0
        assert abs(got - expected) <= 1e-6 * (1 + abs(expected)), name


OWED = st.lists(st.sampled_from(ROLLOUTS), unique=True).map(tuple)


@given(plausible(), OWED, plausible(), OWED)
@settings(max_examples=60, deadline=None)
def test_totals_are_sums_and_nothing_is_lost(
    first: list[ev.Event], owed: tuple[str, ...], second: list[ev.Event], again: tuple[str, ...]
) -> None:
    bus, journal = published([*first, taken_up(owed), *later(second, first), taken_up(again, 8)])
    state = bus.state
    check_sums(state)
    for id in again:
        view = state.rollouts[id]
        assert (view.status, view.reward, used(view).get("model_calls", 0)) == ("queued", None, 0)
    assert without_live(fold(journal)) == without_live(state)
    assert load(through_json(dump(state))) == state
    # What was spent is somewhere: in the totals, or set apart.
    calls = sum(isinstance(event, ev.ModelCallStarted) for event in journal)
    assert state.totals.model_calls + state.totals.redone.get("model_calls", 0) == calls


def later(events: list[ev.Event], before: list[ev.Event]) -> list[ev.Event]:
    """`events` without their first, as they are in another sitting: its attempts are numbered on."""
    numbers = dict.fromkeys(ROLLOUTS, 0)
    for event in before:
        if isinstance(event, ev.RolloutEvent):
            numbers[event.rollout] = max(numbers[event.rollout], event.attempt)
    moved = []
    for event in events[1:]:
        new = copy.copy(event)
        if isinstance(new, ev.RolloutEvent) and new.attempt:
            object.__setattr__(new, "attempt", new.attempt + numbers[new.rollout])
        if isinstance(new, ev.AttemptStarted):
            object.__setattr__(new, "trace", f"{new.rollout}-{new.attempt}")
        moved.append(new)
    return moved


@given(plausible(), plausible())
@settings(max_examples=60, deadline=None)
def test_a_run_that_owes_everything_counts_like_one_that_was_never_begun(
    before: list[ev.Event], after: list[ev.Event]
) -> None:
    alone = published(after)[0].state
    resumed = published([*before, taken_up(ROLLOUTS), *later(after, before)])[0].state
    for name in ("queued", "active", "completed", "declined", "error", "stopped", "scored", *USES):
        got, expected = getattr(resumed.totals, name), getattr(alone.totals, name)
        assert (got is None) == (expected is None), name
        assert abs((got or 0) - (expected or 0)) <= 1e-6 * (1 + abs(expected or 0)), name
    assert abs(resumed.totals.reward_sum - alone.totals.reward_sum) <= 1e-6


def test_an_attempt_that_is_told_again_counts_once() -> None:
    """The journal's last lines were lost, the trace was not."""
    ticks = iter(range(1, 100))
    bus = Bus(clock=lambda: float(next(ticks)))
    who = {"rollout": "a", "attempt": 1}
    bus.publish(ev.RunStarted(run="r", name="n", total=1, host="h", pid=1))
    bus.publish(ev.AttemptStarted(**who, trace="t"))
    bus.publish(ev.ModelCallStarted(**who, call=0))
    bus.publish(ev.ModelCallFinished(**who, call=0, prompt_tokens=5, completion_tokens=2, cost=0.1))
    for _ in range(2):
        bus.publish(ev.AttemptStarted(**who, trace="t"))
        for call in (0, 1):
            bus.publish(ev.ModelCallStarted(**who, call=call))
            bus.publish(
                ev.ModelCallFinished(**who, call=call, prompt_tokens=5, completion_tokens=2, cost=0.1)
            )
        bus.publish(ev.AttemptFinished(**who, outcome="completed", reward=1.0))
    totals = bus.state.totals
    assert (totals.prompt_tokens, totals.completion_tokens, totals.model_calls) == (10, 4, 2)
    assert (totals.completed, totals.scored, totals.reward_sum, totals.redone) == (1, 1, 1.0, {})
    assert [a.number for a in bus.state.rollouts["a"].attempts] == [1]


def test_the_time_between_two_sittings_is_told_apart() -> None:
    events = [
        ev.RunStarted(run="r", name="n", total=1, host="h", pid=1),
        ev.RolloutQueued(rollout="a", task=0),
        # Proven by a cleanup, long after the engine was killed.
        ev.RuntimeChanged(rollout="a", attempt=1, sandbox="s", kind="docker", state="gone", proof="404"),
        ev.RunStarted(run="r", name="n", total=1, host="h", pid=2, owed=("a",)),
        ev.RunFinished(status="completed"),
        ev.RunStarted(run="r", name="n", total=1, host="h", pid=2),
    ]
    for n, (event, t) in enumerate(zip(events, (10.0, 15.0, 110.0, 115.0, 120.0, 150.0), strict=True), 1):
        ev.stamp(event, seq=n, t=t)
    state = fold(events)
    assert (state.started, state.idle) == (10.0, 130.0)
