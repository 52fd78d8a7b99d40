"""`@reward`, `@metric`, `@group_reward`, `@stop` and `@tool`: marking methods, finding and calling them."""

from __future__ import annotations

import difflib
import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, TypeVar, overload

from vf_core.errors import PluginError, TaskError

Kind = Literal["reward", "metric", "group_reward", "stop", "tool"]
F = TypeVar("F", bound=Callable[..., Any])

_ARGUMENTS: dict[str, tuple[str, ...]] = {
    "reward": ("task", "trace", "runtime"),
    "metric": ("task", "trace", "runtime"),
    "group_reward": ("task", "traces"),
    "stop": ("task", "trace"),
    "setup": ("task", "trace", "runtime"),
    "finalize": ("task", "trace", "runtime"),
}
_MARK = "__vf_hook__"


@dataclass(frozen=True, slots=True)
class _Mark:
    kind: Kind
    weight: float
    priority: int
    name: str = ""


@dataclass(frozen=True, slots=True)
class Hook:
    """A marked method, bound to its object. `owner` is the name of the object's class."""

    kind: Kind
    name: str
    owner: str
    weight: float
    fn: Callable[..., Any]

    @property
    def what(self) -> str:
        """How messages name it."""
        return f"@{self.kind} {self.name} of {self.owner}"

    def needs(self, argument: str) -> bool:
        """It can't be called without `argument`."""
        parameter = _parameters(_function(self.fn)).get(argument)
        return parameter is not None and parameter.default is inspect.Parameter.empty


def _mark(
    kind: Kind, fn: F | None, weight: float = 1.0, priority: int = 0, name: str = ""
) -> F | Callable[[F], F]:
    if not isinstance(weight, int | float) or isinstance(weight, bool) or not math.isfinite(weight):
        raise TypeError(f"@{kind}: weight is {weight!r}, not a finite number")

    def mark(fn: F) -> F:
        setattr(fn, _MARK, _Mark(kind, float(weight), priority, name))
        return fn

    return mark if fn is None else mark(fn)


@overload
def reward(fn: F) -> F: ...
@overload
def reward(fn: None = None, *, weight: float = 1.0, priority: int = 0) -> Callable[[F], F]: ...
def reward(fn: F | None = None, *, weight: float = 1.0, priority: int = 0) -> F | Callable[[F], F]:
    """A reward of one rollout: a number, or a mapping of names to numbers, each multiplied by `weight`.

    Arguments by name: `task` (the row), `trace`, `runtime`. One that raises leaves the rollout unscored.
    """
    return _mark("reward", fn, weight, priority)


@overload
def group_reward(fn: F) -> F: ...
@overload
def group_reward(fn: None = None, *, weight: float = 1.0, priority: int = 0) -> Callable[[F], F]: ...
def group_reward(fn: F | None = None, *, weight: float = 1.0, priority: int = 0) -> F | Callable[[F], F]:
    """A reward that compares all rollouts of a task: one number for each of `traces`, in their order."""
    return _mark("group_reward", fn, weight, priority)


@overload
def metric(fn: F) -> F: ...
@overload
def metric(fn: None = None, *, priority: int = 0) -> Callable[[F], F]: ...
def metric(fn: F | None = None, *, priority: int = 0) -> F | Callable[[F], F]:
    """A number worth recording (or a mapping of names to numbers) that is no reward. Arguments as for `reward`."""
    return _mark("metric", fn, 1.0, priority)


@overload
def stop(fn: F) -> F: ...
@overload
def stop(fn: None = None, *, priority: int = 0) -> Callable[[F], F]: ...
def stop(fn: F | None = None, *, priority: int = 0) -> F | Callable[[F], F]:
    """Whether to end the rollout, asked before each model call; its name becomes the stop condition."""
    return _mark("stop", fn, 1.0, priority)


@overload
def tool(fn: F) -> F: ...
@overload
def tool(fn: None = None, name: str = "") -> Callable[[F], F]: ...
def tool(fn: F | None = None, name: str = "") -> F | Callable[[F], F]:
    """A tool that a `Toolset` offers to the agent, under its method's name or `name`; its docstring describes it, and
    its annotations say what it takes. What it raises is told to the model as an error.

    A call may arrive more than once: its answer can be lost on the way.
    """
    return _mark("tool", fn, name=name)


def marked_tools(cls: type) -> list[tuple[str, str]]:
    """The `@tool` methods of a class, in the order of their names, each with the name that its mark gives it."""
    marked = _marked(cls, "tool")
    return [(name, mark.name) for name, mark in marked]


@lru_cache(maxsize=512)
def _marked(cls: type, kind: Kind) -> tuple[tuple[str, _Mark], ...]:
    """Names and marks of the methods of a kind: higher priority first, then by name. A method that is overridden
    without a mark is none; properties are not looked into."""
    found: dict[str, _Mark] = {}
    for name in dir(cls):
        mark = getattr(inspect.getattr_static(cls, name), _MARK, None)
        if isinstance(mark, _Mark) and mark.kind == kind:
            found[name] = mark
    return tuple(sorted(found.items(), key=lambda item: (-item[1].priority, item[0])))


def hooks(obj: object, kind: Kind) -> list[Hook]:
    """The methods of `obj` that are marked as `kind`, in the order in which they count."""
    cls = type(obj)
    marked = _marked(cls, kind)  # type: ignore[arg-type]  # a class is hashable
    return [Hook(kind, name, cls.__name__, mark.weight, getattr(obj, name)) for name, mark in marked]


def check_hooks(cls: type) -> None:
    """Raise PluginError for a hook of a task class that asks for an argument that nobody gives it."""
    kinds: tuple[Kind, ...] = ("reward", "metric", "group_reward", "stop")
    named = [(kind, name) for kind in kinds for name, _ in _marked(cls, kind)]
    for kind, name in [*named, ("setup", "setup"), ("finalize", "finalize")]:
        fn = getattr(cls, name, None)
        if not callable(fn):
            continue
        wrong = _unknown(_parameters(fn, skip=1), _ARGUMENTS[kind])
        if wrong:
            known = _ARGUMENTS[kind]
            near = difflib.get_close_matches(wrong, known, 1)
            raise PluginError(
                f"{name} of {cls.__name__} asks for an argument {wrong!r}",
                hint=f"did you mean {near[0]!r}?" if near else f"it can have {', '.join(known)}",
            )


def _unknown(parameters: Mapping[str, inspect.Parameter], known: tuple[str, ...]) -> str | None:
    for name, parameter in parameters.items():
        needed = parameter.default is inspect.Parameter.empty and parameter.kind not in _VARIABLE
        if needed and (name not in known or parameter.kind is inspect.Parameter.POSITIONAL_ONLY):
            return name
    return None


_VARIABLE = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


@lru_cache(maxsize=1024)
def _parameters(fn: Callable[..., Any], skip: int = 0) -> dict[str, inspect.Parameter]:
    return dict(list(inspect.signature(fn).parameters.items())[skip:])


def _function(fn: Callable[..., Any]) -> Callable[..., Any]:
    """What the signature cache is keyed by: a bound method is a new object each time it is looked up."""
    function: Callable[..., Any] = getattr(fn, "__func__", fn)
    return function


def arguments(fn: Callable[..., Any], available: Mapping[str, Any], what: str) -> dict[str, Any]:
    """Those of `available` that `fn` asks for by name (all of them for `**kwargs`).

    Raises TaskError when it asks for something else.
    """
    function = _function(fn)
    parameters = _parameters(function, skip=0 if function is fn else 1)
    wrong = _unknown(parameters, tuple(available))
    if wrong:
        raise TaskError(f"{what} asks for {wrong!r}", hint=f"it can have {', '.join(available)}")
    if any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters.values()):
        return dict(available)
    return {name: value for name, value in available.items() if name in parameters}
