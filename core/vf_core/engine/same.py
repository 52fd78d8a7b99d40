"""The config of a run that is taken up: the saved one, ours or verifiers', and what may differ from it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from vf_core.config.base import KeyPath
from vf_core.config.explain import dotted
from vf_core.config.fit import LEFT_OUT
from vf_core.config.load import load_toml
from vf_core.errors import ConfigError, RunDirError
from vf_core.eval_config import EvalConfig
from vf_core.runs.layout import RunDir
from vf_core.text import one_line

FREE: tuple[KeyPath, ...] = (
    ("max_concurrent",),
    ("output_dir",),
    ("max_errors",),
    ("retries",),
    ("client", "api_key_var"),
)
"""Settings that change nothing of a rollout's result."""

_VERIFIERS = (
    "uuid",
    "verbose",
    "dry_run",
    "rich",
    "server",
    "push",
    "resume",
    "pool",
    "args",
    "extra_env_kwargs",
)
_VERIFIERS_CLIENT = ("type", "renderer", "pool_size", "renderer_model_name")
# Looks like a credential, so that it is left out again wherever the value that it stands for was.
_STAND_IN = "sk-left-out-00000000"
_SHOWN = 60


def config_to_resume(
    run_dir: RunDir, file: Path | None = None, overrides: Sequence[str] = ()
) -> tuple[EvalConfig, list[str]]:
    """The config to go on with: `file` (None: the saved one) with `overrides`; and the lines that say how it differs
    from the saved one in what must not differ.

    Raises `ConfigError`; `RunDirError` where nothing was saved and no file is given.
    """
    saved = saved_tables(run_dir)
    if file is not None:
        given = EvalConfig.load(file, overrides)
    elif saved is not None:
        given = EvalConfig.from_dict(saved, file=run_dir.config, overrides=overrides)
    else:
        raise RunDirError(
            f"{run_dir.path} has no config.toml, so what it ran is not known",
            hint="give the config after the directory: vf-tui resume DIR CONFIG",
        )
    if saved is None or (file is None and not overrides):
        return given, []
    before = EvalConfig.from_dict(_stood_in(saved), file=run_dir.config)
    return given, [_line(*change) for change in differences(before, given)]


def saved_tables(run_dir: RunDir) -> dict[str, Any] | None:
    """What `config.toml` of a run holds, without what only verifiers has; None when there is none.

    Raises `ConfigError` for one that can't be read, or is of a run that is not possible here.
    """
    if not run_dir.config.exists():
        return None
    tables = {key: value for key, value in load_toml(run_dir.config).items() if key not in _VERIFIERS}
    if isinstance(tables.get("id"), str) and not tables.get("taskset"):
        raise ConfigError(
            "a classic environment (verifiers v0) can't be run here", file=run_dir.config, key="id"
        )
    tables.pop("id", None)
    client = tables.get("client")
    if isinstance(client, Mapping):
        if client.get("type", "eval") != "eval":
            raise ConfigError("a training client can't be used here", file=run_dir.config, key="client.type")
        tables["client"] = {key: value for key, value in client.items() if key not in _VERIFIERS_CLIENT}
    return tables


def differences(before: EvalConfig, after: EvalConfig) -> Iterator[tuple[KeyPath, Any, Any]]:
    """What of two configs differs and must not: the place and both values, None where there is none. Where a secret
    comes from is no difference."""
    old, new = dict(_leaves(before.public_dict())), dict(_leaves(after.public_dict()))
    for at in dict.fromkeys((*old, *new)):
        was, now = old.get(at), new.get(at)
        if (
            was != now
            and not any(at[: len(free)] == free for free in FREE)
            and not (_secret(was) and _secret(now))
        ):
            yield at, was, now


def _leaves(value: Any, at: KeyPath = ()) -> Iterator[tuple[KeyPath, Any]]:
    if isinstance(value, Mapping) and not _secret(value):
        for key, inner in value.items():
            yield from _leaves(inner, (*at, key))
    else:
        yield at, value


def _secret(value: Any) -> bool:
    return isinstance(value, Mapping) and list(value) == ["env"] and isinstance(value["env"], str)


def _stood_in(value: Any) -> Any:
    """Tables in which something stands where a secret was left out: the saved config is only compared."""
    if _secret(value):
        return _STAND_IN if value["env"].startswith(LEFT_OUT) else value
    if isinstance(value, Mapping):
        return {key: _stood_in(inner) for key, inner in value.items()}
    return [_stood_in(inner) for inner in value] if isinstance(value, list) else value


def _line(at: KeyPath, was: Any, now: Any) -> str:
    return f"{dotted(at)}: {_shown(was)} -> {_shown(now)}"


def _shown(value: Any) -> str:
    if value is None:
        return "(not set)"
    if _secret(value):
        return f"${value['env']}"
    return one_line(json.dumps(value, ensure_ascii=False, default=str), limit=_SHOWN)
