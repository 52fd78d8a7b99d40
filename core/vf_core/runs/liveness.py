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

_PROC = Path("/proc/self/stat").exists()


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
    return Whereabouts(socket.gethostname(), _machine(), _boot(), _link("/proc/self/ns/pid"))


def process_start(pid: int) -> str:
    """When process `pid` started, in a form that only compares; empty when there is none or it can't be told."""
    if _PROC:
        # The name in parentheses may itself hold spaces and parentheses.
        fields = _text(f"/proc/{pid}/stat").rpartition(")")[2].split()
        return fields[19] if len(fields) > 19 and fields[0] not in "ZX" else ""
    return _output("ps", "-o", "lstart=", "-p", str(pid))


def process_lives(pid: int, start: str, where: Whereabouts) -> Literal["live", "dead", "elsewhere"]:
    """Whether the process that was `pid`, started at `start` (see `process_start`), still runs at `where`."""
    now = here()
    if where.boot and where.boot == now.boot and where.space == now.space:
        # The same kernel sees the same processes, whatever the host is called by now.
        return "live" if _same(pid, start) else "dead"
    if where.host != now.host or where.machine != now.machine:
        return "elsewhere"
    if where.boot != now.boot:
        return "dead"
    return "elsewhere" if where.space != now.space else "live" if _same(pid, start) else "dead"


def _same(pid: int, start: str) -> bool:
    found = process_start(pid)
    return bool(found) and (not start or found == start)


def _machine() -> str:
    return _text("/etc/machine-id") if _PROC else ""


def _boot() -> str:
    if _PROC:
        return _text("/proc/sys/kernel/random/boot_id")
    return _output("sysctl", "-n", "kern.bootsessionuuid")


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


def _output(*argv: str) -> str:
    import subprocess

    try:
        done = subprocess.run(
            argv,
            capture_output=True,
            check=False,
            text=True,
            timeout=5,
            env={"PATH": "/usr/bin:/bin:/usr/sbin:/sbin"},
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
