"""From a config to everything that a run needs, checked before anything is started."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from vf_core.engine.judge_checks import make_panel, require_keys
from vf_core.engine.tool_checks import check_tools, warnings_of
from vf_core.errors import ConfigError
from vf_core.eval_config import EvalConfig
from vf_core.harnesses.base import Harness
from vf_core.interception.reach import check_reach, doubts
from vf_core.plugins import load_class, plugin_code
from vf_core.rollout import RolloutSpec
from vf_core.tasks import Task, TaskData
from vf_core.tasks.scoring import group_rewards
from vf_core.tasks.toolset import Toolset
from vf_core.text import one_line

_NAME_LIMIT = 200


@dataclass(frozen=True, slots=True)
class Plan:
    """A config with its harness and its rollouts, in the order in which they are queued; and what of the tasks'
    wishes will not be met."""

    config: EvalConfig
    harness: Harness[Any]
    specs: list[RolloutSpec]
    warnings: tuple[str, ...] = ()
    shared_tools: tuple[Toolset[Any, Any], ...] = ()


def make_plan(config: EvalConfig, *, keys: bool = True) -> Plan:
    """Load the harness and the tasks of `config`. It may block (data files, plugins): call it in a thread.

    Without `keys`, the variables that hold judges' keys need not be set yet.

    Raises `ConfigError` or `PluginError` for what can't run; an error inside a taskset says which.
    """
    env = config.env
    harness = make_harness(config)
    with plugin_code(f"taskset {env.taskset.id!r} did not load", "env.taskset"):
        taskset = load_class("taskset", env.taskset.id)(env.taskset.model_copy(deep=True))
        tasks = list(taskset.select(config.num_tasks, config.shuffle, config.seed))
    if not tasks:
        raise ConfigError(f"taskset {env.taskset.id!r} has no tasks", key="env.taskset")
    for task in tasks:
        _check(task, harness, config)
    shared = check_tools(taskset, tasks, harness, config)
    panel = make_panel(tasks, config)
    if keys:
        require_keys(config)
    specs = [
        RolloutSpec(
            id=f"{position:04d}-{sample}",
            task=task,
            position=position,
            sample=sample,
            name=one_line(task.data.name or "", limit=_NAME_LIMIT) or f"task {task.data.idx}",
            panel=panel,
        )
        for position, task in enumerate(tasks)
        for sample in range(config.num_rollouts)
    ]
    return Plan(config, harness, specs, (*_warnings(tasks, harness, config), *warnings_of(shared)), shared)


def make_harness(config: EvalConfig) -> Harness[Any]:
    """The run's harness, where it and the chosen runtime can work as configured; no task is read for that.

    Raises `ConfigError` or `PluginError` where they can't.
    """
    given = config.env.agent.harness
    # A plugin has a config of its own: what it changes there must not reach the run's, which is saved.
    with plugin_code(f"harness {given.id!r} can't be made", "env.agent.harness"):
        harness: Harness[Any] = load_class("harness", given.id)(given.model_copy(deep=True))
        harness.validate()
    _check_runtime(config)
    return harness


def _check_runtime(config: EvalConfig) -> None:
    """Raises `ConfigError` for what this machine or the installed SDK cannot do with the chosen runtime, and for a
    runtime that has no way to this machine."""
    try:
        config.env.agent.runtime.validate_here()
    except ConfigError as e:
        key = ".".join(filter(None, ("env.agent.runtime", e.key)))
        raise ConfigError(e.message, file=e.file, key=key, hint=e.hint) from e
    check_reach(config)


def _warnings(tasks: list[Task[Any, Any, Any]], harness: Harness[Any], config: EvalConfig) -> tuple[str, ...]:
    return (*_unmet(tasks, config), *_capped(tasks, config), *_moved(tasks, harness), *doubts(config))


def _moved(tasks: list[Task[Any, Any, Any]], harness: Harness[Any]) -> tuple[str, ...]:
    """System prompts that the harness takes and has no system role for."""
    if harness.APPENDS_SYSTEM_PROMPT:
        return ()
    count = sum(1 for task in tasks if _has_system_text(task.data))
    what = f"harness {harness.config.id!r} has no system role"
    told = f"{what}: the system prompts of {count} of {len(tasks)} tasks are part of the user's prompt"
    return (told,) if count else ()


def _has_system_text(data: TaskData) -> bool:
    messages = () if data.prompt is None or isinstance(data.prompt, str) else data.prompt
    return bool(data.system_prompt) or any(message.role == "system" for message in messages)


def _capped(tasks: list[Task[Any, Any, Any]], config: EvalConfig) -> tuple[str, ...]:
    """Programs' limits above the lifetime of their sandboxes."""
    agent = config.env.agent
    lifetime, own = agent.runtime.lifetime, agent.timeout.rollout
    if lifetime is None:
        return ()
    limits = [own] if own is not None else [t.data.timeout.harness for t in tasks if t.data.timeout.harness]
    longest = max((limit for limit in limits if limit is not None), default=0)
    if longest <= lifetime:
        return ()
    what = "env.agent.timeout.rollout" if own is not None else "a task's own timeout"
    kind = agent.runtime.type
    return (
        f"{what} of {longest:g} s is above the lifetime of {kind} sandboxes, {int(lifetime)} s: it is capped there, "
        "less the time that starting and scoring take",
    )


def _unmet(tasks: list[Task[Any, Any, Any]], config: EvalConfig) -> tuple[str, ...]:
    """What tasks ask of their sandbox that this kind of runtime has no option for."""
    runtime = config.env.agent.runtime
    asked = Counter[str]()
    for task in tasks:
        asked.update(list(task.data.resources.model_dump(exclude_none=True)))
        asked.update(["workdir"] if task.data.workdir is not None else [])
    return tuple(
        f"runtime {runtime.type!r} has no {name}: what {count} of {len(tasks)} tasks ask for is ignored"
        for name, count in asked.items()
        if name not in type(runtime).model_fields
    )


def _check(task: Task[Any, Any, Any], harness: Harness[Any], config: EvalConfig) -> None:
    """Refuse a task that can't run with this harness, runtime or number of rollouts."""
    kind = config.env.agent.runtime.type
    name = task.data.name or task.data.idx
    if kind == "subprocess" and (task.data.image is not None or task.NEEDS_CONTAINER):
        raise ConfigError(
            f"task {name!r} needs a container"
            + (f" (image {task.data.image!r})" if task.data.image else "")
            + ", and runtime 'subprocess' has none",
            key="env.agent.runtime.type",
            hint="choose a runtime with containers",
        )
    try:
        config.env.agent.runtime.for_task(task.data)
    except ValueError as e:
        problem = (
            "; ".join(error["msg"] for error in e.errors()) if isinstance(e, ValidationError) else str(e)
        )
        raise ConfigError(
            f"task {name!r} asks for a sandbox that runtime {kind!r} cannot be: {problem}", key="env.taskset"
        ) from e
    if group_rewards(task) and config.num_rollouts < 2:
        raise ConfigError(
            f"task {name!r} has group rewards, which compare rollouts of one task",
            key="num_rollouts",
            hint="set it to 2 or more",
        )
    try:
        with plugin_code(f"harness {harness.config.id!r}: task {name!r}", "env.agent.harness", ValueError):
            harness.resolve_prompt(task.data)
    except ValueError as e:
        raise ConfigError(f"task {name!r}: {e}", key="env.taskset") from e
