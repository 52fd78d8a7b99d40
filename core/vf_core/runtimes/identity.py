"""Who this engine is, so that its processes are told from all others: pid, start time, boot, and a token.

A pid alone proves nothing: numbers come again. Times are clock ticks since boot on Linux, seconds elsewhere.
"""

from __future__ import annotations

import ctypes
import os
import secrets
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

LINUX = sys.platform.startswith("linux")
_PR_SET_CHILD_SUBREAPER = 36


@dataclass(frozen=True, slots=True)
class Engine:
    """This process. `token` is what its sandboxes' processes carry in `VF_TUI_ENGINE`."""

    pid: int
    start: int
    boot: str
    host: str
    token: str


_engine: Engine | None = None


def engine() -> Engine:
    """This process's identity, made at the first call (again in a forked child)."""
    global _engine  # noqa: PLW0603 - one identity a process
    pid = os.getpid()
    if _engine is None or _engine.pid != pid:
        token = f"{pid}-{secrets.token_hex(6)}"
        _engine = Engine(pid, start_time(pid) or 0, boot_id(), socket.gethostname(), token)
    return _engine


def start_time(pid: int) -> int | None:
    """When the process `pid` started; None when there is none."""
    if not LINUX:
        return _start_by_ps(pid)
    try:
        fd = os.open(f"/proc/{pid}/stat", os.O_RDONLY)
    except OSError:
        return None
    try:
        return int(os.read(fd, 4096).rpartition(b")")[2].split()[19])
    except (OSError, IndexError):
        return None  # it ended while being read
    finally:
        os.close(fd)


@lru_cache(maxsize=1)
def boot_id() -> str:
    """What tells this boot of the host from any other; empty where the system does not say."""
    if LINUX:
        try:
            return Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
        except OSError:
            return ""
    return _output(["sysctl", "-n", "kern.boottime"])


def adopt_orphans() -> bool:
    """Make this process the parent of its descendants' orphans (Linux). False where that is not possible."""
    if not LINUX:
        return False
    libc = ctypes.CDLL(None, use_errno=True)
    return bool(libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0)


def parse_lstart(text: str) -> int:
    """The time that `ps -o lstart` prints in the C locale, in seconds; 0 when it is none."""
    try:
        return int(time.mktime(time.strptime(text.strip(), "%a %b %d %H:%M:%S %Y")))
    except (ValueError, OverflowError):
        return 0


def _start_by_ps(pid: int) -> int | None:
    return parse_lstart(_output(["ps", "-o", "lstart=", "-p", str(pid)])) or None


def _output(argv: list[str]) -> str:
    try:
        done = subprocess.run(
            argv,
            capture_output=True,
            text=True,
            timeout=5,
            check=False,
            env={"LC_ALL": "C", "PATH": os.defpath},
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip()
