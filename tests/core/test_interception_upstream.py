"""The pool of connections to the provider, TLS and proxies, and that its secrets stay with it."""

from __future__ import annotations

import asyncio
import datetime
import ipaddress
import json
import logging
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from doubles import upstream as up
from doubles.intercepted import hello, rig
from vf_core.errors import ConfigError, ProviderError
from vf_core.events import codec
from vf_core.interception import Upstream
from vf_core.interception import upstream as pool


class Heard:
    """A listener that keeps what it is told."""

    def __init__(self) -> None:
        self.status = 0
        self.headers: dict[bytes, bytes] = {}
        self.data = b""
        self.error: ProviderError | None = None
        self.over = asyncio.Event()

    def on_response(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        self.status, self.headers = status, dict(headers)

    def on_data(self, data: bytes) -> None:
        self.data += data

    def on_end(self) -> None:
        assert not self.over.is_set()
        self.over.set()

    def on_failure(self, error: ProviderError) -> None:
        assert not self.over.is_set()
        self.error = error
        self.over.set()

    async def wait(self) -> Heard:
        async with asyncio.timeout(60):
            await self.over.wait()
        return self


def post(client: Upstream, **body: Any) -> Heard:
    """Send a request."""
    heard = Heard()
    client.post("/chat/completions", [], json.dumps(body).encode(), heard)
    return heard


@asynccontextmanager
async def using(provider: up.Provider, **settings: Any) -> AsyncIterator[Upstream]:
    """A client of `provider`."""
    client = Upstream(settings.pop("base_url", provider.base_url), "sk-1234", **settings)
    yield client
    await client.aclose()
    assert client.sockets == 0


async def test_connections_are_used_again() -> None:
    async with up.Provider() as provider, using(provider) as client:
        for _ in range(5):
            assert (await post(client).wait()).status == 200
        for _ in range(5):
            assert (await post(client, stream=True).wait()).data.endswith(b"[DONE]\n\n")
        assert provider.connections == 1


async def test_sockets_are_bounded_and_requests_wait_in_order() -> None:
    async with up.Provider() as provider, using(provider, max_connections=3) as client:
        heard = [post(client, seed=i) for i in range(30)]
        assert [(await h.wait()).status for h in heard] == [200] * 30
        assert provider.most_open == 3
        assert [r.body["seed"] for r in provider.requests[3:]] == list(range(3, 30))


async def test_a_request_is_never_sent_twice() -> None:
    async with up.Provider() as provider, using(provider) as client:
        await post(client).wait()
        provider.plan(up.hang_up())
        failed = await post(client).wait()
        assert failed.error is not None
        assert "closed the connection before it answered" in str(failed.error)
        assert len(provider.requests) == 2
        assert (await post(client).wait()).status == 200


async def test_a_connection_that_the_provider_closed_meanwhile_is_not_used() -> None:
    async with up.Provider() as provider, using(provider) as client:
        provider.plan(up.answer(None, "Connection: close"), up.until_close(b"{}"))
        for _ in range(3):
            heard = await post(client).wait()
            assert (heard.status, heard.error) == (200, None)
        assert provider.connections == 3


async def test_idle_connections_are_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "_IDLE_SECONDS", 0.02)
    async with up.Provider() as provider, using(provider) as client:
        await post(client).wait()
        await provider.until(lambda: provider.open == 0)
        assert client.sockets == 0
        assert (await post(client).wait()).status == 200


async def test_cancelling_closes_the_connection_and_frees_its_place() -> None:
    async with up.Provider() as provider, using(provider, max_connections=1) as client:
        provider.plan(up.gated(asyncio.Event(), up.answer()))
        first = Heard()
        call = client.post("/chat/completions", [], b"{}", first)
        waiting = client.post("/chat/completions", [], b"{}", Heard())
        last = post(client)
        await provider.until(lambda: len(provider.requests) == 1)
        waiting.cancel()
        call.cancel()
        call.cancel()
        await provider.until(lambda: provider.hung_up == 1)
        assert (await last.wait()).status == 200
        assert not first.over.is_set()
        assert len(provider.requests) == 2


async def test_a_listener_that_has_heard_enough_leaves_the_connection_whole() -> None:
    async with up.Provider() as provider, using(provider) as client:
        gate = asyncio.Event()
        provider.plan(up.gated_stream(gate, [b"[DONE]"], []))

        class Leaves(Heard):
            def on_data(self, data: bytes) -> None:
                super().on_data(data)
                call.leave()
                gate.set()

        heard = Leaves()
        call = client.post("/chat/completions", [], b"{}", heard)
        await gate.wait()
        assert (await post(client).wait()).status == 200
        assert not heard.over.is_set()


async def test_an_unreachable_provider_fails_each_request_and_none_hangs() -> None:
    async with up.Provider() as provider:
        port = provider.port
    client = Upstream(f"http://127.0.0.1:{port}/v1", max_connections=2)
    for heard in [post(client) for _ in range(10)]:
        error = (await heard.wait()).error
        assert error is not None
        assert (error.status_code, error.unreachable) == (503, True)
        assert f"could not connect to 127.0.0.1:{port}" in str(error)
    await client.aclose()
    closed = await post(client).wait()
    assert closed.error is not None


async def test_no_answer_is_told_from_an_answer_that_is_an_error() -> None:
    async with rig() as r:
        r.provider.plan(up.hang_up(), up.status(503), up.cut_short())
        found = []
        for seed in range(3):
            session = r.session(f"r{seed}")
            await r.ask(session, hello(seed=seed))
            assert isinstance(session.error, ProviderError)
            session.trace.capture_error(session.error)
            assert session.trace.error is not None
            assert session.trace.error.unreachable is session.error.unreachable
            assert "unreachable" not in str(session.trace.to_record())
            found.append(session.error.unreachable)
        assert found == [True, False, False]


async def test_connecting_is_bounded() -> None:
    # Accepts nothing: the backlog is full.
    server = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)

    async def never(*_: Any, **__: Any) -> Any:
        await asyncio.Event().wait()

    loop = asyncio.get_running_loop()
    client = Upstream(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", connect_timeout=0.05)
    original, loop.create_connection = loop.create_connection, never  # type: ignore[method-assign]
    try:
        error = (await post(client).wait()).error
    finally:
        loop.create_connection = original  # type: ignore[method-assign]
    assert error is not None
    assert (error.status_code, error.unreachable, "within 0.05 s" in str(error)) == (504, True, True)
    await client.aclose()
    server.close()


async def test_garbage_from_the_provider_is_a_failure() -> None:
    def says(data: bytes, *, close: bool = False) -> up.Behaviour:
        async def behave(wire: up.Wire) -> None:
            wire.send(data)
            await wire.writer.drain()
            if close:
                wire.writer.close()

        return behave

    async with up.Provider() as provider, using(provider) as client:
        for data in (
            b"SSH-2.0-OpenSSH\r\n",
            b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
            b"HTTP/1.1 200 OK\r\nX: " + b"y" * 300_000,
            b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 3\r\n\r\nabc",
            b"HTTP/1.1 101 Switching\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n",
        ):
            provider.plan(says(data, close=True))
            assert (await post(client).wait()).error is not None, data
        two = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"
        provider.plan(says(b"HTTP/1.1 100 Continue\r\n\r\n" + two), says(two + two.replace(b"200", b"500")))
        assert (await post(client).wait()).data == b"{}"
        heard = await post(client).wait()
        assert (heard.status, heard.data) == (200, b"{}")
        assert (await post(client).wait()).status == 200


async def test_an_answer_without_end_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vf_core.interception.client.ANSWER_LIMIT", 1 << 16)

    async def endless(wire: up.Wire) -> None:
        wire.sse()
        while not wire.gone.is_set():
            wire.event(up.delta("x" * 1000))
            await wire.writer.drain()

    async with up.Provider() as provider, using(provider) as client:
        provider.plan(endless, up.compressed(b" " * (1 << 20)))
        for _ in range(2):
            error = (await post(client).wait()).error
            assert error is not None
            assert "larger than" in str(error)


# Secrets

CANARIES = {
    "api_key": "sk-canary-key-111111",
    "headers": {
        "X-Team-ID": "canary-team-222222",
        "Cookie": "canary-cookie-333333",
        "Authorization": "Bearer canary-auth-444",
    },
}


@pytest.mark.parametrize("code", [401, 500, 200])
async def test_s01_secrets_are_nowhere_but_in_the_request(
    code: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)

    async def tattle(wire: up.Wire) -> None:
        said = " ".join(f"{k}={v}" for k, v in wire.request.headers.items())
        body = {"error": {"message": f"I do not like {said}"}}
        wire.whole(json.dumps(body).encode(), code, f"X-Echo: {wire.request.headers.get('x-team-id')}")

    async with rig(**CANARIES) as r:
        r.provider.plan(tattle)
        session = r.session()
        reply = await r.ask(session)
        assert reply.status >= 400
        await r.provider.__aexit__()
        await r.ask(session, hello(seed=1))
        shown = " ".join(
            (
                str(reply), str(session.error), json.dumps(session.trace.to_record()), caplog.text,
                json.dumps([codec.to_record(event) for event in r.events]), repr(r.upstream),
            )
        )  # fmt: skip
        assert "canary" in str(r.provider.requests[0].headers)
        assert "canary" not in shown
        assert session.secret not in json.dumps(session.trace.to_record()) + caplog.text
        assert "I do not like" in shown


async def test_s02_logins_in_urls_are_masked_and_used() -> None:
    async with up.Provider() as provider:
        url = provider.base_url.replace("http://", "http://user:pass-word-555@")
        client = Upstream(url)
        assert (await post(client).wait()).status == 200
        assert provider.requests[0].headers["authorization"].startswith("Basic ")
        assert (
            client.redact(f"see {url}: pass-word-555")
            == "see http://[redacted]@" + url.split("@")[1] + ": [redacted]"
        )
        assert (
            client.redact("an ordinary text about application/json")
            == "an ordinary text about application/json"
        )
        await client.aclose()


@pytest.mark.parametrize(
    ("headers", "key"),
    [({"X-A": "1\r\nX-B: 2"}, "X-A"), ({"not a name": "1"}, "not a name"), ({"Host": "h"}, "Host")],
)
def test_headers_that_cannot_be_sent_are_refused(headers: dict[str, str], key: str) -> None:
    with pytest.raises(ConfigError, match=r"client\.headers\." + key):
        Upstream("http://127.0.0.1/v1", "sk", headers)
    with pytest.raises(ConfigError, match="line break") as caught:
        Upstream("http://127.0.0.1/v1", "sk-1\nX-Evil: 1")
    assert "Evil" not in str(caught.value)


@pytest.mark.parametrize(
    "url", ["", "api.example.org/v1", "ftp://x", "http://", "http://h:99999/", "http://h:x/"]
)
def test_addresses_that_cannot_be_used_are_refused(url: str) -> None:
    with pytest.raises(ConfigError, match=r"client\.base_url"):
        Upstream(url)


# TLS and proxies


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A self-signed certificate for localhost, with its key."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    now = datetime.datetime.now(datetime.UTC)
    names = x509.SubjectAlternativeName(
        [
            x509.DNSName("localhost"),
            x509.DNSName("proxied.test"),
            x509.IPAddress(ipaddress.ip_address("127.0.0.1")),
        ]
    )
    made = (
        x509.CertificateBuilder()
        .subject_name(name).issuer_name(name).public_key(key.public_key()).serial_number(1)
        .not_valid_before(now - datetime.timedelta(days=1)).not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(names, critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )  # fmt: skip
    path = tmp_path_factory.mktemp("tls") / "localhost.pem"
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    path.write_bytes(private + made.public_bytes(serialization.Encoding.PEM))
    return path


def serving(certificate: Path) -> ssl.SSLContext:
    """The server's side of TLS."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    return context


async def test_tls_is_spoken_and_certificates_are_checked(
    certificate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with up.Provider(serving(certificate)) as provider:
        async with using(provider) as client:
            error = (await post(client).wait()).error
            assert error is not None
            assert "certificate was not accepted" in str(error)
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        async with using(provider) as client:
            for stream in (False, True):
                assert (await post(client, stream=stream).wait()).status == 200
            assert provider.connections == 1


class Forwarder:
    """An HTTP proxy: tunnels for CONNECT, and plain requests in absolute form. `seen` are its request heads."""

    def __init__(self, tls: ssl.SSLContext | None = None, refuse: bool = False) -> None:
        self.tls, self.refuse, self.seen = tls, refuse, list[str]()

    async def __aenter__(self) -> Forwarder:
        self.server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=self.tls)
        self.port = self.server.sockets[0].getsockname()[1]
        self.to = 0
        return self

    async def __aexit__(self, *exc: object) -> None:
        self.server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        self.seen.append(head.decode())
        if self.refuse:
            writer.write(b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n")
            writer.close()
            return
        there, back = await asyncio.open_connection("127.0.0.1", self.to)
        if head.startswith(b"CONNECT"):
            writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        else:
            back.write(head.replace(b"http://proxied.test", b"", 1))
        await asyncio.gather(self._pump(reader, back), self._pump(there, writer))

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(65536):
                writer.write(data)
        except (ConnectionError, ssl.SSLError):
            pass
        writer.close()


@pytest.mark.parametrize("secure_proxy", [False, True])
async def test_https_goes_through_the_proxy_of_the_environment(
    certificate: Path, monkeypatch: pytest.MonkeyPatch, secure_proxy: bool
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    async with (
        up.Provider(serving(certificate)) as provider,
        Forwarder(serving(certificate) if secure_proxy else None) as proxy,
    ):
        proxy.to = provider.port
        scheme, host = ("https", "localhost") if secure_proxy else ("http", "127.0.0.1")
        monkeypatch.setenv("HTTPS_PROXY", f"{scheme}://me:secret-word-9@{host}:{proxy.port}")
        monkeypatch.setenv("NO_PROXY", "other.test")
        async with using(provider, base_url="https://proxied.test/v1") as client:
            for stream in (False, True, False):
                heard = await post(client, stream=stream).wait()
                assert (heard.status, heard.error) == (200, None)
            assert client.redact("me:secret-word-9 bWU6c2VjcmV0LXdvcmQtOQ==").count("secret") == 0
        assert [head.split("\r\n")[0] for head in proxy.seen] == ["CONNECT proxied.test:443 HTTP/1.1"]
        assert "Proxy-Authorization: Basic bWU6c2VjcmV0LXdvcmQtOQ==" in proxy.seen[0]
        assert "proxy-authorization" not in provider.requests[0].headers


async def test_http_goes_through_the_proxy_in_absolute_form(monkeypatch: pytest.MonkeyPatch) -> None:
    async with up.Provider() as provider, Forwarder() as proxy:
        proxy.to = provider.port
        monkeypatch.setenv("http_proxy", f"127.0.0.1:{proxy.port}")
        monkeypatch.delenv("no_proxy", raising=False)
        monkeypatch.delenv("NO_PROXY", raising=False)
        async with using(provider, base_url="http://proxied.test/v1") as client:
            assert (await post(client).wait()).status == 200
        assert proxy.seen[0].startswith(
            "POST http://proxied.test/v1/chat/completions HTTP/1.1\r\nhost: proxied.test\r\n"
        )


async def test_the_loopback_and_excepted_hosts_are_reached_directly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.setenv("no_proxy", "proxied.test")
    async with up.Provider() as provider, using(provider) as client:
        assert (await post(client).wait()).status == 200
    async with up.Provider() as provider, using(provider, base_url="http://proxied.test:1/v1") as client:
        error = (await post(client).wait()).error
        assert error is not None
        assert "proxy" not in str(error)


async def test_a_proxy_that_refuses_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    async with up.Provider() as provider, Forwarder(refuse=True) as proxy:
        monkeypatch.setenv("https_proxy", f"http://127.0.0.1:{proxy.port}")
        monkeypatch.delenv("no_proxy", raising=False)
        monkeypatch.delenv("NO_PROXY", raising=False)
        async with using(provider, base_url="https://proxied.test/v1") as client:
            error = (await post(client).wait()).error
        assert error is not None
        assert f"through the proxy 127.0.0.1:{proxy.port}: the proxy answered 407" in str(error)
    monkeypatch.setenv("https_proxy", "socks5://127.0.0.1:9")
    with pytest.raises(ConfigError, match="https_proxy"):
        Upstream("https://proxied.test/v1")
