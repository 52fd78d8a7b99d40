"""Opening connections to the provider: directly or through the proxy of the environment, plain or TLS."""

from __future__ import annotations

import asyncio
import base64
import os
import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeVar
from urllib.parse import SplitResult, unquote, urlsplit
from urllib.request import getproxies, proxy_bypass

from vf_core.errors import ConfigError, ProviderError

CONNECT_TIMEOUT = 10.0
_LOOPBACK = ("localhost", "127.0.0.1", "::1")
_PORTS = {"http": 80, "https": 443}
_REPLY_LIMIT = 16_384

P = TypeVar("P", bound=asyncio.Protocol)


@dataclass(frozen=True)
class Proxy:
    """An HTTP proxy; `login` is `user:password`, empty without one."""

    host: str
    port: int
    tls: bool
    login: str

    @property
    def authorization(self) -> str:
        """The value of `Proxy-Authorization`; empty without a login."""
        return _basic(self.login)


class Target:
    """Where `base_url` leads: scheme, host, port, path and the proxy on the way (None: direct).

    `key` is the config's table that it stands in; `exact` keeps a slash at the path's end. Raises `ConfigError` for a
    URL or a proxy that can't be used.
    """

    def __init__(self, base_url: str, *, key: str = "client", exact: bool = False) -> None:
        self.key = f"{key}.base_url" if key == "client" else f"{key}.url"
        url = _split(base_url, self.key)
        self.tls = url.scheme == "https"
        self.host = url.hostname or ""
        self.port = url.port or _PORTS[url.scheme]
        self.path = (url.path or "/") if exact else url.path.rstrip("/")
        self.query = url.query
        self.authorization = _basic(_login(url))
        name = f"[{self.host}]" if ":" in self.host else self.host
        self.authority = name if self.port == _PORTS[url.scheme] else f"{name}:{self.port}"
        self.connect_authority = f"{name}:{self.port}"
        self.proxy = _proxy_for(url.scheme, self.host, self.port)

    @property
    def tls_context(self) -> ssl.SSLContext:
        """The system's trust store (`SSL_CERT_FILE` and `SSL_CERT_DIR` honoured), certifi's where there is none."""
        return _tls_context(os.environ.get("SSL_CERT_FILE", ""), os.environ.get("SSL_CERT_DIR", ""))

    def request_target(self, path: str) -> str:
        """The request line's target for `path` under the base URL."""
        target = self.path + path + (f"?{self.query}" if self.query else "")
        if self.proxy is not None and not self.tls:
            return f"http://{self.authority}{target}"
        return target


@lru_cache(maxsize=4)
def _tls_context(cert_file: str, cert_dir: str) -> ssl.SSLContext:
    """One for all targets: reading a trust store takes tens of milliseconds. OpenSSL reads both names itself."""
    context = ssl.create_default_context()
    if not context.get_ca_certs():
        try:
            import certifi
        except ImportError:
            pass
        else:
            context.load_verify_locations(certifi.where())
    context.set_alpn_protocols(["http/1.1"])
    return context


def _split(url: str, what: str) -> SplitResult:
    try:
        parts = urlsplit(url)
        port_ok = parts.port is None or parts.port > 0
    except ValueError as e:
        raise ConfigError(f"{what} is not a URL: {e}") from None
    if parts.scheme not in _PORTS or not parts.hostname or not port_ok:
        raise ConfigError(f"{what} must be an http:// or https:// URL with a host", key=what)
    return parts


def _login(url: SplitResult) -> str:
    """The `user:password` in a URL; empty without any."""
    return "" if url.username is None else f"{unquote(url.username)}:{unquote(url.password or '')}"


def _basic(login: str) -> str:
    return "Basic " + base64.b64encode(login.encode()).decode() if login else ""


def _proxy_for(scheme: str, host: str, port: int) -> Proxy | None:
    """The proxy that the environment names for `host`. The loopback is never reached through one."""
    if host in _LOOPBACK or proxy_bypass(f"{host}:{port}"):
        return None
    proxies = getproxies()
    url = proxies.get(scheme) or proxies.get("all")
    if not url:
        return None
    parts = _split(url if "://" in url else f"http://{url}", f"{scheme}_proxy")
    port = parts.port or _PORTS[parts.scheme]
    return Proxy(parts.hostname or "", port, parts.scheme == "https", _login(parts))


async def dial(target: Target, factory: Callable[[], P], timeout: float = CONNECT_TIMEOUT) -> P:
    """A connected protocol. Raises `ProviderError` (503; 504 on timeout) that says where it led and why not."""
    where = target.connect_authority
    try:
        async with asyncio.timeout(timeout):
            if target.proxy is not None:
                where = f"{where} through the proxy {target.proxy.host}:{target.proxy.port}"
                transport, protocol = await _through_proxy(target, target.proxy, factory)
            else:
                transport, protocol = await _direct(target, factory)
    except TimeoutError:
        raise ProviderError(
            f"could not connect to {where} within {timeout:g} s",
            status_code=504,
            hint=f"check {target.key} and the network",
            unreachable=True,
        ) from None
    except OSError as e:
        raise ProviderError(
            f"could not connect to {where}: {_reason(e)}",
            status_code=503,
            hint=f"check {target.key} and the network",
            unreachable=True,
        ) from None
    _keep_alive(transport)
    return protocol


def _reason(error: Exception) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate was not accepted: {error.verify_message}"
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


async def _direct(target: Target, factory: Callable[[], P]) -> tuple[asyncio.BaseTransport, P]:
    loop = asyncio.get_running_loop()
    tls: dict[str, Any] = {"ssl": target.tls_context, "server_hostname": target.host} if target.tls else {}
    return await loop.create_connection(factory, target.host, target.port, happy_eyeballs_delay=0.25, **tls)


async def _through_proxy(
    target: Target, proxy: Proxy, factory: Callable[[], P]
) -> tuple[asyncio.BaseTransport, P]:
    loop = asyncio.get_running_loop()
    tls: dict[str, Any] = {"ssl": target.tls_context, "server_hostname": proxy.host} if proxy.tls else {}
    if not target.tls:
        return await loop.create_connection(factory, proxy.host, proxy.port, happy_eyeballs_delay=0.25, **tls)
    transport, opening = await loop.create_connection(
        lambda: _TunnelReply(loop), proxy.host, proxy.port, happy_eyeballs_delay=0.25, **tls
    )
    try:
        transport.write(_connect_request(target, proxy))
        await opening.reply
        protocol = factory()
        secure = await loop.start_tls(transport, protocol, target.tls_context, server_hostname=target.host)
        if secure is None:
            raise ConnectionError("the connection closed during the TLS handshake")
    except BaseException:
        transport.abort()
        raise
    protocol.connection_made(secure)
    return secure, protocol


def _connect_request(target: Target, proxy: Proxy) -> bytes:
    lines = [f"CONNECT {target.connect_authority} HTTP/1.1", f"Host: {target.connect_authority}"]
    if proxy.authorization:
        lines.append(f"Proxy-Authorization: {proxy.authorization}")
    return "\r\n".join((*lines, "", "")).encode()


class _TunnelReply(asyncio.Protocol):
    """Reads a proxy's answer to CONNECT; `reply` is done when the tunnel is open, or fails with its refusal."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.reply: asyncio.Future[None] = loop.create_future()
        self._buffer = bytearray()

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        if self.reply.done():
            return
        if b"\r\n\r\n" not in self._buffer:
            if len(self._buffer) > _REPLY_LIMIT:
                self.reply.set_exception(ConnectionError("the proxy's answer has no end"))
            return
        status = bytes(self._buffer).split(b"\r\n", 1)[0].split(b" ", 2)
        if len(status) >= 2 and status[1].startswith(b"2"):
            self.reply.set_result(None)
        else:
            said = b" ".join(status[1:]).decode("latin-1") or "nothing that could be read"
            self.reply.set_exception(ConnectionError(f"the proxy answered {said}"))

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.reply.done():
            self.reply.set_exception(ConnectionError("the proxy closed the connection"))


def _keep_alive(transport: asyncio.BaseTransport) -> None:
    """Let the kernel notice a peer that vanished: a read may otherwise wait as long as the rollout."""
    sock = transport.get_extra_info("socket")
    if sock is None:
        return
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("TCP_KEEPIDLE", 60), ("TCP_KEEPINTVL", 15), ("TCP_KEEPCNT", 4)):
        if hasattr(socket, name):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
