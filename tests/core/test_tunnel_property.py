"""Whatever a tunnel goes through: there is a URL exactly while it leads here, and every outage is told once."""

from __future__ import annotations

import asyncio
import time
from typing import ClassVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vf_core.config.interception import TunnelConfig
from vf_core.errors import TunnelError
from vf_core.interception.tunnel.base import Pace, Tunnel
from vf_core.interception.tunnel.probe import Door

STILL = Pace(check=0.05, one=0.01, pause=0.0, watch=3600.0, wait=0.0)


class Scripted(Tunnel):
    """Leads here while `leads`; can be told that it was cut, or is back at some URL."""

    kind: ClassVar[str] = "scripted"
    leads = True

    async def _open(self, door: Door) -> str:
        return "http://t0"

    async def _try(self, url: str, seconds: float) -> str:
        await asyncio.sleep(0)
        return "" if self.leads else "nobody is there"

    def _advice(self, *, cut: bool) -> str:
        return "wait"


class Nowhere:
    """A server that nothing asks."""

    port = 1

    def expect(self, question: str) -> str:
        return ""

    def forget(self, question: str) -> None:
        return


STEPS = st.lists(
    st.sampled_from(["leads", "does not", "look", "look twice", "cut", "back", "new"]),
    min_size=1,
    max_size=25,
)


@settings(max_examples=60)
@given(STEPS)
def test_a_tunnel_s_life(steps: list[str]) -> None:
    asyncio.run(live(steps))


async def live(steps: list[str]) -> None:
    said: list[tuple[str, str]] = []
    cuts: list[str] = []
    backs: list[str] = []
    tunnel = Scripted(TunnelConfig(type="scripted"), say=lambda *told: said.append(told), pace=STILL)
    tunnel.on_cut = lambda error: cuts.append(error.message)
    tunnel.on_back = lambda: backs.append(tunnel.url)
    await tunnel.open(Nowhere())
    up, since = True, time.monotonic()
    for number, step in enumerate(steps):
        match step:
            case "leads" | "does not":
                tunnel.leads = step == "leads"
            case "look":
                await tunnel._look()
                up = tunnel.leads
            case "look twice":
                await asyncio.gather(tunnel._look(), tunnel._look())
                up = tunnel.leads
            case "cut":
                tunnel._cut("told so")
                up = False
            case _:
                tunnel._restored(f"http://t{number}" if step == "new" else tunnel._url)
                up = True
        if up:
            assert tunnel.url == await tunnel.ready() == tunnel._url
        else:
            with pytest.raises(TunnelError, match="is cut"):
                _ = tunnel.url
            with pytest.raises(TunnelError, match="is cut"):
                await tunnel.ready()
    assert len(cuts) == len([told for level, told in said if level == "warning"])
    assert len(cuts) - len(backs) == (0 if up else 1)
    tunnel.leads = up
    assert (await tunnel.failure(since) is not None) is bool(cuts)
    assert (await tunnel.failure(time.monotonic()) is not None) is not up
    await tunnel.close()
    await tunnel.close()
