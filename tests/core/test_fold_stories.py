"""What a screen shows after what has happened."""

from __future__ import annotations

from typing import Any

import pytest

from doubles.fake_engine import FakeEngine
from doubles.stories import PLOTS
from vf_core.events import types as ev
from vf_core.events.fold import apply, fold
from vf_core.events.fold_live import live_now
from vf_core.events.snapshot import dump, load
from vf_core.events.state import (
    HISTORY_KEPT,
    OUTPUT_KEPT,
    PARTIAL_KEPT,
    TEXT_KEPT,
    TOOLS_KEPT,
    TOOLS_KEPT_ENDED,
    RolloutView,
    RunState,
)


class Told:
    """A run told event by event, one second apart."""

    def __init__(self) -> None:
        self.state = RunState()
        self.t = 1_000.0

    def __call__(self, event: ev.Event) -> Told:
        self.t += 1
        apply(self.state, ev.stamp(event, seq=self.state.seq + 1 if event.durable else 0, t=self.t))
        return self

    def r(self, cls: type[Any], attempt: int = 1, **fields: Any) -> Told:
        return self(cls(rollout="r", attempt=attempt, **fields))

    def box(self, state: str, attempt: int = 1, **fields: Any) -> Told:
        return self.r(ev.RuntimeChanged, attempt, sandbox=f"sb{attempt}", kind="k", state=state, **fields)

    @property
    def rollout(self) -> RolloutView:
        return self.state.rollouts["r"]


@pytest.fixture
def told() -> Told:
    """A rollout whose first attempt runs in a live sandbox."""
    told = Told()(ev.RunStarted(run="run", name="n", total=1, pid=1))
    told(ev.RolloutQueued(rollout="r", task=0))
    return told.r(ev.AttemptStarted, trace="x").box("starting").box("live", id="id1")


def test_a_queued_rollout_has_no_times() -> None:
    told = Told()(ev.RolloutQueued(rollout="r", task=0))
    assert (told.rollout.started, told.rollout.ended) == (None, None)


def test_u11_times_stand_still_once_the_result_stands(told: Told) -> None:
    told.r(ev.ModelCallStarted, call=0).r(ev.AttemptFinished, outcome="error", error="boom")
    ended = told.t
    told.box("stopping").box("sent")
    assert told.rollout.ended == ended
    assert told.rollout.model_since is None


def test_a_restart_begins_clean_and_the_old_sandbox_stays_listed(told: Told) -> None:
    told.r(ev.ModelCallStarted, call=0).r(ev.ModelCallFinished, call=0, prompt_tokens=5, text="hi")
    told.r(ev.ToolCalled, call=0, id="c", name="bash").r(ev.ErrorRaised, kind="TaskError", message="m")
    told.r(ev.ProgramExited, code=137, meaning="exit 137 killed", kind="failed")
    told.r(ev.Scored, reward=1.0, rewards={"a": 1.0}, metrics={"b": 2.0})
    told.r(ev.AttemptFinished, outcome="error", final=False).box("stopping").box("sent").box("unknown")
    assert told.rollout.status == "queued"
    told.r(ev.AttemptStarted, 2, trace="y", reason="restart")
    r = told.rollout
    assert (r.status, r.attempt, r.turns, r.tool_count, r.prompt_tokens) == ("active", 2, 0, 0, 0)
    assert (r.sandbox, r.program, r.reward, r.errors, list(r.tools)) == (None, None, None, [], [])
    assert (r.answer, r.rewards, r.metrics) == ("", {}, {})
    assert [a.exit_meaning for a in r.attempts] == ["exit 137 killed", ""]
    assert told.state.totals.scored == 0
    # What was spent stays spent.
    assert told.state.totals.prompt_tokens == 5
    told.box("checking").box("gone", proof="asked")
    assert r.sandbox is None
    assert told.state.sandboxes["sb1"].proof == "asked"
    assert r.attempts[0].sandbox == "sb1"


def test_a_late_word_of_an_old_attempt_is_not_taken_for_the_new_one(told: Told) -> None:
    told.r(ev.AttemptStarted, 2, trace="y")
    told.r(ev.ProgramExited, 1, code=1, meaning="exit 1", kind="failed")
    told.r(ev.AttemptFinished, 1, outcome="stopped", final=False)
    assert told.rollout.program is None
    assert told.rollout.status == "active"
    assert told.rollout.attempts[0].outcome == "stopped"


def test_unconfirmed_are_those_asked_to_go_and_not_proven_gone(told: Told) -> None:
    state = told.state
    assert not state.unconfirmed
    told.box("stopping")
    assert not state.unconfirmed
    told.box("sent")
    assert state.unconfirmed == {"sb1"}
    for word in ("checking", "survived", "stopping", "sent", "checking", "unknown", "checking"):
        told.box(word)
        assert state.unconfirmed == {"sb1"}
    told.box("gone", proof="p")
    assert not state.unconfirmed
    assert state.sandboxes["sb1"].id == "id1"


def test_at_the_end_of_a_run_everything_not_gone_is_unconfirmed(told: Told) -> None:
    assert [box.name for box in told.state.left_over()] == ["sb1"]
    told(ev.RunFinished(status="failed"))
    assert told.state.unconfirmed == {"sb1"}
    told.box("gone", proof="p")
    assert not told.state.unconfirmed


def test_a_started_again_sandbox_has_forgotten_everything(told: Told) -> None:
    told.box("stopping").box("sent").box("checking").box("gone", proof="p")
    told.r(ev.RuntimeChanged, sandbox="sb1", kind="k", state="starting")
    box = told.state.sandboxes["sb1"]
    assert (box.id, box.proof, len(box.history)) == ("", "", 1)


def test_a_state_of_a_newer_version_is_shown_as_unknown(told: Told) -> None:
    told.box("hibernating", detail="zzz")
    assert told.state.sandboxes["sb1"].state == "unknown"
    assert told.state.sandboxes["sb1"].detail == "hibernating: zzz"


def test_a_call_that_runs_when_the_program_ends_runs_no_longer(told: Told) -> None:
    told.r(ev.ToolCalled, call=0, id="a", name="bash").r(ev.ToolReturned, id="a", seconds=1.0)
    told.r(ev.ToolCalled, call=1, id="b", name="bash").r(
        ev.ProgramExited, code=137, meaning="exit 137", kind="failed"
    )
    ended = told.t
    told.r(ev.AttemptFinished, outcome="error")
    assert [(tool.ended, tool.seconds) for tool in told.rollout.tools] == [(ended - 2, 1.0), (ended, None)]


def test_an_engine_that_died_leaves_its_rollouts_to_the_next(told: Told) -> None:
    told.r(ev.ModelCallStarted, call=0)
    told(ev.CommandAccepted(command="c1", name="stop", targets=("r",)))
    told(ev.RunStarted(run="run", name="n", total=1, pid=2))
    r, state = told.rollout, told.state
    assert (r.status, r.command, r.model_since) == ("queued", "", None)
    assert r.attempts[0].outcome == "interrupted"
    assert state.commands[0].status == "failed"
    assert state.unconfirmed == {"sb1"}
    assert state.started == 1_001.0


def test_a_run_that_goes_on_after_its_end_interrupts_nothing(told: Told) -> None:
    told.r(ev.AttemptFinished, outcome="completed")(ev.RunFinished(status="completed"))
    told(ev.CommandAccepted(command="c1", name="restart", targets=("r",)))
    told(ev.RunStarted(run="run", name="n", total=1, pid=1))
    assert told.rollout.command == "restart"
    assert told.state.commands[0].status == "accepted"
    assert not told.state.over


def test_a_command_is_shown_until_it_ends(told: Told) -> None:
    told(ev.CommandAccepted(command="c1", name="stop", targets=("r",), by="me"))
    assert told.rollout.command == "stop"
    told(ev.CommandFailed(command="c1", name="stop", message="no", targets=("r",)))
    assert told.rollout.command == ""
    assert (told.state.commands[0].status, told.state.commands[0].message) == ("failed", "no")


def test_a_later_command_is_not_ended_by_an_earlier_one(told: Told) -> None:
    told(ev.CommandAccepted(command="c1", name="stop", targets=("r",)))
    told(ev.CommandAccepted(command="c2", name="restart", targets=("r",)))
    told(ev.CommandDone(command="c1", name="stop", changed=("r",)))
    assert told.rollout.command == "restart"


def test_of_calls_that_overlap_the_latest_is_shown(told: Told) -> None:
    told.r(ev.ModelCallStarted, call=0).r(ev.ModelCallStarted, call=1)
    told.r(ev.TextDelta, call=0, text="old").r(ev.TextDelta, call=1, text="new")
    told.r(ev.ToolDelta, call=1, index=0, name="bash", arguments="{")
    assert told.rollout.text == "new"
    told.r(ev.ModelCallFinished, call=0)
    told.r(ev.ToolCalled, call=0, id="c0", name="bash")
    r = told.rollout
    assert r.model_since is not None
    assert r.text == "new"
    assert [tool.partial for tool in r.tools] == [False, True]
    told.r(ev.ModelCallFinished, call=1)
    assert (r.model_since, r.text, len(r.tools)) == (None, "", 1)


def test_a_result_goes_to_the_latest_call_of_its_id(told: Told) -> None:
    for n in range(2):
        told.r(ev.ToolCalled, call=n, id="call_0", name="bash").r(ev.ToolReturned, id="call_0", result=str(n))
    assert [tool.result for tool in told.rollout.tools] == ["0", "1"]


def test_a_reward_that_is_no_number_does_not_spoil_the_mean(told: Told) -> None:
    told.r(ev.Scored, reward=float("nan"), metrics={"loss": float("inf"), "n": 1.0})
    told(ev.Scored(rollout="q", reward=0.5))
    assert told.state.reward_mean == 0.5
    assert told.rollout.reward is None
    assert told.rollout.metrics == {"n": 1.0}


def test_a_reward_given_later_replaces_the_one_before(told: Told) -> None:
    told.r(ev.Scored, reward=1.0).r(ev.AttemptFinished, outcome="completed", reward=1.0)
    told.r(ev.Scored, reward=0.25, rewards={"group": 0.25})
    assert (told.state.totals.scored, told.state.totals.reward_sum) == (1, 0.25)
    assert told.rollout.attempts[0].reward == 0.25


def test_a_journal_without_its_head_is_folded_as_far_as_it_goes() -> None:
    told = Told().r(ev.PhaseChanged, 3, phase="running").r(ev.ToolCalled, 3, call=5, id="c", name="bash")
    r = told.rollout
    assert (r.status, r.attempt, r.tool_count) == ("active", 3, 1)
    assert told.state.total == 1
    assert [a.number for a in r.attempts] == [3]


def test_live_now_brings_a_late_viewer_level(told: Told) -> None:
    late = load(dump(told.state))
    told.r(ev.ModelCallStarted, call=0)
    apply(late, ev.stamp(ev.ModelCallStarted(rollout="r", attempt=1, call=0), seq=late.seq + 1, t=told.t))
    told.r(ev.TextDelta, call=0, text="so").r(ev.TextDelta, call=0, text="hm", reasoning=True)
    told.r(ev.ToolDelta, call=0, index=1, id="c", name="bash", arguments='{"a')
    told.r(ev.OutputChunk, stream="stdout", text="out")
    for _ in range(2):
        apply(late, live_now(told.rollout))
    late.rollouts["r"].revision = told.rollout.revision
    assert late.rollouts["r"] == told.rollout


def test_u08_what_a_rollout_holds_is_bounded(told: Told) -> None:
    for n in range(600):
        told.r(ev.ModelCallStarted, call=n)
        told.r(ev.TextDelta, call=n, text="t" * 5_000)
        for index in range(PARTIAL_KEPT + 5):
            told.r(ev.ToolDelta, call=n, index=index, name="n" * 300, arguments="a" * 9_000)
        told.r(ev.OutputChunk, stream="stdout", text="\x1b]0;" + "o" * 20_000)
        told.r(ev.ModelCallFinished, call=n, text="m" * 9_000)
        told.r(ev.ToolCalled, call=n, id=f"c{n}", name="bash", arguments="a" * 9_000)
        told.r(ev.ToolReturned, id=f"c{n}", result="r" * 9_000)
        told.r(ev.PhaseChanged, phase="running").box("checking").box("survived")
        told.r(ev.ErrorRaised, kind="k", message="e" * 9_000)
        told(ev.Log(level="info", message="l" * 9_000))
        told(ev.CommandAccepted(command=str(n), name="stop", targets=("r",)))
    assert len(str(dump(told.state))) < 2_500_000
    r = told.rollout
    assert len(r.tools) == TOOLS_KEPT
    assert len(r.output) <= OUTPUT_KEPT
    assert len(r.text) <= TEXT_KEPT
    assert len(r.phases) <= HISTORY_KEPT
    assert len(told.state.sandboxes["sb1"].history) <= HISTORY_KEPT
    told.r(ev.AttemptFinished, outcome="completed")
    assert len(r.tools) == TOOLS_KEPT_ENDED
    assert len(str(r)) < 40_000


def test_the_stories_of_the_fake_engine_end_as_they_should() -> None:
    engine = FakeEngine(rollouts=len(PLOTS), seed=3)
    engine.play()
    state = engine.state
    by_name = {r.name: r for r in state.rollouts.values()}
    assert by_name["declines"].status == "declined"
    assert by_name["declines"].program is not None
    assert by_name["declines"].program.meaning == "declined (4)"
    assert by_name["runs out of memory"].attempts[0].exit_meaning == "exit 137 killed"
    assert by_name["never starts"].error_type == "SandboxError"
    words = {r.sandbox.state.word for r in state.rollouts.values() if r.sandbox}
    assert words == {"GONE", "SURVIVED", "UNKNOWN"}
    assert len(state.unconfirmed) == 2
    assert state.totals.ended == len(PLOTS)


def test_the_same_seed_tells_the_same() -> None:
    def told(seed: int) -> RunState:
        ticks = iter(range(1, 10**9))
        engine = FakeEngine(rollouts=12, seed=seed, clock=lambda: float(next(ticks)))
        engine.play()
        return engine.state

    assert told(5) == told(5)
    assert told(5) != told(6)


def test_fold_continues_a_state() -> None:
    first = [ev.RolloutQueued(rollout="a", task=0, seq=1)]
    state = fold(first)
    assert fold([*first, ev.RolloutQueued(rollout="b", task=1, seq=2)], state) is state
    assert list(state.rollouts) == ["a", "b"]
