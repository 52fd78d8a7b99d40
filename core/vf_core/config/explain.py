"""Refusals that help: what pydantic found wrong, told with the file, the dotted key and the nearest valid name."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher, get_close_matches
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from vf_core.config.base import Index, KeyPath, Narrow, item_of, spellings, submodel, tables
from vf_core.config.secrets import names_secret
from vf_core.errors import ConfigError
from vf_core.text import one_line

SHOWN = 8
_BARE = re.compile(r"[A-Za-z0-9_-]+")

Written = Callable[[KeyPath], tuple[Path | str | None, str]]
"""The file that a value came from, and its dotted key as it is written there."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong with a config, by the key it is wrong at."""

    at: KeyPath
    message: str
    hint: str | None = None


def explain(
    error: ValidationError, model: type[BaseModel], file: Path | str | None, data: Mapping[str, Any]
) -> ConfigError:
    """`error`, raised by validating `data` (read from `file`) as `model`, as a refusal for the user."""
    return refuse(problems_of(error, model, data), lambda at: (file, dotted(at)))


def refuse(problems: Sequence[Problem], written: Written) -> ConfigError:
    """One error that tells all `problems`; its `file` and `key` are those of the first."""
    first, *others = problems
    file, key = written(first.at)
    if not others:
        return ConfigError(first.message, file=file, key=key or None, hint=first.hint)
    lines = [_with_hint(first)]
    for problem in others[: SHOWN - 1]:
        other_file, other_key = written(problem.at)
        where = f"{other_file}: " if other_file is not None else ""
        lines.append(f"{where}{other_key}: {_with_hint(problem)}")
    if len(problems) > SHOWN:
        lines.append(f"… and {len(problems) - SHOWN} more")
    return ConfigError("\n".join(lines), file=file, key=key or None)


def _with_hint(problem: Problem) -> str:
    return f"{problem.message} ({problem.hint})" if problem.hint else problem.message


def dotted(at: Iterable[str]) -> str:
    """A key as TOML writes it: parts that hold anything but letters, digits, `-`, `_` are quoted; places in lists
    stand in brackets."""
    out = ""
    for part in at:
        if isinstance(part, Index):
            out += f"[{part}]"
        else:
            shown = part if _BARE.fullmatch(part) else json.dumps(one_line(part, limit=80))
            out += f".{shown}" if out else shown
    return out


def problems_of(
    error: ValidationError,
    model: type[BaseModel],
    data: Mapping[str, Any],
    *,
    at: KeyPath = (),
    root: type[BaseModel] | None = None,
    narrow: Narrow | None = None,
) -> list[Problem]:
    """What `error` says about `data`, which was validated as `model` and stands at `at` of `root`.

    `root` and `narrow` tell where else a misplaced key would be valid.
    """
    out: dict[KeyPath, Problem] = {}
    for detail in error.errors(include_url=False):
        loc = _place(detail, data)
        if (*at, *loc) in out:
            continue  # the other members of a union say the same
        if detail["type"] == "default_factory_not_called":
            continue  # it follows from another error
        if detail["type"] == "extra_forbidden":
            place = unknown_key((*at, *loc), _table_at(model, loc), root or model, narrow or {})
        else:
            place = Problem((*at, *loc), *_tell(detail, loc))
        out[place.at] = place
    return list(out.values())


def _place(detail: ErrorDetails, data: Any) -> KeyPath:
    """The keys of an error's place; what pydantic adds about union members and validators is left out."""
    out: list[str] = []
    for part in detail["loc"]:
        if isinstance(data, Mapping) and (part in data or detail["type"] == "missing"):
            data = data.get(part)
        elif isinstance(data, Sequence) and not isinstance(data, str) and isinstance(part, int):
            data = data[part] if part < len(data) else None
        elif not out and isinstance(part, str):
            data = None  # a default of the model itself does not fit
        else:
            break
        out.append(Index(part) if isinstance(part, int) else str(part))
    return tuple(out)


def _table_at(model: type[BaseModel], loc: KeyPath) -> type[BaseModel] | None:
    found: type[BaseModel] | None = model
    due: Any = None
    for part in loc[:-1]:
        if isinstance(part, Index):
            due = item_of(due)
        else:
            info = found.model_fields.get(spellings(found).get(part, part)) if found else None
            due = info.annotation if info else None
        found = submodel(due)
    return found


def unknown_key(at: KeyPath, table: type[BaseModel] | None, root: type[BaseModel], narrow: Narrow) -> Problem:
    """Refuse the key `at`: it is not one of `table`. The hint says where it belongs, or what is spelt like it."""
    key = at[-1].replace("-", "_")
    known = spellings(table) if table else {}
    if key in known:
        return Problem(at, "unknown key", f"did you mean {known[key]}?")
    homes = _homes(key, root, narrow, exact=True)
    near = nearest(key, known)
    if homes and not (near and SequenceMatcher(None, key, near).ratio() > 0.85):
        return Problem(at, "unknown key in this table", f"it belongs in {' or '.join(homes[:3])}")
    if near:
        return Problem(at, "unknown key", f"did you mean {near}?")
    homes = _homes(key, root, narrow, exact=False)
    if homes:
        return Problem(at, "unknown key", f"did you mean {' or '.join(homes[:2])}?")
    names = sorted({name for name in known.values() if not name.startswith("_")})
    return Problem(at, "unknown key", f"valid here: {', '.join(names)}" if names else None)


def _homes(key: str, root: type[BaseModel], narrow: Narrow, *, exact: bool) -> list[str]:
    """Where in the tree `key` would be valid: `[table]` for the same name, a dotted key for one like it."""
    out: list[str] = []
    for at, model in tables(root, narrow):
        known = {name: field for name, field in spellings(model).items() if len(name) > 1}
        if exact and key in known:
            out.append(f"[{dotted(at)}]" if at else "the top level")
        elif not exact and (close := get_close_matches(key, known, n=1, cutoff=0.8)):
            out.append(dotted((*at, known[close[0]])))
    return out


def nearest(name: str, valid: Iterable[str]) -> str | None:
    """The one of `valid` that `name` was most likely meant to be; None when nothing is near."""
    plain = {candidate.lower().replace("-", "_"): candidate for candidate in valid if len(candidate) > 1}
    close = get_close_matches(name.lower().replace("-", "_"), plain, n=1, cutoff=0.6)
    return plain[close[0]] if close else None


_KINDS = {
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "string": "text",
    "list": "a list",
    "tuple": "a list",
    "set": "a list",
    "dict": "a table",
    "model": "a table",
    "path": "a path",
    "mapping": "a table",
}


def _tell(detail: ErrorDetails, loc: KeyPath) -> tuple[str, str | None]:
    """Message and hint for one of pydantic's errors."""
    kind, ctx, value = detail["type"], detail.get("ctx", {}), detail["input"]
    hidden = bool(loc) and (names_secret(loc) or loc[-2:-1] in (("headers",), ("env",)))
    got = "" if hidden else f", got {_show(value)}"
    if kind == "missing":
        return "is required", None
    if kind in ("greater_than_equal", "greater_than"):
        bound, word = next(iter(ctx.items()))[1], "at least" if kind.endswith("equal") else "more than"
        return f"must be {word} {bound:g}{got}", "leave it out for the default" if value == 0 else None
    if kind in ("less_than_equal", "less_than"):
        return (
            f"must be {'at most' if kind.endswith('equal') else 'less than'} {next(iter(ctx.values()))}{got}",
            None,
        )
    if kind in ("literal_error", "enum"):
        choices = [c.strip("'\"") for c in re.split(r", | or ", str(ctx.get("expected", "")))]
        near = nearest(value, choices) if isinstance(value, str) else None
        return f"must be one of {', '.join(choices)}{got}", f"did you mean {near}?" if near else None
    if kind == "finite_number":
        return "must be a finite number", None
    if kind in ("value_error", "assertion_error"):
        return one_line(str(ctx.get("error", detail["msg"])), limit=1000), None
    expected = _KINDS.get(kind.split("_")[0])
    if expected and kind.endswith(("_type", "_parsing", "_from_float")):
        return f"expected {expected}{got}", None
    return one_line(detail["msg"], limit=400), None


def _show(value: Any) -> str:
    if isinstance(value, Mapping):
        return "a table"
    if isinstance(value, list | tuple):
        return "a list"
    if isinstance(value, bool):
        return str(value).lower()
    if value is None:
        return "nothing"
    return one_line(repr(value), limit=60)
