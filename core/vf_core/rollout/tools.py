"""The tool servers of a rollout's attempt: made with it, started before its program, ended with its sandboxes."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from vf_core.errors import ToolsetError
from vf_core.events import types as ev
from vf_core.rollout.context import RolloutSpec, RunContext
from vf_core.rollout.reach import check_reach, endpoint
from vf_core.rollout.sandboxes import make_box, moved
from vf_core.runtimes.base import Runtime
from vf_core.runtimes.lifecycle import Transition
from vf_core.tasks.toolset import Toolset, needs_channel

if TYPE_CHECKING:
    from vf_core.interception import Session
    from vf_core.interception.tool_server import ToolServer
    from vf_core.tools.launch import Served

ResultT = TypeVar("ResultT")


@dataclass(frozen=True, slots=True)
class Placed:
    """A toolset and the sandbox that its server gets for itself; None: it runs in the rollout's, or elsewhere."""

    toolset: Toolset[Any, Any]
    runtime: Runtime | None = None


class AttemptTools:
    """The servers of one attempt, those that the run shares included. `runtimes` are whoever's who tears down."""

    def __init__(self, spec: RolloutSpec, number: int, context: RunContext, agent: Runtime) -> None:
        self._spec, self._number = spec, number
        self._context = context
        self._agent = agent
        self._broken: Exception | None = None
        self._placed: list[Placed] = []
        self._served: list[Served] = []
        try:
            self._placed = [self._place(k, one) for k, one in enumerate(spec.task.tool_servers(), 1)]
        except Exception as e:  # a task's own `server_config`
            self._broken = e

    @property
    def runtimes(self) -> list[Runtime]:
        """The sandboxes that servers have for themselves."""
        return [placed.runtime for placed in self._placed if placed.runtime is not None]

    @property
    def wanted(self) -> bool:
        """There are servers to be started, or shared ones."""
        return bool(self._placed) or self._context.shared_tools is not None

    async def start(self, session: Session) -> Mapping[str, str]:
        """Start the servers, all at once; for each its prefix, and the address at which the agent's program reaches
        it. Raises `ToolsetError`, `SandboxError`, `TunnelError`."""
        if self._broken is not None:
            raise ToolsetError(
                f"its toolsets: {type(self._broken).__name__}: {self._broken}"
            ) from self._broken
        own = [self._start(placed, k, session) for k, placed in enumerate(self._placed)]
        servers = [server for found in await all_or_none([self._shared(), *own]) for server in found]
        if not servers:
            return {}
        root = endpoint(self._agent, self._context).removesuffix("/v1")
        return {server.name: root + session.add_tools(server) for server in servers}

    async def tell_dead(self) -> None:
        """Say which of its servers died while the program ran, and what they said last."""
        from vf_core.tools import launch

        for served in self._served:
            if await served.lives():
                continue
            message = f"{launch.label(served.toolset)} died{await served.last_words()}"
            self._context.publish(
                ev.Log(level="warning", message=message[: ev.MESSAGE_LIMIT], rollout=self._spec.id)
            )

    async def _shared(self) -> Sequence[ToolServer]:
        shared = self._context.shared_tools
        return () if shared is None else await shared()

    def _place(self, k: int, toolset: Toolset[Any, Any]) -> Placed:
        config = toolset.config
        if config.url is not None or config.colocated:
            return Placed(toolset)
        id, number = self._spec.id, self._number
        name = f"vf-{self._context.run[:8]}-{id}-a{number}-t{k}"
        box = tools_box(toolset, name, str(k), self._context, rollout=id, number=number)
        return Placed(toolset, box)

    async def _start(self, placed: Placed, k: int, session: Session) -> Sequence[ToolServer]:
        toolset, runtime = placed.toolset, placed.runtime
        if toolset.config.url is not None:
            return (external(toolset),)
        if runtime is not None:
            await runtime.start()
        else:
            runtime = self._agent
        channel = ("", "")
        if needs_channel(type(toolset), shared=False):
            root = await channel_root(runtime, self._context)
            path, secret = session.channel
            channel = (root + path, secret)
        from vf_core.tools import launch

        port = port_of(runtime, self._rank(k))
        served = await launch.start(toolset, runtime, port=port, channel=channel)
        self._served.append(served)
        return (as_server(served),)

    def _rank(self, k: int) -> int:
        """The how-manieth it is of those that share its sandbox."""
        mine = self._placed[k].runtime
        return 0 if mine is not None else sum(1 for p in self._placed[:k] if p.toolset.config.colocated)


def tools_box(
    toolset: Toolset[Any, Any],
    name: str,
    label: str,
    context: RunContext,
    *,
    rollout: str = "",
    number: int = 0,
) -> Runtime:
    """The sandbox that `toolset`'s server has for itself, not started: of an attempt of `rollout`, or (empty) of the
    whole run. `label` tells it from others of the same owner."""
    config, serves = toolset.config.runtime, toolset.server_name or type(toolset).__name__

    def observe(move: Transition) -> None:
        context.publish(moved(move, config, rollout, number, serves))

    return make_box(config, name, context, observe, rollout=rollout, number=number, more={"tools": label})


def as_server(served: Served, *, shared: bool = False) -> ToolServer:
    """A server of ours as the relay knows it."""
    from vf_core.interception.tool_server import ToolServer

    return ToolServer(
        served.toolset.server_name,
        served.url,
        headers=served.headers,
        seal=served.seal,
        place="host" if served.runtime.kind == "subprocess" else "sandbox",
        shared=shared,
    )


def external(toolset: Toolset[Any, Any], *, shared: bool = False) -> ToolServer:
    """A server that runs already."""
    from vf_core.interception.tool_server import ToolServer

    config = toolset.config
    headers = {name: value.get_secret_value() for name, value in config.headers.items()}
    return ToolServer(
        toolset.server_name, config.url or "", headers=headers, place="external", shared=shared, own=False
    )


async def channel_root(runtime: Runtime, context: RunContext) -> str:
    """The interception server's root, as a server in `runtime` reaches it. Raises when it does not."""
    await check_reach(runtime, context)
    return endpoint(runtime, context).removesuffix("/v1")


def port_of(runtime: Runtime, rank: int) -> int:
    """The port for a server in `runtime`, the one of this rank there (from 0): where the provider must know ports
    beforehand, one of those that the config names. 0: any."""
    ports: Sequence[int] = getattr(runtime.config, "expose_ports", ())
    if runtime.is_local or not ports:
        return 0
    return ports[min(rank, len(ports) - 1)]


async def all_or_none(work: Sequence[Coroutine[Any, Any, ResultT]]) -> list[ResultT]:
    """All results, in order. When one fails the others are cancelled and seen to end, and its error is raised."""
    tasks = [asyncio.ensure_future(one) for one in work]
    try:
        return list(await asyncio.gather(*tasks))
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise
