"""A run's judges, made and checked before anything is started: what can't work is not found after all is paid for."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from vf_core.errors import ConfigError, PluginError, VfError
from vf_core.eval_config import EvalConfig
from vf_core.judges import Judge
from vf_core.plugins import load_class, plugin_code
from vf_core.tasks import Task
from vf_core.tasks.decorators import hooks
from vf_core.tasks.judging import JudgeConfig, Panel

KEY = "env.taskset.task.judges"


def make_panel(tasks: Sequence[Task[Any, Any, Any]], config: EvalConfig) -> Panel:
    """The judges of a run that has `tasks`. It may block (files, plugins): call it in a thread.

    Raises `ConfigError` with the key of the judge that can't work.
    """
    configs = config.env.taskset.task.judges
    for task in tasks:
        if task.config.judges and task.config.judges != configs:
            raise PluginError(
                f"task {task.data.name or task.data.idx!r} has judges of its own",
                key="env.taskset",
                hint="judges are one list for the whole run: give self.config.task to each task",
            )
    if not configs:
        return Panel(client=config.client)
    _check_names(configs, tasks)
    if not any(judge.weight for judge in configs):
        raise ConfigError("is 0 for every judge: nothing they say would count", key=f"{KEY}[0].weight")
    judges = tuple(_make(judge, f"{KEY}[{i}]", tasks) for i, judge in enumerate(configs))
    import openai  # noqa: F401 - a second of imports that nobody should wait for while rollouts run

    return Panel(judges, config.client)


def require_keys(config: EvalConfig) -> None:
    """Raises `ConfigError` for a judge's key that is in no variable yet, or can't be sent."""
    for i, judge in enumerate(config.env.taskset.task.judges):
        variable = judge.api_key_var
        if variable is None:
            continue
        value, key = os.environ.get(variable, "").strip(), f"{KEY}[{i}].api_key_var"
        if not value:
            raise ConfigError(
                f"{variable} is not set: this judge would have no key",
                key=key,
                hint="set it; to any text if the endpoint needs none",
            )
        if not (value.isascii() and value.isprintable()):
            raise ConfigError(
                f"{variable} holds what can't be a key", key=key, hint="set it to the key alone"
            )


def _make(config: JudgeConfig, key: str, tasks: Sequence[Task[Any, Any, Any]]) -> Judge[Any, Any]:
    cls = load_class("judge", config.id)
    try:
        with plugin_code(f"judge {config.id!r} can't be made", key, ValueError):
            judge: Judge[Any, Any] = cls(config.model_copy(deep=True))
            judge.validate()
            for task in tasks:
                judge.validate_task(task.data)
    except ConfigError as e:
        if e.file is None and e.key is None:
            raise ConfigError(e.message, key=key, hint=e.hint) from e
        raise
    except ValueError as e:
        raise ConfigError(str(e), key=key) from e
    except VfError as e:
        raise PluginError(f"judge {config.id!r}: {e.message}", key=key, hint=e.hint) from e
    return judge


def _check_names(configs: Sequence[JudgeConfig], tasks: Sequence[Task[Any, Any, Any]]) -> None:
    """Refuse two rewards of one name."""
    taken: dict[str, str] = {}
    for cls in {type(task): task for task in tasks}.values():
        for hook in (*hooks(cls, "reward"), *hooks(cls, "group_reward")):
            taken[hook.name] = hook.what
    for i, config in enumerate(configs):
        name = config.reward_name
        if name in taken:
            raise ConfigError(
                f"the reward {name!r} is there already: {taken[name]}",
                key=f"{KEY}[{i}].{'name' if config.name else 'id'}",
                hint="give this judge a name of its own",
            )
        taken[name] = f"judge {KEY}[{i}]"
