"""What `traces.jsonl` says of each rollout: the facts that a resume needs, and never the traces themselves.

The file is read line by line, so memory is bounded by its longest line and the number of rollouts.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import isfinite
from pathlib import Path
from typing import Any

from vf_core.trace.reader import ReadRecord, read_records

FINISHED = frozenset({"completed", "declined"})
_ATTEMPTS = 1 << 31


@dataclass(frozen=True, slots=True)
class Stand:
    """How a rollout stands by one of its traces. `rollout` is empty where the record names none (verifiers'), and
    `attempt` is 1 then. `rewards` are names; `index` and `name` are the task's. The record begins at byte `offset`
    and is number `part` of its line."""

    rollout: str
    attempt: int
    trace: str
    outcome: str
    stop_condition: str
    reward: float | None
    rewards: tuple[str, ...]
    index: int | None
    name: str
    offset: int
    part: int = 0

    @property
    def good(self) -> bool:
        """It came to an end of its own, and nothing failed."""
        return self.outcome in FINISHED


@dataclass(slots=True)
class Stands:
    """By rollout, the trace of its highest attempt (of equal ones the last); records that name no rollout, by the
    task's index and in order."""

    by_rollout: dict[str, Stand] = field(default_factory=dict)
    unnamed: dict[int, list[Stand]] = field(default_factory=dict)

    def add(self, stand: Stand) -> None:
        """Take in the next record of the file."""
        if not stand.rollout:
            if stand.index is not None:
                self.unnamed.setdefault(stand.index, []).append(stand)
            return
        known = self.by_rollout.get(stand.rollout)
        if known is None or stand.attempt >= known.attempt:
            self.by_rollout[stand.rollout] = stand


def read_stands(path: Path) -> Stands:
    """All of a file of traces; no file is an empty one. Lines that hold no record are passed over.

    Raises `RunDirError` when it can't be read.
    """
    stands, line, part = Stands(), 0, 0
    if not path.exists():
        return stands
    for found in read_records(path):
        if isinstance(found, ReadRecord):
            part = part + 1 if found.line == line else 0
            line = found.line
            stands.add(stand_of(found.record, found.offset, part))
    return stands


def read_record(path: Path, stand: Stand) -> dict[str, Any] | None:
    """The record that `stand` was read from; None when it is not there any more. Raises OSError."""
    from vf_core.trace.layouts import episode_traces

    with path.open("rb") as file:
        file.seek(stand.offset)
        line = file.readline()
    try:
        records = episode_traces(json.loads(line.decode("utf-8", errors="surrogatepass")))
        return records[stand.part]
    except (ValueError, IndexError, RecursionError):
        return None


def stand_of(record: Mapping[str, Any], offset: int, part: int = 0) -> Stand:
    """The facts of one record, which may be of any shape."""
    data = _map(_map(record.get("task")).get("data"))
    own = _map(_map(record.get("info")).get("vf_tui"))
    attempt, index = own.get("attempt"), data.get("idx")
    condition = _text(record.get("stop_condition"))
    rewards = _map(record.get("rewards"))
    numbers = [number for n in rewards.values() if (number := as_number(n)) is not None]
    return Stand(
        rollout=_text(own.get("rollout")),
        attempt=attempt if type(attempt) is int and 0 < attempt < _ATTEMPTS else 1,
        trace=_text(record.get("id")),
        outcome=sys.intern(_outcome(record, own, condition)),
        stop_condition=sys.intern(condition),
        reward=as_number(sum(numbers)) if numbers else None,
        rewards=tuple(sys.intern(str(name)) for name in rewards),
        index=index if isinstance(index, int) and not isinstance(index, bool) else None,
        name=sys.intern(_text(data.get("name"))),
        offset=offset,
        part=part,
    )


def _outcome(record: Mapping[str, Any], own: Mapping[str, Any], condition: str) -> str:
    said = _text(own.get("outcome"))
    if record.get("errors"):
        return said if said == "stopped" else "error"
    if said:
        return said
    if condition == "user_stopped" or record.get("is_completed") is False:
        return "stopped"
    return "declined" if condition == "agent_declined" else "completed"


def as_number(value: Any) -> float | None:
    """`value` where it is a finite number; None otherwise."""
    try:
        number = float(value) if isinstance(value, int | float) else None
    except OverflowError:
        return None
    return number if number is not None and isfinite(number) else None


def _map(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""
