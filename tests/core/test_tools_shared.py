"""The starts and ends of a run's shared servers, with servers that are only said to run."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

import pytest

from vf_core.engine import shared_tools
from vf_core.engine.shared_tools import RESTARTS, SharedTools
from vf_core.errors import ToolsetError
from vf_core.events import types as ev
from vf_core.runtimes.base import Runtime
from vf_core.runtimes.lifecycle import State
from vf_core.tasks import Toolset, tool
from vf_core.tools.launch import Served


class One(Toolset):
    @tool
    def it(self) -> str:
        """One."""
        return ""


class Two(One):
    """Another."""


@dataclass
class Context:
    """What shared servers need of a run."""

    run: str = "0123456789"
    labels: dict[str, str] = field(default_factory=dict)
    recorder: Any = None
    told: list[ev.Event] = field(default_factory=list)

    def publish(self, event: ev.Event) -> None:
        self.told.append(event)


class Starts:
    """Stands for the starting of programs. `fails`: which toolset's does; `taken`: a port on which none can be;
    `hold`: it waits until that is set."""

    def __init__(self) -> None:
        self.fails: type[Any] | None = None
        self.taken = 0
        self.asked: list[dict[str, Any]] = []
        self.hold = asyncio.Event()
        self.hold.set()
        self.under_way = asyncio.Event()
        self.runtimes: list[Runtime] = []

    async def __call__(self, toolset: Any, runtime: Runtime, **asked: Any) -> Served:
        self.asked.append(asked)
        self.runtimes.append(runtime)
        self.under_way.set()
        await self.hold.wait()
        if type(toolset) is self.fails or (self.taken and asked.get("port") == self.taken):
            raise ToolsetError("nope")
        return Served(toolset, runtime, "http://127.0.0.1:9/mcp", 9, "t")


@pytest.fixture
def starts(monkeypatch: pytest.MonkeyPatch) -> Starts:
    found = Starts()
    monkeypatch.setattr(shared_tools, "start", found)
    # Nobody listens there: their health is another test's.
    monkeypatch.setattr(shared_tools, "LOOK_SECONDS", 3600.0)
    return found


async def test_they_are_started_once_for_all_who_ask_and_anew_after_their_end(starts: Starts) -> None:
    tools = SharedTools([One(), Two()], Context())  # type: ignore[arg-type]
    assert tools.unsettled == []
    asked = await asyncio.gather(*(tools.servers() for _ in range(5)))
    assert [[server.name for server in servers] for servers in asked] == [["one", "two"]] * 5
    assert len(starts.runtimes) == 2
    await asyncio.gather(tools.close(), tools.close())
    assert [runtime.state for runtime in starts.runtimes] == [State.GONE] * 2
    await tools.servers()
    assert [runtime.state for runtime in starts.runtimes[2:]] == [State.LIVE] * 2
    assert len({runtime.name for runtime in starts.runtimes}) == 4
    await tools.close()
    assert tools.unsettled == []


async def test_one_that_fails_takes_the_others_down_and_is_not_tried_for_ever(starts: Starts) -> None:
    tools = SharedTools([One(), Two()], Context())  # type: ignore[arg-type]
    starts.fails = Two
    for _ in range(RESTARTS + 1):
        with pytest.raises(ToolsetError, match="nope"):
            await tools.servers()
        assert tools.unsettled == []
    with pytest.raises(ToolsetError, match="not tried again"):
        await tools.servers()
    assert len(starts.runtimes) == 2 * (RESTARTS + 1)
    await tools.close()  # the run is over; somebody restarts a rollout of it
    starts.fails = None
    assert len(await tools.servers()) == 2
    await tools.close()


async def test_an_end_in_the_midst_of_a_start_is_an_error_for_those_who_wait(starts: Starts) -> None:
    """T16."""
    tools = SharedTools([One()], Context())  # type: ignore[arg-type]
    starts.hold.clear()
    waiting = [asyncio.create_task(tools.servers()) for _ in range(2)]
    await starts.under_way.wait()
    waiting[1].cancel()
    await tools.close()
    with pytest.raises(ToolsetError, match="ended while they started"):
        await waiting[0]
    with pytest.raises(asyncio.CancelledError):
        await waiting[1]
    assert [runtime.state for runtime in starts.runtimes] == [State.GONE]
    starts.hold.set()
    assert len(await tools.servers()) == 1
    await tools.close()
    assert tools.unsettled == []


async def test_one_whose_port_was_taken_has_new_secrets(
    starts: Starts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever has the port is told the old ones by the rollouts that know of no other."""
    dead = iter([False])

    async def lives(self: Served) -> bool:
        return next(dead, True)

    monkeypatch.setattr(Served, "lives", lives)
    monkeypatch.setattr(shared_tools, "LOOK_SECONDS", 0.0)
    tools = SharedTools([One()], Context())  # type: ignore[arg-type]
    starts.taken = 9
    await tools.servers()
    async with asyncio.timeout(60):
        while len(starts.asked) < 3:
            await asyncio.sleep(0.01)
    like = [(asked.get("port", 0), getattr(asked.get("like"), "token", None)) for asked in starts.asked]
    assert like == [(0, None), (9, "t"), (0, None)]
    await tools.close()
