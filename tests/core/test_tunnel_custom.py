"""A tunnel of the user's own: it must lead here before anything is created, and its end is noticed and said."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from doubles import upstream as up
from doubles.intercepted import Client, hello, make_trace, settle
from doubles.relay import Relay
from doubles.upstream import Provider
from vf_core.config.interception import CustomTunnelConfig
from vf_core.errors import InterceptionError, TunnelError
from vf_core.events import types as ev
from vf_core.interception import InterceptionServer, Session, Upstream
from vf_core.interception.tunnel import Pace, make_tunnel

QUICK = Pace(check=3.0, one=1.0, pause=0.02, watch=0.1, wait=0.3)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        return int(found.getsockname()[1])


class Setup:
    """A server behind a relay, and what was said."""

    def __init__(self, relay: Relay, provider: Provider, said: list[tuple[str, str]]) -> None:
        self.relay, self.provider, self.said = relay, provider, said
        self.upstream = Upstream(provider.base_url)
        self.server: InterceptionServer
        self.events: list[ev.Event] = []

    def make(self, pace: Pace = QUICK, **settings: Any) -> InterceptionServer:
        config = CustomTunnelConfig(
            **{"url": self.relay.url, "port": self.relay.target, "host": "127.0.0.1", **settings}
        )
        tunnel = make_tunnel(
            config, run="r", say=lambda level, text: self.said.append((level, text)), pace=pace
        )
        self.server = InterceptionServer(self.upstream, tunnel=tunnel)
        return self.server

    def session(self) -> Session:
        session = Session("r1", 1, make_trace(), model="m", emit=self.events.append)
        self.server.register(session)
        return session

    def heard(self, level: str, text: str) -> bool:
        return any(said == level and text in told for said, told in self.said)


@asynccontextmanager
async def setup() -> AsyncIterator[Setup]:
    async with Relay(free_port()) as relay, Provider() as provider:
        one = Setup(relay, provider, [])
        yield one
        await one.upstream.aclose()


async def test_model_calls_come_through_it() -> None:
    async with setup() as s, s.make() as server:
        assert server.base_url_for(False) == f"{s.relay.url}/v1"
        assert server.base_url_for(True) == f"http://127.0.0.1:{s.relay.target}/v1"
        await server.reachable(False)
        session = s.session()
        async with Client(server.base_url_for(False), session.secret) as client:
            assert (await client.ask(hello())).status == 200
        assert len(session.trace.calls) == 1
        assert s.heard("info", s.relay.url)


async def test_the_end_of_the_tunnel_frees_the_port() -> None:
    async with setup() as s:
        async with s.make() as server:
            pass
        with pytest.raises(TunnelError, match="not open"):
            server.base_url_for(False)
        async with s.make():
            pass


async def test_always_is_for_local_sandboxes_too() -> None:
    async with setup() as s, s.make(always=True) as server:
        assert server.base_url_for(True) == f"{s.relay.url}/v1"


@pytest.mark.parametrize("where", ["nobody", "another server"])
async def test_a_url_that_leads_elsewhere_is_refused_at_the_start(where: str) -> None:
    async with setup() as s, InterceptionServer(s.upstream) as other:
        url = f"http://127.0.0.1:{free_port() if where == 'nobody' else other.port}"
        server = s.make(Pace(check=0.4, one=0.3, pause=0.05), url=url)
        with pytest.raises(TunnelError, match="does not lead to the interception server") as e:
            await server.start()
        text = str(e.value)
        assert url in text
        assert str(s.relay.target) in text
        assert "check = false" in text
        assert ("something else" if where != "nobody" else "connection refused") in text
        with socket.create_server(("127.0.0.1", s.relay.target)):
            pass  # nothing is left open


async def test_without_the_check_the_url_is_taken_at_its_word() -> None:
    async with setup() as s, s.make(url="http://192.0.2.1:1", check=False) as server:
        assert server.base_url_for(False) == "http://192.0.2.1:1/v1"
        assert await server.failure(False, 0.0) is None


async def test_a_tunnel_that_comes_up_late_is_waited_for() -> None:
    async with setup() as s:
        url = s.relay.url
        s.relay.kill()
        starting = asyncio.create_task(s.make(Pace(check=10, one=1, pause=0.05), url=url).start())
        await asyncio.sleep(0.2)
        assert not starting.done()
        await s.relay.start()
        await starting
        await s.server.stop()


async def test_a_port_that_is_taken_is_told() -> None:
    async with setup() as s:
        with (
            socket.create_server(("127.0.0.1", s.relay.target)),
            pytest.raises(InterceptionError, match="in use"),
        ):
            await s.make().start()


async def test_a_cut_is_noticed_said_and_over_when_it_is_back() -> None:
    async with setup() as s, s.make() as server:
        began = time.monotonic()
        assert await server.failure(False, began) is None
        s.relay.kill()
        await settle(lambda: s.heard("warning", "is cut"))
        with pytest.raises(TunnelError, match="is cut"):
            server.base_url_for(False)
        with pytest.raises(TunnelError, match=r"is cut.*see whether your tunnel still runs"):
            await server.reachable(False)
        await s.relay.start()
        await settle(lambda: s.heard("info", "is back"))
        assert server.base_url_for(False) == f"{s.relay.url}/v1"
        cut = await server.failure(False, began)
        assert cut is not None
        assert "was cut for" in str(cut)
        assert await server.failure(False, time.monotonic()) is None


async def test_a_rollout_that_waits_goes_on_when_it_is_back() -> None:
    async with setup() as s, s.make(Pace(**{**_fields(QUICK), "wait": 20.0})) as server:
        s.relay.kill()
        await settle(lambda: s.heard("warning", "is cut"))
        waiting = asyncio.create_task(server.reachable(False))
        await asyncio.sleep(0.05)
        assert not waiting.done()
        await s.relay.start()
        await waiting


async def test_a_program_that_failed_of_a_cut_is_told_even_before_it_was_noticed() -> None:
    async with setup() as s, s.make(Pace(**{**_fields(QUICK), "watch": 3600.0})) as server:
        began = time.monotonic()
        s.relay.kill()
        # Many ask at once: one look serves them all.
        found = await asyncio.gather(*(server.failure(False, began) for _ in range(50)))
        assert all(error is not None and "is cut" in str(error) for error in found)
        assert len([told for level, told in s.said if "is cut" in told]) == 1


async def test_calls_that_were_under_way_say_what_they_failed_of() -> None:
    async with setup() as s, s.make() as server:
        session = s.session()
        s.provider.plan(up.gated(asyncio.Event(), up.answer()))
        async with Client(server.base_url_for(False), session.secret) as client:
            client.send(hello())
            await settle(lambda: s.provider.requests)
            s.relay.kill()
            await settle(lambda: any(isinstance(e, ev.ErrorRaised) for e in s.events))
        (error,) = [e for e in s.events if isinstance(e, ev.ErrorRaised)]
        assert (error.kind, error.rollout) == ("TunnelError", "r1")
        assert "is cut" in error.message
        session.close()
        (call,) = session.trace.calls
        assert call.error is not None
        assert call.error.type == "TunnelError"


async def test_a_call_survives_a_short_cut() -> None:
    """Its client asks again, as SDKs do, and gets the answer that was being made."""
    async with setup() as s, s.make() as server:
        session = s.session()
        gate = asyncio.Event()
        s.provider.plan(up.gated(gate, up.answer()))
        async with Client(server.base_url_for(False), session.secret) as client:
            client.send(hello())
            await settle(lambda: s.provider.requests)
            s.relay.kill()
        await settle(lambda: s.heard("warning", "is cut"))
        await s.relay.start()
        await settle(lambda: s.heard("info", "is back"))
        async with Client(server.base_url_for(False), session.secret) as client:
            client.send(hello())
            await settle(lambda: session.cut is None)
            gate.set()
            assert (await client.receive()).status == 200
        (call,) = session.trace.calls
        assert call.error is None
        assert len(s.provider.requests) == 1


def _fields(pace: Pace) -> dict[str, float]:
    return {name: getattr(pace, name) for name in ("check", "one", "pause", "watch", "wait")}
