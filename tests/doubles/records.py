"""Trace records as verifiers writes them, for whoever reads its directories."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def record(index: int = 0, *, name: str | None = "sum", turns: int = 1, **changes: Any) -> dict[str, Any]:
    """A finished rollout of the task at `index`: `turns` turns with a tool call each, then an answer."""
    start = 1_700_000_000.0 + index
    nodes: list[dict[str, Any]] = [
        {"message": {"role": "user", "content": "add it up"}, "sampled": False, "timestamp": start}
    ]
    calls: list[dict[str, Any]] = []

    def answered(message: dict[str, Any], reason: str) -> None:
        t = start + len(nodes)
        nodes.append(
            {
                "parent": len(nodes) - 1,
                "message": {"role": "assistant", **message},
                "sampled": True,
                "timestamp": t,
            }
        )
        calls.append(
            {
                "node": len(nodes) - 1,
                "model": "m",
                "endpoint": "/chat/completions",
                "finish_reason": reason,
                "usage": {"prompt_tokens": 100, "completion_tokens": 10, "cached_input_tokens": 5},
                "time": {"start": t - 0.5, "end": t},
            }
        )

    for turn in range(turns):
        id = f"call_{turn}"
        answered({"tool_calls": [{"id": id, "name": "bash", "arguments": '{"command": "ls"}'}]}, "tool_calls")
        result = {"role": "tool", "tool_call_id": id, "content": [{"type": "text", "text": f"out {turn}"}]}
        nodes.append(
            {"parent": len(nodes) - 1, "message": result, "sampled": False, "timestamp": start + len(nodes)}
        )
    answered({"content": "42"}, "stop")
    data: dict[str, Any] = {"idx": index, "prompt": "add it up"}
    if name is not None:
        data["name"] = name
    return {
        "id": f"trace{index}",
        "task": {"type": "AddTask", "data": data},
        "runtime": {"type": "docker", "id": "abc", "image": "python"},
        "version": 2,
        "agent": {"model": "m"},
        "nodes": nodes,
        "calls": calls,
        "rewards": {"exact": 1.0},
        "metrics": {"num_turns": float(turns)},
        "info": {},
        "is_completed": True,
        "stop_condition": "agent_completed",
        "errors": [],
        "timing": {
            "start": start,
            "boot": {"start": start, "end": start + 0.1},
            "generation": {"start": start + 0.1, "end": start + 90},
            "scoring": {"start": start + 90, "end": start + 91},
        },
        **changes,
    }


CONFIG = """
model = "org/model"
num_tasks = 3
num_rollouts = 2
[env.taskset]
id = "gsm8k"
[env.agent.harness]
id = "bash"
[env.agent.runtime]
type = "docker"
"""


def verifiers_run(run_dir: Path, *records: dict[str, Any], config: str = CONFIG) -> Path:
    """A run directory as verifiers leaves it."""
    run_dir.mkdir(parents=True, exist_ok=True)
    (run_dir / "config.toml").write_text(config)
    append(run_dir, *records)
    return run_dir


def append(run_dir: Path, *records: dict[str, Any]) -> None:
    """More finished rollouts."""
    with (run_dir / "traces.jsonl").open("a") as file:
        for item in records:
            file.write(json.dumps(item, ensure_ascii=False) + "\n")
