"""The later layout of verifiers: an episode a line, agents with a config, rewards with weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from doubles.traces import agent_loop
from vf_core.trace.reader import ReadRecord, TraceIndex, read_records
from vf_core.trace.record import Trace


def later_trace(ident: str, agent: str) -> dict[str, Any]:
    old = agent_loop(turns=1).to_record()
    return {
        "version": 1,
        "id": ident,
        "verifiers": {"version": "0.4.0"},
        "task": {"type": "T", "data": {"idx": 3, "prompt": "p", "answer": "4"}, "hash": "h"},
        "agent": {
            "config": {
                "harness": {"id": "bash", "edit": True, "env": {}},
                "runtime": {"type": "prime"},
                "model": "m",
                "sampling": {"temperature": 1.0},
                "timeout": {},
            },
            "runtime": {"type": "subprocess", "id": "/tmp/x"},
            "name": agent,
            "trainable": True,
        },
        "tools": [{"type": "function", "name": "bash", "description": "", "parameters": {}}],
        "nodes": old["nodes"],
        "calls": old["calls"],
        "rewards": {"match": {"score": 0.5, "weight": 2.0}, "style": {"score": 1.0}, "judge": None},
        "metrics": {"turns": 2.0, "unknown": None},
        "info": {"mine": 1},
        "is_completed": True,
        "ok": True,
        "timing": {"start": 1.0, "agent": {"start": 2.0, "end": 5.0, "model": {"duration": 1.0}}},
        "num_input_tokens": 7,
        "num_output_tokens": 8,
        "num_total_tokens": 15,
    }


def episode(ident: str, *traces: dict[str, Any]) -> dict[str, Any]:
    return {
        "id": ident,
        "env": {"id": "gsm8k"},
        "task": {"type": "T", "data": {"idx": 3, "prompt": "p"}},
        "run": {"type": "eval", "id": "run-1", "name": "nightly"},
        "ok": True,
        "errors": [],
        "traces": list(traces),
    }


def test_a_later_trace_under_this_layouts_names() -> None:
    trace = Trace.from_record(later_trace("t1", "solver"))
    assert trace.agent is not None
    assert trace.agent.harness is not None
    assert (trace.agent.model, trace.agent.harness.id) == ("m", "bash")
    assert trace.runtime == {"type": "subprocess", "id": "/tmp/x"}
    assert trace.rewards == {"match": 1.0, "style": 1.0}
    assert (trace.reward, trace.metrics) == (2.0, {"turns": 2.0})
    assert trace.timing.generation.duration == 3.0
    assert trace.task.data.answer == "4"
    assert (trace.num_turns, trace.num_total_tokens) == (2, 155)
    dumped = trace.model_dump()
    assert dumped["ok"] is True
    assert dumped["agent"]["name"] == "solver"
    assert dumped["reward_scores"]["judge"] is None
    assert Trace.from_record(json.loads(json.dumps(trace.to_record()))).to_record() == trace.to_record()


def test_episode_lines_give_their_traces(tmp_path: Path) -> None:
    path = tmp_path / "traces.jsonl"
    lines = [
        episode("e1", later_trace("t1", "solver"), later_trace("t2", "judge")),
        agent_loop(turns=1).to_record(),
        episode("e2"),
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    read = list(read_records(path))
    assert all(isinstance(entry, ReadRecord) for entry in read)
    records = [entry for entry in read if isinstance(entry, ReadRecord)]
    assert [(entry.line, entry.record["id"]) for entry in records][:2] == [(1, "t1"), (1, "t2")]
    assert len(records) == 3
    second = records[1].trace()
    assert second.extra["episode"] == {
        "id": "e1",
        "env": {"id": "gsm8k"},
        "ok": True,
        "errors": [],
        "position": 1,
    }
    assert second.info["mine"] == 1
    assert second.run is not None
    assert second.run.id == "run-1"
    index = TraceIndex(path)
    assert (index.get("t2") or {})["agent"]["name"] == "judge"
    assert [len(index.records(i)) for i in range(3)] == [2, 1, 0]
