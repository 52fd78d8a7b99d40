"""`engine.json`: who runs a run, how to reach it and where it stands, in a few hundred bytes.

Listing runs reads these and never a journal. It is replaced as a whole, at most once a second.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vf_core.runs.layout import open_regular, write_private
from vf_core.runs.liveness import Liveness, Whereabouts, here, process_lives, process_start

if TYPE_CHECKING:
    from vf_core.events.state import RunState

_LIMIT = 1 << 20


@dataclass(frozen=True, slots=True)
class Standing:
    """A run in numbers, as of `t` (Unix seconds). `unconfirmed` sandboxes were asked to go and are not proven gone,
    `left` are all that are not, those at work included. `reward` is the mean of the `scored` rollouts, `reward_error`
    its standard error."""

    t: float = 0.0
    status: str = "starting"
    total: int = 0
    done: int = 0
    active: int = 0
    errors: int = 0
    declined: int = 0
    scored: int = 0
    reward: float | None = None
    reward_error: float | None = None
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cost: float | None = None
    unconfirmed: int = 0
    left: int = 0
    paused: bool = False
    started: float | None = None
    finished: float | None = None
    exit_code: int | None = None


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """What `engine.json` holds. `start` is the process's start time as `liveness.process_start` gives it,
    `socket` a path (empty: no socket), `dir` where the run directory was when it was written. `ended`: the
    engine has closed, though its process may go on."""

    run: str
    pid: int
    start: str = ""
    host: str = ""
    machine: str = ""
    boot: str = ""
    space: str = ""
    socket: str = ""
    version: str = ""
    protocol: int = 0
    dir: str = ""
    ended: bool = False
    name: str = ""
    model: str = ""
    taskset: str = ""
    harness: str = ""
    runtime: str = ""
    standing: Standing = field(default_factory=Standing)

    @classmethod
    def of_this_process(cls, run: str, dir: Path, *, socket: str, version: str, protocol: int) -> EngineInfo:
        """The entry of an engine in this process."""
        where, pid = here(), os.getpid()
        return cls(
            run=run,
            pid=pid,
            start=process_start(pid),
            host=where.host,
            machine=where.machine,
            boot=where.boot,
            space=where.space,
            socket=socket,
            version=version,
            protocol=protocol,
            dir=str(dir),
        )

    def at(self, state: RunState) -> EngineInfo:
        """This entry with what `state` says."""
        return replace(
            self,
            name=state.name,
            model=state.model,
            taskset=state.taskset,
            harness=state.harness,
            runtime=state.runtime,
            standing=standing_of(state),
        )

    def liveness(self) -> Liveness:
        """Whether that engine is still there. One that has ended in peace is `ended` wherever it ran."""
        if self.ended:
            return "ended"
        where = Whereabouts(self.host, self.machine, self.boot, self.space)
        lives = process_lives(self.pid, self.start, where)
        if lives != "live" and self.standing.finished is not None:
            return "ended"
        return lives


def standing_of(state: RunState) -> Standing:
    """`state` in numbers."""
    totals = state.totals
    return Standing(
        t=state.now,
        status=state.status,
        total=max(state.total, len(state.rollouts)),
        done=totals.ended,
        active=totals.active,
        errors=totals.error,
        declined=totals.declined,
        scored=totals.scored,
        reward=state.reward_mean,
        reward_error=state.reward_error,
        prompt_tokens=totals.prompt_tokens,
        completion_tokens=totals.completion_tokens,
        cost=totals.cost,
        unconfirmed=len(state.unconfirmed),
        left=len(state.left_over()),
        paused=state.paused,
        started=state.started,
        finished=state.finished,
        exit_code=state.exit_code,
    )


def write_engine_info(path: Path, info: EngineInfo) -> None:
    """Replace the file at `path`. Raises OSError."""
    write_private(path, json.dumps(asdict(info), indent=1).encode() + b"\n")


def read_engine_info(path: Path) -> EngineInfo | None:
    """What the file at `path` says; None when there is none, or it is not one of these."""
    try:
        with open_regular(path) as file:
            data = json.loads(file.read(_LIMIT))
        standing = _known(Standing, data.pop("standing", {}))
        info = _known(EngineInfo, data)
        return EngineInfo(**info, standing=Standing(**standing))
    except (OSError, ValueError, TypeError, AttributeError, RecursionError):
        return None


_NUMBERS = (int, float)
_ACCEPTED: dict[str, tuple[type, ...]] = {
    "str": (str,),
    "int": (int,),
    "float": _NUMBERS,
    "bool": (bool,),
    "int | None": (int, type(None)),
    "float | None": (*_NUMBERS, type(None)),
}


def _known(cls: type[Any], data: dict[str, Any]) -> dict[str, Any]:
    """The entries of `data` that `cls` has (a newer version may write more). Raises TypeError for a wrong one."""
    out = {}
    for f in fields(cls):
        if f.name not in data or f.name == "standing":
            continue
        if not isinstance(data[f.name], _ACCEPTED[str(f.type)]):
            raise TypeError(f"{f.name} is a {type(data[f.name]).__name__}")
        out[f.name] = data[f.name]
    return out
