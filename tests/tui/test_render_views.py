"""Rows, panes, header, facts and activity of every kind of rollout: right words, exact widths."""

from __future__ import annotations

import pytest

from doubles.screen_states import NOW, T0, Rollout, Story, gallery, hostile
from vf_core.events import types as ev
from vf_core.events.fold import fold
from vf_core.events.state import RolloutView, RunState
from vf_tui import glyphs
from vf_tui.render import activity, bars, facts, header, pane, row, status
from vf_tui.render.line import Line, line_width

WIDTHS = (20, 30, 39, 45, 60, 80, 95, 115, 140)


def text(line: Line) -> str:
    return "".join(part for part, _ in line)


def shown(view: RolloutView, width: int = 140, now: float = NOW) -> str:
    return text(row.rollout_row(view, width, now))


@pytest.mark.parametrize("width", WIDTHS)
def test_rows_are_exactly_as_wide_as_the_list(width: int) -> None:
    for view in gallery().rollouts.values():
        for cursor in (False, True):
            assert line_width(row.rollout_row(view, width, NOW, cursor=cursor, marked=cursor)) == width
    assert line_width(row.titles(width)) == width
    assert line_width(row.heading("group", width)) == width


@pytest.mark.parametrize(
    ("id", "words"),
    [
        ("a1", ["boot", "image pull 40 %", "40 s", "starting", "0:40"]),
        ("a2", ["tool", "pytest -x", "42 s", "running", "live", "3:20"]),
        ("a3", ["model", "12 s"]),
        ("a5", ["STALLED 6 m"]),
        ("a6", ["FAILING"]),
        ("e1", ["completed", "exit 0", "GONE", "1.00", "0:54"]),
        ("e2", ["declined (4)", "GONE"]),
        ("e3", ["FAILED", "HarnessError", "exit 137", "GONE"]),
        ("e4", ["stopped", "exit 143"]),
        ("l1", ["completed", "sent"]),
        ("l2", ["SURVIVED"]),
        ("q0", ["queued", "rename-module"]),
    ],
)
def test_the_words_of_a_row(id: str, words: list[str]) -> None:
    line = shown(gallery().rollouts[id])
    for word in words:
        assert word in line


@pytest.mark.parametrize("width", [24, 39, 60])
def test_narrow_rows_keep_name_and_state(width: int) -> None:
    view = gallery().rollouts["e3"]
    line = shown(view, width)
    assert "FAILED" in line
    assert "port" in line


def test_times_are_blank_for_the_queued_frozen_for_the_ended_and_never_negative() -> None:
    rollouts = gallery().rollouts
    assert ":" not in shown(rollouts["q0"])
    assert shown(rollouts["e1"], now=NOW) == shown(rollouts["e1"], now=NOW + 86_400)
    assert " 0:00" in shown(rollouts["a2"], now=T0 - 3600)


def test_which_sample_is_told_when_there_is_no_column_for_it() -> None:
    assert "add-cli-flag.1" in shown(gallery().rollouts["e4"], 50)


@pytest.mark.parametrize("size", [(38, 7), (38, 12), (60, 9), (100, 30), (20, 3), (10, 2), (5, 1)])
def test_panes_are_exactly_their_size(size: tuple[int, int]) -> None:
    width, height = size
    for view in gallery().rollouts.values():
        for focused in (False, True):
            lines = pane.pane(view, width, height, NOW, focused=focused)
            assert [line_width(line) for line in lines] == [width] * height
    assert [line_width(line) for line in pane.empty(width, height, "nothing")] == [width] * height


def block(id: str, width: int = 60, height: int = 9) -> str:
    return "\n".join(text(line) for line in pane.pane(gallery().rollouts[id], width, height, NOW))


@pytest.mark.parametrize(
    ("id", "words"),
    [
        ("a1", ["fix-off-by-one 0.0", "boot image pull 40 %", "40 s", "starting"]),
        ("a2", ["tool bash pytest -x tests/unit", "✓ bash ls -la", "0.4 s", "running · live", "3 turns"]),
        ("a3", ["» edit", "The sort is not stable"]),
        ("a4", ["✗ bash", "Hmm, the listing failed"]),
        ("a5", ["STALLED 6 m"]),
        ("e2", ["declined (4) · GONE"]),
        ("e3", ["FAILED", "HarnessError", "exit 137 killed · GONE"]),
        ("l2", ["SURVIVED", "exit 0 · SURVIVED"]),
    ],
)
def test_the_words_of_a_pane(id: str, words: list[str]) -> None:
    shown_pane = block(id)
    for word in words:
        assert word in shown_pane


def test_a_tool_call_is_shown_while_it_is_generated() -> None:
    story = Story()
    r = Rollout(story, "x", 0, "x").begin(0).run(1).say(ev.ModelCallStarted, 2, call=0)
    seen = []
    for piece in ("", '{"command": ', '"pytest', " -x", ' tests"}'):
        r.say(ev.ToolDelta, 3, call=0, index=0, name="" if seen else "bash", arguments=piece)
        view = fold(story.events).rollouts["x"]
        seen.append(text(status_line(view)))
    assert "bash" in seen[0]
    assert seen[-1].endswith("pytest -x tests")
    assert len(set(seen)) >= 4


def status_line(view: RolloutView) -> Line:
    line = pane.tool_line(view.tools[-1], 60, NOW)
    return tuple(
        (part.rstrip() if i == len(line) - 1 else part, style) for i, (part, style) in enumerate(line)
    )[:-1]


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ('{"command": "pytest -x"}', "pytest -x"),
        ('{"path": "a.py", "lines": [1, 2]}', "path=a.py lines=[1, 2]"),
        ('{"command": "echo \\"hi\\"\\nls', 'echo "hi" ls'),
        ("", ""),
        ("not json", "not json"),
        ("[1, 2]", "[1, 2]"),
        ("{" * 3000, "{" * 160),
    ],
)
def test_arguments_in_one_readable_line(given: str, line: str) -> None:
    assert status.arguments(given) == line


@pytest.mark.parametrize("size", [(39, 1), (79, 1), (80, 2), (80, 3), (120, 3), (10, 3), (10, 1)])
def test_the_header_is_exactly_its_size(size: tuple[int, int]) -> None:
    width, height = size
    for state in (gallery(), RunState()):
        lines = header.header(state, header.survey(state, NOW), width, height, NOW, note="a note")
        assert [line_width(line) for line in lines] == [width] * height


def test_what_the_header_tells() -> None:
    state = gallery()
    found = header.survey(state, NOW)
    lines = [text(line) for line in header.header(state, found, 140, 3, NOW)]
    assert "swe-small--gpt-5-mini--bash" in lines[0]
    assert "running 10:00" in lines[0]
    assert "reward 0.625 ± 0.239" in lines[0]
    assert "6/16 done" in lines[1]
    assert "7 active" in lines[1]
    assert "ETA" in lines[1]
    assert "3 unconfirmed" in lines[2]
    assert "1 stalled" in lines[2]
    assert "model 3" in lines[2]


def test_a_sandbox_that_was_only_asked_to_go_is_not_stopping_for_ever() -> None:
    story = Story()
    story.say(ev.RunStarted, 0, run="r", name="r", total=1)
    Rollout(story, "x", 0, "x").begin(1).box(1, "starting").box(1, "live").box(2, "stopping").box(3, "sent")
    state = fold(story.events)
    since = state.now
    for later, words in ((1, "stopping 1"), (60, "1 unconfirmed")):
        now = since + later
        assert words in text(header.header(state, header.survey(state, now), 140, 3, now)[2])


def test_the_bar_has_three_parts_and_no_rest() -> None:
    state = gallery()
    for cells in (6, 10, 37, 60):
        assert line_width(header.bar(state, cells)) == cells
    styles = [style for _, style in header.bar(state, 40)]
    assert styles == ["bar_done", "bar_bad", "bar_active", "bar_left"]


def test_paused_stopping_and_over_are_said() -> None:
    state = gallery()
    state.paused, state.pause_reason = True, "asked"
    assert "launching paused: asked" in text(header.header(state, header.Survey(), 140, 3, NOW)[2])
    assert header.eta(state, NOW) is None
    state.paused, state.status, state.stop_reason = False, "stopping", "ctrl+c"
    assert "stopping" in text(header.header(state, header.Survey(), 140, 3, NOW)[0])
    state.finished, state.status = NOW, "completed"
    # What was not proven gone when the engine said its last word stays in doubt.
    assert header.survey(state, NOW).unconfirmed == len(state.unconfirmed)
    assert "completed" in text(header.header(state, header.Survey(), 140, 3, NOW)[0])
    state.status, state.message, state.totals.stopped = "failed", "cannot write to /x: No space left", 4
    lines = [text(line) for line in header.header(state, header.Survey(), 140, 3, NOW)]
    assert "4 stopped" in lines[1]
    assert "cannot write to /x: No space left" in lines[2]
    assert "cannot write to /x: No sp…" in text(
        header.header(state, header.Survey(unconfirmed=3), 46, 3, NOW)[2]
    )


def test_time_left_is_a_range_that_narrows() -> None:
    state = gallery()
    low, high = header.eta(state, NOW) or (0.0, 0.0)
    assert 0 < low < high
    state.totals.completed += 3
    closer = header.eta(state, NOW) or (0.0, 0.0)
    assert closer[1] - closer[0] < high - low
    state.started = NOW + 3600
    assert header.eta(state, NOW) == (0.0, 0.0)


def test_facts_of_a_sandbox_name_every_state_with_time_and_proof() -> None:
    state = gallery()
    lines = facts.section_lines(facts.sandbox_sections(state.rollouts["e1"], state, NOW), 80)
    joined = "\n".join(text(line) for line in lines)
    for word in ("docker", "c0ffeee1", "starting", "live", "stopping", "sent", "checking", "GONE",
                 "no such container"):  # fmt: skip
        assert word in joined
    assert all(line_width(line) == 80 for line in lines)


def test_facts_of_every_rollout_fit() -> None:
    state = gallery()
    for view in state.rollouts.values():
        sections = [
            *facts.sandbox_sections(view, state, NOW), *facts.attempt_sections(view, NOW),
            *facts.score_sections(view), *facts.overview_sections(view, NOW),
        ]  # fmt: skip
        for width in (30, 80):
            assert all(line_width(line) == width for line in facts.section_lines(sections, width))
            assert line_width(facts.phase_bar(view, width, NOW)) == width


def test_sandboxes_of_earlier_attempts_stay_in_the_facts() -> None:
    state = gallery()
    sections = facts.sandbox_sections(state.rollouts["l3"], state, NOW)
    assert [s.title for s in sections] == ["sandbox of attempt 2", "states", "sandbox of attempt 1", "states"]
    joined = "\n".join(text(line) for line in facts.section_lines(sections, 80))
    assert "UNKNOWN" in joined


def test_phases_never_run_backwards() -> None:
    view = gallery().rollouts["a2"]
    assert [name for name, _, _ in facts.phases(view, NOW)] == ["boot", "setup", "running"]
    assert all(seconds >= 0 for _, _, seconds in facts.phases(view, T0 - 5000))


def test_activity_rows_and_bodies() -> None:
    view = gallery().rollouts["a2"]
    tool = view.tools[1]
    line = activity.head(tool, 100, NOW, unfolded=False)
    assert line_width(line) == 100
    assert "bash" in text(line)
    assert "cat src/retry.py" in text(line)
    assert "0.4 s" in text(line)
    body = [text(part) for part in activity.body(tool, 100)]
    assert any("command: cat src/retry.py" in part for part in body)
    assert any("def retry():" in part for part in body)


def test_a_long_result_is_cut_with_a_mark() -> None:
    lines = activity.block("\n".join(str(i) for i in range(5000)), 60)
    assert len(lines) == activity.ROWS_OF_ONE + 1
    assert "4,600 more lines" in text(lines[-1])


@pytest.mark.parametrize("width", [10, 20, 40, 80])
def test_the_key_bar_keeps_whole_hints_and_help(width: int) -> None:
    keys = [("x", "stop", True), ("X", "confirm-stop", True), ("r", "restart", False), ("?", "help", True)]
    line = bars.key_bar(keys, width)
    assert line_width(line) == width
    assert "? help" in text(line)
    assert "…" not in text(line)


def test_ascii_has_nothing_else() -> None:
    glyphs.use(glyphs.ASCII)
    try:
        state = gallery()
        lines = header.header(state, header.survey(state, NOW), 120, 3, NOW)
        for id, view in state.rollouts.items():
            if id != "a4":  # its name is not ASCII
                lines += [row.rollout_row(view, 120, NOW, cursor=True, marked=True)]
                lines += pane.pane(view, 40, 8, NOW, focused=True)
        lines += facts.section_lines(facts.overview_sections(state.rollouts["e1"], NOW), 60)
        for line in lines:
            assert text(line).isascii(), text(line)
    finally:
        glyphs.use(None)


@pytest.mark.parametrize("executed", [True, False])
@pytest.mark.parametrize("attack", list(hostile()))
def test_hostile_text_leaves_nothing_but_text(attack: str, executed: bool) -> None:
    """U01, U02: in every field that comes from outside. Of what is executed nothing is hidden, payloads neither."""
    arguments = attack if executed else ""
    story = Story()
    story.say(ev.RunStarted, 0, run=attack, name=attack, total=1)
    r = Rollout(story, "x", 0, attack).begin(1).box(1, "starting", detail=attack).run(2)
    r.say(ev.ModelCallStarted, 3, call=0).say(ev.TextDelta, 4, call=0, text=attack)
    r.say(ev.ToolDelta, 4, call=0, index=0, name=attack, arguments=arguments)
    lines = drawn(fold(story.events))
    r.say(ev.ModelCallFinished, 5, call=0, text=attack)
    r.say(ev.ToolCalled, 5, call=0, id=attack, name=attack, arguments=arguments, server=attack)
    r.say(ev.ToolReturned, 6, id=attack, result=attack, failed=True)
    r.exit(7, 1, attack, "failed").say(ev.ErrorRaised, 7, kind=attack, message=attack)
    lines += drawn(fold(story.events))
    r.end(8, "error", 0.0, error_type=attack, error=attack, stop_condition=attack)
    story.say(ev.RunLaunching, 9, paused=True, concurrency=1, reason=attack)
    lines += drawn(fold(story.events))
    for line in lines:
        for part, _ in line:
            assert not any(ord(ch) < 32 or 127 <= ord(ch) < 160 for ch in part), repr(part)
            assert not set(part) & set("\u202e\u200d\u2028\ud800")
            assert executed or not ("owned" in part or "b3duZWQ" in part)


def drawn(state: RunState) -> list[Line]:
    view = state.rollouts["x"]
    out = [row.rollout_row(view, width, NOW) for width in (40, 130)]
    out += pane.pane(view, 50, 12, NOW)
    out += header.header(state, header.survey(state, NOW), 120, 3, NOW)
    for tool in view.tools:
        out += [activity.head(tool, 90, NOW, unfolded=True), *activity.body(tool, 90)]
    sections = [
        *facts.sandbox_sections(view, state, NOW), *facts.attempt_sections(view, NOW),
        *facts.score_sections(view), *facts.overview_sections(view, NOW),
    ]  # fmt: skip
    return [*out, *facts.section_lines(sections, 90), bars.notice(state.name, "error", 80)]
