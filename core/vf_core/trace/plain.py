"""Anything as strict JSON: what hooks leave on a trace may be any object."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence, Set
from typing import Any

DEPTH_LIMIT = 60
REPR_LIMIT = 500


def plain(value: Any, depth: int = 0) -> Any:
    """`value` built of JSON's types only. No number that JSON lacks: NaN and infinities become their names.

    Bytes become text, objects what they dump as (pydantic, numpy) or their repr, bounded; so does what is nested
    deeper than `DEPTH_LIMIT`, a cycle included.
    """
    if value is None or isinstance(value, bool | str):
        return str(value) if type(value) not in (str, bool, type(None)) else value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else _NAMES.get(value, "NaN")
    if isinstance(value, bytes | bytearray):
        return bytes(value).decode(errors="replace")
    if depth >= DEPTH_LIMIT:
        return _repr(value)
    if isinstance(value, Mapping):
        return {k if type(k) is str else str(k): plain(v, depth + 1) for k, v in value.items()}
    if isinstance(value, Sequence | Set):
        return [plain(entry, depth + 1) for entry in value]
    return _object(value, depth)


_NAMES = {math.inf: "Infinity", -math.inf: "-Infinity"}


def _object(value: Any, depth: int) -> Any:
    for method in ("model_dump", "tolist", "item", "isoformat"):
        convert = getattr(value, method, None)
        if callable(convert) and not isinstance(value, type):
            try:
                return plain(convert(), depth + 1)
            except Exception:  # a foreign object's own method: its repr will do
                break
    return _repr(value)


def _repr(value: Any) -> str:
    try:
        text = repr(value) if isinstance(value, Mapping | Sequence | Set) else str(value)
    except Exception as e:
        return f"<{type(value).__name__}: {type(e).__name__}>"
    return text[:REPR_LIMIT]
