"""A model that answers nothing: its rollouts end well, with an empty answer, and are drawn (H07)."""

from __future__ import annotations

import json
from pathlib import Path

from doubles.engine_kit import run_whole
from vf_core.eval_config import EvalConfig
from vf_core.scripted.scenario import Scenario
from vf_core.scripted.server import ScriptedServer
from vf_tui.render.line import Line, line_width
from vf_tui.render.pane import pane
from vf_tui.render.row import rollout_row
from vf_tui.render.transcript import transcript

CALL = {"calls": [{"name": "bash", "arguments": {"command": "echo called"}}]}
ANSWERS: dict[str, list[dict[str, object]]] = {
    "null": [{}],
    "empty": [{"text": ""}],
    "white": [{"text": " \n\t"}],
    "reasons": [{"reasoning": "hmm"}],
    "calls": [CALL, {}],
}


def text(lines: list[Line]) -> str:
    return "\n".join("".join(part for part, _ in line) for line in lines)


async def test_answers_without_text_end_well_and_are_drawn(tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text("\n".join(json.dumps({"prompt": name, "answer": "x"}) for name in ANSWERS))
    rules = [{"name": name, "task": f"^{name}$", "step": steps} for name, steps in ANSWERS.items()]
    plan = Scenario.model_validate({"rule": rules})
    async with ScriptedServer(plan) as server:
        env = {
            "taskset": {"id": "jsonl", "path": str(rows)},
            "agent": {"harness": {"id": "bash", "stream": False}},
        }
        data = {"model": "scripted", "output_dir": str(tmp_path), "client": {"base_url": server.base_url}}
        kit, code = await run_whole(EvalConfig.from_dict({**data, "env": env}))
    views = {view.task: view for view in kit.state.rollouts.values()}
    records = {record["info"]["vf_tui"]["position"]: record for record in kit.records()}
    assert code == 0
    for number, name in enumerate(ANSWERS):
        view, record = views[number], records[number]
        assert (view.status, view.stop_condition, view.reward) == ("completed", "agent_completed", 0.0), name
        shown = pane(view, 60, 9, view.ended or 0.0)
        assert [line_width(line) for line in shown] == [60] * 9
        assert "exit 0" in text(shown), name
        assert line_width(rollout_row(view, 80, view.ended or 0.0)) == 80
        assert text(transcript(record)).count("assistant") == len(ANSWERS[name])
    assert "hmm" in text(transcript(records[3]))
    assert "echo called" in text(pane(views[4], 60, 9, views[4].ended or 0.0))
