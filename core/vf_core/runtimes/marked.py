"""A look at this host's processes for those that carry our marks, whichever engine started them, dead or alive.

Linux only: elsewhere the environment of others cannot be read, and nobody is found.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from vf_core.runtimes import tree, watchdog_main
from vf_core.runtimes.environment import ENGINE_VAR, RUN_VAR, SANDBOX_VAR, marks_in
from vf_core.runtimes.liveness import space_of
from vf_core.runtimes.tree import Proc

_WATCHDOG = os.path.basename(watchdog_main.__file__)


@dataclass(frozen=True, slots=True)
class Member:
    """A process and what it carries: sandboxes' ids and engines' tokens (the innermost last), and the run. `start` is
    its engine's start time, where it is told."""

    proc: Proc
    sandboxes: tuple[str, ...] = ()
    tokens: tuple[str, ...] = ()
    run: str = ""
    space: str = ""
    own: bool = True
    engine_start: str = ""


@dataclass(frozen=True, slots=True)
class Look:
    """All living members: of sandboxes by their ids, and helpers (of no sandbox) by their engine's token."""

    sandboxes: Mapping[str, list[Member]] = field(default_factory=dict)
    helpers: Mapping[str, list[Member]] = field(default_factory=dict)


def look(directories: Mapping[str, str]) -> Look:
    """One look at everybody; `directories` are those of sandboxes (ids by path). Takes milliseconds for each hundred
    processes, so not for an event loop. Raises OSError, or `tree.RestlessError`."""
    procs: dict[int, Proc] = {}
    for procs in tree.Table(0).look(os.getpid()):  # noqa: B007 - the last one is complete
        pass
    carried = {pid: member for pid, proc in procs.items() if (member := _carried(proc)) is not None}
    if directories:
        sacrifice = tree.Sacrifice()
        for pid, proc in procs.items():
            if (
                pid not in carried
                and not proc.dead
                and (found := _strayed(proc, procs, directories, sacrifice))
            ):
                procs[pid] = replace(proc, marks=found)
    # Nobody's parent is 0: all lines lead to it, and end there.
    marks = tree.owners(procs, 0, {}, {}, lambda proc: ())
    spared = _line_of(os.getpid(), procs)
    sandboxes: dict[str, list[Member]] = {}
    helpers: dict[str, list[Member]] = {}
    for pid, proc in procs.items():
        if proc.dead or pid in spared:
            continue
        member = carried.get(pid) or Member(proc)
        found = marks.get(pid, ())
        for id in {mark.rpartition("/")[0] for mark in found}:
            sandboxes.setdefault(id, []).append(member)
        if not found:
            for token in member.tokens[-1:]:
                helpers.setdefault(token, []).append(member)
    return Look(sandboxes, helpers)


def _carried(proc: Proc) -> Member | None:
    if proc.dead:
        return None
    block = tree.environment_of(proc.pid)
    tokens = marks_in(block, ENGINE_VAR)
    if not tokens and not proc.marks:
        return _watchdog(proc)
    run = marks_in(block, RUN_VAR)
    return Member(
        proc=proc,
        sandboxes=tuple(mark.rpartition("/")[0] for mark in marks_in(block, SANDBOX_VAR)),
        tokens=tokens,
        run=run[-1] if run else "",
        space=space_of(proc.pid),
        own=_is_ours(proc.pid),
    )


def _strayed(
    proc: Proc, procs: Mapping[int, Proc], directories: Mapping[str, str], sacrifice: tree.Sacrifice
) -> tuple[str, ...]:
    """The sandbox of a process that dropped its marks: it works in a sandbox's directory, and either carries what
    cannot be dropped, or nobody's terminal and no living parent speaks for its being somebody's who looks around."""
    found = tree.by_directory(proc, directories)
    if not found or sacrifice.is_marked(proc.pid):
        return found
    parent = procs.get(proc.parent)
    orphan = parent is None or parent.pid in (1, os.getpid()) or parent.name == "systemd"
    return found if orphan and not tree.has_terminal(proc.pid) else ()


def _watchdog(proc: Proc) -> Member | None:
    """A watchdog carries no mark, or it would end itself; its arguments name its engine."""
    argv = tree.arguments_of(proc.pid)
    for at, text in enumerate(argv):
        if os.path.basename(text) == _WATCHDOG and len(argv) == at + 5:
            _, start, token, _ = argv[at + 1 :]
            return Member(
                proc=proc,
                tokens=(token,),
                space=space_of(proc.pid),
                own=_is_ours(proc.pid),
                engine_start=start,
            )
    return None


def _is_ours(pid: int) -> bool:
    try:
        return os.stat(f"/proc/{pid}").st_uid == os.geteuid()
    except OSError:
        return False


def _line_of(pid: int, procs: Mapping[int, Proc]) -> set[int]:
    """`pid` and its ancestors: who asks does not end itself."""
    line: set[int] = set()
    while pid in procs and pid not in line:
        line.add(pid)
        pid = procs[pid].parent
    return line
