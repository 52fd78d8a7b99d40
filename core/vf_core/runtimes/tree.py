"""Finding the processes of sandboxes, and ending exactly those.

On Linux a process belongs to a sandbox when its environment carries the sandbox's mark (children inherit it, also
those that make sessions of their own), or when it descends from this engine and belongs to a process group of the
sandbox, to a parent that does, or works in the sandbox's directory. Only processes that started after this engine
are looked at. A process is signalled by pid *and* start time, never by a pid alone.

Elsewhere (macOS) environments of others cannot be read reliably: the best that is done there is the process groups
that were started and what descends from them; a process that leaves both is not found.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from vf_core.runtimes.environment import SANDBOX_VAR, marks_in
from vf_core.runtimes.identity import LINUX, parse_lstart, start_time

# Looked at between two chances for the event loop to do other things.
_STEP = 64
_TURNS = 50
_EXEC_TRIES = 3
_READ = 1 << 17
_POLICY_BATCH = 3


@dataclass(frozen=True, slots=True)
class Proc:
    """A process as the system shows it. `batch`: it runs under the policy that marks sandboxes' processes."""

    pid: int
    start: int
    parent: int
    group: int
    session: int
    name: str
    dead: bool = False
    batch: bool = False
    marks: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.pid} {self.name}"


Mark = tuple[str, int]
"""A sandbox's id and the number of one command in it."""


def mark_text(mark: Mark) -> str:
    """As it stands in the environment."""
    return f"{mark[0]}/{mark[1]}"


class RestlessError(Exception):
    """New processes came faster than they could be looked at."""


def snapshot(since: int) -> Iterator[dict[int, Proc]]:
    """All processes that started at `since` or later, by pid. Yields growing states of one dict: between two the
    caller may let others run; after the last it is complete.

    Complete means: when it was listed for the last time, nobody was there who had not been looked at. A process
    that forks and exits cannot slip through by doing so between being listed and being looked at. Raises
    `RestlessError` when that point is not reached.
    """
    out: dict[int, Proc] = {}
    if not LINUX:
        out.update((p.pid, p) for p in _list_by_ps() if p.start >= since)
        yield out
        return
    seen: set[str] = set()
    for turn in range(_TURNS):
        fresh = [name for name in os.listdir("/proc") if name not in seen and name.isdigit()]
        if not fresh:
            yield out
            return
        seen.update(fresh)
        for count, name in enumerate(fresh, 1):
            proc = _read(name, since)
            if proc is not None:
                out[proc.pid] = proc
            # Only in the first turn: those that follow must be quicker than who forks.
            if turn == 0 and count % _STEP == 0:
                yield out
    raise RestlessError(f"new processes in each of {_TURNS} looks in a row")


def _read(pid: str, since: int) -> Proc | None:
    stat = _slurp(f"/proc/{pid}/stat")
    name, _, rest = stat.rpartition(b")")
    fields = rest.split()
    if len(fields) < 39 or int(fields[19]) < since:
        return None
    dead = fields[0] in b"ZX"
    batch = int(fields[38]) == _POLICY_BATCH
    environment = b"" if dead else _slurp(f"/proc/{pid}/environ")
    for _ in range(_EXEC_TRIES):
        if environment or dead or not batch:
            break
        # It may be between two programs, when for a moment it has no environment at all.
        environment = _slurp(f"/proc/{pid}/environ")
    return Proc(
        pid=int(pid),
        start=int(fields[19]),
        parent=int(fields[1]),
        group=int(fields[2]),
        session=int(fields[3]),
        name=name.partition(b"(")[2].decode(errors="replace"),
        dead=dead,
        batch=batch,
        marks=marks_in(environment, SANDBOX_VAR),
    )


def _slurp(path: str) -> bytes:
    """A file of /proc; empty when the process is gone or not ours to look at.

    Any other failure is raised: what cannot be looked at for want of descriptors is not absent.
    """
    try:
        fd = os.open(path, os.O_RDONLY)
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return b""
    try:
        data = chunk = os.read(fd, _READ)
        while len(chunk) == _READ:
            chunk = os.read(fd, _READ)
            data += chunk
        return data
    except (ProcessLookupError, PermissionError):
        return b""
    finally:
        os.close(fd)


def _list_by_ps() -> list[Proc]:
    done = subprocess.run(
        ["ps", "-axo", "pid=,ppid=,pgid=,stat=,lstart=,comm="],
        capture_output=True,
        check=True,
        timeout=10,
        env={"LC_ALL": "C", "PATH": os.defpath},
    )
    return parse_ps(done.stdout.decode(errors="replace"))


def parse_ps(text: str) -> list[Proc]:
    """What `ps -axo pid=,ppid=,pgid=,stat=,lstart=,comm=` prints in the C locale."""
    found = []
    for line in text.splitlines():
        fields = line.split(None, 9)
        if len(fields) == 10 and fields[0].isdigit():
            pid, parent, group = (int(field) for field in fields[:3])
            start = parse_lstart(" ".join(fields[4:9]))
            found.append(Proc(pid, start, parent, group, 0, fields[9], fields[3].startswith("Z")))
    return found


def owners(
    procs: Mapping[int, Proc], engine: int, groups: Mapping[int, Mark], directories: Mapping[str, str]
) -> dict[int, tuple[str, ...]]:
    """Whose each process is: the marks (as text) by pid, for those that belong to sandboxes.

    `groups`: the process groups that were started for sandboxes. `directories`: sandbox ids by directory.
    """
    out: dict[int, tuple[str, ...]] = {}
    for proc in procs.values():
        line: list[Proc] = []
        at: Proc | None = proc
        marks: tuple[str, ...] = ()
        while at is not None and not marks and len(line) < len(procs):
            line.append(at)
            marks = out.get(at.pid) or at.marks
            if not marks:
                mark = groups.get(at.group) or groups.get(at.session)
                if mark is not None and _descends(at, procs, engine):
                    marks = (mark_text(mark),)
                elif at.parent == engine and at.batch:
                    marks = _by_directory(at, directories)
            at = procs.get(at.parent) if at.parent != engine else None
        if marks:
            out.update((member.pid, marks) for member in line)
    return out


def _descends(proc: Proc, procs: Mapping[int, Proc], engine: int) -> bool:
    at: Proc | None = proc
    for _ in range(len(procs)):
        if at is None:
            return False
        if at.parent == engine:
            return True
        at = procs.get(at.parent)
    return False


def _by_directory(proc: Proc, directories: Mapping[str, str]) -> tuple[str, ...]:
    """An orphan that dropped its environment and its session may still work where its sandbox is."""
    if proc.dead or not directories:
        return ()
    try:
        at = os.readlink(f"/proc/{proc.pid}/cwd")
    except OSError:
        return ()
    at = at.removesuffix(" (deleted)")
    while len(at) > 1:
        if at in directories:
            return (f"{directories[at]}/0",)
        at = os.path.dirname(at)
    return ()


def send(proc: Proc, signum: int) -> bool:
    """Signal the process that `proc` describes, and no other. False when it is gone or not ours to signal."""
    if not hasattr(os, "pidfd_open"):
        return start_time(proc.pid) == proc.start and _kill(proc.pid, signum)
    try:
        fd = os.pidfd_open(proc.pid)
    except ProcessLookupError:
        return False
    except OSError:  # no descriptor left, or a kernel without them
        return start_time(proc.pid) == proc.start and _kill(proc.pid, signum)
    try:
        if start_time(proc.pid) != proc.start:
            return False
        signal.pidfd_send_signal(fd, signum)
    except (ProcessLookupError, PermissionError):
        return False
    finally:
        os.close(fd)
    return True


def _kill(pid: int, signum: int) -> bool:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, signum)
        return True
    return False
