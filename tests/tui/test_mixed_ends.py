"""Rollouts that ended in every way, side by side: each is told once, in whole words, and the counts add up."""

from __future__ import annotations

import pytest

from doubles.screen_states import NOW, Rollout, Story
from vf_core.events import types as ev
from vf_core.events.fold import apply, fold
from vf_core.events.state import RunState
from vf_tui.facts import rollout_details
from vf_tui.headless import Reporter
from vf_tui.notable import note_of, notes_of
from vf_tui.plain import PlainLines
from vf_tui.render import facts, header, pane, row
from vf_tui.render.line import Line
from vf_tui.screens.rollout_header import rollout_header

WHY = "upstream 400: " + "it does not take this. " * 5


def text(*lines: Line) -> str:
    return "\n".join("".join(part for part, _ in line) for line in lines)


def mixed(*, over: bool = True) -> Story:
    """A failed one, whose model call failed first; one that its judge failed; one that declined; one at its start."""
    s = Story()
    s.say(ev.RunStarted, 0, run="9a1d77c2", name="mixed", total=4)
    r = Rollout(s, "f", 0, "broken").begin(10).run(12)
    for t in (60, 61):
        r.say(ev.ErrorRaised, t, kind="ProviderError", message=WHY)
    r.end(61, "error", error_type="ProviderError", error=WHY, stop_condition="error").gone(62)
    r = Rollout(s, "u", 1, "essay").begin(10).run(12).exit(60, 0, "exit 0", "ok")
    r.say(ev.PhaseChanged, 61, phase="scoring").say(
        ev.ErrorRaised, 70, kind="JudgeError", message="no verdict"
    )
    r.end(71, "error", error_type="JudgeError", error="no verdict", stop_condition="agent_completed").gone(72)
    r = Rollout(s, "d", 2, "mail").begin(10).run(12).exit(60, 4, "declined (4)", "declined")
    r.end(61, "declined", 1.0, stop_condition="agent_declined").gone(62)
    r = Rollout(s, "t", 3, "sums").begin(10).box(12, "live").say(ev.PhaseChanged, 30, phase="tools")
    if over:
        r.run(40).exit(60, 0, "exit 0", "ok").end(
            61, "completed", 1.0, stop_condition="agent_completed"
        ).gone(62)
        s.say(ev.RunFinished, 80, status="completed")
    return s


def test_a_failure_that_was_a_model_calls_first_is_told_once() -> None:
    state, told = RunState(), []
    for event in mixed().events:
        apply(state, event)
        if (note := note_of(event, state)) is not None and note.rollout == "f":
            told.append(note.text)
    assert told == [f"ProviderError: {WHY}", f"attempt 1 failed: ProviderError: {WHY[:60]}…"]
    assert [note.text for note in notes_of(state) if note.rollout == "f"] == told[:1]
    view = state.rollouts["f"]
    assert text(*facts.section_lines(facts.score_sections(view), 400)).count("ProviderError") == 1
    assert [error["type"] for error in rollout_details(view, state)["errors"]] == ["ProviderError"]


@pytest.mark.parametrize("cells", [36, 40, 80, 140])
def test_words_are_whole_and_said_once(cells: int) -> None:
    state = fold(mixed(over=False).events)
    lines = {id: text(row.rollout_row(view, cells, NOW, stall=0)) for id, view in state.rollouts.items()}
    assert "tool servers" in lines["t"]
    assert lines["d"].count("declined (4)") == (2 if cells > 110 else 1)  # it is the program's exit, too
    assert "0.00" not in lines["u"]
    assert not [line for line in lines.values() if "…" in line]
    assert "tool servers 1" in text(*header.header(state, header.survey(state, NOW), 120, 3, NOW))
    top = text(*rollout_header(state.rollouts["u"], cells, 1, now=NOW, stall=0))
    assert "UNSCORED" in top
    first = text(pane.now_line(state.rollouts["u"], 34, NOW))
    assert first.startswith("unscored: JudgeError ")
    assert "…" not in first


def test_the_counts_of_the_header_add_up() -> None:
    live, over = fold(mixed(over=False).events), fold(mixed().events)
    shown = text(*header.header(live, header.survey(live, NOW), 80, 3, NOW)).splitlines()[1]
    for words in ("3/4 done", "1 active", "1 failed", "1 unscored", "1 declined", "ETA"):
        assert words in shown
    assert "2 errors" in text(*header.header(over, header.survey(over, NOW), 40, 1, NOW))


def test_a_record_is_told_beside_the_sandbox_that_all_share(capsys: pytest.CaptureFixture[str]) -> None:
    state, reporter = RunState(), Reporter(json=True)
    s = mixed()
    for at, moved in ((5, "live"), (79, "gone")):
        s.say(
            ev.RuntimeChanged, at, rollout="", sandbox="vf-shared-1", kind="docker", state=moved, serves="db"
        )
    for event in s.events:
        apply(state, event)
        reporter.happened(event, state)
    assert capsys.readouterr().out.count('"type": "rollout"') == 4


def test_what_a_resume_replaced_is_told_though_nothing_was_kept() -> None:
    s = Story()
    s.say(ev.RunStarted, 0, run="9a1d77c2", name="mixed", total=1)
    r = Rollout(s, "f", 0, "broken").begin(10).run(12)
    r.say(ev.ModelCallFinished, 20, call=0, prompt_tokens=1000, completion_tokens=500).end(30, "error")
    s.say(ev.RunStarted, 100, run="9a1d77c2", name="mixed", total=1, owed=("f",), pid=9)
    state = fold(s.events)
    shown = text(*header.header(state, header.survey(state, NOW), 80, 3, NOW))
    assert "resumed, kept 0 (replaced: 1.5k tok)" in shown


def test_lines_that_began_late_tell_the_runs_start_once() -> None:
    state, lines = fold(mixed(over=False).events), PlainLines()
    first, *others = lines.missed(state)
    assert "run mixed (9a1d77c2): 4 rollouts" in first
    assert len(others) > len(state.rollouts)
    assert list(lines.missed(state)) == []
    assert lines.of(mixed().events[0], state) is None
