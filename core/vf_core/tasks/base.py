"""Tasks and tasksets: the data of an eval and the behaviour that judges it, in the shape of verifiers v1.

A `TaskData` is one row. A `Task` wraps it with behaviour: `setup` and `finalize` in the sandbox, `@reward`,
`@metric`, `@group_reward` and `@stop` methods, and the tool servers that its agent gets. A `Taskset` makes tasks
from its config. Hooks are `async` or plain; each rollout works on a copy of its task, so what a hook changes on
`self` stays in that rollout.
"""

from __future__ import annotations

import copy
import itertools
import random
from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, ClassVar, Generic, get_args, get_origin

from pydantic import SerializeAsAny
from typing_extensions import TypeVar

from vf_core.config.base import StrictModel
from vf_core.errors import ConfigError, PluginError
from vf_core.tasks.decorators import check_hooks
from vf_core.tasks.judging import JudgeConfig
from vf_core.trace.task import DataT, State, StateT, TaskData

if TYPE_CHECKING:
    from vf_core.runtimes.base import Runtime
    from vf_core.tasks.toolset import Toolset, ToolsetConfig
    from vf_core.trace.record import Trace


class TaskConfig(StrictModel):
    """Options read by a task's behaviour. Every field of a subclass needs a default.

    `judges` are asked after a rollout's rewards; each has the options of its own plugin.
    """

    judges: tuple[SerializeAsAny[JudgeConfig], ...] = ()


class TasksetConfig(StrictModel):
    """Options of a taskset: which one (`id`), and `task`, the options handed to each of its tasks."""

    id: str = ""
    task: SerializeAsAny[TaskConfig] = TaskConfig()


TaskConfigT = TypeVar("TaskConfigT", bound=TaskConfig, default=TaskConfig)
TasksetConfigT = TypeVar("TasksetConfigT", bound=TasksetConfig, default=TasksetConfig)


def no_op(hook: Any) -> Any:
    """Mark a hook of a base class that does nothing, so that calling it costs nothing."""
    hook.does_nothing = True
    return hook


class _HasTools:
    """What declares tool servers, and has their options among its own."""

    config: Any
    tools: ClassVar[tuple[type[Toolset[Any, Any]], ...]] = ()

    def server_config(self, cls: type[Toolset[Any, Any]]) -> ToolsetConfig:
        """The config of a declared toolset, found by its class among the fields of `self.config`. Override it where
        that does not tell."""
        from vf_core.tasks.toolset import resolve_server_config

        sole = len(set(self.tools)) == 1
        return resolve_server_config(type(self).__name__, self.config, cls, sole=sole)

    def tool_servers(self) -> list[Toolset[Any, Any]]:
        """The declared toolsets with their configs."""
        return [cls(self.server_config(cls)) for cls in self.tools]


class Task(_HasTools, Generic[DataT, StateT, TaskConfigT]):
    """One row with its behaviour. Subclass it as `Task[MyData, MyState, MyConfig]`; all three have defaults."""

    NEEDS_CONTAINER: ClassVar[bool] = False
    """It can't run in a runtime that has no image of its own."""
    tools: ClassVar[tuple[type[Toolset[Any, Any]], ...]] = ()
    """Tool servers that each of its rollouts has for itself."""
    config: TaskConfigT

    def __init__(self, data: DataT, config: TaskConfigT | None = None) -> None:
        self.data = data
        self.config = config if config is not None else config_type(type(self))()  # type: ignore[assignment]

    @no_op
    async def setup(self, trace: Trace[DataT, StateT], runtime: Runtime) -> None:
        """Prepare the live sandbox before the agent starts."""

    @no_op
    async def finalize(self, trace: Trace[DataT, StateT], runtime: Runtime) -> None:
        """Look after the agent's run, before scoring, at what it left in the sandbox."""

    @no_op
    async def validate(self, runtime: Runtime) -> bool:
        """Whether the task is well-formed, tried in a sandbox without an agent."""
        return True

    def copy_for(self, data: DataT) -> Task[DataT, StateT, TaskConfigT]:
        """A copy that shares nothing changeable of the row, the config and plain containers on `self`; `data`, the
        copy's row, is taken as it is. What else is on `self` (a client, a loaded data set) is shared."""
        own = copy.copy(self)
        for name, value in vars(self).items():
            if type(value) in (list, dict, set):
                setattr(own, name, value.copy())
        own.data = data
        own.config = self.config.model_copy(deep=True)
        return own


TaskT = TypeVar("TaskT", bound=Task[Any, Any, Any], default=Task[Any, Any, Any])


class Taskset(_HasTools, ABC, Generic[TaskT, TasksetConfigT]):
    """Makes tasks. Subclass it as `Taskset[MyTask, MyTasksetConfig]` and give it `load`."""

    INFINITE: ClassVar[bool] = False
    """`load` never ends: a run must say how many tasks it takes, and can't shuffle."""
    tools: ClassVar[tuple[type[Toolset[Any, Any]], ...]] = ()
    """Tool servers that all rollouts of the run share."""
    config: TasksetConfigT

    def __init__(self, config: TasksetConfigT) -> None:
        self.config = config

    @abstractmethod
    def load(self) -> Iterable[TaskT]:
        """The tasks in order: a list, or a generator of which no more is taken than is needed.

        Give `self.config.task` to each. It may block; it is not called on an event loop.
        """

    def select(self, num_tasks: int | None = None, shuffle: bool = False, seed: int = 0) -> list[TaskT]:
        """The first `num_tasks` tasks (None: all), from the whole set in an order given by `seed` with `shuffle`.

        Raises ConfigError for what can't be selected, PluginError when `load` gives something else than tasks.
        """
        if num_tasks is not None and num_tasks < 0:
            raise ConfigError(f"can't take {num_tasks} tasks", key="num_tasks")
        if self.INFINITE and num_tasks is None:
            raise ConfigError(f"taskset {self.config.id!r} never ends", key="num_tasks", hint="say how many")
        if self.INFINITE and shuffle:
            raise ConfigError(f"taskset {self.config.id!r} never ends: it can't be shuffled", key="shuffle")
        if not shuffle:
            return self._checked(itertools.islice(self.load(), num_tasks))
        tasks = self._checked(self.load())
        random.Random(seed).shuffle(tasks)  # noqa: S311 (an order, not a secret)
        return tasks[:num_tasks]

    def _checked(self, tasks: Iterable[TaskT]) -> list[TaskT]:
        out: list[TaskT] = []
        types: set[type] = set()
        for task in tasks:
            if type(task) not in types:
                if not isinstance(task, Task):
                    raise PluginError(
                        f"taskset {self.config.id!r}: load() gave a {type(task).__name__}, not a Task",
                        hint="wrap each row: MyTask(MyData(...), self.config.task)",
                    )
                check_hooks(type(task))
                types.add(type(task))
            out.append(task)
        return out


def data_type(cls: type[Task[Any, Any, Any]]) -> type[TaskData]:
    """The row class that a task class declares."""
    return parameter(cls, TaskData) or TaskData


def state_type(cls: type[Task[Any, Any, Any]]) -> type[State]:
    """The state class that a task class declares."""
    return parameter(cls, State) or State


def config_type(cls: type[Task[Any, Any, Any]]) -> type[TaskConfig]:
    """The config class that a task class declares."""
    return parameter(cls, TaskConfig) or TaskConfig


BoundT = TypeVar("BoundT")


def parameter(cls: type, bound: type[BoundT]) -> type[BoundT] | None:
    """The first subclass of `bound` among the generic parameters of `cls` and its bases, most derived first."""
    for klass in cls.__mro__:
        for base in getattr(klass, "__orig_bases__", ()):
            for arg in get_args(base) if get_origin(base) is not None else ():
                if isinstance(arg, type) and issubclass(arg, bound):
                    return arg
    return None
