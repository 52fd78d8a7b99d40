"""How programs in an attempt's sandbox reach the interception server."""

from __future__ import annotations

from vf_core.rollout.context import TUNNEL, RunContext
from vf_core.runtimes.base import Runtime


async def find_way(rollout: str, runtime: Runtime, context: RunContext) -> None:
    """Wait for the tunnel, where one is needed: without it the sandbox would be made in vain.

    Raises `TunnelError`.
    """
    if await context.server.reachable(runtime.is_local):
        context.used(rollout, TUNNEL, "")


def endpoint(runtime: Runtime, context: RunContext) -> str:
    """The interception server's address, as programs in the sandbox reach it."""
    return runtime.host_url(context.server.base_url_for(runtime.is_local))


async def check_reach(runtime: Runtime, context: RunContext) -> None:
    """Once for each image and engine: before a model call could fail for it."""
    address = endpoint(runtime, context)
    way = (runtime.account, str(getattr(runtime.config, "image", "")), address)
    if way not in context.reached:
        await runtime.check_reach(address)
        context.reached.add(way)
