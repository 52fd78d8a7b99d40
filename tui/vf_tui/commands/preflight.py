"""What can be said of a config before anything is started, without the network and without a plugin's code."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from vf_core.errors import ConfigError

if TYPE_CHECKING:
    from vf_core.eval_config import EvalConfig


def count_rollouts(config: EvalConfig) -> int | None:
    """Read the tasks and count the rollouts; None where that would run a plugin.

    Raises `ConfigError` for tasks that can't be read, or can't run so, and for judges of ours that can't work.
    """
    from vf_core.engine.judge_checks import make_panel
    from vf_core.engine.plan import make_plan
    from vf_core.plugins import is_builtin

    env = config.env
    if not all(is_builtin("judge", judge.id) for judge in env.taskset.task.judges):
        return None
    if not (is_builtin("taskset", env.taskset.id) and is_builtin("harness", env.agent.harness.id)):
        make_panel((), config)
        return None
    return len(make_plan(config, keys=False).specs)


def describe_rollouts(config: EvalConfig, rollouts: int) -> str:
    """How much a run of `config` would be, in a line."""
    per_task = config.num_rollouts
    tasks = rollouts // per_task
    at_once = min(config.max_concurrent, rollouts)
    total = f"{rollouts} rollout{'s' * (rollouts != 1)}"
    return f"{tasks} task{'s' * (tasks != 1)} × {per_task} = {total}, {at_once} at once"


def missing_key(config: EvalConfig) -> str:
    """Why the provider is going to refuse every call for want of a key; empty when it has one, or may need none.

    Plain http is how one's own server is reached: that is tried without a key.
    """
    for judge in config.env.taskset.task.judges:
        if judge.api_key_var is not None and not os.environ.get(judge.api_key_var):
            return f"{judge.api_key_var} is not set: judge {judge.reward_name} would have no key"
    client = config.client
    address = urlsplit(client.base_url)
    if client.api_key() or client.headers or address.scheme != "https":
        return ""
    return f"{client.api_key_var} is not set: calls to {address.hostname} would have no key"


def require_key(config: EvalConfig) -> None:
    """Raises `ConfigError` when `missing_key` says why."""
    from vf_core.engine.judge_checks import require_keys

    require_keys(config)
    if reason := missing_key(config):
        raise ConfigError(
            reason, key="client.api_key_var", hint="set it; to any text if the endpoint needs none"
        )
