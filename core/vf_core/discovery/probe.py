"""`python -m vf_core.discovery.probe FD [MODULE KIND]...`: import modules and say on FD, as a JSON list, what plugins
each is. KIND is empty for modules that are not ours.

They may print, hang or end this process: whoever started it copes with that.
"""

from __future__ import annotations

import importlib.util
import inspect
import json
import logging
import os
import sys
from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel

from vf_core.config.installing import install_command
from vf_core.errors import PluginError
from vf_core.plugins import (
    Kind,
    base_class,
    config_class,
    is_builtin,
    kinds,
    load_class,
)
from vf_core.tasks import TaskConfig, ToolsetConfig

_DEFAULT_LIMIT = 200


def main(argv: list[str]) -> int:
    """Entry point."""
    fd = int(argv[0])
    logging.basicConfig(stream=sys.__stderr__, format="%(message)s", level=logging.INFO)
    told = [probe(module, kind or None) for module, kind in zip(argv[1::2], argv[2::2], strict=True)]
    answer = json.dumps(told).encode()
    while answer:
        answer = answer[os.write(fd, answer) :]
    os._exit(0)  # threads of the modules' have no say in this


def probe(module: str, kind: str | None) -> dict[str, Any]:
    """`found`: the plugins; `reason`: why there is none, or what is wrong with one; `exports_nothing`: it is imported
    and exports no class of any kind. `kind`: a module of ours, of that kind."""
    found: list[dict[str, Any]] = []
    reasons: list[str] = []
    for each in kinds():
        if kind not in (None, each):
            continue
        id = module.rpartition(".")[2] if kind else module
        try:
            found.append(describe(each, id, _load(each, id, ours=kind is not None)))
        except PluginError as e:
            if module not in sys.modules:
                reason = _missing(module) if _is_missing(module) else _reason(e)
                return {"found": [], "reason": reason, "exports_nothing": False}
            if _exports(module, each):
                reasons.append(_reason(e))
    nothing = not found and not reasons
    reason = _of_no_kind(module) if nothing else next(iter(reasons), "")
    return {"found": found, "reason": reason, "exports_nothing": nothing}


def _load(kind: Kind, id: str, *, ours: bool) -> type[Any]:
    if not ours and is_builtin(kind, id):
        importlib.import_module(id)
        raise PluginError(
            f"the {kind} id {id!r} means the one that comes with vf-tui", hint="rename this module"
        )
    return load_class(kind, id)


def describe(kind: Kind, id: str, cls: type[Any]) -> dict[str, Any]:
    """A plugin's class and its own options, those of its kind's base left out."""
    options = list(_options(config_class(cls), config_class(base_class(kind))))
    about = (inspect.getdoc(cls) or "") if cls.__doc__ else ""
    return {
        "kind": kind,
        "id": id,
        "cls": f"{cls.__module__}:{cls.__qualname__}",
        "about": about.partition("\n")[0],
        "options": options,
    }


def _options(model: type[BaseModel], base: type[BaseModel], prefix: str = "") -> Iterator[list[str | None]]:
    """Name, type and default of each field that `base` lacks; those of a task's config and of its tools' are in
    tables of their own."""
    for name, field in model.model_fields.items():
        own = field.annotation
        inner = next(
            (b for b in (TaskConfig, ToolsetConfig) if isinstance(own, type) and issubclass(own, b)), None
        )
        if inner is not None and isinstance(own, type):
            yield from _options(own, inner, f"{prefix}{name}.")
        elif name not in base.model_fields:
            default = None if field.is_required() else repr(field.get_default(call_default_factory=True))
            kind_of = inspect.formatannotation(own)
            yield [prefix + name, kind_of, default if default is None else default[:_DEFAULT_LIMIT]]


def _exported(module: str) -> list[Any]:
    loaded = sys.modules[module]
    names = getattr(loaded, "__all__", None)
    return [getattr(loaded, name, None) for name in names] if names is not None else []


def _exports(module: str, kind: Kind) -> bool:
    """The module exports a class of this kind, whether it fits or not."""
    base = base_class(kind)
    return any(
        isinstance(item, type) and issubclass(item, base) and item is not base for item in _exported(module)
    )


def _is_missing(module: str) -> bool:
    try:
        return importlib.util.find_spec(module.partition(".")[0]) is None
    except (ImportError, ValueError):
        return True


def _missing(module: str) -> str:
    return f"there is no module {module!r} in {sys.prefix} (install it: {install_command(module)})"


def _of_no_kind(module: str) -> str:
    loaded = sys.modules[module]
    if getattr(loaded, "__all__", None) is None:
        return 'it has no __all__ and so exports nothing (export its class: __all__ = ["MyTaskset"])'
    listed = ", ".join(map(str, loaded.__all__)) or "nothing"
    theirs = any(getattr(item, "__module__", "").startswith("verifiers.") for item in _theirs(loaded))
    where = getattr(loaded, "__file__", None) or "a module of Python's own"
    why = f"{where} exports {listed}, and no subclass of Taskset, Harness or Judge"
    return f"{why}: it is written for verifiers, whose classes are others" if theirs else why


def _theirs(loaded: Any) -> list[Any]:
    exported = [getattr(loaded, name, None) for name in loaded.__all__]
    return [base for item in exported if isinstance(item, type) for base in item.__mro__]


def _reason(error: PluginError) -> str:
    where = f"{error.file}: " if error.file else ""
    hint = f" ({error.hint})" if error.hint else ""
    return f"{where}{error.message}{hint}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
