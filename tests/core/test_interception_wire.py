"""What arrives at the server need not be HTTP, nor JSON, nor small: it is refused, and hurts nobody else."""

from __future__ import annotations

import asyncio
import json
from contextlib import AsyncExitStack, suppress

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from doubles import upstream as up
from doubles.intercepted import HELLO, Client, Reply, Rig, hello, rig, settle
from vf_core.interception import connections, wire


async def alive(r: Rig) -> None:
    """The server still answers."""
    assert (await r.ask(r.session("probe"))).status == 200


async def raw(r: Rig, data: bytes, *, eof: bool = True) -> bytes:
    """Send bytes as they are; whatever comes back."""
    async with Client(r.server.base_url, "") as client:
        client.writer.write(data)
        if eof and client.writer.can_write_eof():
            client.writer.write_eof()
        async with asyncio.timeout(60):
            try:
                return await client.reader.read()
            except ConnectionError:
                return b""


@pytest.mark.parametrize(
    "data",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"GET\r\n\r\n",
        b"POST /v1/chat/completions HTTP/9.9\r\n\r\n",
        b"POST /v1/chat/completions HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
        b"POST / HTTP/1.1\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"GET /health HTTP/1.1\r\nno colon here\r\n\r\n",
        b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\n\r\n",
        b"GET /health HTTP/1.1\r\n" + b"X: " + b"y" * 70_000,
        b"CONNECT example.org:443 HTTP/1.1\r\n\r\n",
        b"GET /health HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"",
    ],
)
async def test_what_is_not_http_is_refused(data: bytes) -> None:
    async with rig() as r:
        said = await raw(r, data)
        assert not said or said.startswith(b"HTTP/1.1 4") or b"websocket" in data
        await alive(r)


@settings(max_examples=25, suppress_health_check=list(HealthCheck))
@given(st.lists(st.binary(max_size=60), max_size=4), st.integers(0, 120))
def test_random_bytes_never_break_the_server(pieces: list[bytes], cut: int) -> None:
    async def main() -> None:
        async with rig() as r:
            session = r.session()
            head = (
                f"POST /v1/chat/completions HTTP/1.1\r\nAuthorization: Bearer {session.secret}\r\n".encode()
            )
            await raw(r, head[:cut] + b"".join(pieces))
            await raw(r, head + b"Content-Length: 20\r\n\r\n" + b"".join(pieces))
            await alive(r)
            assert not session.trace.nodes

    asyncio.run(main())


BAD_BODIES = [
    b"", b"nonsense", b"[]", b"null", b'"text"', b"{}", b'{"messages": {}}', b'{"messages": []}',
    b'{"messages": ["text"]}', b'{"messages": [null]}', b"{" * 5000, b"[" * 200_000, b'{"messages": [{"role": 1}]',
    "{}".encode("utf-16"),
]  # fmt: skip


@pytest.mark.parametrize("body", BAD_BODIES, ids=range(len(BAD_BODIES)))
async def test_a_body_that_is_no_request_is_a_400(body: bytes) -> None:
    async with rig() as r:
        session = r.session()
        async with r.client(session) as client:
            reply = await client.ask(body)
            assert reply.status == 400
            assert reply.error
            assert reply.json["error"]["type"] == "invalid_request_error"
            assert (await client.ask(hello())).status == 200
        assert len(r.provider.requests) == 1
        assert session.error is None


async def test_messages_of_any_kind_are_the_providers_to_judge() -> None:
    async with rig() as r:
        odd = [{"role": 7}, {}, {"role": "tool", "content": {"a": 1}}, {"role": "user", "content": [None, 3]}]
        session = r.session()
        assert (await r.ask(session, {"messages": odd})).status == 200
        assert r.provider.requests[0].body["messages"] == odd
        assert len(session.trace.nodes) == 5


async def test_an_oversized_body_is_a_413(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "BODY_LIMIT", 1 << 20)
    async with rig() as r:
        session = r.session()
        big = json.dumps(hello(pad="x" * (2 << 20))).encode()
        async with r.client(session) as client:
            client.send(big)
            reply = await client.receive()
            assert (reply.status, reply.headers["connection"]) == (413, "close")
            assert "1 MiB" in reply.error
        async with r.client(session) as client:
            client.writer.write(
                f"POST /v1/chat/completions HTTP/1.1\r\nAuthorization: Bearer {session.secret}\r\n"
                "Transfer-Encoding: chunked\r\n\r\n".encode()
            )
            for _ in range(3):
                client.writer.write(b"%x\r\n%b\r\n" % (1 << 19, b"y" * (1 << 19)))
            assert (await client.receive()).status == 413
        assert not r.provider.requests
        await alive(r)


async def test_a_large_body_passes_whole() -> None:
    async with rig() as r:
        content = "long " * 1_000_000
        session = r.session()
        assert (
            await r.ask(session, hello() | {"messages": [{"role": "user", "content": content}]})
        ).status == 200
        assert r.provider.requests[0].body["messages"][0]["content"] == content


async def test_a_body_may_come_in_chunks_and_be_announced() -> None:
    async with rig() as r:
        session = r.session()
        body = json.dumps(hello()).encode()
        async with r.client(session) as client:
            client.writer.write(
                f"POST /v1/chat/completions HTTP/1.1\r\nAuthorization: bearer  {session.secret}\r\n"
                "Expect: 100-continue\r\nTransfer-Encoding: chunked\r\n\r\n".encode()
            )
            assert (await client.head()).status == 100
            for byte in body:
                client.writer.write(b"1\r\n%c\r\n" % byte)
            client.writer.write(b"0\r\n\r\n")
            assert (await client.receive()).status == 200
            client.send(body, {"Content-Encoding": "gzip"})
            assert (await client.receive()).status == 415


@pytest.mark.parametrize("stream", [False, True])
async def test_an_old_client_gets_an_answer_that_ends_with_its_connection(stream: bool) -> None:
    async with rig() as r:
        session = r.session()
        body = json.dumps(hello(stream=stream)).encode()
        async with r.client(session) as client:
            client.writer.write(
                f"POST /v1/chat/completions HTTP/1.0\r\nAuthorization: Bearer {session.secret}\r\n"
                f"Content-Length: {len(body)}\r\n\r\n".encode()
                + body
            )
            reply = await client.receive()
            assert "transfer-encoding" not in reply.headers
            assert reply.headers["connection"] == "close"
            assert (reply.text if stream else reply.json["choices"][0]["message"]["content"]) == "done"
            assert await client.reader.read() == b""


async def test_an_old_client_can_tell_a_broken_stream_from_a_whole_one() -> None:
    async with rig() as r:
        r.provider.plan(up.no_end_mark())
        session = r.session()
        body = json.dumps(hello(stream=True)).encode()
        async with r.client(session) as client:
            client.writer.write(
                f"POST /v1/chat/completions HTTP/1.0\r\nAuthorization: Bearer {session.secret}\r\n"
                f"Content-Length: {len(body)}\r\n\r\n".encode()
                + body
            )
            with pytest.raises(ConnectionResetError):
                await client.reader.read()


async def test_requests_sent_at_once_are_answered_in_order() -> None:
    async with rig() as r:
        session = r.session()
        async with r.client(session) as client:
            for i in range(6):
                client.send(hello(seed=i, stream=bool(i % 2)))
            replies: list[Reply] = [await client.receive() for _ in range(6)]
        assert [reply.status for reply in replies] == [200] * 6
        assert [request.body["seed"] for request in r.provider.requests] == list(range(6))


async def test_a_flood_of_requests_on_one_connection_is_cut_off() -> None:
    async with rig() as r:
        session = r.session()
        async with r.client(session) as client:
            for i in range(40):
                client.send(hello(seed=i))
            assert [(await client.receive()).broken for _ in range(40)][-1]
        await alive(r)


async def test_the_rest_of_a_refused_request_is_not_kept() -> None:
    async with rig() as r, Client(r.server.base_url, "wrong") as client:
        reply = await client.ask(json.dumps({"messages": HELLO, "pad": "x" * 200_000}).encode())
        assert reply.status == 401
        # The connection is in order: the request was read to its end.
        assert (await client.ask(b"", method="GET", path="/health")).status == 200


@pytest.mark.parametrize("chunked", [False, True])
async def test_a_large_request_that_is_refused_is_not_read_on(chunked: bool) -> None:
    body = b"x" * (wire.REFUSED_LIMIT + 1)
    async with rig() as r, Client(r.server.base_url, "wrong") as client:
        if chunked:
            client.writer.write(
                b"POST /v1/chat/completions HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n"
                + b"%x\r\n%b\r\n" % (len(body), body)
            )
        else:
            client.send(body)
        reply = await client.receive()
        assert reply.status == 401
        assert reply.headers["connection"] == "close"
        await alive(r)


async def test_connections_of_strangers_end_by_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "STRANGER_SECONDS", 0.2)
    async with rig() as r:
        session = r.session()
        async with (
            Client(r.server.base_url, "") as slow,
            Client(r.server.base_url, "wrong") as wrong,
            r.client(session) as known,
        ):
            assert (await known.ask(hello())).status == 200
            slow.writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nX-Slow: ")
            assert (await wrong.ask(hello())).status == 401
            for client in (slow, wrong):
                async with asyncio.timeout(60):
                    with suppress(ConnectionError):
                        await client.reader.read()
            assert (await known.ask(hello(seed=1))).status == 200


async def test_strangers_never_take_all_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "_STRANGERS", 3)
    async with rig() as r, AsyncExitStack() as stack:
        session = r.session()
        known = await stack.enter_async_context(r.client(session))
        assert (await known.ask(hello())).status == 200
        for _ in range(12):
            await stack.enter_async_context(Client(r.server.base_url, ""))
        assert (await known.ask(hello(seed=1))).status == 200
        await settle(lambda: len(r.server._connections.all) <= 4)
        await alive(r)
