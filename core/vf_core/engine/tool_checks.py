"""What is wrong with a run's tools, found before any sandbox exists."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from vf_core.errors import ConfigError, PluginError, ToolsetError, VfError
from vf_core.eval_config import EvalConfig
from vf_core.harnesses.base import Harness
from vf_core.runtimes import runtime_is_local
from vf_core.runtimes.base import RuntimeConfig
from vf_core.tasks import Task, Taskset
from vf_core.tasks.base import state_type
from vf_core.tasks.decorators import marked_tools
from vf_core.tasks.toolset import PREFIX, Toolset, needs_channel, tool_names, toolset_state

SHARED_KEY = "env.taskset"
OWN_KEY = "env.taskset.task"
# What model providers take as the name of a tool.
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


@dataclass(frozen=True, slots=True)
class _Given:
    """A toolset as a run has it. `key` is where its options stand in the config."""

    toolset: Toolset[Any, Any]
    shared: bool
    key: str

    @property
    def what(self) -> str:
        """How messages name it."""
        return f"toolset {type(self.toolset).__name__}"


def check_tools(
    taskset: Taskset[Any, Any],
    tasks: Sequence[Task[Any, Any, Any]],
    harness: Harness[Any],
    config: EvalConfig,
) -> tuple[Toolset[Any, Any], ...]:
    """The toolsets that the run's rollouts share. It may block. Raises `ConfigError` or `PluginError` for tools that
    cannot be served, or not all at once."""
    shared = [*_declared(taskset, taskset.config, shared=True, key=SHARED_KEY)]
    seen: set[object] = set()
    for given in shared:
        _check(given, config)
    for task in tasks:
        kind: object = (type(task), id(task.config))
        if type(task).server_config is not Task.server_config:
            kind = id(task)
        if kind in seen:
            continue
        seen.add(kind)
        own = [*_declared(task, task.config, shared=False, key=OWN_KEY)]
        if own or shared:
            _made(state_type(type(task)), f"task {type(task).__name__}")
        _check_colocated(own, config)
        for given in own:
            _check(given, config)
        _check_together([*shared, *own], harness)
    return tuple(given.toolset for given in shared)


def warnings_of(shared: Iterable[Toolset[Any, Any]]) -> Iterator[str]:
    """What of the shared toolsets will not happen."""
    for toolset in shared:
        if not getattr(toolset.setup_task, "does_nothing", False):
            yield (
                f"toolset {type(toolset).__name__} is shared by all rollouts: its setup_task is never called "
                "(declare it in Task.tools for a server of each rollout's own)"
            )


def _declared(owner: Any, options: Any, *, shared: bool, key: str) -> Iterator[_Given]:
    """The toolsets of a task or a taskset with their options."""
    name = type(owner).__name__
    classes = owner.tools
    if not isinstance(classes, tuple) or not all(
        isinstance(c, type) and issubclass(c, Toolset) for c in classes
    ):
        raise PluginError(f"{name}.tools is no tuple of Toolset classes", hint="tools = (MyTools,)")
    try:
        toolsets = owner.tool_servers() if classes else []
    except VfError:
        raise
    except Exception as e:
        raise ConfigError(f"the tools of {name}: {type(e).__name__}: {e}", key=key) from e
    for toolset in toolsets:
        fields = type(options).model_fields
        field = next((field for field in fields if getattr(options, field) is toolset.config), "")
        yield _Given(toolset, shared, f"{key}.{field}" if field else key)


def _check(given: _Given, config: EvalConfig) -> None:
    """Refuse a toolset that cannot be served where it is to be."""
    toolset, own = given.toolset, given.toolset.config
    cls = type(toolset)
    if not PREFIX.fullmatch(toolset.server_name):
        raise PluginError(f"{given.what}: TOOL_PREFIX is to be at most 48 letters, digits, _ and -")
    if own.url is not None:
        return
    if not tool_names(cls):
        raise PluginError(f"{given.what} has no tools", hint="mark its methods with @tool")
    names = [mark_name or name for name, mark_name in marked_tools(cls)]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise PluginError(f"{given.what} has two tools of the name {twice[0]!r}")
    for part in (cls, type(own)):
        if part.__module__ == "__main__" or "<locals>" in part.__qualname__:
            raise PluginError(
                f"{given.what}: its server cannot import {part.__qualname__} from {part.__module__}",
                hint="define it at the top of an importable module",
            )
    _made(toolset_state(cls), given.what)
    if given.shared and own.colocated:
        raise ConfigError(
            f"{given.what} is shared by all rollouts: it cannot be in the sandbox of one",
            key=f"{given.key}.colocated",
        )
    place = config.env.agent.runtime if own.colocated else own.runtime
    if not own.colocated:
        _check_place(given, config)
    if place.type != "subprocess":
        from vf_core.tools.install import goods

        try:
            goods(toolset)
        except ToolsetError as e:
            raise ConfigError(f"{given.what}: {e.message}", key=given.key, hint=e.hint) from e


def _made(state: type[Any], what: str) -> None:
    """Refuse a state that needs to be told something to be made."""
    try:
        state()
    except Exception as e:
        raise PluginError(
            f"{what}: its state {state.__name__} cannot be made: {e}", hint="give every field a default"
        ) from e


def _check_place(given: _Given, config: EvalConfig) -> None:
    """Refuse a sandbox of its own that this machine cannot make, or could not reach."""
    runtime = given.toolset.config.runtime
    try:
        runtime.validate_here()
    except ConfigError as e:
        key = ".".join(filter(None, (given.key, "runtime", e.key)))
        raise ConfigError(e.message, file=e.file, key=key, hint=e.hint) from e
    _check_ports(runtime, 1, given.what, f"{given.key}.runtime")
    way = config.env.interception.way
    reachable = way is not None and (way.always or not runtime_is_local(config.env.agent.runtime.type))
    if (
        not runtime_is_local(runtime.type)
        and not reachable
        and needs_channel(type(given.toolset), shared=given.shared)
    ):
        raise ConfigError(
            f"{given.what} uses its rollout's state or row, which is on this machine, and no tunnel leads here "
            f"from its {runtime.type} sandbox",
            key=f"{given.key}.runtime.type",
            hint="set env.interception.tunnel, with always = true where the rollouts' sandboxes are local; or serve "
            "it on this host",
        )


def _check_ports(runtime: RuntimeConfig, count: int, what: str, key: str) -> None:
    """Refuse servers that this host could not reach in a sandbox of that kind."""
    if runtime_is_local(runtime.type):
        return
    ports = getattr(runtime, "expose_ports", None)
    if ports is None:
        raise ConfigError(
            f"{what} cannot be served in a {runtime.type} sandbox: none of its ports can be reached from here",
            key=key,
            hint="serve it on this host (leave out runtime and colocated), or in a docker or modal sandbox",
        )
    if len(set(ports)) < count:
        raise ConfigError(
            f"{what}: a {runtime.type} sandbox must be told beforehand which ports are reached from here",
            key=f"{key}.expose_ports",
            hint=f"name {count} of them, such as {list(range(8000, 8000 + count))}",
        )


def _check_colocated(own: Sequence[_Given], config: EvalConfig) -> None:
    inside = [given for given in own if given.toolset.config.colocated and given.toolset.config.url is None]
    if inside:
        what = ", ".join(given.what for given in inside)
        _check_ports(config.env.agent.runtime, len(inside), what, "env.agent.runtime")


def _check_together(given: Sequence[_Given], harness: Harness[Any]) -> None:
    """Refuse what a harness cannot use, and names that mean two things."""
    if not given:
        return
    if not harness.SUPPORTS_MCP:
        raise ConfigError(
            f"harness {harness.config.id!r} cannot use tools of MCP servers, and the tasks have "
            + ", ".join(one.what for one in given),
            key="env.agent.harness.id",
            hint="choose a harness that can, such as bash or null",
        )
    harness_tools: Iterable[str] = getattr(harness, "own_tools", tuple)()
    reserved = dict.fromkeys(harness_tools, f"harness {harness.config.id!r}")
    servers: dict[str, str] = {}
    names = dict(reserved)
    for one in given:
        prefix = one.toolset.server_name
        shown = f"the prefix {prefix!r}" if prefix else "bare names"
        taken = servers.get(prefix) or (reserved.get(prefix) if prefix else None)
        if taken is not None:
            raise _clash(shown, taken, one)
        servers[prefix] = one.what
        for tool in tool_names(type(one.toolset)) if one.toolset.config.url is None else ():
            name = f"{prefix}_{tool}" if prefix else tool
            if not _NAME.fullmatch(name):
                raise ConfigError(
                    f"{one.what}: models cannot be told of a tool {name!r}",
                    key=one.key,
                    hint="a name has at most 64 letters, digits, _ and -",
                )
            if name in names:
                raise _clash(f"the name {name!r}", names[name], one)
            names[name] = one.what


def _clash(shown: str, taken: str, one: _Given) -> ConfigError:
    return ConfigError(
        f"{shown} is taken twice: by {taken} and by {one.what}",
        key=f"{one.key}.tool_prefix",
        hint="give one of them another prefix: TOOL_PREFIX of its class, or tool_prefix in the config",
    )
