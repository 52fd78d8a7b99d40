"""Providers whose lists are dicts, with faults at every call; and engines, dead and alive, to own what is in them."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal

from vf_core.errors import SandboxError
from vf_core.runtimes.box import Answer
from vf_core.runtimes.liveness import process_start
from vf_core.runtimes.provider import Listed, Provider
from vf_core.sandboxes.owners import Owner

Fault = Literal["", "down", "denied", "stuck", "raw", "ignored", "lingers"]


@dataclass
class Shelf:
    """What a provider has, by id, and how it answers. Faults of `listing`, `delete`, `probe`, `find`: down, denied
    (401), stuck (never answers, not to be cancelled), raw (another library's error); delete: ignored (answered, not
    done), lingers (done after `linger` probes). `stuck_ids` are stuck for those ids only. `on_delete` is called
    before each."""

    boxes: dict[str, Listed] = field(default_factory=dict)
    account: str = "acme"
    listing: Fault = ""
    delete: Fault = ""
    probe: Fault = ""
    find: Fault = ""
    linger: int = 2
    stuck_ids: set[str] = field(default_factory=set)
    calls: list[str] = field(default_factory=list)
    deleted: list[str] = field(default_factory=list)
    on_delete: Callable[[str], None] = lambda id: None
    closed: int = 0

    def put(self, id: str, owner: Owner, **more: object) -> Listed:
        """A sandbox with an owner's labels."""
        labels = {**owner.labels(), "rollout": "0-0", "attempt": "1"}
        entry = replace(Listed(id, f"name-{id}", labels, "running", created=100.0), **more)  # type: ignore[arg-type]
        self.boxes[id] = entry
        return entry


class FakeProvider(Provider):
    """Asks a `Shelf`."""

    kind: ClassVar[str] = "fake"

    def __init__(self, shelf: Shelf) -> None:
        self.shelf = shelf
        self._dying: dict[str, int] = {}

    @property
    def account(self) -> str:
        return self.shelf.account

    async def listed(self) -> list[Listed]:
        await self._fault("list", self.shelf.listing)
        return list(self.shelf.boxes.values())

    async def find(self, name: str) -> list[Listed]:
        await self._fault(f"find {name}", self.shelf.find)
        return [entry for entry in self.shelf.boxes.values() if entry.name == name]

    async def delete(self, id: str) -> None:
        self.shelf.on_delete(id)
        await self._fault(f"delete {id}", "stuck" if id in self.shelf.stuck_ids else self.shelf.delete)
        self.shelf.deleted.append(id)
        if self.shelf.delete == "lingers":
            self._dying[id] = self.shelf.linger
        elif self.shelf.delete != "ignored":
            self.shelf.boxes.pop(id, None)

    async def probe(self, id: str) -> Answer:
        await self._fault(f"probe {id}", "stuck" if id in self.shelf.stuck_ids else self.shelf.probe)
        if id in self._dying:
            self._dying[id] -= 1
            if not self._dying[id]:
                self.shelf.boxes.pop(id, None)
        if id in self.shelf.boxes:
            return Answer(False, f"acme says {self.shelf.boxes[id].status}")
        return Answer(True, f"acme: no sandbox {id}")

    def delete_command(self, id: str) -> str:
        return f"acme rm {id}"

    async def close(self) -> None:
        self.shelf.closed += 1

    async def _fault(self, call: str, fault: Fault) -> None:
        self.shelf.calls.append(call)
        await asyncio.sleep(0)
        if fault == "down":
            raise SandboxError(f"acme cannot be reached ({call})")
        if fault == "denied":
            raise SandboxError(f"acme refuses: 401 ({call})")
        if fault == "raw":
            raise RuntimeError("socket hang up")
        while fault == "stuck":
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                if not _LETTING_GO:
                    continue
                raise


_LETTING_GO: list[bool] = []


async def let_go() -> None:
    """End what is stuck: at the end of a test."""
    _LETTING_GO.append(True)
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
    _LETTING_GO.clear()


def dead_owner(run: str = "run-dead", run_dir: str = "") -> Owner:
    """An engine of this host that was, and is gone."""
    child = subprocess.Popen([sys.executable, "-S", "-c", "input()"], stdin=subprocess.PIPE)
    start = process_start(child.pid)
    child.kill()
    child.communicate()
    return replace(Owner.this_process(run, run_dir), pid=child.pid, start=start)


def live_owner(run: str = "run-live", run_dir: str = "") -> Owner:
    """An engine of this host that lives: the process that started this one."""
    parent = os.getppid()
    return replace(Owner.this_process(run, run_dir), pid=parent, start=process_start(parent))


def reused_owner(run: str = "run-reused") -> Owner:
    """An engine whose pid another process has by now."""
    return replace(Owner.this_process(run), start="1")


def elsewhere_owner(run: str = "run-elsewhere") -> Owner:
    """An engine of another host."""
    return Owner(run, host="other-host", machine="m2", boot="b2", space="pid:[1]", pid=os.getpid(), start="1")
