"""Whether the process that runs a run is still there: by pid *and* start time *and* boot, on this machine only."""

from __future__ import annotations

import functools
import os
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Liveness = Literal["live", "dead", "elsewhere", "ended"]
"""`ended`: it said its last word; `elsewhere`: on another machine or in another container, so it can't be told."""


@dataclass(frozen=True, slots=True)
class Whereabouts:
    """Where a process runs. `machine` and `boot` tell machines and their boots apart, `space` containers; each
    is empty where the system does not say."""

    host: str
    machine: str = ""
    boot: str = ""
    space: str = ""


@functools.cache
def here() -> Whereabouts:
    """Where this process runs."""
    from vf_core.runtimes.identity import boot_id

    return Whereabouts(socket.gethostname(), _text("/etc/machine-id"), boot_id(), _link("/proc/self/ns/pid"))


def process_start(pid: int) -> str:
    """When process `pid` started, in a form that only compares; empty when there is none, or only its remains."""
    from vf_core.runtimes.identity import start_time

    # The name in parentheses may itself hold spaces and parentheses.
    state = _text(f"/proc/{pid}/stat").rpartition(")")[2][:2].strip()
    return "" if state in ("Z", "X") else str(start_time(pid) or "")


def process_lives(pid: int, start: str, where: Whereabouts) -> Literal["live", "dead", "elsewhere"]:
    """Whether the process that was `pid`, started at `start` (see `process_start`), still runs at `where`."""
    now = here()
    if where.boot and where.boot == now.boot and where.space == now.space:
        # The same kernel sees the same processes, whatever the host is called by now.
        return "live" if _same(pid, start) else "dead"
    if where.host != now.host or where.machine != now.machine:
        return "elsewhere"
    if where.space != now.space:
        return "elsewhere" if where.boot == now.boot else "dead"
    # Where there are no such spaces (macOS), what tells a boot changes when the clock is set.
    exact = bool(now.space)
    return "dead" if exact and where.boot != now.boot else "live" if _same(pid, start) else "dead"


def _same(pid: int, start: str) -> bool:
    found = process_start(pid)
    return bool(found) and (not start or found == start)


def _text(path: str) -> str:
    try:
        return Path(path).read_text(errors="replace").strip()
    except OSError:
        return ""


def _link(path: str) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return ""
