"""Tools, judges and resumed runs on the screen: whose call it was, what has no score, what stands apart."""

from __future__ import annotations

import pytest

from doubles.screen_states import NOW, Rollout, Story, hostile
from vf_core.events import types as ev
from vf_core.events.fold import fold
from vf_core.events.state import RunState
from vf_tui.facts import rollout_facts, run_facts
from vf_tui.notable import note_of, notes_of
from vf_tui.plain import PlainLines, summary
from vf_tui.render import activity, facts, header, pane, row, status
from vf_tui.render.line import Line, line_width

JUDGED = {"calls": 2, "prompt_tokens": 1500, "cached_tokens": 100, "completion_tokens": 40, "cost": 0.25}
SIZES = (40, 80, 120)


def text(*lines: Line) -> str:
    return "\n".join("".join(part for part, _ in line) for line in lines)


def begun(total: int = 4, **fields: object) -> Story:
    s = Story()
    s.say(ev.RunStarted, 0, run="9a1d77c2", name="mixed", total=total, **fields)
    return s


def tools(name: str = "calc", tool: str = "calc_add", result: str = "3") -> RunState:
    """An attempt with two servers, whose tool `tool` was called twice and is called once more."""
    s = begun()
    r = Rollout(s, "t", 0, "sums").begin(10)
    r.say(ev.PhaseChanged, 20, phase="install")
    r.say(ev.RuntimeChanged, 21, sandbox="vf-t-1-t1", kind="docker", state="live", serves=name, id="d0d0")
    r.say(ev.ToolsServed, 22, server=name, tools=("add", "sub"), place="sandbox")
    r.say(ev.ToolsServed, 22, server="", tools=("look",), place="external", shared=True)
    r.run(30)
    for n, seconds in enumerate((0.25, 65.0)):
        r.say(ev.ToolCalled, 40 + n, call=n, id=f"c{n}", name=tool, arguments='{"a": 1, "b": 2}')
        r.say(ev.ToolReturned, 45 + n, id=f"c{n}", result=result, seconds=seconds, server=name)
    r.say(ev.ToolCalled, 590, call=2, id="c2", name=tool, arguments='{"a": 9, "b": 9}', server=name)
    s.say(
        ev.RuntimeChanged, 5, rollout="", sandbox="vf-shared-1", kind="subprocess", state="live", serves="db"
    )
    return fold(s.events)


def unscored() -> RunState:
    """One that its judge failed, one that failed by itself, one that was scored."""
    s = begun()
    r = Rollout(s, "u", 0, "essay").begin(10).run(12).exit(60, 0, "exit 0", "ok")
    r.say(ev.PhaseChanged, 61, phase="scoring")
    r.say(ev.Scored, 70, reward=None, judged=JUDGED)
    r.say(ev.ErrorRaised, 70, kind="JudgeError", message="judge 'reference': it refused")
    r.end(71, "error", error_type="JudgeError", error="judge 'reference': it refused",
          stop_condition="agent_completed").gone(72)  # fmt: skip
    r = Rollout(s, "f", 1, "broken").begin(10).run(12).exit(60, 1, "exit 1", "failed")
    r.end(61, "error", error_type="HarnessError", error="no").gone(62)
    r = Rollout(s, "o", 2, "fine").begin(10).run(12).exit(60, 0, "exit 0", "ok")
    r.say(ev.PhaseChanged, 61, phase="scoring").end(70, "completed", 1.0).gone(72)
    return fold(s.events)


@pytest.mark.parametrize("cells", SIZES)
def test_a_call_is_shown_with_its_server_and_seconds(cells: int) -> None:
    view = tools().rollouts["t"]
    shown = text(*pane.pane(view, cells, 12, NOW))
    assert "calc/add" in shown
    assert "0.2 s" in shown
    assert "65 s" in shown
    assert "10 s" in shown.splitlines()[1]
    heads = [activity.head(tool, cells, NOW, unfolded=False) for tool in view.tools]
    assert [line_width(line) for line in heads] == [cells] * 3
    assert all("calc/add" in text(line) for line in heads)
    assert text(heads[0]).rstrip().endswith("0.2 s")


def test_the_servers_of_an_attempt_are_on_the_sandbox_tab() -> None:
    state = tools()
    shown = text(*facts.section_lines(facts.sandbox_sections(state.rollouts["t"], state, NOW), 80))
    for words in (
        "tool servers", "live  in a docker sandbox", "tools: add, sub", "(no prefix)",
        "elsewhere, shared by all rollouts", "tools: look", "sandbox of tool server calc", "d0d0",
    ):  # fmt: skip
        assert words in shown
    assert "vf-shared-1" not in shown
    assert shown.index("vf-t-1\n".strip()) < shown.index("tool servers")


def test_what_is_installed_is_told_while_it_is() -> None:
    s = begun()
    Rollout(s, "t", 0, "sums").begin(10).box(12, "live").say(ev.PhaseChanged, 590, phase="install")
    view = fold(s.events).rollouts["t"]
    assert "install" in text(row.rollout_row(view, 60, NOW))
    assert "install" in text(pane.now_line(view, 40, NOW))


def test_a_scoring_error_is_no_zero_and_no_failure_of_the_agent() -> None:
    state = unscored()
    view = state.rollouts["u"]
    line = text(row.rollout_row(view, 140, NOW))
    assert "UNSCORED" in line
    assert "unscored: JudgeError" in line
    assert "0.00" not in line
    shown = text(*pane.pane(view, 60, 10, NOW))
    assert "unscored: JudgeError" in shown
    assert "judge 'reference': it refused" in shown
    scores = text(*facts.section_lines(facts.score_sections(view), 80))
    assert "unscored: JudgeError" in scores
    assert "2 calls, 1.6k in, 40 out, $0.25" in scores
    assert [status.unscored(r) for r in state.rollouts.values()] == [True, False, False]
    head = text(*header.header(state, header.survey(state, NOW), 120, 3, NOW))
    assert "1 failed  1 unscored" in head
    assert "judges 2 calls, 1.6k in, 40 out, $0.25" in head
    lines = list(summary(state))
    assert lines[0].startswith("running: 1 completed, 1 error, 1 unscored of 4")
    assert "judges: 2 calls, 1.6k in, 40 out, $0.25" in lines
    assert "tokens: 0 in, 0 out, 0 model calls, 0 tool calls" in lines


def test_records_for_scripts_tell_the_same_apart() -> None:
    state = unscored()
    facts_of = rollout_facts(state.rollouts["u"])
    assert (facts_of["reward"], facts_of["unscored"], facts_of["error_type"]) == (None, True, "JudgeError")
    judged = {"calls": 2, "prompt": 1500, "cached": 100, "completion": 40, "cost": 0.25}
    assert facts_of["judged"] == run_facts(state)["judged"] == judged
    assert run_facts(state)["tokens"] == {"prompt": 0, "cached": 0, "completion": 0}


def test_plain_lines_name_the_tool_server_and_the_scoring_error() -> None:
    state = unscored()
    lines = PlainLines()
    ended = ev.AttemptFinished(
        rollout="u", attempt=1, outcome="error", error_type="JudgeError", error="it refused"
    )
    assert "unscored · " in (lines.of(ended, state) or "")
    assert "unscored: JudgeError: it refused" in (note_of(ended) or notes_of(state)[0]).text
    ended = ev.AttemptFinished(rollout="u", attempt=1, outcome="error", error_type="TaskError", final=False)
    assert "attempt 1 unscored" in (note_of(ended, state) or notes_of(state)[0]).text
    assert "unscored · " in (PlainLines().of(ended, state) or "")
    moves = [
        ev.RuntimeChanged(rollout="u", attempt=1, sandbox=name, kind="docker", state="gone", serves=serves)
        for name, serves in (("a", ""), ("k1", "calc"), ("k2", "db"))
    ]
    told = [lines.of(move, state) or "" for move in [*moves, *moves]]
    assert [line.partition("essay: ")[2] for line in told[:3]] == [
        "sandbox GONE", "tool server calc: sandbox GONE", "tool server db: sandbox GONE",
    ]  # fmt: skip
    assert told[3:] == [""] * 3
    shared = ev.RuntimeChanged(
        rollout="", sandbox="s", kind="docker", state="gone", serves="db", proof="it said so"
    )
    assert (lines.of(shared, state) or "").endswith(" shared tool server db: sandbox GONE (it said so)")


def test_a_resumed_run_says_what_it_kept() -> None:
    s = begun()
    for id in ("k", "o"):
        r = Rollout(s, id, 0, id).begin(10).run(12)
        r.say(ev.ModelCallFinished, 20, call=0, prompt_tokens=1000, completion_tokens=500)
        r.end(60, "completed" if id == "k" else "error", 1.0 if id == "k" else None, error_type="E").gone(61)
    again = ev.RunStarted(
        run="9a1d77c2", name="mixed", total=4, kept=1, owed=("o", "p", "q"), host="x", pid=9
    )
    s.events.append(ev.stamp(again, seq=s.seq + 1, t=NOW + 1000))
    state = fold(s.events)
    shown = text(*header.header(state, header.survey(state, NOW + 1005), 120, 3, NOW + 1005))
    assert "resumed, kept 1 (replaced: 1.5k tok)" in shown
    assert "1:08" in shown.splitlines()[0]
    note = note_of(again)
    assert note is not None
    assert note.text == "run mixed resumed: kept 1 of 4 rollouts, 3 to run"
    assert "resumed, kept 1 of 4 rollouts, 3 to run" in (PlainLines().of(again, state) or "")
    assert (
        "resumed: kept 1 of 4 rollouts; what was replaced had used 1,500 tokens, not counted above"
        in list(summary(state))
    )
    assert (run_facts(state)["kept"], run_facts(state)["redone"]["prompt_tokens"]) == (1, 1000)


@pytest.mark.parametrize("name", list(hostile()))
def test_hostile_servers_and_tools_stay_in_their_cells(name: str) -> None:
    state = tools(name, f"{name}_x", name)
    view = state.rollouts["t"]
    for cells in SIZES:
        lines = pane.pane(view, cells, 10, NOW)
        lines += [activity.head(tool, cells, NOW, unfolded=True) for tool in view.tools]
        lines += facts.section_lines(facts.sandbox_sections(view, state, NOW), cells)
        assert {line_width(line) for line in lines} == {cells}
        assert not any(ch < " " or "\x7f" <= ch < "\xa0" for ch in text(*lines).replace("\n", ""))
