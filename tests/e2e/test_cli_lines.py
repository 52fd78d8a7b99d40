"""Plain lines: every fact of a run is told once, and whatever is in it comes out clean."""

from __future__ import annotations

import json
import unicodedata
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from doubles.event_streams import any_event
from vf_core.events import types as ev
from vf_core.events.fold import apply
from vf_core.events.state import RunState
from vf_tui.commands import console
from vf_tui.facts import rollout_facts, run_facts
from vf_tui.headless import Reporter
from vf_tui.plain import PlainLines, summary


def stream(*events: ev.Event) -> tuple[list[str], RunState]:
    """The lines that `events` make, without their times, and the state they lead to."""
    state, lines = RunState(), PlainLines()
    out = []
    for event in events:
        apply(state, event)
        line = lines.of(event, state)
        if line is not None:
            out.append(line.partition(" ")[2])
    return out, state


R: dict[str, Any] = {"rollout": "0000-0", "attempt": 1, "t": 5.0}
STORY = (
    ev.RunStarted(seq=1, t=5.0, run="r", name="n", total=1, model="m", concurrency=2),
    ev.RolloutQueued(seq=2, t=5.0, rollout="0000-0", task=0, name="add"),
    ev.AttemptStarted(seq=3, trace="x", **R),
    ev.RuntimeChanged(seq=4, sandbox="box", kind="subprocess", state="live", **R),
    ev.ErrorRaised(seq=5, kind="ProviderError", message="429: slow down", **R),
    ev.ProgramStarted(seq=6, **R),
    ev.ProgramExited(seq=7, code=4, meaning="declined (4)", kind="declined", **R),
    ev.Scored(seq=8, reward=0.5, rewards={"a": 0.5}, **R),
    ev.AttemptFinished(seq=9, outcome="declined", stop_condition="agent_declined", reward=0.5, **R),
    ev.RuntimeChanged(seq=10, sandbox="box", kind="subprocess", state="gone", proof="no process", **R),
    ev.RunFinished(seq=11, t=9.0, status="completed"),
)


def test_what_a_group_adds_to_a_reward_is_told_when_it_is_known() -> None:
    share = ev.Scored(seq=12, reward=0.75, rewards={"a": 0.5, "share": 0.25}, **R)
    lines, _ = stream(*STORY[:10], share, share)
    assert lines[-1] == "0000-0 add: reward 0.75 with its group's"
    assert len(lines) == 6


def test_a_rollouts_life_in_lines() -> None:
    lines, state = stream(*STORY)
    assert lines == [
        "run n (r): 1 rollouts, 2 at once; model m",
        "0000-0 add: started",
        "0000-0 add: ProviderError: 429: slow down",
        "0000-0 add: declined (4) · reward 0.5 · 0 turns · 0.0 s",
        "0000-0 add: sandbox GONE (no process)",
    ]
    assert list(summary(state)) == [
        "completed: 1 declined of 1 in 4 s",
        "reward: 0.500 (1 scored)",
        "tokens: 0 in, 0 out, 0 model calls, 0 tool calls",
        "sandboxes: 0 unconfirmed",
    ]


def test_why_a_sandbox_failed_is_told_once() -> None:
    error = ev.ErrorRaised(seq=5, kind="SandboxError", message="no such image", **R)
    failed = ev.RuntimeChanged(
        seq=6, sandbox="box", kind="docker", state="failed", detail="no such image", **R
    )
    assert stream(*STORY[:3], error, failed)[0][-2:] == [
        "0000-0 add: SandboxError: no such image",
        "0000-0 add: sandbox failed",
    ]
    first_failed = (ev.stamp(failed, seq=5, t=5.0), ev.stamp(error, seq=6, t=5.0))
    assert stream(*STORY[:3], *first_failed)[0][-1:] == ["0000-0 add: sandbox failed (no such image)"]


def test_a_snapshot_tells_what_was_missed_and_nothing_twice(capsys: pytest.CaptureFixture[str]) -> None:
    story = (*STORY, ev.Log(seq=12, t=9.0, level="warning", message="take care"))
    for told in range(len(story) + 1):
        state, reporter = RunState(), Reporter(json=False)
        for event in story[:told]:
            apply(state, event)
            reporter.happened(event, state)
        for event in story[told:]:
            apply(state, event)
        reporter.caught_up(state)
        lines = [line.partition(" ")[2] for line in capsys.readouterr().out.splitlines()]
        told_of = [line for line in lines if line.startswith(("0000-0", "warning: take care"))]
        assert len(told_of) == len(set(told_of)) == 5, (told, lines)


def test_what_is_left_is_named() -> None:
    lost = ev.RuntimeChanged(seq=10, sandbox="box", kind="subprocess", state="unknown", detail="401", **R)
    road = [
        ev.RuntimeChanged(seq=10 + i, sandbox="box", kind="subprocess", state=state, **R)
        for i, state in enumerate(("stopping", "sent", "checking"))
    ]
    lines, state = stream(
        *STORY[:9], *road, ev.stamp(lost, seq=20, t=6.0), ev.stamp(STORY[10], seq=21, t=9.0)
    )
    assert lines[-1] == "0000-0 add: sandbox UNKNOWN (401)"
    assert list(summary(state))[-1] == "sandboxes: 1 unconfirmed: box UNKNOWN"


def test_records_come_once_their_sandbox_is_settled(capsys: pytest.CaptureFixture[str]) -> None:
    state, reporter = RunState(), Reporter(json=True)
    counts = []
    for event in STORY:
        apply(state, event)
        reporter.happened(event, state)
        counts.append(len(capsys.readouterr().out.splitlines()))
    assert counts == [0] * 9 + [1, 0]


@given(st.lists(any_event(), max_size=8))
@settings(max_examples=100)
def test_any_events_make_clean_lines_and_strict_json(events: list[ev.Event]) -> None:
    state, lines = RunState(), PlainLines()
    told = []
    for event in events:
        apply(state, event)
        told.append(lines.of(event, state))
    told += [*lines.missed(state), *summary(state)]
    for line in told:
        if line is not None:
            shown = console.fit(line, None)
            assert not [c for c in shown if unicodedata.category(c) in ("Cc", "Cs")]
    json.dumps([run_facts(state), *map(rollout_facts, state.rollouts.values())], allow_nan=False)
