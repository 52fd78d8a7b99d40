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
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from vf_core.runtimes.environment import SANDBOX_VAR, marks_in
from vf_core.runtimes.identity import LINUX, parse_lstart, start_time

# Looked at between two chances for the event loop to do other things.
_STEP = 64
_TURNS = 50
_EXEC_TRIES = 3
_READ = 1 << 17
# How much sooner than the engine a sandbox's processes go when memory runs out (of 1000). An odd number, because
# it also tells them from others.
_SOONER = 317


@dataclass(frozen=True, slots=True)
class Proc:
    """A process as the system shows it. `marks` are those of sandboxes in its environment."""

    pid: int
    start: int
    parent: int
    group: int
    session: int
    name: str
    dead: bool = False
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


class Table:
    """This host's processes that started at `since` or later. Remembers who is a stranger: a later look passes over
    those, told by pid and the inode of their directory in /proc, which no later process gets."""

    def __init__(self, since: int) -> None:
        self._since = since
        self._strangers: dict[str, int] = {}

    def look(self, engine: int) -> Iterator[dict[int, Proc]]:
        """Look at everybody. Yields growing states of one dict, by pid: between two, the caller may let others run;
        after the last it is complete. Descendants of `engine` are never strangers.

        Complete means: when they were listed for the last time, nobody was there who had not been looked at. Who
        forks and exits cannot slip through by doing so between being listed and being looked at. Raises
        `RestlessError` when that point is not reached.
        """
        out: dict[int, Proc] = {}
        if not LINUX:
            out.update((p.pid, p) for p in _list_by_ps() if p.start >= self._since)
            yield out
            return
        seen: dict[str, int] = {}
        known: dict[str, int] = {}
        trusted = True
        for turn in range(_TURNS):
            with os.scandir("/proc") as entries:
                fresh = [(e.name, e.inode()) for e in entries if e.name not in seen and e.name.isdigit()]
            if not fresh:
                new = [str(pid) for pid in strangers(out, engine, known)]
                self._strangers = known | {name: seen[name] for name in new}
                yield out
                return
            seen.update(fresh)
            # Where inodes are no more than decoration, they tell nobody apart.
            trusted = trusted and len({inode for _, inode in fresh}) == len(fresh)
            for count, (name, inode) in enumerate(fresh, 1):
                if trusted and self._strangers.get(name) == inode:
                    known[name] = inode
                    continue
                fields = _fields(name)
                if fields and int(fields[20]) < self._since:
                    known[name] = inode
                elif fields:
                    out[int(name)] = _proc(int(name), fields)
                # Only in the first turn: those that follow must be quicker than who forks.
                if turn == 0 and count % _STEP == 0:
                    yield out
        raise RestlessError(f"new processes in each of {_TURNS} looks in a row")


def _fields(pid: str) -> list[bytes]:
    """The fields of a process's `stat`, its name first; empty when it is gone."""
    start, _, rest = _slurp(f"/proc/{pid}/stat").rpartition(b")")
    fields = rest.split()
    return [start.partition(b"(")[2], *fields] if len(fields) >= 20 else []


def _proc(pid: int, fields: list[bytes]) -> Proc:
    dead = fields[1] in b"ZX"
    environment = b""
    for _ in range(0 if dead else _EXEC_TRIES):
        environment = _slurp(f"/proc/{pid}/environ")
        if environment:
            break
        # It may be between two programs, when for a moment it has no environment at all.
    return Proc(
        pid=pid,
        start=int(fields[20]),
        parent=int(fields[2]),
        group=int(fields[3]),
        session=int(fields[4]),
        name=fields[0].decode(errors="replace"),
        dead=dead,
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


def environment_of(pid: int) -> bytes:
    """A process's environment block (`NAME=value`, each ended by a zero byte); empty when it is not to be had."""
    return _slurp(f"/proc/{pid}/environ") if LINUX else b""


def has_terminal(pid: int) -> bool:
    """A process is on somebody's terminal; True when that is not to be had."""
    fields = _fields(str(pid)) if LINUX else []
    return not fields or fields[5] != b"0"


def arguments_of(pid: int) -> list[str]:
    """A process's command line; empty when it is not to be had."""
    data = _slurp(f"/proc/{pid}/cmdline") if LINUX else b""
    return [part.decode(errors="replace") for part in data.split(b"\0")[:-1]]


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


Marks = tuple[str, ...]
"""Marks of sandboxes' commands, as they stand in the environment."""


def owners(
    procs: Mapping[int, Proc],
    engine: int,
    groups: Mapping[int, Mark],
    known: Mapping[tuple[int, int], Marks],
    worker: Callable[[Proc], Marks],
) -> dict[int, Marks]:
    """Whose each process is: the marks by pid, for those that belong to sandboxes.

    `groups`: the process groups that were started for sandboxes. `known`: by pid and start, who was found to belong
    to one before. `worker` says whose an orphan is that dropped environment and session.
    """
    out: dict[int, Marks] = {}
    for proc in procs.values():
        line: list[Proc] = []
        at: Proc | None = proc
        marks: Marks = ()
        while at is not None and not marks and len(line) < len(procs):
            line.append(at)
            marks = out.get(at.pid) or at.marks or known.get((at.pid, at.start), ())
            if not marks:
                mark = groups.get(at.group) or groups.get(at.session)
                if mark is not None and descends(at, procs, engine):
                    marks = (mark_text(mark),)
                elif at.parent == engine:
                    marks = worker(at)
            at = procs.get(at.parent) if at.parent != engine else None
        if marks:
            out.update((member.pid, marks) for member in line)
    return out


def strangers(procs: Mapping[int, Proc], engine: int, known: Mapping[str, int]) -> list[int]:
    """Who carries no mark and descends from `known` strangers; that cannot change any more.

    Who descends from somebody that was not seen may have been ours: nothing is concluded of those.
    """
    found = []
    for pid, proc in procs.items():
        at = proc
        while at.parent in procs and engine not in (at.pid, at.parent):
            at = procs[at.parent]
        if not proc.marks and at.pid != engine and str(at.parent) in known:
            found.append(pid)
    return found


def descends(proc: Proc, procs: Mapping[int, Proc], engine: int) -> bool:
    """Its line of parents leads to `engine`."""
    at: Proc | None = proc
    for _ in range(len(procs)):
        if at is None:
            return False
        if engine in (at.parent, at.pid):
            return True
        at = procs.get(at.parent)
    return False


class Sacrifice:
    """Who is to go first when memory runs out: sandboxes' processes, before the engine and all else of the user's.

    Every descendant inherits this, whatever it does to its environment and session, and it can be read of the dead.
    (A process that forks within the first instant of its life is ahead of the mark.) Does nothing where the system
    has no such thing.
    """

    def __init__(self) -> None:
        own = _slurp("/proc/self/oom_score_adj").strip() if LINUX else b""
        self._value = int(own) + _SOONER if own else 0
        self._possible = bool(own) and self._value <= 1000

    def mark(self, pid: int) -> None:
        """Put the process `pid` and its future descendants first."""
        if not self._possible:
            return
        try:
            fd = os.open(f"/proc/{pid}/oom_score_adj", os.O_WRONLY)
        except OSError:
            return
        with contextlib.suppress(OSError):
            os.write(fd, b"%d" % self._value)
        os.close(fd)

    def is_marked(self, pid: int) -> bool:
        """The process `pid`, alive or not yet waited for, descends from one that was started for a sandbox."""
        if not self._possible:
            return False
        return _slurp(f"/proc/{pid}/oom_score_adj").strip() == b"%d" % self._value


def by_directory(proc: Proc, directories: Mapping[str, str]) -> Marks:
    """The sandbox (by directory in `directories`) in whose directory a process works."""
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
