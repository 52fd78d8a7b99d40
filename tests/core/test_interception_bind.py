"""Where the server listens, and what its bare port tells a stranger (case R28)."""

from __future__ import annotations

import asyncio
import socket

import httpx
import pytest

from doubles.intercepted import Client, hello, make_trace, rig
from doubles.upstream import Provider
from vf_core.errors import InterceptionError, TunnelError
from vf_core.interception import InterceptionServer, Session, Upstream
from vf_core.interception.tunnel.probe import try_url


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        return int(found.getsockname()[1])


async def test_it_listens_where_it_is_told() -> None:
    port = free_port()
    async with Provider() as provider:
        upstream = Upstream(provider.base_url)
        async with InterceptionServer(upstream, host="0.0.0.0", port=port) as server:
            assert server.port == port
            assert server.base_url == f"http://127.0.0.1:{port}/v1"
            session = Session("r", 1, make_trace(), model="m")
            async with Client(server.base_url, server.register(session)) as client:
                assert (await client.ask(hello())).status == 200
        with socket.create_server(("0.0.0.0", port), reuse_port=False):
            pass  # the port is free again
        await upstream.aclose()


async def test_a_port_that_is_taken_is_told() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        server = InterceptionServer(Upstream("http://127.0.0.1:9/v1"), port=port)
        with pytest.raises(InterceptionError, match=rf"could not listen on 127.0.0.1:{port}: .*in use") as e:
            await server.start()
    assert "env.interception.tunnel.port" in str(e.value)


async def test_strangers_learn_nothing_and_get_nowhere() -> None:
    async with rig() as r, httpx.AsyncClient(trust_env=False) as client:
        root = r.server.base_url.removesuffix("/v1")
        health = await client.get(f"{root}/health")
        assert (health.status_code, health.json()) == (200, {"status": "ok"})
        assert "server" not in health.headers
        for method, path in (
            ("POST", "/v1/chat/completions"),
            ("GET", "/v1/models"),
            ("GET", "/"),
            ("GET", "/v1"),
            ("GET", "/docs"),
            ("POST", "/v1/embeddings"),
            ("PUT", "/state"),
            ("POST", "/v1/../health/"),
        ):
            for headers in ({}, {"authorization": "Bearer"}, {"authorization": "Bearer wrong"}):
                answer = await client.request(method, f"{root}{path}", headers=headers, content=b"{}")
                assert answer.status_code in (401, 405), (method, path)
        assert not r.provider.requests


async def test_a_remote_harness_without_a_tunnel_is_told_what_to_set() -> None:
    async with rig() as r:
        assert r.server.base_url_for(True) == r.server.base_url
        with pytest.raises(TunnelError, match=r"env\.interception\.tunnel"):
            r.server.base_url_for(False)
        with pytest.raises(TunnelError, match="no way to this host"):
            await r.server.reachable(False)
        await r.server.reachable(True)
        assert await r.server.failure(False, 0.0) is None


async def test_the_probe_knows_this_server_from_any_other() -> None:
    async with rig() as one, rig() as other:
        root = one.server.base_url.removesuffix("/v1")
        assert await try_url(root, one.server, 5) == ""
        assert "something else" in await try_url(root, other.server, 5)
        assert not one.server._probes
        assert not other.server._probes


async def test_a_probe_is_answered_once() -> None:
    async with rig() as r, httpx.AsyncClient(trust_env=False) as client:
        answer = r.server.expect("question")
        url = f"{r.server.base_url.removesuffix('/v1')}/health"
        first = await client.get(url, headers={"x-vf-tui-probe": "question"})
        again = await client.get(url, headers={"x-vf-tui-probe": "question"})
        assert answer in first.text
        assert again.json() == {"status": "ok"}


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (
            b"HTTP/1.1 302 Found\r\nLocation: https://elsewhere.example/\r\nContent-Length: 0\r\n\r\n",
            "redirects to",
        ),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 13\r\n\r\n<html></html>", "something else answers"),
        (b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\n\r\n", "status 502"),
        (b"\x00\x01nonsense\r\n\r\n", "RemoteProtocolError"),
        (b"", "RemoteProtocolError"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 99999999\r\n\r\n" + b"x" * 100_000, "something else answers"),
        (None, "no answer within 0.3 s"),
    ],
)
async def test_what_answers_instead_is_said(answer: bytes | None, said: str) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        if answer is None:
            await reader.read()
        else:
            writer.write(answer)
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server, rig() as r:
        port = server.sockets[0].getsockname()[1]
        assert said in await try_url(f"http://127.0.0.1:{port}", r.server, 0.3 if answer is None else 10)
        assert not r.server._probes
        server.close()


async def test_nothing_listens_there() -> None:
    async with rig() as r:
        assert "connection refused" in await try_url(f"http://127.0.0.1:{free_port()}", r.server, 5)
        assert "not an address" in await try_url("http://[half", r.server, 5)
