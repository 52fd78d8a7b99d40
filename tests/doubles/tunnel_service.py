"""A double of Prime's tunnel service: its REST API, its frp server, and a public port for each tunnel.

Run in the test's own loop; the real `prime-tunnel` package and a stand-in for frpc talk to it.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import secrets
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aiohttp import web

from doubles import frpc_program
from vf_core.runtimes.labels import encode_list

KEY = "prime-key-of-the-tests"


@dataclass
class Registration:
    """A tunnel as the service knows it."""

    id: str
    token: str
    secret: str
    url: str
    body: dict[str, Any]
    server: asyncio.Server | None = None
    status: str = "pending"
    control: asyncio.StreamWriter | None = None

    def record(self) -> dict[str, Any]:
        return {
            "tunnel_id": self.id,
            "hostname": self.url.removeprefix("http://"),
            "url": self.url,
            "name": self.body.get("name"),
            "labels": self.body.get("labels", []),
            "local_port": self.body["local_port"],
            "status": self.status,
            "expires_at": "2030-01-01T00:00:00Z",
        }


@dataclass
class TunnelService:
    """`fault`: what a create is answered with: a status; "lost" (made, but the answer never comes); "hang"."""

    url: str = ""
    host: str = "127.0.0.1"
    fault: int | str = 0
    delete_fault: int | str = 0
    tunnels: dict[str, Registration] = field(default_factory=dict)
    calls: list[str] = field(default_factory=list)
    answering: bool = True
    _frps: asyncio.Server | None = None
    _waiting: dict[str, asyncio.Future[tuple[asyncio.StreamReader, asyncio.StreamWriter]]] = field(
        default_factory=dict
    )
    _tickets: itertools.count[int] = field(default_factory=itertools.count)
    _tasks: set[asyncio.Task[Any]] = field(default_factory=set)
    stuck: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def alive(self) -> list[Registration]:
        """Registrations that are not over."""
        return [t for t in self.tunnels.values() if t.status not in ("terminated", "expired")]

    # ------------------------------------------------------------------ API

    async def create(self, request: web.Request) -> web.Response:
        self.calls.append("create")
        if self.fault == "hang":
            await self.stuck.wait()
        if isinstance(self.fault, int) and self.fault:
            return web.json_response({"detail": self.detail()}, status=self.fault)
        tunnel = await self._register(await request.json())
        if self.fault == "lost":
            await self.stuck.wait()
        assert self._frps is not None
        host, port = self._frps.sockets[0].getsockname()[:2]
        more = {
            "frp_token": tunnel.token,
            "binding_secret": tunnel.secret,
            "server_host": host,
            "server_port": port,
        }
        return web.json_response({**tunnel.record(), **more}, status=201)

    async def _register(self, body: dict[str, Any]) -> Registration:
        ident = f"t{secrets.token_hex(6)}"
        tunnel = Registration(ident, secrets.token_hex(8), secrets.token_hex(8), "", body)
        tunnel.server = await asyncio.start_server(lambda r, w: self._outside(tunnel, r, w), self.host, 0)
        tunnel.url = f"http://{self.host}:{tunnel.server.sockets[0].getsockname()[1]}"
        self.tunnels[ident] = tunnel
        return tunnel

    async def register(self, labels: dict[str, str] | None) -> str:
        """A tunnel with these labels of ours (None: somebody else's); returns its id."""
        texts = ["other"] if labels is None else encode_list(labels)
        return (await self._register({"local_port": 1, "labels": texts})).id

    def detail(self) -> str:
        return (
            "Maximum number of tunnels reached (10)"
            if self.fault == 400
            else f"the service said {self.fault}"
        )

    async def show(self, request: web.Request) -> web.Response:
        self.calls.append("show")
        tunnel = self.tunnels.get(request.match_info["id"])
        if tunnel is None or tunnel.status == "terminated":
            return web.json_response({"detail": "no such tunnel"}, status=404)
        return web.json_response(tunnel.record())

    async def listing(self, request: web.Request) -> web.Response:
        self.calls.append("list")
        wanted = set(request.query.getall("labels", []))
        found = [t.record() for t in self.alive if wanted <= set(t.body.get("labels", []))]
        page, size = int(request.query.get("page", "1")), 2
        shown = found[(page - 1) * size : page * size]
        return web.json_response(
            {"tunnels": shown, "total": len(found), "has_next": page * size < len(found)}
        )

    async def delete(self, request: web.Request) -> web.Response:
        self.calls.append("delete")
        if self.delete_fault == "hang":
            await self.stuck.wait()
        if isinstance(self.delete_fault, int) and self.delete_fault:
            return web.json_response({"detail": "no"}, status=self.delete_fault)
        tunnel = self.tunnels.get(request.match_info["id"])
        if tunnel is None or tunnel.status == "terminated":
            return web.json_response({"detail": "no such tunnel"}, status=404)
        self.end(tunnel, "terminated")
        return web.json_response({})

    def end(self, tunnel: Registration, status: str) -> None:
        """The service ends a tunnel: its frpc is told at its next login."""
        tunnel.status = status
        if tunnel.server is not None:
            tunnel.server.close()
        self.cut(tunnel)

    def cut(self, tunnel: Registration) -> None:
        """Break the connection to its frpc."""
        if tunnel.control is not None:
            tunnel.control.transport.abort()
            tunnel.control = None

    # ------------------------------------------------------------------ frp

    async def _inside(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """A connection of a frpc: its login, or one end of a connection from outside."""
        word, *rest = (await reader.readline()).decode().split()
        if word == "carry":
            if (waiting := self._waiting.pop(rest[0], None)) is not None and not waiting.done():
                waiting.set_result((reader, writer))
            return
        tunnel = self.tunnels.get(rest[0])
        if tunnel is None or tunnel.status in ("terminated", "expired"):
            writer.write(b"refused tunnel not registered\n")
        elif rest[1:] != [tunnel.token, tunnel.secret]:
            writer.write(b"refused invalid binding secret\n")
        else:
            tunnel.status, tunnel.control = "connected", writer
            writer.write(b"ok\n")

    async def _outside(
        self, tunnel: Registration, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """A connection to the public port."""
        if task := asyncio.current_task():
            self._tasks.add(task)
        if tunnel.control is None or not self.answering:
            writer.write(b"HTTP/1.1 502 Bad Gateway\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
            writer.close()
            return
        ticket = f"k{next(self._tickets)}"
        arriving = self._waiting[ticket] = asyncio.get_running_loop().create_future()
        tunnel.control.write(f"carry {ticket}\n".encode())
        with suppress(TimeoutError, OSError):
            async with asyncio.timeout(60):
                far_reader, far_writer = await arriving
            await asyncio.gather(frpc_program.pipe(reader, far_writer), frpc_program.pipe(far_reader, writer))


def install_frpc(home: Path) -> Path:
    """Put the stand-in where the package looks for frpc; HOME is to be `home`."""
    from prime_tunnel.binary import FRPC_VERSION

    bin_dir = home / ".prime" / "bin"
    bin_dir.mkdir(parents=True)
    program = bin_dir / "frpc"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -I "{frpc_program.__file__}" "$@"\n')
    program.chmod(0o755)
    (bin_dir / ".frpc_version").write_text(FRPC_VERSION)
    return program


@asynccontextmanager
async def tunnel_service(host: str = "127.0.0.1") -> AsyncIterator[TunnelService]:
    """The service on the loopback, its public ports on `host`. PRIME_API_BASE_URL is to be its `url`, PRIME_API_KEY
    `KEY`."""
    service = TunnelService(host=host)

    @web.middleware
    async def login(request: web.Request, handler: Any) -> web.StreamResponse:
        if request.headers.get("authorization") != f"Bearer {KEY}":
            return web.json_response({"detail": "who are you?"}, status=401)
        answer: web.StreamResponse = await handler(request)
        return answer

    app = web.Application(middlewares=[login])
    app.router.add_post("/api/v1/tunnel", service.create)
    app.router.add_get("/api/v1/tunnel", service.listing)
    app.router.add_get("/api/v1/tunnel/{id}", service.show)
    app.router.add_delete("/api/v1/tunnel/{id}", service.delete)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    service.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    service._frps = await asyncio.start_server(service._inside, "127.0.0.1", 0)
    try:
        yield service
    finally:
        service.stuck.set()
        for tunnel in service.tunnels.values():
            service.end(tunnel, "terminated")
        service._frps.close()
        for task in service._tasks:
            task.cancel()
        await asyncio.gather(*service._tasks, return_exceptions=True)
        await runner.cleanup()


def frpcs(home: Path) -> list[int]:
    """Pids of the living stand-ins whose config is under `home`."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                line = (entry / "cmdline").read_bytes()
                dead = b") Z" in (entry / "stat").read_bytes()
                if frpc_program.__file__.encode() in line and str(home).encode() in line and not dead:
                    found.append(int(entry.name))
    return found


def dump(service: TunnelService) -> str:
    """For messages of failing tests."""
    return json.dumps([t.record() for t in service.tunnels.values()], indent=1)
