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
from vf_core.config.load import COMMAND_LINE, Override, is_index
from vf_core.errors import ConfigError, PluginError
from vf_core.plugins import Kind, config_class, load_class
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
            if where == at[: len(where)] and (value := dig(option.value, at[len(where) :])) is not None:
                return value, COMMAND_LINE, option.written
        return self._in_file(at)

    def _in_file(self, at: KeyPath) -> tuple[Any, Path | str | None, str]:
        places = (at[:n] for n in range(len(at) - 1, 0, -1))
        moved = next((place for place in places if place in self.moved), ())
        key = f"{self.moved[moved]}.{dotted(at[len(moved) :])}" if moved else dotted(at)
        return dig(self.tables, at), self.file, key

    def entries(self, at: KeyPath) -> list[Entry]:
        """What stands in the list at `at`, file and options together; empty when there is no list.

        Raises `ConfigError` for an option about an entry that is not there.
        """
        entries = _listed(*self._in_file(at))
        for option, where in self.options:
            if where == at[: len(where)] and (value := dig(option.value, at[len(where) :])) is not None:
                entries = _listed(value, COMMAND_LINE, option.written)
            elif where[: len(at)] == at and len(where) > len(at):
                number, below = where[len(at)], where[len(at) + 1 :]
                if not is_index(number, entries):
                    count = (
                        f"it has {len(entries)}, counted from 0"
                        if entries
                        else "no file has it: give it whole"
                    )
                    raise ConfigError(
                        "no such entry of the list", file=COMMAND_LINE, key=option.written, hint=count
                    )
                if below in ((), ("id",)):
                    value = {"id": option.value} if below else option.value
                    written = option.written.removesuffix(".id")
                    entries[int(number)] = Entry(value, COMMAND_LINE, written)
        return entries


@dataclass(frozen=True)
class Entry:
    """An entry of a list, with the file it is in and its key as written there."""

    value: Any
    file: Path | str | None
    key: str


def _listed(found: Any, file: Path | str | None, key: str) -> list[Entry]:
    values = found if isinstance(found, list) else []
    return [Entry(value, file, f"{key}[{i}]") for i, value in enumerate(values)]


def dig(data: Any, at: KeyPath) -> Any:
    """The value at `at` in tables and lists; None when there is none."""
    for part in at:
        if isinstance(data, list):
            data = data[int(part)] if is_index(part, data) else None
        else:
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
        out[at] = _class_of(kind, DEFAULT_HARNESS if id is None else id, file, key)
    out = _judges(written) | out
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


def _judges(written: Written) -> dict[KeyPath, type[StrictModel]]:
    """The config classes of the judges in the list, by place."""
    if (found := written.choice(JUDGES))[0] is not None and not isinstance(found[0], list):
        raise ConfigError(
            "expected a list of tables" + (", got a table" if isinstance(found[0], Mapping) else ""),
            file=found[1],
            key=found[2],
            hint=f"write each judge under [[{found[2].removeprefix('--')}]]",
        )
    out: dict[KeyPath, type[StrictModel]] = {}
    for number, entry in enumerate(written.entries(JUDGES)):
        if not isinstance(entry.value, Mapping):
            raise ConfigError(
                "expected a table",
                file=entry.file,
                key=entry.key,
                hint='such as { id = "reference", model = "…" }',
            )
        id, key = entry.value.get("id"), f"{entry.key}.id"
        if not isinstance(id, str) or not id:
            raise ConfigError(
                "is required",
                file=entry.file,
                key=key,
                hint="which judge: reference, rubric, or an installed one",
            )
        out[(*JUDGES, str(number))] = _class_of("judge", id, entry.file, key)
    return out


def _class_of(kind: Kind, id: str, file: Path | str | None, key: str) -> type[StrictModel]:
    try:
        return config_class(load_class(kind, id))
    except PluginError as e:
        where = f" [{e.file}]" if e.file else ""
        raise PluginError(f"{e.message}{where}", file=file, key=key, hint=e.hint) from e


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
        parent = _holder(fitted, at)
        key: Any = int(at[-1]) if isinstance(parent, list) else at[-1]
        table = parent[key] if isinstance(parent, list) else (parent or {}).get(key, {})
        if parent is None or not isinstance(table, dict):
            continue  # validation of the whole says that a table is expected
        model, table = fitter.narrow[at], {**default, **table}
        fitter.default_paths(table, at, base_dir)
        try:
            parent[key] = model.model_validate(table)
        except ValidationError as e:
            problems += problems_of(e, model, table, at=at, root=root, narrow=fitter.narrow)
            parent[key] = model.model_construct()
    return problems


def _holder(fitted: dict[str, Any], at: KeyPath) -> dict[str, Any] | list[Any] | None:
    """The table or the list that the value at `at` stands in, tables made on the way; None when there is neither."""
    parent: Any = fitted
    for part in at[:-1]:
        if isinstance(parent, list):
            parent = parent[int(part)] if is_index(part, parent) else None
        elif isinstance(parent, dict):
            parent = parent.setdefault(part, {})
        else:
            return None
    if isinstance(parent, list):
        return parent if is_index(at[-1], parent) else None
    return parent if isinstance(parent, dict) else None
