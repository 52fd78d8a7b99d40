"""A tunnel of Prime's service, by the real package: opened, kept open, and closed, whatever happens."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from doubles import tunnel_holder
from doubles.intercepted import Client, hello, make_trace, settle
from doubles.tunnel_service import KEY, TunnelService, frpcs, install_frpc, tunnel_service
from doubles.upstream import Provider
from vf_core.config.interception import PrimeTunnelConfig
from vf_core.errors import ConfigError, TunnelError
from vf_core.interception import InterceptionServer, Session, Upstream
from vf_core.interception.tunnel import Pace, check_here, make_tunnel, prime, prime_main
from vf_core.interception.tunnel.prime import PrimeTunnel

QUICK = Pace(check=5.0, one=2.0, pause=0.05, watch=0.2, wait=0.3)


class Setup:
    """A service, a home with frpc in it, and servers behind its tunnels."""

    def __init__(self, service: TunnelService, home: Path, provider: Provider) -> None:
        self.service, self.home, self.provider = service, home, provider
        self.upstream = Upstream(provider.base_url)
        self.said: list[tuple[str, str]] = []
        self.tunnel: PrimeTunnel

    def make(self, pace: Pace = QUICK, **settings: Any) -> InterceptionServer:
        tunnel = make_tunnel(
            PrimeTunnelConfig(**settings),
            run="run-1",
            say=lambda level, text: self.said.append((level, text)),
            pace=pace,
        )
        assert isinstance(tunnel, PrimeTunnel)
        self.tunnel = tunnel
        return InterceptionServer(self.upstream, tunnel=tunnel)

    def heard(self, level: str, text: str) -> bool:
        return any(said == level and text in told for said, told in self.said)

    def nothing_left(self) -> None:
        assert not self.service.alive
        assert not frpcs(self.home)
        assert not list((self.home / ".prime").glob("tunnels/*"))

    async def asks(self, server: InterceptionServer) -> int:
        """The status of a model call through the tunnel."""
        session = Session("r1", 1, make_trace(), model="m")
        server.register(session)
        async with Client(server.base_url_for(False), session.secret) as client:
            return (await client.ask(hello())).status


@pytest.fixture
async def setup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Setup]:
    for name in [name for name in os.environ if name.startswith("PRIME_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PRIME_API_KEY", KEY)
    install_frpc(tmp_path)
    async with tunnel_service() as service, Provider() as provider:
        monkeypatch.setenv("PRIME_API_BASE_URL", service.url)
        one = Setup(service, tmp_path, provider)
        yield one
        await one.upstream.aclose()


async def test_model_calls_come_through_it_and_nothing_is_left(setup: Setup) -> None:
    check_here(PrimeTunnelConfig())
    async with setup.make() as server:
        assert await setup.asks(server) == 200
        (tunnel,) = setup.service.alive
        assert tunnel.body["name"] == "vf-tui-run-1"
        labels = tunnel.body["labels"]
        assert labels[0] == "vf-tui"
        assert "vf-tui.run=run-1" in labels
        assert f"vf-tui.pid={os.getpid()}" in labels
        assert setup.heard("info", tunnel.url)
        (pid,) = frpcs(setup.home)
        environment = Path(f"/proc/{pid}/environ").read_bytes()
        assert KEY.encode() not in environment
        assert b"VF_TUI_ENGINE=" in environment
    setup.nothing_left()


async def test_a_service_that_refuses_is_told_and_not_hammered(setup: Setup) -> None:
    cases: list[tuple[int, str, int]] = [
        (401, "prime login", 1),
        (402, "Payment required", 1),
        (400, "Maximum number of tunnels.*prime tunnel list", 1),
        (500, "the service said 500", 2),
    ]
    monkeypatch = pytest.MonkeyPatch()
    monkeypatch.setattr(prime, "ATTEMPTS", 2)
    for fault, said, times in cases:
        setup.service.fault = fault
        setup.service.calls.clear()
        with pytest.raises(TunnelError, match=said):
            await setup.make().start()
        assert setup.service.calls.count("create") == times
    monkeypatch.undo()
    setup.nothing_left()


async def test_a_registration_whose_answer_was_lost_is_deleted(
    setup: Setup, monkeypatch: pytest.MonkeyPatch
) -> None:
    setup.service.fault = "lost"
    starting = asyncio.create_task(setup.make().start())
    await settle(lambda: setup.service.tunnels, 20)
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    setup.nothing_left()


async def test_a_service_that_hangs_is_given_up(setup: Setup, monkeypatch: pytest.MonkeyPatch) -> None:
    setup.service.fault = "hang"
    monkeypatch.setattr(prime, "_SLACK", 0.3)
    monkeypatch.setattr(prime, "CONNECT_SECONDS", 0.2)
    with pytest.raises(TunnelError, match="did not open within"):
        await setup.make().start()
    setup.nothing_left()


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("crash", "something is wrong with this build"),
        ("silent", "timed out"),
        (None, "frpc 0.66.0 is fetched"),
    ],
)
async def test_a_tunnel_program_that_does_not_work_is_told(
    setup: Setup, monkeypatch: pytest.MonkeyPatch, fault: str | None, said: str
) -> None:
    monkeypatch.setattr(prime, "ATTEMPTS", 1)
    monkeypatch.setattr(prime, "CONNECT_SECONDS", 1.0)
    if fault:
        program = setup.home / ".prime" / "bin" / "frpc"
        program.write_text(program.read_text().replace("exec ", f"FRPC_FAULT={fault} exec "))
    else:
        (setup.home / ".prime" / "bin" / "frpc").unlink()
        monkeypatch.setenv("https_proxy", "http://127.0.0.1:9")
    with pytest.raises(TunnelError, match=said):
        await setup.make().start()
    setup.nothing_left()


async def test_a_tunnel_program_that_dies_is_started_anew_at_the_same_url(setup: Setup) -> None:
    async with setup.make(Pace(check=5, one=2, pause=0.05, watch=3600, wait=20)) as server:
        url, (pid,) = server.base_url_for(False), frpcs(setup.home)
        os.kill(pid, signal.SIGKILL)
        await settle(lambda: setup.heard("warning", "is cut: the tunnel program ended"), 20)
        await server.reachable(False)
        assert server.base_url_for(False) == url
        assert setup.heard("info", "the prime tunnel is back")
        assert await setup.asks(server) == 200
        assert await server.failure(False, 0.0) is not None
    setup.nothing_left()


async def test_a_tunnel_that_the_service_ended_is_replaced(setup: Setup) -> None:
    async with setup.make(Pace(check=5, one=2, pause=0.05, watch=3600, wait=30)) as server:
        url, (tunnel,) = server.base_url_for(False), setup.service.alive
        setup.service.end(tunnel, "expired")
        await settle(lambda: setup.heard("warning", "is cut"), 20)
        await server.reachable(False)
        assert server.base_url_for(False) != url
        assert setup.heard("info", "a new prime tunnel is open")
        assert await setup.asks(server) == 200
    setup.nothing_left()


async def test_a_url_that_stops_answering_is_noticed_and_mended(setup: Setup) -> None:
    """The tunnel program runs and knows of nothing."""
    async with setup.make(Pace(check=0.5, one=2, pause=0.05, watch=0.1, wait=30)) as server:
        setup.service.answering = False
        await settle(lambda: setup.heard("warning", "status 502"), 20)
        await settle(lambda: len(setup.service.tunnels) > 1, 20)  # a new start did not help: another one
        setup.service.answering = True
        await server.reachable(False)
        assert await setup.asks(server) == 200
    setup.nothing_left()


async def test_the_holder_may_die_too(setup: Setup) -> None:
    async with setup.make(Pace(check=5, one=2, pause=0.05, watch=3600, wait=30)) as server:
        assert setup.tunnel._helper is not None
        (old,) = frpcs(setup.home)
        os.kill(setup.tunnel._helper.pid, signal.SIGKILL)
        await settle(lambda: setup.heard("warning", "the process that holds"), 20)
        await server.reachable(False)
        assert old not in frpcs(setup.home)
        assert await setup.asks(server) == 200
        assert setup.heard("warning", "may be left")
        for tunnel in setup.service.alive[:-1]:
            setup.service.end(tunnel, "expired")  # as the service itself does after a while
    assert not setup.service.alive
    assert not frpcs(setup.home)


@pytest.mark.parametrize("fault", ["stubborn frpc", "service hangs", "service refuses"])
async def test_the_end_is_bounded_and_honest(
    setup: Setup, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    monkeypatch.setattr(prime, "CLOSE_SECONDS", 2.0)
    if fault == "stubborn frpc":
        program = setup.home / ".prime" / "bin" / "frpc"
        program.write_text(program.read_text().replace("exec ", "FRPC_FAULT=stubborn exec "))
    async with setup.make():
        setup.service.delete_fault = {"service hangs": "hang", "service refuses": 403}.get(fault, 0)
    assert not frpcs(setup.home)
    assert setup.heard("warning", "may be left") is bool(setup.service.alive)
    assert bool(setup.service.alive) or fault == "stubborn frpc"


@pytest.mark.parametrize("killed", ["engine", "engine and holder"])
async def test_t10_nothing_outlives_a_killed_engine(setup: Setup, killed: str) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, tunnel_holder.__file__),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        env=environment,
    )
    assert process.stdout is not None
    holder = int(await process.stdout.readline())
    assert setup.service.alive
    assert frpcs(setup.home)
    if killed != "engine":
        os.kill(holder, signal.SIGKILL)
    process.kill()
    await process.wait()
    await settle(lambda: not frpcs(setup.home), 20)
    if killed == "engine":
        await settle(lambda: not setup.service.alive, 20)


def test_what_is_missing_is_one_line(setup: Setup, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PRIME_API_KEY")
    with pytest.raises(ConfigError, match=r"needs a Prime login.*PRIME_API_KEY.*prime login") as e:
        check_here(PrimeTunnelConfig())
    assert "\n" not in str(e.value)
    monkeypatch.setenv("PRIME_CONTEXT", "../nonsense")
    with pytest.raises(ConfigError, match="Invalid context name"):
        check_here(PrimeTunnelConfig())
    monkeypatch.delenv("PRIME_CONTEXT")
    for name in [name for name in sys.modules if name.startswith("prime_tunnel.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "prime_tunnel", None)
    with pytest.raises(ConfigError, match=r"prime-tunnel.*vf-tui\[tunnel\]"):
        check_here(PrimeTunnelConfig())


def test_what_the_tunnel_program_complained_of() -> None:
    """Its log has colours, times and places."""
    news = (
        "\x1b[1;34m2026-01-01 10:00:00.000 [I] [client/control.go:172] [abc] [t1] start proxy success\x1b[0m"
    )
    trouble = (
        "\x1b[1;33m2026-01-01 10:00:01.000 [W] [service.go:318] [abc] connect to server error: EOF\x1b[0m"
    )
    assert prime_main.complaint([news, trouble, news]) == "connect to server error: EOF"
    for lines in ([], [news], ["not a log line"]):
        assert prime_main.complaint(lines) == "it said nothing of why"
