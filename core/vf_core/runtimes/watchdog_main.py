"""The watchdog's program: waits for its engine to end, then kills every process that carries the engine's mark.

Run alone (`python -I -S watchdog_main.py PID START TOKEN VARIABLE`) with a pipe from the engine as standard input;
it needs nothing but the standard library, to stay small. It holds no lock, keeps no file, and leaves directories to
whoever cleans up.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time

# Long enough for processes that do not die at once, short enough not to stay behind for ever (seconds).
_PATIENCE = 30.0
_PAUSE = 0.05
_TURNS = 50


def wait_for_end(pid: int, start: str) -> None:
    """Return when the engine ended, or closed its pipe."""
    watched = select.poll()
    watched.register(0, select.POLLIN)
    if hasattr(os, "pidfd_open"):
        # A process that the engine forked may hold the pipe open beyond its death.
        try:
            engine = os.pidfd_open(pid)
        except OSError:
            engine = -1
        if _stat(str(pid))[1] != start:
            return
        if engine >= 0:
            watched.register(engine, select.POLLIN)
    pending = b""
    while True:
        for fd, _ in watched.poll():
            data = os.read(0, 4096) if fd == 0 else b""
            if not data:
                return
            pending = _note_groups(pending + data)


GROUPS: set[int] = set()


def _note_groups(data: bytes) -> bytes:
    """Lines `+GROUP` and `-GROUP`: what there is to kill where environments cannot be read."""
    *lines, rest = data.split(b"\n")
    for line in lines:
        group = int(line[1:])
        if line[:1] == b"+":
            GROUPS.add(group)
        else:
            GROUPS.discard(group)
    return rest


def _slurp(path: str) -> bytes:
    try:
        with open(path, "rb", buffering=0) as f:
            return f.read()
    except OSError:
        return b""


def _stat(pid: str) -> tuple[int, str]:
    """A process's parent and start time; (0, "") when it is gone or dead."""
    fields = _slurp(f"/proc/{pid}/stat").rpartition(b")")[2].split()
    if len(fields) < 20 or fields[0] in b"ZX":
        return 0, ""
    return int(fields[1]), fields[19].decode()


def marked(token: bytes, variable: bytes) -> dict[int, str]:
    """Start times by pid of the living processes that carry `token`, or whose living ancestor does."""
    parents: dict[int, int] = {}
    starts: dict[int, str] = {}
    ours: set[int] = set()
    seen = {str(os.getpid())}
    # Until nobody new is there: who forks and exits must not slip through between two looks.
    for _ in range(_TURNS):
        fresh = [name for name in os.listdir("/proc") if name.isdigit() and name not in seen]
        if not fresh:
            break
        seen.update(fresh)
        for name in fresh:
            parent, start = _stat(name)
            if start:
                pid = int(name)
                parents[pid], starts[pid] = parent, start
                if _carries(name, token, variable):
                    ours.add(pid)
    grown = True
    while grown:
        more = {pid for pid, parent in parents.items() if parent in ours} - ours
        ours |= more
        grown = bool(more)
    return {pid: starts[pid] for pid in ours}


def _carries(pid: str, token: bytes, variable: bytes) -> bool:
    for entry in _slurp(f"/proc/{pid}/environ").split(b"\0"):
        key, _, value = entry.partition(b"=")
        if key == variable and token in value.split(b":"):
            return True
    return False


def kill(pid: int, start: str) -> None:
    """Kill this very process: not one that got its number since."""
    try:
        fd = os.pidfd_open(pid)
    except OSError:
        fd = -1
    try:
        if _stat(str(pid))[1] != start:
            return
        if fd >= 0:
            signal.pidfd_send_signal(fd, signal.SIGKILL)
        else:
            os.kill(pid, signal.SIGKILL)
    except OSError:
        pass
    finally:
        if fd >= 0:
            os.close(fd)


def end_all(token: bytes, variable: bytes) -> None:
    """Kill until two looks in a row find nothing."""
    deadline = time.monotonic() + _PATIENCE
    clean = 0
    while clean < 2 and time.monotonic() < deadline:
        found = marked(token, variable)
        for pid, start in found.items():
            kill(pid, start)
        clean = 0 if found else clean + 1
        time.sleep(_PAUSE)


def main(argv: list[str]) -> None:
    """See the module."""
    pid, start, token, variable = argv
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(signum, signal.SIG_IGN)
    wait_for_end(int(pid), start)
    platform: str = sys.platform
    if platform.startswith("linux"):
        end_all(token.encode(), variable.encode())
        return
    for group in GROUPS:
        try:
            os.killpg(group, signal.SIGKILL)
        except OSError:
            pass


if __name__ == "__main__":
    main(sys.argv[1:])
