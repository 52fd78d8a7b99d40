"""What a config's own words choose: the classes of its taskset, harness, runtime, tunnel and judges.

Plugins' tables are checked by their own classes, whose place in the config's tree depends on the ids in it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import ValidationError

from vf_core.config.base import KeyPath, StrictModel
from vf_core.config.explain import Problem, dotted, nearest, problems_of
from vf_core.config.fit import Fitter
from vf_core.config.interception import TUNNELS, CustomTunnelConfig
from vf_core.config.load import COMMAND_LINE, Override
from vf_core.errors import ConfigError, PluginError
from vf_core.plugins import config_class, load_class
from vf_core.runtimes import RUNTIMES, runtime_config_class

TASKSET: KeyPath = ("env", "taskset")
HARNESS: KeyPath = ("env", "agent", "harness")
RUNTIME: KeyPath = ("env", "agent", "runtime")
TUNNEL: KeyPath = ("env", "interception", "tunnel")
JUDGES: KeyPath = (*TASKSET, "task", "judges")

DEFAULT_HARNESS = "bash"
DEFAULT_RUNTIME = "subprocess"


@dataclass(frozen=True)
class Written:
    """What the user wrote: the file's tables and the options, all placed in the canonical layout."""

    tables: Mapping[str, Any]
    moved: Mapping[KeyPath, str]
    file: Path | str | None
    options: Sequence[tuple[Override, KeyPath]]

    def choice(self, at: KeyPath) -> tuple[Any, Path | str | None, str]:
        """The value that counts at `at` (None: not given), the file it is in and its key as written there."""
        for option, where in reversed(self.options):
            if where == at[: len(where)] and (value := _dig(option.value, at[len(where) :])) is not None:
                return value, COMMAND_LINE, option.written
        places = (at[:n] for n in range(len(at) - 1, 0, -1))
        moved = next((place for place in places if place in self.moved), ())
        key = f"{self.moved[moved]}.{dotted(at[len(moved) :])}" if moved else dotted(at)
        return _dig(self.tables, at), self.file, key


def _dig(data: Any, at: KeyPath) -> Any:
    for part in at:
        data = data.get(part) if isinstance(data, Mapping) else None
    return data


def narrow(written: Written) -> dict[KeyPath, type[StrictModel]]:
    """The config classes of the chosen taskset, harness and runtime. Raises `ConfigError` when one is not there."""
    out: dict[KeyPath, type[StrictModel]] = {}
    chosen: tuple[tuple[Literal["taskset", "harness"], KeyPath], ...] = (
        ("taskset", TASKSET),
        ("harness", HARNESS),
    )
    for kind, at in chosen:
        id, file, key = written.choice((*at, "id"))
        if id is None and not isinstance(table := written.choice(at)[0], Mapping | None):
            raise ConfigError(
                f"expected a table, got {table!r}",
                file=file,
                key=key.removesuffix(".id"),
                hint='such as { id = "…" }',
            )
        if id is None and kind == "taskset":
            raise ConfigError(
                "is required", file=file, key=key, hint='the tasks to run, such as id = "jsonl"'
            )
        if not isinstance(id, str | None):
            raise ConfigError("expected text: the id of a plugin", file=file, key=key)
        try:
            out[at] = config_class(load_class(kind, DEFAULT_HARNESS if id is None else id))
        except PluginError as e:
            where = f" [{e.file}]" if e.file else ""
            raise PluginError(f"{e.message}{where}", file=file, key=key, hint=e.hint) from e
    out[RUNTIME] = runtime_config_class(_type(written, RUNTIME, "runtime", RUNTIMES) or DEFAULT_RUNTIME)
    if (tunnel := _type(written, TUNNEL, "tunnel", TUNNELS)) is not None:
        out[TUNNEL] = TUNNELS[tunnel]
    else:
        for name in CustomTunnelConfig.model_fields:
            value, file, key = written.choice((*TUNNEL, name))
            if value is not None:
                hint = f"one of: {', '.join(TUNNELS)}"
                raise ConfigError("the tunnel needs a type, too", file=file, key=key, hint=hint)
    return out


def _type(written: Written, at: KeyPath, what: str, known: Mapping[str, Any]) -> str | None:
    """The `type` of the table at `at`; None when it gives none. Raises `ConfigError` for one that is not known."""
    kind, file, key = written.choice((*at, "type"))
    if kind is not None and kind not in list(known):
        near = nearest(kind, known) if isinstance(kind, str) else None
        available = f"available: {', '.join(known)}"
        hint = near and f"did you mean {near}?"
        raise ConfigError(f"there is no {what} {kind!r}; {available}", file=file, key=key, hint=hint)
    return None if kind is None else str(kind)


def validate_tables(
    root: type[StrictModel], fitter: Fitter, fitted: dict[str, Any], base_dir: Path
) -> list[Problem]:
    """Replace plugins' tables in `fitted` by models of their own classes; the problems found."""
    problems: list[Problem] = []
    defaults: dict[KeyPath, dict[str, Any]] = {
        TASKSET: {},
        HARNESS: {"id": DEFAULT_HARNESS},
        RUNTIME: {"type": DEFAULT_RUNTIME},
    }
    for at in fitter.narrow:
        default = defaults.get(at, {})
        parent: Any = fitted
        for part in at[:-1]:
            parent = parent.setdefault(part, {}) if isinstance(parent, dict) else None
        table = parent.get(at[-1], {}) if isinstance(parent, dict) else None
        if not isinstance(parent, dict) or not isinstance(table, dict):
            continue  # validation of the whole says that a table is expected
        model, table = fitter.narrow[at], {**default, **table}
        fitter.default_paths(table, at, base_dir)
        try:
            parent[at[-1]] = model.model_validate(table)
        except ValidationError as e:
            problems += problems_of(e, model, table, at=at, root=root, narrow=fitter.narrow)
            parent[at[-1]] = model.model_construct()
    return problems
