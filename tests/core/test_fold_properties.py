"""What the fold promises, whatever the events."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from doubles.event_streams import any_event, plausible, published, through_json, without_live
from vf_core.events import fold_rollout
from vf_core.events import types as ev
from vf_core.events.codec import decode, encode
from vf_core.events.fold import apply, fold
from vf_core.events.live import LiveBuffer
from vf_core.events.snapshot import Dumping, Loading, dump, load
from vf_core.events.state import RunState
from vf_core.runtimes.lifecycle import State


@pytest.fixture(scope="module", autouse=True)
def tight_bounds() -> Iterator[None]:
    """So low that streams of a few dozen events reach them."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {
            "TOOLS_KEPT": 3,
            "TOOLS_WHOLE": 1,
            "TOOLS_KEPT_ENDED": 2,
            "ERRORS_KEPT": 3,
        }.items():
            patch.setattr(fold_rollout, name, value)
        yield


@given(plausible())
@settings(max_examples=150)
def test_folding_the_journal_gives_the_live_state(events: list[ev.Event]) -> None:
    bus, journal = published(events)
    read = [decode(encode(event)) for event in journal]
    again = fold(event for event in read if event is not None)
    assert without_live(again) == without_live(bus.state)


@given(plausible())
@settings(max_examples=150)
def test_a_snapshot_is_the_state(events: list[ev.Event]) -> None:
    state = published(events)[0].state
    got = load(through_json(dump(state)))
    assert got == state
    assert list(got.rollouts) == list(state.rollouts)
    assert got.changed == set(state.rollouts)
    for rollout in got.rollouts.values():
        assert rollout.sandbox is None or rollout.sandbox is got.sandboxes[rollout.sandbox.name]


@given(plausible(), plausible(), st.integers(1, 3))
@settings(max_examples=80)
def test_a_dump_in_chunks_is_the_state_of_its_last_instant(
    before: list[ev.Event], during: list[ev.Event], size: int
) -> None:
    bus, _ = published(before)
    dumping, loading = Dumping(bus.state), Loading()
    rest = iter(during)
    while (chunk := dumping.chunk(size)) is not None:
        loading.add(through_json(chunk))
        for event, _ in zip(rest, range(5), strict=False):
            bus.publish(event)
    got = loading.finish(through_json(dumping.finish()))
    assert got == bus.state
    # From there on the two go the same way.
    for event in rest:
        bus.publish(event)
        apply(got, event)
    assert without_live(got) == without_live(bus.state)


@given(plausible(), st.randoms())
@settings(max_examples=80)
def test_events_that_come_again_or_too_late_change_nothing(
    events: list[ev.Event], rng: random.Random
) -> None:
    _, journal = published(events)
    once = fold(journal)
    noisy: list[ev.Event] = []
    for n, event in enumerate(journal):
        noisy.append(event)
        noisy += rng.sample(journal[: n + 1], k=min(n, rng.randint(0, 3)))
    assert fold(noisy) == once


@given(plausible())
@settings(max_examples=100)
def test_counts_agree_with_what_is_counted(events: list[ev.Event]) -> None:
    state = published(events)[0].state
    by_status = Counter(rollout.status for rollout in state.rollouts.values())
    totals = state.totals
    for status in ("queued", "active", "completed", "declined", "error", "stopped"):
        assert getattr(totals, status) == by_status[status]
    scored = [r.reward for r in state.rollouts.values() if r.reward is not None]
    assert totals.scored == len(scored)
    assert abs(totals.reward_sum - sum(scored)) <= 1e-6 * (1 + sum(map(abs, scored)))
    assert state.unconfirmed <= set(state.sandboxes)
    for name, box in state.sandboxes.items():
        if box.state is State.GONE:
            assert name not in state.unconfirmed
        if box.state in (State.SENT, State.SURVIVED, State.UNKNOWN, State.FAILED):
            assert name in state.unconfirmed
    if state.over:
        assert {box.name for box in state.left_over()} <= state.unconfirmed


@given(st.lists(any_event(rollout=st.sampled_from(["a", "b"]), sandbox=st.sampled_from("xy")), max_size=60))
@settings(max_examples=200)
def test_no_events_however_senseless_break_it(events: list[ev.Event]) -> None:
    state = fold(events)
    totals = state.totals
    assert totals.queued + totals.active + totals.ended == len(state.rollouts)
    got = load(dump(state))
    assert without_live(got).rollouts.keys() == state.rollouts.keys()


@given(
    st.lists(
        st.one_of(
            st.builds(ev.TextDelta, rollout=st.just("r"), call=st.just(0), text=st.text(max_size=900)),
            st.builds(
                ev.ToolDelta,
                rollout=st.just("r"),
                call=st.just(0),
                index=st.integers(0, 2),
                id=st.sampled_from(["", "c"]),
                name=st.text(max_size=5),
                arguments=st.text(max_size=900),
            ),
            st.builds(
                ev.OutputChunk, rollout=st.just("r"), stream=st.just("stdout"), text=st.text(max_size=900)
            ),
        ),
        max_size=40,
    )
)
@settings(max_examples=100)
def test_merged_live_events_fold_to_the_same(events: list[ev.RolloutEvent]) -> None:
    def begun() -> RunState:
        return fold(
            [
                ev.AttemptStarted(rollout="r", trace="x", seq=1),
                ev.ModelCallStarted(rollout="r", call=0, seq=2),
            ]
        )

    buffer = LiveBuffer()
    for event in events:
        buffer.add(event)
    one, other = fold(events, begun()), fold(buffer.merged(), begun())
    one.revision = other.revision = 0
    for state in (one, other):
        state.rollouts["r"].revision = 0
    assert other == one


def test_deltas_held_are_bounded() -> None:
    buffer = LiveBuffer()
    for n in range(5_000):
        buffer.add(ev.TextDelta(rollout="r", call=0, text="x" * 1_000))
        buffer.add(ev.OutputChunk(rollout="r", stream="stdout", text="y" * 1_000))
        buffer.add(ev.ToolDelta(rollout="r", call=0, index=n % 3, arguments="z" * 1_000, name="n" * 50))
    merged = buffer.merged()
    assert sum(len(getattr(e, "text", "") or getattr(e, "arguments", "")) for e in merged) < 100_000
