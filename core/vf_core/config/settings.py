"""The user's settings of the app itself: `config.toml` in the config directory, and a few variables."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError

from vf_core.config.base import StrictModel
from vf_core.config.explain import explain
from vf_core.config.load import load_toml
from vf_core.config.paths import config_dir
from vf_core.errors import ConfigError

_VARIABLES = {"theme": "VF_TUI_THEME", "slow": "VF_TUI_SLOW", "ascii": "VF_TUI_ASCII"}


class Settings(StrictModel):
    """What the user set; None: decided from the terminal when the app starts."""

    theme: str = Field("dark", min_length=1)
    """Name of a theme that ships, or of a file in `themes/` of the config directory."""
    slow: bool | None = None
    """At most 4 repaints a second and no animation. None: on over SSH."""
    bell: bool = True
    """Ring (bell and OSC 9) when a run that is watched finishes."""
    mouse: bool = True
    stall_seconds: float = Field(120.0, gt=0)
    """Seconds without output or model call after which a rollout counts as stalled."""
    ascii: bool | None = None
    """ASCII borders and marks. None: where the locale is not UTF-8."""


def settings_file() -> Path:
    """Where `load_settings` reads; the file need not exist."""
    return config_dir() / "config.toml"


def load_settings(file: Path | None = None, environ: Mapping[str, str] | None = None) -> Settings:
    """The settings of `file` (default: the user's own; a missing one sets nothing), variables laid over it.

    Raises `ConfigError` for unknown keys and unfit values.
    """
    return load_settings_and_sources(file, environ)[0]


def load_settings_and_sources(
    file: Path | None = None, environ: Mapping[str, str] | None = None
) -> tuple[Settings, dict[str, str]]:
    """As `load_settings`, and for each setting where it comes from: `default`, the file, or `$VARIABLE`."""
    file = settings_file() if file is None else file
    environ = os.environ if environ is None else environ
    data: dict[str, Any] = load_toml(file) if file.exists() else {}
    sources = {name: str(file) if name in data else "default" for name in Settings.model_fields}
    _validate(data, file)
    for name, variable in _VARIABLES.items():
        value = environ.get(variable, "")
        if value:
            data[name] = value
            sources[name] = f"${variable}"
            _validate({name: value}, f"${variable}")
    return _validate(data, file), sources


def _validate(data: dict[str, Any], file: Path | str) -> Settings:
    try:
        return Settings.model_validate(data)
    except ValidationError as e:
        error: ConfigError = explain(e, Settings, file, data)
        raise error from e
