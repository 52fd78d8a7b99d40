"""What a run is, as its `config.toml` says: enough for a list, without reading the config for real."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vf_core.runs.layout import open_regular


@dataclass(frozen=True, slots=True)
class Outline:
    """What a run's config says it is; empty or 0 where it does not. `total` counts rollouts."""

    name: str
    model: str = ""
    taskset: str = ""
    harness: str = ""
    runtime: str = ""
    total: int = 0


def outline(run_dir: Path) -> Outline:
    """What the config in `run_dir` says, in the current or the older layout."""
    name = run_dir.absolute().parent.name
    try:
        with open_regular(run_dir / "config.toml") as file:
            config: Any = tomllib.load(file)
    except (OSError, ValueError):
        return Outline(name)
    env = _map(config.get("env"))
    agent = _map(env.get("agent"))
    harness = _map(agent.get("harness")) or _map(config.get("harness"))
    runtime = _map(agent.get("runtime")) or _map(harness.get("runtime"))
    tasks = _first_int(config, "num_tasks", "n", "num_examples", "batch_size")
    samples = _first_int(config, "num_rollouts", "r", "rollouts_per_example", "group_size") or 1
    return Outline(
        name,
        model=_text(config.get("model")),
        taskset=_text((_map(env.get("taskset")) or _map(config.get("taskset"))).get("id")),
        harness=_text(harness.get("id")),
        runtime=_text(runtime.get("type")),
        total=tasks * samples,
    )


def _map(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _first_int(config: Mapping[str, Any], *names: str) -> int:
    values = (config.get(name) for name in names)
    return next((n for n in values if isinstance(n, int) and not isinstance(n, bool)), 0)
