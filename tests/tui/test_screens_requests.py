"""What a dialog asks for, and the keys it listens to: pure."""

from __future__ import annotations

from vf_core.events.state import RolloutView, RunState, SandboxView
from vf_core.runtimes.lifecycle import State
from vf_tui import requests
from vf_tui.guard import BURST_SECONDS, QUIET_SECONDS, Guard


def run_of(count: int, status: str = "active") -> RunState:
    state = RunState(name="demo", total=count)
    for n in range(count):
        r = RolloutView(id=f"r{n}", task=n, name=f"task {n}", status=status, attempt=1, turns=2)  # type: ignore[arg-type]
        r.sandbox = SandboxView(f"sb-{n}", r.id, 1, "subprocess", state=State.LIVE)
        r.sandboxes.append(r.sandbox.name)
        state.rollouts[r.id], state.sandboxes[r.sandbox.name] = r, r.sandbox
    return state


def test_it_names_ids_counts_the_rest_and_what_is_hidden() -> None:
    state = run_of(7)
    request = requests.ask(requests.STOP, state.rollouts.values(), state, hidden=lambda ids: 3)
    seen = requests.review(request, state)
    assert seen.title == "Stop 7 rollouts?"
    assert [id for id, _ in seen.named] == ["r0", "r1", "r2", "r3"]
    assert seen.more == 3
    assert any("3 of them are hidden by the filter" in fact for fact in seen.facts)
    assert any("14 turns" in fact for fact in seen.facts)
    assert seen.typed == 7


def test_few_need_no_typing_and_force_always_does() -> None:
    state = run_of(5)
    everyone = state.rollouts.values()
    assert requests.review(requests.ask(requests.STOP, everyone, state), state).typed is None
    one = [state.rollouts["r0"]]
    one[0].sandbox.state = State.STOPPING  # type: ignore[union-attr]
    assert requests.review(requests.ask(requests.KILL, one, state), state).typed == 1
    one[0].sandbox.state = State.SURVIVED  # type: ignore[union-attr]
    restart = requests.ask(requests.RESTART, one, state, option=requests.FORCE)
    assert requests.review(restart, state).typed is None
    forced = restart.flipped()
    assert requests.review(forced, state).typed == 1
    assert forced.args == {"force": True}


def test_only_those_are_hit_that_still_can_be_and_never_a_new_one() -> None:
    """K01: the set was captured; one has ended, one began another attempt, one more is running now."""
    state = run_of(4)
    captured = [state.rollouts[id] for id in ("r0", "r1", "r2")]
    request = requests.ask(requests.STOP, captured, state)
    state.rollouts["r0"].status = "completed"
    state.rollouts["r1"].attempt = 2
    seen = requests.review(request, state)
    assert seen.ids == ("r2",)
    assert seen.gone == ("r0", "r1")
    assert seen.title == "Stop rollout r2?"


def test_a_sandbox_of_an_earlier_attempt_can_still_be_confirmed() -> None:
    state = run_of(1, "completed")
    r = state.rollouts["r0"]
    state.sandboxes["sb-0"].state = State.GONE
    assert not requests.ask(requests.CONFIRM_STOP, [r], state).targets
    r.sandboxes.append("sb-old")
    state.sandboxes["sb-old"] = SandboxView("sb-old", "r0", 0, "subprocess", state=State.SURVIVED)
    assert requests.ask(requests.CONFIRM_STOP, [r], state).targets == {"r0": 1}


def test_nothing_left() -> None:
    state = run_of(1)
    request = requests.ask(requests.STOP, state.rollouts.values(), state)
    state.rollouts["r0"].status = "stopped"
    seen = requests.review(request, state)
    assert not seen.ids
    assert "nothing is left" in seen.title
    assert seen.typed is None


def test_hostile_ids_and_names_are_only_text() -> None:
    state = run_of(1)
    state.rollouts["r0"].name = "[/] [@click=app.quit]x[/] \x1b[2J"
    named = requests.review(requests.ask(requests.STOP, state.rollouts.values(), state), state).named
    assert "[@click=app.quit]" in named[0][1]


class Clock:
    def __init__(self) -> None:
        self.t = 0.0

    def __call__(self) -> float:
        return self.t


def test_keys_count_only_after_a_quiet_moment() -> None:
    clock = Clock()
    guard = Guard(clock)
    clock.t = QUIET_SECONDS - 0.01
    assert not guard.key()
    clock.t += QUIET_SECONDS - 0.01
    assert not guard.key()
    clock.t += QUIET_SECONDS
    assert guard.ready
    assert guard.key()


def test_a_burst_is_no_answer_and_makes_it_wait_again() -> None:
    clock = Clock()
    guard = Guard(clock)
    clock.t = 10.0
    assert guard.key()
    clock.t += BURST_SECONDS / 2
    assert not guard.key()
    clock.t += BURST_SECONDS * 2
    assert not guard.key()
    clock.t += QUIET_SECONDS
    assert guard.key()


def test_a_key_is_known_to_have_come_alone_only_afterwards() -> None:
    clock = Clock()
    guard = Guard(clock)
    clock.t = 10.0
    guard.key()
    assert not guard.alone()
    clock.t += BURST_SECONDS
    assert guard.alone()
