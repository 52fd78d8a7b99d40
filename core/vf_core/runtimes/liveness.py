"""Whether a process is still there: by pid *and* start time *and* boot, on this machine only."""

from __future__ import annotations

import functools
import hashlib
import os
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Lives = Literal["live", "dead", "elsewhere"]
"""`elsewhere`: on another machine or in another container, so it can't be told."""


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

    return Whereabouts(
        socket.gethostname(), _pseudonym(_text("/etc/machine-id")), boot_id(), space_of("self")
    )


def space_of(pid: int | str) -> str:
    """What tells the container (pid namespace) that a process is in; empty when that cannot be seen."""
    try:
        return os.readlink(f"/proc/{pid}/ns/pid")
    except OSError:
        return ""


def process_start(pid: int) -> str:
    """When process `pid` started, in a form that only compares; empty when there is none, or only its remains."""
    from vf_core.runtimes.identity import start_time

    # The name in parentheses may itself hold spaces and parentheses.
    state = _text(f"/proc/{pid}/stat").rpartition(")")[2][:2].strip()
    return "" if state in ("Z", "X") else str(start_time(pid) or "")


def process_lives(pid: int, start: str, where: Whereabouts) -> Lives:
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
    if not found:
        return _hidden(pid)
    return not start or found == start


def _hidden(pid: int) -> bool:
    """Somebody else's process runs under `pid`, of which this system shows us nothing: it may be the one."""
    if pid <= 0 or os.path.exists(f"/proc/{pid}/stat"):
        return False
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True
    except OSError:
        return False
    return False


def _pseudonym(machine: str) -> str:
    """A machine's id is confidential, and this one goes into labels: what only tells machines apart will do."""
    return hashlib.sha256(f"vf-tui {machine}".encode()).hexdigest()[:32] if machine else ""


def _text(path: str) -> str:
    try:
        return Path(path).read_text(errors="replace").strip()
    except OSError:
        return ""
