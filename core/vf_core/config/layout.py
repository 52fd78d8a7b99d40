"""The older layout of an eval config, in which taskset, harness, timeouts and limits stood at the top level."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vf_core.config.base import KeyPath
from vf_core.config.load import assign
from vf_core.errors import ConfigError

MOVED: dict[KeyPath, KeyPath] = {
    ("taskset",): ("env", "taskset"),
    ("harness", "runtime"): ("env", "agent", "runtime"),
    ("harness",): ("env", "agent", "harness"),
    ("timeout",): ("env", "agent", "timeout"),
    ("interception",): ("env", "interception"),
    ("max_turns",): ("env", "agent", "max_turns"),
    ("max_input_tokens",): ("env", "agent", "max_input_tokens"),
    ("max_output_tokens",): ("env", "agent", "max_output_tokens"),
    ("max_total_tokens",): ("env", "agent", "max_total_tokens"),
}
"""Old place to canonical place; the longest one that fits counts."""


def to_canonical(at: KeyPath) -> KeyPath:
    """Where the key `at` of an option stands in the canonical layout; dashes are read as underscores."""
    plain = tuple(part.replace("-", "_") for part in at)
    for n in (2, 1):
        target = MOVED.get(plain[:n])
        if target is not None:
            return target + at[n:]
    return at


def move_older(data: Mapping[str, Any], file: Path | str | None) -> tuple[dict[str, Any], dict[KeyPath, str]]:
    """`data` in the canonical layout, and for each place that was moved how it was written.

    Raises `ConfigError` when one file mixes both layouts.
    """
    older = [old[0] for old in MOVED if old[0] in data]
    if not older:
        return dict(data), {}
    if "env" in data:
        raise ConfigError(
            f"the older layout ({older[0]} at the top level) and the newer one (env) are mixed in one file",
            file=file,
            key=older[0],
            hint=f"move it to {'.'.join(MOVED[(older[0],)])}",
        )
    out = {key: value for key, value in data.items() if key not in older}
    written: dict[KeyPath, str] = {}
    for old, new in MOVED.items():
        if old[0] not in data or (len(old) == 2 and not _has(data[old[0]], old[1])):
            continue
        value = data[old[0]][old[1]] if len(old) == 2 else data[old[0]]
        if old == ("harness",) and isinstance(value, Mapping):
            value = {key: inner for key, inner in value.items() if key != "runtime"}
        assign(out, new, value)
        written[new] = ".".join(old)
    return out, written


def _has(table: Any, key: str) -> bool:
    return isinstance(table, Mapping) and key in table
