"""A runtime without a machine behind it: a provider's list of sandboxes, and faults at every call."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from vf_core.runtimes.base import Answer, Box, Collected, ProgramResult, Runtime, RuntimeConfig
from vf_core.runtimes.lifecycle import Observer

Create = Literal["ok", "refused", "lost", "slow", "late", "stuck"]
Terminate = Literal["ok", "ignored", "error", "slow", "stuck"]
Probe = Literal["ok", "error", "slow", "stuck"]

SLOW = 5.0


class Refused(Exception):
    """The provider said no, or nothing."""


@dataclass
class World:
    """The provider: what exists there, and how it answers. Faults stay until changed.

    create: refused (nothing made), lost (made, but the answer was lost), slow (made at once, answered later), late
    (made and answered later), stuck (made, never answered). terminate: ignored (answered, not done). Any: stuck
    never answers and does not let itself be cancelled.
    """

    create: Create = "ok"
    terminate: Terminate = "ok"
    probe: Probe = "ok"
    alive: dict[str, str] = field(default_factory=dict)
    calls: list[str] = field(default_factory=list)
    created: int = 0
    healed: asyncio.Event = field(default_factory=asyncio.Event)

    def heal(self) -> None:
        """Everything works from now on, also what was stuck."""
        self.create, self.terminate, self.probe = "ok", "ok", "ok"
        self.healed.set()
        self.healed = asyncio.Event()

    async def stuck(self) -> None:
        """Wait to be healed, whatever cancels."""
        healed = self.healed
        while not healed.is_set():
            try:
                await healed.wait()
            except asyncio.CancelledError:
                continue

    def of(self, name: str) -> list[str]:
        """Ids of what exists under a sandbox's name."""
        return [id for id, owner in self.alive.items() if owner == name]


class FakeConfig(RuntimeConfig):
    type: str = "fake"


class FakeRuntime(Runtime):
    """Finds its sandboxes by name, as a provider with labels would."""

    kind: ClassVar[str] = "fake"

    def __init__(self, world: World, *, name: str = "box", observer: Observer | None = None) -> None:
        self.world = world
        super().__init__(FakeConfig(), name=name, observer=observer)

    def _new_handle(self) -> dict[str, Any]:
        return {}

    async def _create(self, box: Box[dict[str, Any]]) -> None:
        world, fault = self.world, self.world.create
        world.calls.append("create")
        if fault == "refused":
            raise Refused("503")
        if fault == "late":
            await asyncio.sleep(SLOW)
        world.created += 1
        id = f"id-{world.created}"
        world.alive[id] = box.name
        if fault == "lost":
            raise Refused("connection reset")
        if fault == "slow":
            await asyncio.sleep(SLOW)
        if fault == "stuck":
            await world.stuck()
        box.handle["id"] = id
        box.identify(id)

    async def _terminate(self, box: Box[dict[str, Any]]) -> None:
        world, fault = self.world, self.world.terminate
        world.calls.append("terminate")
        if fault == "error":
            raise Refused("401")
        if fault == "slow":
            await asyncio.sleep(SLOW)
        if fault == "stuck":
            await world.stuck()
        if fault != "ignored":
            for id in world.of(box.name):
                del world.alive[id]

    async def _probe(self, box: Box[dict[str, Any]]) -> Answer:
        world, fault = self.world, self.world.probe
        world.calls.append("probe")
        if fault == "error":
            raise Refused("502")
        if fault == "slow":
            await asyncio.sleep(SLOW)
        if fault == "stuck":
            await world.stuck()
        there = world.of(box.name)
        return Answer(
            not there, f"the provider lists {', '.join(there)}" if there else "the provider lists none"
        )

    async def _collect(
        self,
        argv: Sequence[str],
        env: Mapping[str, str] | None,
        output: Collected,
        *,
        cwd: str | None = None,
        timeout: float | None = None,
        program: bool = False,
    ) -> ProgramResult:
        self._work_here()
        output("stdout", " ".join(argv).encode())
        return output.result(0)

    async def run_background(
        self, argv: Sequence[str], env: Mapping[str, str] | None = None, log: str = "background.log"
    ) -> None:
        self._work_here()

    async def prepare_script(self, source: str, requires: Sequence[str] = ()) -> list[str]:
        return ["python3", "-c", source]

    async def read(self, path: str) -> bytes:
        self._work_here()
        return b""

    async def read_bounded(self, path: str, limit: int) -> bytes:
        return await self.read(path)

    async def write(self, path: str, data: bytes) -> None:
        self._work_here()

    async def expose(self, port: int) -> str:
        return f"http://fake:{port}"

    def host_url(self, url: str) -> str:
        return url
