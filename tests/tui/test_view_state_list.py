"""Order, grouping, marks and slots: pure, with a clock of our own."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from vf_core.events.state import RolloutView, RunState, SandboxView
from vf_core.runtimes.lifecycle import State
from vf_tui.attention import attention
from vf_tui.filter import parse
from vf_tui.view_state import GROUPS, SORTS, GroupLine, ListView, Slots, assign_slots, over

STATUSES = ("queued", "active", "completed", "declined", "error", "stopped")


def state_of(*rollouts: RolloutView) -> RunState:
    state = RunState(total=len(rollouts), concurrency=4)
    for r in rollouts:
        state.rollouts[r.id] = r
        setattr(state.totals, r.status, getattr(state.totals, r.status) + 1)
    return state


def rollout(n: int, status: str = "active", **fields: object) -> RolloutView:
    r = RolloutView(id=f"r{n}", task=n, name=f"task {n}", status=status)  # type: ignore[arg-type]
    for name, value in fields.items():
        setattr(r, name, value)
    return r


def boxed(r: RolloutView, state: State) -> RolloutView:
    r.sandbox = SandboxView(f"sb-{r.id}", r.id, 1, "subprocess", state=state)
    return r


def refreshed(view: ListView, state: RunState, now: float = 100.0) -> list[str]:
    view.refresh(state, state.rollouts.keys(), now)
    return view.ids


def test_attention_comes_first() -> None:
    state = state_of(
        rollout(0, "completed"),
        rollout(1, "queued"),
        rollout(2, "active", last_progress=99.0),
        rollout(3, "error"),
        rollout(4, "active", last_progress=99.0, errors=[(98.0, "ProviderError", "429")]),
        rollout(5, "active", last_progress=-100.0),
        boxed(rollout(6, "stopped"), State.UNKNOWN),
        boxed(rollout(7, "completed"), State.SURVIVED),
        boxed(rollout(8, "stopped"), State.SENT),
        boxed(rollout(9, "stopped"), State.GONE),
    )
    order = ["r7", "r6", "r5", "r4", "r3", "r8", "r2", "r1", "r0", "r9"]
    assert refreshed(ListView(stall_seconds=120), state) == order


def test_a_sandbox_that_was_only_asked_to_go_needs_attention_after_a_while() -> None:
    state = state_of(boxed(rollout(0, "stopped"), State.SENT), rollout(1, "queued"))
    view = ListView(attention_only=True, stall_seconds=0)
    box = state.rollouts["r0"].sandbox
    assert box is not None
    box.since = 99.0
    assert refreshed(view, state) == []
    view.refresh(state, [], 104.0)
    assert view.ids == ["r0"]
    box.state = State.GONE
    view.refresh(state, ["r0"], 105.0)
    assert view.ids == []


def test_stalling_is_noticed_without_an_event() -> None:
    state = state_of(rollout(0, last_progress=100.0), rollout(1, last_progress=200.0))
    view = ListView(stall_seconds=120)
    assert refreshed(view, state, 201.0) == ["r0", "r1"]
    view.sort, view.attention_only = "attention", True
    assert refreshed(view, state, 205.0) == []
    assert view.refresh(state, (), 221.0)
    assert view.ids == ["r0"]
    state.rollouts["r0"].last_progress = 222.0
    view.refresh(state, ("r0",), 222.5)
    assert view.ids == []


def test_filter_hides_but_keeps_marks_and_says_how_many() -> None:
    state = state_of(*(rollout(n, "error" if n % 2 else "active") for n in range(6)))
    view = ListView()
    for r in state.rollouts.values():
        view.marks.set(r)
    view.filter = parse("status:error")
    assert refreshed(view, state) == ["r1", "r3", "r5"]
    assert view.hidden(view.marks.ids) == 3
    assert len(view.marks) == 6


def test_a_mark_goes_when_its_rollout_has_ended_since() -> None:
    """K01: finished ones leave the selection; what had ended when it was marked stays."""
    state = state_of(rollout(0), rollout(1), rollout(2, "error"))
    view = ListView()
    for r in state.rollouts.values():
        view.marks.set(r)
    state.rollouts["r0"].status = "completed"
    assert view.marks.drop_ended(state, {"r0", "r2"}) == ["r0"]
    assert view.marks.ids == {"r1", "r2"}


def test_groups_have_a_head_and_keep_the_order_within() -> None:
    state = state_of(*(rollout(n, STATUSES[n % 3], turns=n) for n in range(9)))
    view = ListView(group="status", sort="turns")
    refreshed(view, state)
    heads = [row.text for row in view.rows if isinstance(row, GroupLine)]
    assert heads == ["active · 3", "queued · 3", "completed · 3"]
    assert [row for row in view.rows if isinstance(row, str)] == view.ids
    assert view.ids[:3] == ["r7", "r4", "r1"]


def test_going_to_the_next_goes_round_the_end() -> None:
    state = state_of(*(rollout(n) for n in range(3)))
    view = ListView(sort="task")
    refreshed(view, state)
    assert [view.next_to(id, 1) for id in ("r0", "r2", None, "gone")] == ["r1", "r0", "r0", "r0"]
    assert view.next_to("r0", -1) == "r2"
    assert view.next_to("r0", 1, lambda id: id == "r2") == "r2"
    assert view.next_to("r0", 1, lambda _: False) is None
    assert ListView().next_to("r0", 1) is None


@given(st.integers(0, 2**32), st.sampled_from(SORTS), st.sampled_from(GROUPS), st.booleans(), st.booleans())
@settings(max_examples=60)
def test_refreshing_by_changes_gives_what_a_new_list_would(
    seed: int, sort: str, group: str, reverse: bool, only: bool
) -> None:
    """U04: adds, updates, removals, sorts and filters in any order end in the list of the model."""
    rng = random.Random(seed)
    state = RunState()
    view = ListView(sort=sort, group=group, reverse=reverse, attention_only=only, stall_seconds=50)
    now = 100.0
    for _ in range(30):
        now += rng.random() * 3
        touched = set()
        for _ in range(rng.randrange(4)):
            n = rng.randrange(12)
            r = state.rollouts.setdefault(f"r{n}", rollout(n))
            r.status = rng.choice(STATUSES)  # type: ignore[assignment]
            r.turns, r.last_progress = rng.randrange(5), now - rng.randrange(100)
            r.error_type = rng.choice(("", "ProviderError"))
            touched.add(r.id)
        if rng.random() < 0.1:
            view.filter = parse(rng.choice(("", "status:active", "!r3", "turns:>2")))
        view.refresh(state, touched, now)
    view.refresh(state, (), now + 10)
    fresh = ListView(view.filter, sort, reverse, group, only, 50)
    fresh.refresh(state, state.rollouts.keys(), now + 10)
    assert view.rows == fresh.rows
    assert view.ids == fresh.ids


def test_panes_do_not_move_while_they_are_needed() -> None:
    state = state_of(*(boxed(rollout(n), State.LIVE) for n in range(4)), rollout(4, "queued"))
    view, slots = ListView(), Slots()
    refreshed(view, state)
    slots.arrange(state, view, None)
    before = list(slots.ids)
    assert sorted(filter(None, before)) == ["r0", "r1", "r2", "r3"]
    # One fails: it moves up in the list, but not in the grid. One ends: it stays until somebody needs the place.
    state.rollouts["r3"].errors.append((1.0, "ProviderError", "429"))
    state.rollouts["r1"].status = "completed"
    state.rollouts["r1"].sandbox.state = State.GONE  # type: ignore[union-attr]
    refreshed(view, state)
    slots.arrange(state, view, {"r1", "r3"})
    assert slots.ids == before
    state.rollouts["r4"].status = "active"
    refreshed(view, state)
    slots.arrange(state, view, {"r4"})
    assert slots.ids == ["r4" if id == "r1" else id for id in before]


def test_an_ended_rollout_keeps_its_pane_while_its_sandbox_is_going() -> None:
    assert not over(boxed(rollout(0, "stopped"), State.CHECKING))
    assert not over(boxed(rollout(0, "stopped"), State.SURVIVED))
    assert over(boxed(rollout(0, "stopped"), State.GONE))
    assert over(rollout(0, "error"))


def test_a_filter_seats_anew_and_gives_the_places_back() -> None:
    state = state_of(*(rollout(n) for n in range(6)))
    view, slots = ListView(), Slots()
    refreshed(view, state)
    slots.arrange(state, view, None)
    view.filter = parse("r5")
    refreshed(view, state)
    slots.arrange(state, view, None)
    assert slots.ids == ["r5"]


@given(
    st.lists(st.sampled_from([None, *"abcdef"]), max_size=6, unique_by=lambda x: x or object()),
    st.integers(0, 6),
    st.lists(st.sampled_from("abcdefgh"), max_size=8),
    st.sets(st.sampled_from("abcdefgh")),
)
def test_slots_hold_each_once_and_never_drop_one_at_work_for_another(
    slots: list[str | None], capacity: int, wanted: list[str], ended: set[str]
) -> None:
    out = assign_slots(slots, capacity, wanted, ended.__contains__)
    assert len(out) == capacity
    seated = [id for id in out if id is not None]
    assert len(seated) == len(set(seated))
    for before, after in zip(slots, out, strict=False):
        if before is not None and before not in ended:
            assert after == before
        if before is not None and after != before:
            assert after is not None
            assert after not in ended


def test_attention_words() -> None:
    assert attention(rollout(0, "active", last_progress=0.0), 500.0, 0) == ""
    assert attention(rollout(0, "active", last_progress=0.0), 500.0, 120) == "stalled"
    assert attention(boxed(rollout(0), State.FAILED), 0.0) == "failing"
    assert attention(rollout(0, "declined"), 0.0) == ""
