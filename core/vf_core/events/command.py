"""Commands: what can be asked of an engine, and its answer. They all come through one door."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

CommandName = Literal[
    "stop",
    "confirm_stop",
    "kill",
    "restart",
    "retry_failed",
    "pause",
    "unpause",
    "stop_all",
    "set_concurrency",
    "shutdown",
]
"""On `targets` (rollout ids): stop, confirm_stop, kill, restart(force: bool); retry_failed without targets
means all that errored. On the run: pause, unpause, stop_all(confirm: bool), set_concurrency(value: int),
shutdown(reason: str)."""

COMMAND_NAMES: tuple[str, ...] = get_args(CommandName)


@dataclass(frozen=True, slots=True)
class Reply:
    """How a command ended. `changed`: the rollouts (or `("run",)`) on which it did something; empty on a
    repeat. `message` is for the user: what happened, and when not `ok` what to do. `id` is the journal's.
    """

    ok: bool
    message: str = ""
    changed: tuple[str, ...] = ()
    id: str = ""
