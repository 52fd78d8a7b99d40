"""What a taskset is written with: task and taskset base classes, the decorators, scoring."""

from vf_core.tasks.base import Task, TaskConfig, Taskset, TasksetConfig
from vf_core.tasks.decorators import group_reward, metric, reward, stop, tool
from vf_core.tasks.scoring import stop_hooks
from vf_core.tasks.toolset import Toolset, ToolsetConfig
from vf_core.trace.task import State, TaskData, TaskResources, TaskTimeout

__all__ = [
    "State",
    "Task",
    "TaskConfig",
    "TaskData",
    "TaskResources",
    "TaskTimeout",
    "Taskset",
    "TasksetConfig",
    "Toolset",
    "ToolsetConfig",
    "group_reward",
    "metric",
    "reward",
    "stop",
    "stop_hooks",
    "tool",
]
