"""What an attempt is of, what it works with, and how it ends."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from vf_core.eval_config import EvalConfig
from vf_core.events import types as ev
from vf_core.harnesses.base import Harness
from vf_core.runtimes.base import Runtime
from vf_core.runtimes.lifecycle import Recorder
from vf_core.tasks import Task
from vf_core.tasks.judging import Panel

if TYPE_CHECKING:
    from vf_core.interception import InterceptionServer
    from vf_core.interception.tool_server import ToolServer
    from vf_core.runs.layout import RunDir

TUNNEL = "the tunnel"
"""What rollouts use, in the words of `RunContext.used`, to be reached from here."""


@dataclass(frozen=True, slots=True)
class RolloutSpec:
    """Sample number `sample` of the task at `position` of the run. `id` is unique in the run and safe as a path;
    `panel` are the run's judges."""

    id: str
    task: Task[Any, Any, Any]
    position: int
    sample: int
    name: str
    panel: Panel = field(default_factory=Panel)


@dataclass(slots=True)
class RunContext:
    """What all attempts of a run share."""

    run: str
    config: EvalConfig
    harness: Harness[Any]
    server: InterceptionServer
    publish: Callable[[ev.Event], None]
    run_dir: RunDir
    watched: Callable[[str], bool]
    labels: dict[str, str] = field(default_factory=dict)
    # Writes a rollout's attempt's sandbox down before it is asked for; None: nowhere.
    recorder: Callable[[Runtime, str, int], Recorder] | None = None
    # Told of a rollout's use of its sandbox provider: why it failed, empty when it worked.
    used: Callable[[str, str, str], None] = lambda rollout, provider, why: None
    # Where programs were found to reach the interception server: account, image and address.
    reached: set[tuple[str, str, str]] = field(default_factory=set)
    # Gives the tool servers that all rollouts share, started; None: there are none.
    shared_tools: Callable[[], Awaitable[Sequence[ToolServer]]] | None = None


@dataclass(frozen=True, slots=True)
class Result:
    """How an attempt ended. `outcome`: completed, declined, stopped or error."""

    outcome: str
    stop_condition: str = ""
    reward: float | None = None
    error_type: str = ""
    error: str = ""
