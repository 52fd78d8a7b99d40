"""From an id to a class: tasksets, harnesses and judges, built-in or installed.

A plugin is a module that exports exactly one subclass through `__all__`. Its id, `name` or `org/name[@version]`,
names the module: the organisation and the version are dropped, dashes become underscores. It may say which plugin
interface it was written for, as `VF_TUI_API = "1.0"`: it loads where the major number is ours and the minor not
above ours.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import io
import logging
import os
import sys
import sysconfig
import threading
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any, Literal, TypeVar, get_args

from vf_core import __version__
from vf_core.config.base import StrictModel
from vf_core.config.explain import nearest
from vf_core.config.installing import install_command
from vf_core.errors import PluginError, VfError
from vf_core.text import one_line

API_VERSION = (1, 0)

Kind = Literal["taskset", "harness", "judge"]

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _KindSpec:
    """Where plugins of a kind live, and their base classes, by name: nothing is imported before it is asked for."""

    namespace: str
    base: str
    config: str


_KINDS: dict[str, _KindSpec] = {
    "taskset": _KindSpec("vf_core.tasksets", "vf_core.tasks:Taskset", "vf_core.tasks:TasksetConfig"),
    "harness": _KindSpec(
        "vf_core.harnesses", "vf_core.harnesses.base:Harness", "vf_core.harnesses.base:HarnessConfig"
    ),
    "judge": _KindSpec("vf_core.judges", "vf_core.judges.base:Judge", "vf_core.tasks.judging:JudgeConfig"),
}


def plugin_name(id: str) -> str:
    """The id without organisation and version, as shown and as used in paths."""
    return id.partition("@")[0].rpartition("/")[2]


@contextlib.contextmanager
def plugin_code(what: str, key: str, *passed: type[Exception]) -> Iterator[None]:
    """Code of a plugin runs inside, before the run. What it raises is a `PluginError` that begins with `what`; errors
    of ours and those to be `passed` stay what they are."""
    try:
        yield
    except BaseException as e:
        if isinstance(e, (VfError, *passed)):
            raise
        if isinstance(e, KeyboardInterrupt) and threading.current_thread() is threading.main_thread():
            raise  # the user's own
        raise PluginError(f"{what}: {type(e).__name__}: {e}", key=key) from e


def load_class(kind: Kind, id: str) -> type[Any]:
    """The plugin's class. It may block (imports): call it in a thread where a screen is drawn.

    What the plugin prints or warns about while it is imported goes to the log. Raises `PluginError` with the
    kind, what was tried and what to do.
    """
    base = base_class(kind)
    module = _import(kind, id)
    _check_api(kind, id, module)
    cls = _exported(kind, id, module, base)
    _check_fit(kind, id, module, cls, base)
    return cls


def is_builtin(kind: Kind, id: str) -> bool:
    """Whether `id` means a plugin that comes with us."""
    return plugin_name(id).replace("-", "_").lower() in builtins(kind)


def kinds() -> tuple[Kind, ...]:
    """All kinds of plugins."""
    return get_args(Kind)


def config_class(cls: type[Any]) -> type[StrictModel]:
    """The model of the plugin's own options: the generic parameter of its base class, or the kind's plain one."""
    for spec in _KINDS.values():
        root = _loaded(spec.base)
        if root is not None and issubclass(cls, root):
            base: type[StrictModel] = _resolve(spec.config)
            return _parameter(cls, base) or base
    raise PluginError(f"{cls.__name__} is no taskset, harness or judge")


def _parameter(cls: type[Any], bound: type[StrictModel]) -> type[StrictModel] | None:
    """The first subclass of `bound` among the generic parameters of `cls` and its bases, most derived first."""
    for klass in cls.__mro__:
        for base in getattr(klass, "__orig_bases__", ()):
            for arg in get_args(base):
                default = getattr(arg, "__default__", None) if isinstance(arg, TypeVar) else arg
                if isinstance(default, type) and issubclass(default, bound):
                    return default
    return None


def _import(kind: Kind, id: str) -> ModuleType:
    tried: list[str] = []
    for name in _candidates(kind, id):
        spec = _find(kind, id, name)
        if spec is None:
            tried.append(name)
            continue
        _refuse_standard_library(kind, id, spec)
        try:
            with _quiet(name):
                return importlib.import_module(name)
        except VfError:
            raise
        except (Exception, SystemExit) as e:
            raise PluginError(
                f"{kind} {id!r} was found but failed while it was imported: {type(e).__name__}: {e}",
                file=_where(e, spec),
                hint=_missing_hint(e),
            ) from e
    raise PluginError(
        f"{kind} {id!r} not found: tried the modules {', '.join(tried)} in {sys.prefix}",
        hint=_not_found_hint(kind, id),
    )


def _candidates(kind: Kind, id: str) -> list[str]:
    """The modules that `id` may mean, in the order they are tried."""
    if id.endswith(".py") or id.startswith((".", "~", "/")) or id.count("/") > 1 or "\\" in id:
        raise PluginError(
            f"{kind} {id!r} looks like a file; an id names an installed module",
            hint="install the plugin's project (pip install -e DIR), or put its directory on PYTHONPATH, and use "
            f"its module name, such as {Path(id).stem!r}",
        )
    name = plugin_name(id).replace("-", "_")
    if not name or not all(part.isidentifier() for part in name.split(".")):
        raise PluginError(f"{kind} id {id!r} is not a name", hint="write name or org/name[@version]")
    spellings = list(dict.fromkeys((name, name.lower())))
    return [f"{_KINDS[kind].namespace}.{name}" for name in spellings] + spellings


def _find(kind: Kind, id: str, name: str) -> ModuleSpec | None:
    """The module's spec; None when it, or a parent of it, does not exist."""
    try:
        with _quiet(name):
            return importlib.util.find_spec(name)
    except ModuleNotFoundError as e:
        if e.name is not None and (name == e.name or name.startswith(f"{e.name}.")):
            return None
        raise PluginError(
            f"{kind} {id!r}: a parent of the module {name} failed while it was imported: {e}",
            hint=_missing_hint(e),
        ) from e
    except ValueError:  # the module is there without a spec (`__main__`)
        return None
    except Exception as e:
        raise PluginError(
            f"{kind} {id!r}: a parent of the module {name} failed while it was imported: "
            f"{type(e).__name__}: {e}"
        ) from e


def _refuse_standard_library(kind: Kind, id: str, spec: ModuleSpec) -> None:
    """Don't run Python's own modules for their name's sake."""
    origin = spec.origin or ""
    roots = {sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")}
    inside = any(origin.startswith(f"{root}{os.sep}") for root in roots)
    installed = {"site-packages", "dist-packages"} & set(Path(origin).parts)
    if origin in ("built-in", "frozen") or (inside and not installed):
        raise PluginError(
            f"{kind} {id!r} is a module of Python's own standard library ({origin}), not a {kind}",
            hint="rename the plugin's module: Python finds its own first",
        )


def _exported(kind: Kind, id: str, module: ModuleType, base: type[Any]) -> type[Any]:
    want = f"a subclass of {base.__name__}"
    file = getattr(module, "__file__", None) or next(iter(getattr(module, "__path__", ())), module.__name__)
    names = getattr(module, "__all__", None)
    if names is None:
        raise PluginError(
            f"{kind} {id!r}: the module {module.__name__} has no __all__ and so exports no {kind}",
            file=file,
            hint=f'export {want}: __all__ = ["My{base.__name__}"]',
        )
    exported = {name: getattr(module, name, None) for name in names}
    found = [
        obj
        for obj in exported.values()
        if isinstance(obj, type) and issubclass(obj, base) and obj is not base
    ]
    if not found:
        listed = ", ".join(map(str, names)) or "nothing"
        raise PluginError(
            f"{kind} {id!r}: the module {module.__name__} exports {one_line(listed, limit=120)} and not {want}",
            file=file,
            hint=f"list {want} in __all__",
        )
    if len(set(found)) > 1:
        raise PluginError(
            f"{kind} {id!r}: the module {module.__name__} exports several: "
            f"{', '.join(cls.__name__ for cls in found)}",
            file=file,
            hint=f"leave one {kind} in __all__",
        )
    return found[0]


def _check_api(kind: Kind, id: str, module: ModuleType) -> None:
    """Refuse a plugin that says it was written for another version of the plugin interface."""
    declared = getattr(module, "VF_TUI_API", None)
    if declared is None:
        return
    ours = ".".join(map(str, API_VERSION))
    try:
        major, minor = (int(part) for part in f"{declared}.0".split(".")[:2])
    except ValueError:
        major = minor = -1
    if major == API_VERSION[0] and 0 <= minor <= API_VERSION[1]:
        return
    newer = (major, minor) > API_VERSION
    raise PluginError(
        f"{kind} {id!r} was written for plugin interface {declared}; vf-tui {__version__} has {ours}",
        file=getattr(module, "__file__", None),
        hint="update vf-tui" if newer else "update the plugin",
    )


def _check_fit(kind: Kind, id: str, module: ModuleType, cls: type[Any], base: type[Any]) -> None:
    """Refuse a class that lacks what its base class calls, or takes other arguments than it is called with."""
    from vf_core.config.signatures import asks_for, misfits

    missing = sorted(getattr(cls, "__abstractmethods__", ()))
    problems = [f"it does not define {name}" for name in missing]
    problems += misfits(cls, base)
    if kind == "judge":
        # One that a task's own code asks may lack its score, a plugin not. It is called by name.
        known = ("task", "trace", "runtime")
        if cls.score is base.score:
            problems.append("it does not define score")
        elif (wrong := asks_for(cls.score, known)) is not None:
            problems.append(f"score asks for {wrong!r}; it can have {', '.join(known)}")
    if problems:
        raise PluginError(
            f"{kind} {id!r}: {cls.__name__} does not fit vf-tui {__version__}: {'; '.join(problems)}",
            file=getattr(module, "__file__", None),
            hint="it may have been written for another version: update the plugin or vf-tui",
        )


def namespace(kind: Kind) -> str:
    """The package that the plugins of a kind that come with us are in."""
    return _KINDS[kind].namespace


def base_class(kind: Kind) -> type[Any]:
    """The class that plugins of a kind are subclasses of."""
    try:
        base: type[Any] = _resolve(_KINDS[kind].base)
    except ModuleNotFoundError as e:
        raise PluginError(f"vf-tui {__version__} has no plugins of the kind {kind!r}") from e
    return base


def _resolve(target: str) -> Any:
    module, _, name = target.partition(":")
    return getattr(importlib.import_module(module), name)


def _loaded(target: str) -> Any:
    """As `_resolve`, but None for a class whose module nobody has imported: nothing can be its subclass."""
    module, _, name = target.partition(":")
    return getattr(sys.modules[module], name, None) if module in sys.modules else None


def _where(error: BaseException, spec: ModuleSpec) -> str:
    """The file and line of the plugin in which the import failed."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}, line {error.lineno}"
    where, trace = spec.origin or spec.name, error.__traceback__
    root = str(Path(spec.origin).parent) if spec.origin else ""
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        if file == spec.origin or (root and spec.submodule_search_locations and file.startswith(root)):
            where = f"{file}, line {trace.tb_lineno}"
        trace = trace.tb_next
    return where


def _missing_hint(error: BaseException) -> str | None:
    if isinstance(error, ModuleNotFoundError) and error.name:
        return f"install what it needs: {install_command(error.name.partition('.')[0].replace('_', '-'))}"
    return None


def _not_found_hint(kind: Kind, id: str) -> str:
    builtin = builtins(kind)
    near = nearest(plugin_name(id), builtin)
    if near:
        return f"did you mean {near}?"
    package = plugin_name(id).replace("_", "-")
    return f"built in: {', '.join(builtin) or 'none'}; one that is called so is added by: {install_command(package)}"


@lru_cache
def builtins(kind: Kind) -> tuple[str, ...]:
    """The ids of the plugins of a kind that come with us: the modules of its namespace that export something.

    Nothing but the namespace is imported.
    """
    import pkgutil

    package = importlib.import_module(_KINDS[kind].namespace)
    names = sorted(module.name for module in pkgutil.iter_modules(package.__path__))
    return tuple(name for name in names if name[0] != "_" and name != "base" and _exports(package, name))


def _exports(package: ModuleType, name: str) -> bool:
    places = [Path(root) / at for root in package.__path__ for at in (f"{name}.py", f"{name}/__init__.py")]
    return any("__all__" in place.read_text(encoding="utf-8") for place in places if place.is_file())


_quiet_lock = threading.RLock()


@contextlib.contextmanager
def _quiet(name: str) -> Iterator[None]:
    """What Python code prints or warns about inside goes to the log."""
    out = _LogLines(name)
    # Redirection is process-wide: two at once could put each other's streams back in the wrong order.
    with _quiet_lock, warnings.catch_warnings():
        warnings.showwarning = lambda message, category, file, line, *_: log.warning(
            "plugin %s: %s:%s: %s: %s", name, file, line, category.__name__, message
        )
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
            try:
                yield
            finally:
                out.finish()


class _LogLines(io.TextIOBase):
    """A stream whose lines become log records."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._rest = ""

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        *lines, self._rest = (self._rest + text).split("\n")
        for line in lines:
            if line.strip():
                log.info("plugin %s printed: %s", self._name, one_line(line))
        self._rest = self._rest[-4000:]
        return len(text)

    def finish(self) -> None:
        if self._rest.strip():
            self.write("\n")
