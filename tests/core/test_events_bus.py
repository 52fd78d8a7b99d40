"""The bus: numbering, merging, and readers that can't hold anybody up."""

from __future__ import annotations

import asyncio
import threading

import pytest

from vf_core.events import types as ev
from vf_core.events.bus import Bus, Subscription
from vf_core.events.fold import apply, fold
from vf_core.events.snapshot import dump, load


def begun(bus: Bus, *rollouts: str) -> None:
    for rollout in rollouts:
        bus.publish(ev.AttemptStarted(rollout=rollout, attempt=1, trace="x"))
        bus.publish(ev.ModelCallStarted(rollout=rollout, attempt=1, call=0))


def text(rollout: str, words: str) -> ev.TextDelta:
    return ev.TextDelta(rollout=rollout, attempt=1, call=0, text=words)


def reader(bus: Bus, *watching: str, capacity: int = 1_000) -> Subscription:
    """A subscription that has had its snapshot."""
    subscription = bus.subscribe(capacity=capacity)
    subscription.fresh()
    subscription.watch(watching)
    subscription.take()
    return subscription


def test_durable_events_are_numbered_without_gaps_and_live_ones_not_at_all() -> None:
    bus = Bus(clock=lambda: 5.0)
    seen: list[ev.Event] = []
    bus.add_sink(seen.append)
    begun(bus, "a")
    bus.publish(text("a", "x"))
    bus.publish(ev.Log(level="info", message="m"))
    assert [event.seq for event in seen] == [1, 2, 3]
    assert {event.t for event in seen} == {5.0}
    assert bus.state.seq == 3


def test_numbering_goes_on_from_a_state_that_was_read_back() -> None:
    bus = Bus(fold([ev.Log(level="info", message="m", seq=41)]))
    assert bus.publish(ev.Log(level="info", message="n")).seq == 42


def test_its_clock_never_goes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    bus = Bus()
    before = bus.publish(ev.Log(level="info", message="m")).t
    monkeypatch.setattr("time.time", lambda: 0.0)
    assert bus.publish(ev.Log(level="info", message="n")).t >= before > 1e9


def test_a_sink_can_leave() -> None:
    bus, seen = Bus(), []
    remove = bus.add_sink(seen.append)
    remove()
    bus.publish(ev.Log(level="info", message="m"))
    assert not seen


async def test_live_events_of_a_rollout_are_merged_into_one_a_tenth_of_a_second() -> None:
    bus = Bus(live_interval=0.01)
    begun(bus, "a", "b")
    subscription = reader(bus, "a", "b")
    for n in range(50):
        bus.publish(text("a" if n % 2 else "b", f"{n} "))
    assert not subscription.take()
    await asyncio.wait_for(subscription.ready.wait(), 60)
    events = subscription.take()
    assert [(type(e), e.rollout) for e in events if isinstance(e, ev.TextDelta)] == [
        (ev.TextDelta, "b"),
        (ev.TextDelta, "a"),
    ]
    assert bus.state.rollouts["a"].text == "".join(f"{n} " for n in range(1, 50, 2))


async def test_a_durable_event_lets_the_live_ones_before_it_go_first() -> None:
    bus = Bus(live_interval=60)
    begun(bus, "a", "b")
    subscription = reader(bus, "a", "b")
    bus.publish(text("a", "one "))
    bus.publish(text("b", "other"))
    bus.publish(text("a", "two"))
    bus.publish(ev.PhaseChanged(rollout="a", attempt=1, phase="scoring"))
    first, second = subscription.take()
    assert isinstance(first, ev.TextDelta)
    assert (first.text, second.seq) == ("one two", 5)
    bus.close()
    (last,) = subscription.take()
    assert isinstance(last, ev.TextDelta)
    assert last.text == "other"
    assert subscription.ended


def test_only_rollouts_that_are_watched_send_live_events() -> None:
    bus = Bus()
    begun(bus, "a", "b")
    subscription = reader(bus, "a")
    bus.publish(text("a", "x"))
    bus.publish(text("b", "y"))
    assert [e.rollout for e in subscription.take() if isinstance(e, ev.RolloutEvent)] == ["a"]
    assert bus.watching == {"a"}


def test_who_begins_to_watch_is_told_what_there_is_already() -> None:
    bus = Bus()
    begun(bus, "a")
    subscription = reader(bus)
    state = load(dump(bus.state))
    bus.publish(text("a", "so far"))
    subscription.watch({"a", "none such"})
    (now,) = subscription.take()
    apply(state, now)
    assert state.rollouts["a"].text == "so far"
    subscription.watch({"a"})
    assert not subscription.take()


def test_a_reader_that_overflows_starts_afresh_and_holds_nothing() -> None:
    bus = Bus()
    subscription = reader(bus, capacity=10)
    for n in range(11):
        bus.publish(ev.Log(level="info", message=str(n)))
    assert subscription.lost
    assert subscription.ready.is_set()
    assert not subscription.take()
    state = load(dump(bus.state))
    subscription.fresh()
    bus.publish(ev.Log(level="info", message="after"))
    fold(subscription.take(), state)
    assert state.logs == bus.state.logs


def test_live_events_are_dropped_first_and_made_good() -> None:
    bus = Bus()
    begun(bus, "a")
    subscription = reader(bus, "a", capacity=10)
    state = load(dump(bus.state))
    for n in range(20):
        bus.publish(text("a", f"{n} "))
    for n in range(4):
        bus.publish(ev.Log(level="info", message=str(n)))
    assert not subscription.lost
    events = subscription.take()
    assert isinstance(events[-1], ev.LiveNow)
    fold(events, state)
    assert state.rollouts["a"].text == bus.state.rollouts["a"].text
    assert len(state.logs) == 4


def test_a_closed_subscription_costs_nothing() -> None:
    bus = Bus()
    subscription = reader(bus, "a")
    subscription.close()
    begun(bus, "a")
    assert not subscription.take()
    assert not bus.watching
    assert not bus.subscriptions


async def test_other_threads_publish_in_order() -> None:
    bus = Bus()
    bus.bind(asyncio.get_running_loop())
    subscription = reader(bus)

    def work() -> None:
        for n in range(200):
            bus.publish_threadsafe(ev.Log(level="info", message=str(n)))

    thread = threading.Thread(target=work)
    thread.start()
    got: list[ev.Event] = []
    async with asyncio.timeout(60):
        while len(got) < 200:
            await subscription.ready.wait()
            got += subscription.take()
    thread.join()
    assert [e.message for e in got if isinstance(e, ev.Log)] == [str(n) for n in range(200)]


async def test_the_end_waits_for_those_who_listen_but_not_for_ever() -> None:
    bus = Bus()
    assert await bus.drained(5)
    bus = Bus()
    subscription = reader(bus)
    assert not await bus.drained(0.01)
    asyncio.get_running_loop().call_soon(subscription.close)
    assert await bus.drained(5)
