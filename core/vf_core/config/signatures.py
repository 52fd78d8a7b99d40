"""Whether a subclass can be called the way its base class is called."""

from __future__ import annotations

import inspect
from typing import Any

_VARIABLE = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def misfits(cls: type[Any], base: type[Any]) -> list[str]:
    """The public methods of `base` that `cls` overrides with arguments that calls for `base` don't fit."""
    out: list[str] = []
    for name, theirs in inspect.getmembers(base, inspect.isfunction):
        ours = inspect.getattr_static(cls, name, None)
        if name.startswith("_") or ours is theirs:
            continue
        own = getattr(cls, name)
        if not inspect.isfunction(own):
            continue
        wanted, given = inspect.signature(theirs), inspect.signature(own)
        if not _accepts(given, wanted):
            out.append(f"{name} takes {_names(given)} but is called with {_names(wanted)}")
    return out


def _accepts(given: inspect.Signature, wanted: inspect.Signature) -> bool:
    """A call that passes all parameters of `wanted` binds to `given`; positional ones may have other names."""
    fixed = [p for p in wanted.parameters.values() if p.kind not in _VARIABLE]
    positional = [p.name for p in fixed if p.kind is not inspect.Parameter.KEYWORD_ONLY]
    named = {p.name: None for p in fixed if p.kind is inspect.Parameter.KEYWORD_ONLY}
    if any(p.kind is inspect.Parameter.VAR_KEYWORD for p in wanted.parameters.values()):
        # What else there is depends on whoever calls, which is the subclass.
        known = {*positional, *named}
        named |= {p.name: None for p in given.parameters.values() if _needed(p) and p.name not in known}
    try:
        given.bind(*positional, **named)
    except TypeError:
        return False
    return True


def asks_for(method: Any, known: tuple[str, ...]) -> str | None:
    """What a method, called with those of `known` that it asks for by name, needs beyond them; None: nothing."""
    for parameter in list(inspect.signature(method).parameters.values())[1:]:
        needed = parameter.default is inspect.Parameter.empty and parameter.kind not in _VARIABLE
        if needed and (parameter.name not in known or not _needed(parameter)):
            return parameter.name
    return None


def _needed(parameter: inspect.Parameter) -> bool:
    """It must be given, and may be by name."""
    kinds = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return parameter.kind in kinds and parameter.default is inspect.Parameter.empty


def _names(signature: inspect.Signature) -> str:
    return f"({', '.join(p for p in signature.parameters if p != 'self')})"
