"""An agent that declined its task has neither succeeded nor failed, wherever its rollout is told of."""

from __future__ import annotations

from pathlib import Path

from doubles.screen_states import NOW, gallery
from vf_core.events import types as ev
from vf_core.runs.engine_file import standing_of
from vf_core.runs.find import RunSummary
from vf_tui.attention import attention
from vf_tui.commands.facts import _run_row, summary_facts
from vf_tui.facts import rollout_facts, run_facts
from vf_tui.filter import parse
from vf_tui.notable import note_of
from vf_tui.render.header import header, survey
from vf_tui.render.line import Line
from vf_tui.render.runs import run_row, run_sections, titles


def text(line: Line) -> str:
    """A line without its styles."""
    return "".join(part for part, _ in line)


def test_the_header_counts_it_apart() -> None:
    state = gallery()
    assert (state.totals.declined, state.totals.error) == (1, 1)
    for cells in (120, 80):
        counts = text(header(state, survey(state, NOW), cells, 3, NOW)[1])
        assert "1 failed  1 declined" in counts


def test_the_filter_finds_it_and_attention_does_not() -> None:
    state = gallery()
    for filter in ("declined", "status:declined", "exit:declined"):
        assert [r.id for r in state.rollouts.values() if parse(filter)(r)] == ["e2"], filter
    assert "e2" not in [r.id for r in state.rollouts.values() if parse("status:error,completed")(r)]
    assert attention(state.rollouts["e2"], NOW) == ""


def test_a_line_is_worth_it_and_it_is_no_error() -> None:
    note = note_of(ev.AttemptFinished(rollout="r", attempt=2, outcome="declined", t=3.0))
    assert note is not None
    assert (note.level, note.text) == ("info", "attempt 2 declined")


def test_the_list_of_runs_counts_it_apart() -> None:
    run = RunSummary(Path("/r"), "r", "n", "vf-tui", "dead", 1.0, standing=standing_of(gallery()))
    wide = {title: run_row_cell(run, title) for title in ("failed", "declined")}
    assert wide["declined"] == "1"
    assert wide["failed"].endswith("%")
    section = str(dict(run_sections(run, NOW)[0].rows)["rollouts"])
    assert section.endswith("1 failed, 1 declined")


def run_row_cell(run: RunSummary, title: str) -> str:
    """What stands under a title in a list with room for all."""
    head, row = text(titles(200)), text(run_row(run, 200, NOW))
    end = head.index(title) + len(title)
    return row[end - 8 : end].strip()


def test_scripts_get_its_count_and_its_code() -> None:
    state = gallery()
    assert run_facts(state)["counts"]["declined"] == 1
    facts = rollout_facts(state.rollouts["e2"])
    assert (facts["status"], facts["exit_code"], facts["exit_meaning"]) == ("declined", 4, "declined (4)")
    assert facts["error_type"] == ""
    run = RunSummary(Path("/r"), "r", "n", "vf-tui", "dead", 1.0, standing=standing_of(state))
    assert (summary_facts(run)["declined"], summary_facts(run)["errors"]) == (1, 1)
    assert _run_row(run)[5:7] == ("1", "1")
