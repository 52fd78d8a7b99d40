"""Fitting what a user wrote to the models it will be validated by.

Aliases become field names, so that files and options can be laid over each other; relative paths become absolute;
`{ env = "VAR" }` becomes the variable's value. What does not fit is left for validation to refuse; where
everything came from is remembered for its messages.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel

from vf_core.config.base import KeyPath, Narrow, alternatives, item_of, spellings, submodel
from vf_core.config.explain import Problem, dotted
from vf_core.config.load import COMMAND_LINE, Override, assign
from vf_core.config.paths import path_of
from vf_core.errors import ConfigError


@dataclass
class Fitter:
    """Fits files and options to the tree of `root`; `moved` maps places to how they were written there.

    `origins` holds file and written key of every value, `refs` the variables that values were taken from,
    `problems` what validation would not see.
    """

    root: type[BaseModel]
    narrow: Narrow = field(default_factory=dict)
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ)
    origins: dict[KeyPath, tuple[Path | str | None, str]] = field(default_factory=dict)
    refs: dict[KeyPath, str] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)

    def file(
        self,
        data: Mapping[str, Any],
        file: Path | str | None,
        base_dir: Path,
        moved: Mapping[KeyPath, str] | None = None,
    ) -> dict[str, Any]:
        """The tables of a file, fitted; relative paths are relative to `base_dir`."""
        return _Pass(self, file, base_dir, moved or {}).table(self.root, data, (), "")

    def override(self, into: dict[str, Any], override: Override, at: KeyPath) -> None:
        """Lay one option, whose key stands at `at` of the tree, over fitted tables.

        Relative paths typed at a prompt are relative to where it was typed. Raises `ConfigError`
        when a value is missing.
        """
        run = _Pass(self, COMMAND_LINE, Path.cwd(), {})
        place, annotation = self._resolve(at)
        value = override.value
        if override.raw is None:
            if bool not in set(alternatives(annotation)) and annotation is not None:
                raise ConfigError("needs a value", file=COMMAND_LINE, key=override.written)
        elif not isinstance(value, str) and _text_due(annotation):
            value = override.raw
        for stale in [old for old in self.refs if old[: len(place)] == place]:
            del self.refs[stale]
        assign(into, place, run.value(annotation, value, place, override.written))
        self.origins[place] = (COMMAND_LINE, override.written)

    def default_paths(self, fitted: dict[str, Any], at: KeyPath, base_dir: Path) -> None:
        """Give plugins' relative default paths their base too: a saved config must mean the same elsewhere."""
        for name, info in self.narrow[at].model_fields.items():
            if isinstance(info.default, Path) and not info.default.is_absolute():
                fitted.setdefault(name, Path(os.path.abspath(base_dir / info.default)))

    def written(self, at: KeyPath) -> tuple[Path | str | None, str]:
        """File and written key of the value at `at`, or of what it stands in."""
        for n in range(len(at), 0, -1):
            found = self.origins.get(at[:n])
            if found is not None:
                return found[0], ".".join(part for part in (found[1], dotted(at[n:])) if part)
        below = (found for place, found in self.origins.items() if place[: len(at)] == at)
        file = next(below, next(iter(self.origins.values()), (None, "")))[0]
        return file, dotted(at)

    def _resolve(self, at: KeyPath) -> tuple[KeyPath, Any]:
        """The place that an option's key names, dashes and aliases resolved, and what is due there.

        The annotation is None below tables whose keys are open.
        """
        place: KeyPath = ()
        annotation: Any = self.root
        for part in at:
            model = self.narrow.get(place) or submodel(annotation)
            key = part.replace("-", "_")
            if model is not None:
                name = spellings(model).get(key, key)
                annotation = model.model_fields[name].annotation if name in model.model_fields else None
                place = (*place, name)
            elif (entry := _entry(annotation)) is not None:
                annotation, place = entry, (*place, part)
            elif part.isdigit() and (item := item_of(annotation)) is not None:
                annotation, place = item, (*place, part)
            else:
                annotation, place = None, (*place, part)
        return place, annotation


@dataclass
class _Pass:
    """One file, or one option, on its way through a `Fitter`."""

    fitter: Fitter
    file: Path | str | None
    base_dir: Path
    moved: Mapping[KeyPath, str]

    def table(
        self, model: type[BaseModel], data: Mapping[str, Any], at: KeyPath, written: str
    ) -> dict[str, Any]:
        known = spellings(model)
        out: dict[str, Any] = {}
        given: dict[str, str] = {}
        for key, value in data.items():
            name = known.get(key, key)
            place = (*at, name)
            shown = self.moved.get(place) or ".".join(part for part in (written, dotted((key,))) if part)
            if name in out:
                self._problem(place, f"given twice, as {given[name]} and as {key}", "leave one out")
                continue
            given[name] = key
            self.fitter.origins[place] = (self.file, shown)
            annotation = model.model_fields[name].annotation if name in model.model_fields else None
            out[name] = self.value(annotation, value, place, shown)
        return out

    def value(self, annotation: Any, value: Any, at: KeyPath, written: str) -> Any:
        if isinstance(value, Mapping):
            return self._mapping(annotation, value, at, written)
        if isinstance(value, list):
            items = item_of(annotation)
            return [
                self._listed(items, inner, (*at, str(i)), f"{written}[{i}]") for i, inner in enumerate(value)
            ]
        if isinstance(value, str) and Path in (kinds := set(alternatives(annotation))) and str not in kinds:
            if value:
                return Path(os.path.abspath(self.base_dir / path_of(value).expanduser()))
            self._problem(at, "must not be empty", "leave it out for the default")
        elif isinstance(value, float) and not math.isfinite(value):
            self._problem(at, "must be a finite number")
        elif annotation in _OPEN and not isinstance(value, str | int | float):
            self._problem(at, f"expected a number, text, true or false, a list or a table, got {value}")
        return value

    def _listed(self, annotation: Any, value: Any, at: KeyPath, written: str) -> Any:
        self.fitter.origins[at] = (self.file, written)
        return self.value(annotation, value, at, written)

    def _mapping(self, annotation: Any, value: Mapping[str, Any], at: KeyPath, written: str) -> Any:
        model = self.fitter.narrow.get(at) or submodel(annotation)
        if model is not None:
            return self.table(model, value, at, written)
        entry = _entry(annotation)
        if entry is None and list(value) == ["env"] and isinstance(value["env"], str):
            return self._from_env(value["env"], at)
        return {
            key: self.value(entry, inner, (*at, key), f"{written}.{dotted((key,))}")
            for key, inner in value.items()
        }

    def _problem(self, at: KeyPath, message: str, hint: str | None = None) -> None:
        self.fitter.problems.append(Problem(at, message, hint))

    def _from_env(self, variable: str, at: KeyPath) -> str:
        value = self.fitter.environ.get(variable)
        if value is None:
            left_out = "its value was left out of the saved config; set the variable"
            self._problem(
                at,
                f"is to be taken from the environment variable {variable}, which is not set",
                left_out if variable.startswith(LEFT_OUT) else f"set {variable}",
            )
            return ""
        self.fitter.refs[at] = variable
        return value


# Annotations under which anything may stand that a request body or a trace can hold.
_OPEN = (None, Any, object)

# Variables for values that a saved config leaves out. The name has SECRET in it so that no sandbox inherits them.
LEFT_OUT = "VF_TUI_SECRET_"


def _entry(annotation: Any) -> Any:
    """What the values of a `dict[str, …]` are; None when no table with open keys is due."""
    for kind in alternatives(annotation):
        origin = get_origin(kind)
        if isinstance(origin, type) and issubclass(origin, Mapping):
            return get_args(kind)[1]
        if kind is dict:
            return Any
    return None


def _text_due(annotation: Any) -> bool:
    """Only text fits: `123` given for it is text too."""
    kinds = {kind for kind in alternatives(annotation) if kind is not type(None)}
    if not kinds:
        return False
    return all(
        kind is str
        or kind is Path
        or (get_origin(kind) is Literal and all(isinstance(choice, str) for choice in get_args(kind)))
        for kind in kinds
    )
