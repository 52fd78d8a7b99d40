"""The local sandboxes of all of this user's engines, dead or alive: their records, directories and processes.

A sandbox is found by any of the three, so a torn record, a directory without one, or a process that moved away costs
nothing. Helper processes of dead engines are listed like sandboxes. (Processes are found on Linux only.)
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shlex
import signal
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import ClassVar

from vf_core.errors import SandboxError
from vf_core.runtimes import ending, records, tree
from vf_core.runtimes.box import Answer
from vf_core.runtimes.environment import ENGINE_VAR, SANDBOX_VAR
from vf_core.runtimes.liveness import Whereabouts, here, process_lives, process_start
from vf_core.runtimes.marked import Look, Member, look
from vf_core.runtimes.provider import Listed, Provider
from vf_core.runtimes.records import Record

GRACE = 2.0
HELPERS = "helpers-"
_PAUSES = (0.01, 0.02, 0.05, 0.1, 0.2)


class LocalProvider(Provider):
    """This host, for this user, under this temporary directory, and those others that it is asked about."""

    kind: ClassVar[str] = "subprocess"
    # Its processes are seen from everywhere; its directory is not.
    whole: ClassVar[bool] = False

    def __init__(self, *, grace: float = GRACE) -> None:
        self.grace = grace
        self._looks = asyncio.Lock()
        self._next: asyncio.Task[Look] | None = None
        # Asked about: their directories are looked for in processes' working directories also when they are removed.
        self._wanted: set[str] = set()
        self._tmps = [_tmp()]

    @property
    def account(self) -> str:
        """See `Provider.account`: another host, or another TMPDIR, is another place."""
        return local_account()

    def reaches(self, account: str) -> bool:
        """See `Provider.reaches`: a TMPDIR of this host that can be looked into, or that is no more."""
        host, _, path = account.partition(":")
        tmp = Path(os.path.realpath(path)) if os.path.isabs(path) else None
        if host != here().host or tmp is None:
            return account == ""
        if tmp not in self._tmps:
            try:
                os.listdir(tmp)
            except (FileNotFoundError, NotADirectoryError):
                pass
            except OSError:
                return False
            self._tmps.append(tmp)
        return True

    def way_to(self, account: str) -> str:
        """See `Provider.way_to`."""
        host, _, path = account.partition(":")
        return f"set TMPDIR={shlex.quote(path)}" if host == here().host else f"ask on {host}"

    async def listed(self) -> list[Listed]:
        """See `Provider.listed`."""
        seen = await self._look()
        found = await asyncio.to_thread(self._on_disk)
        out = [_listed_record(record, seen) for record in found.values() if isinstance(record, Record)]
        stray = {id for id, record in found.items() if record is None}
        stray |= {id for id in seen.sandboxes if id not in found}
        out += [
            _listed_stray(id, id in found, seen, self._changed(id))
            for id in sorted(stray)
            if _is_ours(id, found, seen)
        ]
        return [*out, *(listed for token, who in seen.helpers.items() for listed in _helpers(token, who))]

    async def find(self, name: str) -> list[Listed]:
        """See `Provider.find`."""
        return [listed for listed in await self.listed() if listed.name == name]

    async def delete(self, id: str) -> None:
        """See `Provider.delete`: end its processes, then remove its directory. Refused while its engine lives."""
        self._wanted.add(_checked(id))
        found = (await asyncio.to_thread(self._on_disk)).get(id)
        if found is not None and _lives(found):
            raise SandboxError(f"local sandbox {id} is not ended: its engine (pid {found.pid}) lives")
        left = await self._end(id)
        if left:
            raise SandboxError(f"local sandbox {id}: {ending.still_there([member.proc for member in left])}")
        for path in self._places(id):
            problem = await asyncio.to_thread(records.remove_tree, str(path))
            if problem:
                raise SandboxError(f"local sandbox {id}: its directory is still there: {problem}")
            with contextlib.suppress(OSError):
                os.unlink(f"{path}.json")

    async def probe(self, id: str) -> Answer:
        """See `Provider.probe`."""
        self._wanted.add(_checked(id))
        left = _of(await self._look(), id)
        if left:
            return Answer(False, ending.still_there([member.proc for member in left]))
        if id.startswith(HELPERS):
            return Answer(True, f"this host: no process with mark {id.removeprefix(HELPERS)}")
        places = await asyncio.to_thread(self._places, id)
        if places:
            return Answer(False, f"its directory or record is still there: {places[0]}")
        looked = ", ".join(map(str, self._tmps))
        return Answer(True, f"this host: no process with mark {id}, no directory in {looked}")

    def delete_command(self, id: str) -> str:
        """See `Provider.delete_command`."""
        variable, value = (SANDBOX_VAR, f"{id}/") if not id.startswith(HELPERS) else (ENGINE_VAR, "")
        value = value or id.removeprefix(HELPERS)
        pattern = f"^{variable}=(.*:)?{re.escape(value)}"
        kill = f"grep -lszE {shlex.quote(pattern)} /proc/[0-9]*/environ | cut -d/ -f3 | xargs -r kill -KILL"
        if id.startswith(HELPERS):
            return f"{kill}; pkill -KILL -f {shlex.quote(f'watchdog_main[.]py .* {value} ')}"
        paths = [str(path) for path in self._places(id)] or [str(_tmp() / id)]
        names = " ".join(shlex.quote(name) for path in paths for name in (path, f"{path}.json"))
        return f"{kill}; rm -rf -- {names}"

    # ------------------------------------------------------------------ what is on disk

    def _roots(self) -> list[Path]:
        return [root for tmp in self._tmps for root in records.roots(tmp)]

    def _on_disk(self) -> dict[str, Record | None]:
        """Records by id; None for what has none that can be read."""
        found: dict[str, Record | None] = dict.fromkeys(self._ids_on_disk())
        known = records.read_records(self._roots())
        found.update((record.id, record) for record in known if record.id in found)
        return found

    def _ids_on_disk(self) -> list[str]:
        ids: dict[str, None] = {}
        for root in self._roots():
            with contextlib.suppress(OSError):
                for name in sorted(os.listdir(root)):
                    id = name.removesuffix(".json")
                    if id != records.SCRIPTS and _plain(id):
                        ids[id] = None
        return list(ids)

    def _places(self, id: str) -> list[Path]:
        """Its directory, in each private root that holds it or its record."""
        if id.startswith(HELPERS):
            return []
        places = [root / id for root in self._roots()]
        return [path for path in places if os.path.lexists(path) or os.path.lexists(f"{path}.json")]

    def _changed(self, id: str) -> float | None:
        for path in self._places(id):
            with contextlib.suppress(OSError):
                return path.lstat().st_mtime
        return None

    # ------------------------------------------------------------------ processes

    async def _look(self) -> Look:
        """A look that begins after this call; shared by all that wait for one."""
        if self._next is None:
            self._next = asyncio.create_task(self._take())
        return await asyncio.shield(self._next)

    async def _take(self) -> Look:
        async with self._looks:
            self._next = None
            try:
                ids = {*self._ids_on_disk(), *self._wanted}
                directories = {str(root / id): id for root in self._roots() for id in ids}
                return await asyncio.to_thread(look, directories)
            except (OSError, tree.RestlessError) as e:
                raise SandboxError(f"this host's processes cannot be looked at: {e}") from e

    async def _end(self, id: str) -> list[Member]:
        """SIGTERM, `grace`, SIGKILL; returns who is left, whatever was done."""
        began = time.monotonic()
        asked: set[tuple[int, int]] = set()
        for turn in range(1_000_000):
            left = _of(await self._look(), id)
            spent = time.monotonic() - began
            if not left or spent > self.grace + ending.KILL_PATIENCE:
                return left
            for member in left:
                who = (member.proc.pid, member.proc.start)
                if spent >= self.grace:
                    tree.send(member.proc, signal.SIGKILL)
                elif who not in asked:
                    asked.add(who)
                    tree.send(member.proc, signal.SIGTERM)
                    tree.send(member.proc, signal.SIGCONT)
            await asyncio.sleep(_PAUSES[min(turn, len(_PAUSES) - 1)])
        return []


def local_account() -> str:
    """Where this process makes local sandboxes: the same text for whoever would find them."""
    return f"{here().host}:{_tmp()}"


def _tmp() -> Path:
    import tempfile

    return Path(os.path.realpath(tempfile.gettempdir()))


# ---------------------------------------------------------------------- ids and records


def _plain(id: str) -> bool:
    return bool(id) and "/" not in id and not id.startswith(".") and "\0" not in id


def _checked(id: str) -> str:
    if not _plain(id) or id == records.SCRIPTS:
        raise SandboxError(f"{id!r} is not the id of a local sandbox")
    return id


def _lives(record: Record) -> bool:
    where = Whereabouts(record.host, here().machine, record.boot, record.space)
    return process_lives(record.pid, str(record.start or ""), where) == "live"


# ---------------------------------------------------------------------- what is told of it


def _of(seen: Look, id: str) -> list[Member]:
    if id.startswith(HELPERS):
        return list(seen.helpers.get(id.removeprefix(HELPERS), ()))
    return list(seen.sandboxes.get(id, ()))


def _listed_record(record: Record, seen: Look) -> Listed:
    labels = {
        **record.labels,
        "run": record.run,
        "host": record.host,
        "machine": here().machine,
        "boot": record.boot,
        "space": record.space or here().space,
        "pid": str(record.pid),
        "started": str(record.start or ""),
    }
    status = _status(len(seen.sandboxes.get(record.id, ())), os.path.isdir(record.directory))
    return Listed(record.id, record.name, labels, status, created=record.created)


def _listed_stray(id: str, on_disk: bool, seen: Look, changed: float | None) -> Listed:
    members = seen.sandboxes.get(id, [])
    status = f"{_status(len(members), on_disk)}, no record"
    # Which of a nested process's engines started this sandbox is told by its place among the marks.
    tokens = [m.tokens[m.sandboxes.index(id)] for m in members if id in m.sandboxes[: len(m.tokens)]]
    labels = _labels_by_token(tokens[0], members) if tokens else {}
    return Listed(id, "", labels, status, created=changed)


def _is_ours(id: str, found: Mapping[str, Record | None], seen: Look) -> bool:
    return id in found or any(member.own for member in seen.sandboxes.get(id, ()))


def _helpers(token: str, members: list[Member]) -> Iterator[Listed]:
    """Helpers of a dead engine; those of live ones are nobody's business."""
    labels = _labels_by_token(token, members)
    pid = int(labels.get("pid") or 0)
    where = Whereabouts(labels["host"], labels["machine"], labels["boot"], labels["space"])
    if any(member.own for member in members) and process_lives(pid, labels["started"], where) != "live":
        names = ", ".join(sorted({member.proc.name for member in members}))
        yield Listed(f"{HELPERS}{token}", f"helpers of pid {pid}", labels, f"{len(members)} running: {names}")


def _labels_by_token(token: str, members: list[Member]) -> dict[str, str]:
    """What running processes tell of their engine. They are of this boot; it started before they did."""
    now = here()
    pid = int(text) if (text := token.partition("-")[0]).isascii() and text.isdigit() else 0
    started = next((member.engine_start for member in members if member.engine_start), "")
    if not started:
        found = process_start(pid)
        oldest = min(member.proc.start for member in members)
        # Whoever has its number now and is younger than what it started is somebody else.
        started = found if found.isdigit() and int(found) <= oldest else "gone"
    spaces = {member.space for member in members if member.space}
    return {
        "run": next((member.run for member in members if member.run), ""),
        "host": now.host,
        "machine": now.machine,
        "boot": now.boot,
        "space": now.space if now.space in spaces or not spaces else min(spaces),
        "pid": str(pid),
        "started": started,
    }


def _status(processes: int, directory: bool) -> str:
    running = f"{processes} process{'' if processes == 1 else 'es'}" if processes else "no process"
    return f"{running}, {'its directory' if directory else 'no directory'}"
