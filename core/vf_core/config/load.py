"""Reading TOML files and `--a.b.c VALUE` options, and laying one over the other."""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, time
from itertools import pairwise
from pathlib import Path
from typing import Any

from vf_core.config.explain import explain
from vf_core.errors import ConfigError

__all__ = ["Override", "assign", "deep_merge", "explain", "load_toml", "parse_overrides", "read_overrides"]

COMMAND_LINE = "command line"
_INDEX = re.compile(r"\[(\d+)\](?=\.|\[|$)")


def load_toml(path: Path) -> dict[str, Any]:
    """The tables of a TOML file: UTF-8 whatever the locale, a byte-order mark and CRLF accepted.

    Raises `ConfigError` with the file and, where there is one, the line.
    """
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        raise ConfigError("no such file", file=path, hint=_nearby(path)) from None
    except OSError as e:
        raise ConfigError(f"cannot be read: {e.strerror or e}", file=path) from e
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as e:
        line = raw.count(b"\n", 0, e.start) + 1
        raise ConfigError(
            f"line {line}: not UTF-8 (byte 0x{raw[e.start]:02x})", file=path, hint="save the file as UTF-8"
        ) from e
    try:
        return tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as e:
        raise ConfigError(f"not valid TOML: {e or type(e).__name__}", file=path) from e


def _nearby(path: Path) -> str | None:
    """A hint for a file that is not there: the TOML file beside it that is spelt most like it."""
    from difflib import get_close_matches

    try:
        names = [name for name in os.listdir(path.parent) if name.endswith(".toml")]
    except OSError:
        return f"there is no directory {path.parent}"
    close = get_close_matches(path.name, names, n=1)
    return f"did you mean {path.parent / close[0]}?" if close else None


@dataclass(frozen=True, slots=True)
class Override:
    """One option: its dotted key as written and cut up, its value read as TOML, and the text it had.

    `raw` is None when the option stood alone (`--shuffle`); the value is then True.
    """

    written: str
    path: tuple[str, ...]
    value: Any
    raw: str | None


def read_overrides(args: Sequence[str], short: Mapping[str, str] | None = None) -> list[Override]:
    """The options in `args`, in order: `--a.b.c VALUE`, `--a.b.c=VALUE`, `--flag`; keys as written.

    `short` maps letters of `-x VALUE` options to keys. Raises `ConfigError` for anything else.
    """
    out: list[Override] = []
    rest = [_utf8(arg) for arg in args]
    while rest:
        arg = rest.pop(0)
        name, equals, value = arg.partition("=")
        raw: str | None = value if equals else None
        if name.startswith("--") and len(name) > 2:
            key = name[2:]
        elif len(name) == 2 and name[0] == "-" and name[1] in (short or {}):
            key = (short or {})[name[1]]
        else:
            raise ConfigError(
                f"unexpected argument {arg!r}", file=COMMAND_LINE, hint="options are written --a.b.c VALUE"
            )
        # An option's value may begin with one dash (a negative number) but not with two: use `=` then.
        if raw is None and rest and not rest[0].startswith("--") and not _is_short(rest[0], short):
            raw = rest.pop(0)
        path = tuple(_INDEX.sub(r".\1", key).split("."))
        if not all(path):
            raise ConfigError("an empty part in the option's name", file=COMMAND_LINE, key=name)
        out.append(Override(name, path, True if raw is None else read_value(raw), raw))
    return out


def _utf8(arg: str) -> str:
    """An argument as UTF-8, whatever the locale that Python read it by."""
    try:
        return os.fsencode(arg).decode("utf-8")
    except UnicodeError:
        raise ConfigError(f"not valid text: {arg!a}", file=COMMAND_LINE, hint="write it in UTF-8") from None


def _is_short(arg: str, short: Mapping[str, str] | None) -> bool:
    return len(arg) >= 2 and arg[0] == "-" and arg[1] in (short or {}) and arg[2:3] in ("", "=")


def read_value(raw: str) -> Any:
    """`raw` read as a TOML value; `raw` itself where that fails or gives a date (JSON has none)."""
    try:
        parsed = tomllib.loads(f"value = {raw}")
    except (tomllib.TOMLDecodeError, RecursionError):
        return raw
    # More than one key: the text held a line break and more TOML after it.
    if len(parsed) != 1 or isinstance(parsed["value"], date | time):
        return raw
    return parsed["value"]


def parse_overrides(args: Sequence[str]) -> dict[str, Any]:
    """`read_overrides` as nested tables, dashes in keys read as underscores; the last of equal keys wins."""
    out: dict[str, Any] = {}
    for override in read_overrides(args):
        assign(out, tuple(part.replace("-", "_") for part in override.path), override.value)
    return out


def assign(data: dict[str, Any], path: Sequence[str], value: Any) -> None:
    """Set one value in nested tables, making the tables on the way and leaving its siblings. A number is a place in
    a list that is long enough."""
    into: Any = data
    for name, following in pairwise(path):
        key = _key(into, name)
        inner = into[key] if isinstance(into, list) else into.get(key)
        if not isinstance(inner, dict) and not (isinstance(inner, list) and is_index(following, inner)):
            inner = into[key] = {}
        into = inner
    into[_key(into, path[-1])] = value


def _key(into: Any, name: str) -> Any:
    return int(name) if isinstance(into, list) else name


def is_index(part: str, items: Sequence[Any]) -> bool:
    """`part` of a key is the number of one of `items`."""
    return part.isascii() and part.isdigit() and len(part) < 7 and int(part) < len(items)


def deep_merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """`base` with `over` laid on it, table by table; any other value, lists too, is replaced. Both stay as
    they are."""
    out = {key: deep_merge(value, {}) if isinstance(value, dict) else value for key, value in base.items()}
    for key, value in over.items():
        below = out.get(key)
        if isinstance(value, Mapping):
            out[key] = deep_merge(below if isinstance(below, dict) else {}, value)
        else:
            out[key] = value
    return out
