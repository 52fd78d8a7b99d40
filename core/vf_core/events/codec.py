"""Events as JSON, one line each: the journal's and the wire's form.

ASCII only (so that no reader's idea of a line break or an encoding matters, and lone surrogates survive) and
strict: numbers that are not finite are left out.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields
from math import isfinite
from typing import Any

from vf_core.events.types import TYPES, Event


def _refuse(constant: str) -> float:
    raise ValueError(f"{constant} is not JSON")


_dumps = json.JSONEncoder(separators=(",", ":"), allow_nan=False, check_circular=False).encode
_loads = json.JSONDecoder(parse_constant=_refuse).decode


def encode(event: Event) -> str:
    """`event` as one line of JSON, without the newline."""
    record = to_record(event)
    try:
        return _dumps(record)
    except ValueError:
        return _dumps({key: kept for key, value in record.items() if (kept := _finite(value)) is not None})


def decode(line: str | bytes) -> Event | None:
    """The event on `line`; None for a type that this version does not know (a newer producer's).

    Raises ValueError when it is not JSON, not an object, or not the event it says it is.
    """
    try:
        record = _loads(line.decode() if isinstance(line, bytes) else line)
    except RecursionError as e:
        raise ValueError("nested too deeply") from e
    if not isinstance(record, dict):
        raise ValueError("an event is a JSON object")
    return from_record(record)


def to_record(event: Event) -> dict[str, Any]:
    """`event` as a JSON-able dict: `type`, then the fields that differ from their defaults."""
    out: dict[str, Any] = {"type": event.type}
    for name, default, _, _ in _fields(type(event)):
        value = getattr(event, name)
        if value != default:
            out[name] = value
    return out


def from_record(record: Mapping[str, Any]) -> Event | None:
    """The event that `record` holds; None for a type that this version does not know.

    Unknown fields are passed over. Raises ValueError when a field is missing or of another type.
    """
    cls = TYPES.get(str(record.get("type")))
    if cls is None:
        return None
    known: dict[str, Any] = {}
    for name, default, types, convert in _fields(cls):
        value = record.get(name, MISSING)
        if value is MISSING:
            if default is MISSING:
                raise ValueError(f"event {cls.type!r} lacks {name!r}")
            continue
        if type(value) not in types:
            raise ValueError(f"event {cls.type!r}: {name!r} cannot be {type(value).__name__}")
        known[name] = value if convert is None else convert(value)
    return cls(**known)


def _finite(value: Any) -> Any:
    """`value` without numbers that are not finite; None when nothing is left."""
    if isinstance(value, float):
        return value if isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: kept for key, item in value.items() if (kept := _finite(item)) is not None}
    if isinstance(value, tuple):
        return [kept for item in value if (kept := _finite(item)) is not None]
    return value


def _strings(value: Any) -> tuple[str, ...]:
    return tuple(str(item) for item in value)


def _numbers(value: Any) -> dict[str, float]:
    return {name: item for name, item in value.items() if type(item) in _NUMBER and isfinite(item)}


def _tools(value: Any) -> tuple[dict[str, Any], ...]:
    try:
        return tuple(
            {
                "index": int(tool["index"]),
                "id": str(tool["id"]),
                "name": str(tool["name"]),
                "arguments": str(tool["arguments"]),
                "started": float(tool["started"]),
            }
            for tool in value
        )
    except (KeyError, TypeError) as e:
        raise ValueError(f"not a tool call being generated: {e}") from e


_NUMBER = frozenset({int, float})
_NONE = frozenset({type(None)})
_LIST = frozenset({list, tuple})
# JSON's types for each annotation that events use, and what makes the Python value of it.
_KINDS: dict[str, tuple[frozenset[type], Callable[[Any], Any] | None]] = {
    "str": (frozenset({str}), None),
    "int": (frozenset({int}), None),
    "bool": (frozenset({bool}), None),
    "float": (_NUMBER, None),
    "int | None": (frozenset({int}) | _NONE, None),
    "float | None": (_NUMBER | _NONE, None),
    "tuple[str, ...]": (_LIST, _strings),
    "Mapping[str, float]": (frozenset({dict}), _numbers),
    "tuple[Mapping[str, Any], ...]": (_LIST, _tools),
}
_Field = tuple[str, Any, frozenset[type], Callable[[Any], Any] | None]
_FIELDS: dict[type[Event], tuple[_Field, ...]] = {}


def _fields(cls: type[Event]) -> tuple[_Field, ...]:
    """Name, default and JSON form of an event's fields, worked out once a type."""
    got = _FIELDS.get(cls)
    if got is None:
        got = tuple(
            (f.name, f.default if f.default_factory is MISSING else f.default_factory(), *_KINDS[str(f.type)])
            for f in fields(cls)
        )
        _FIELDS[cls] = got
    return got
