"""`--scripted [SCENARIO]`: a run whose model is the scripted one instead of the provider's."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from vf_core.errors import ConfigError

if TYPE_CHECKING:
    from vf_core.eval_config import EvalConfig
    from vf_core.runs.layout import RunDir

NOWHERE = "http://127.0.0.1:1/v1"
"""Stands for the scripted model's address until it is up."""


def scripted_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """The option; it arrives as `scripted`: None, "" for the bundled scenario, or a scenario file."""
    return click.option(
        "--scripted",
        is_flag=False,
        flag_value="",
        metavar="[SCENARIO]",
        help="Use the scripted model instead of the provider: the bundled scenario, or a TOML file.",
    )(command)


def is_config(path: str) -> bool:
    """`path` is an eval config rather than a scenario: it followed an option that may stand alone."""
    from vf_core.config.load import load_toml

    try:
        tables = load_toml(Path(path))
    except ConfigError:
        return False
    return "rule" not in tables and ("env" in tables or "taskset" in tables)


def scripted_model(scenario: str, given: str) -> str:
    """The model id for a run of `scenario` whose config names the model `given`."""
    from vf_core.scripted.scenario import DEMO, PREFIX, load_scenario

    known = load_scenario(Path(scenario) if scenario else DEMO).model
    return given if given.startswith(PREFIX) else known


def with_scripted(
    config: EvalConfig, scenario: str
) -> tuple[EvalConfig, Callable[[EvalConfig, RunDir], EvalConfig]]:
    """`config` with the scripted model that `scenario` describes, and what starts that model once the run has a
    directory: it lives as long as the run's engine. Raises `ConfigError` for a scenario that can't be read."""
    model = scripted_model(scenario, config.model)
    # Nothing that was meant for the provider goes to another.
    client = config.client.model_copy(update={"base_url": NOWHERE, "headers": {}})
    path = Path(scenario).absolute() if scenario else None
    return config.with_model(model, client), lambda ready, place: serve(ready, place, path)


def serve(config: EvalConfig, run_dir: RunDir, scenario: Path | None = None) -> EvalConfig:
    """`config` with the address of a scripted model, started for the run in `run_dir`."""
    from vf_tui.demo_model import start_model

    if config.client.base_url != NOWHERE:
        return config
    client = config.client.model_copy(update={"base_url": start_model(run_dir.path, scenario)})
    return config.model_copy(update={"client": client})
