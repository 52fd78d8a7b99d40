"""A protocol double of Prime: control plane and gateway on one loopback port, with faults on demand.

`with PrimeDouble() as double:` serves on a thread; `python -m doubles.prime` is the same as a process. Operations are
named "METHOD /path" for faults; sandboxes that linger are named "linger ID NAME".
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import threading
from collections.abc import Coroutine, Iterable
from typing import Any, ClassVar, Self, TypeVar

import uvicorn
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.types import Message, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from doubles.faults import Fault
from doubles.prime.control import API, Control
from doubles.prime.gateway import Gateway
from doubles.prime.state import Options, State

T = TypeVar("T")

_ACTIONS = ("status", "hang", "hang_after", "late", "reset_before", "reset_after", "cut", "stall")


class _Protocol(HttpToolsProtocol):
    """Remembers connections, so that they can be broken."""

    by_peer: ClassVar[dict[Any, Any]] = {}

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self.by_peer[transport.get_extra_info("peername")] = transport

    def connection_lost(self, exc: Exception | None) -> None:
        self.by_peer.pop(self.transport.get_extra_info("peername"), None)
        super().connection_lost(exc)


def _reset(scope: Scope) -> None:
    """Break the connection for good: RST, not FIN."""
    transport = _Protocol.by_peer.get(tuple(scope["client"]))
    if transport is not None:
        transport.get_extra_info("socket").setsockopt(
            socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)
        )
        transport.abort()


class PrimeDouble:
    """See the module. Options are those of `Options`."""

    def __init__(self, **options: Any) -> None:
        self.options = Options(**options)
        self.state = State(self.options)
        self.faults = self.state.faults
        self._control = Control(self.state)
        self._app = Starlette(routes=[*self._control.routes(), *Gateway(self.state).routes()])
        self.url = ""

    @property
    def env(self) -> dict[str, str]:
        """What makes the SDK use this double."""
        return {
            "PRIME_API_BASE_URL": self.url,
            "PRIME_API_KEY": self.options.api_key,
            "PRIME_TEAM_ID": "",
            "NO_PROXY": "127.0.0.1",
            "no_proxy": "127.0.0.1",
        }

    # ------------------------------------------------------------------ for tests

    def live(self) -> list[dict[str, Any]]:
        """What has not ended, whatever its status says: id, name, labels, status."""
        return self.state.live()

    @property
    def created(self) -> int:
        """How many sandboxes were ever made."""
        return self.state.created

    def bystander(self, name: str = "bystander", labels: Iterable[str] = ()) -> str:
        """Somebody else's sandbox; its id."""
        return self._there(self._add(name, list(labels)))

    async def _add(self, name: str, labels: list[str]) -> str:
        return self.state.add({"name": name, "labels": labels}, "RUNNING").id

    def expire(self, id: str, status: str = "TIMEOUT", error: str = "TIMEOUT", message: str = "") -> None:
        """End a sandbox from the platform's side."""
        self._there(self.state.expire(self.state.sandboxes[id], status, error, message))

    def expire_tokens(self) -> None:
        """The gateway accepts none of the tokens that were given out."""
        for sandbox in self.state.sandboxes.values():
            sandbox.token = f"{sandbox.token}+"

    def revoke(self) -> None:
        """The API key is not valid any more."""
        self.state.api_key = "another-key"

    def _there(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(30)

    # ------------------------------------------------------------------ faults and credentials

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The ASGI application."""
        op = f"{scope['method']} {scope['path']}"
        self.faults.record(op)
        headers = {key.decode().lower(): value.decode() for key, value in scope["headers"]}
        if scope["path"].startswith(API) and headers.get("authorization") != f"Bearer {self.state.api_key}":
            await JSONResponse({"detail": "Invalid API key"}, 401)(scope, receive, send)
            return
        fault = self.faults.take(op, _ACTIONS)
        if fault is None:
            await self._app(scope, receive, send)
        elif fault.action == "cut":
            asyncio.get_running_loop().call_later(fault.seconds, _reset, scope)
            await self._app(scope, receive, send)
        else:
            await self._show(fault, scope, receive, send)

    async def _show(self, fault: Fault, scope: Scope, receive: Receive, send: Send) -> None:
        # Read first, so that the work is done although the client may be gone.
        body = b""
        while (message := await receive())["type"] == "http.request":
            body += message.get("body", b"")
            if not message.get("more_body"):
                break
        pending: list[Message] = [{"type": "http.request", "body": body}]

        async def again() -> Message:
            return pending.pop() if pending else await receive()

        async def drop(message: Message) -> None: ...

        async def stall(message: Message) -> None:
            """The answer begins, and nothing more of it comes."""
            if message["type"] == "http.response.start":
                await send(message)

        if fault.action == "status":
            answer = JSONResponse(
                fault.body or {"detail": f"injected {fault.status}"}, fault.status, fault.headers
            )
            await answer(scope, again, send)
            return
        if fault.action == "hang":
            await asyncio.sleep(fault.seconds)
            await self._app(scope, again, send)
            return
        if fault.action == "late":
            kept: list[Message] = []

            async def keep(message: Message) -> None:
                kept.append(message)

            await self._app(scope, again, keep)
            await asyncio.sleep(fault.seconds)
            for message in kept:
                await send(message)
            return
        if fault.action == "stall":
            await self._app(scope, again, stall)
            await asyncio.sleep(fault.seconds)
            return
        if fault.action.endswith("_after"):
            await self._app(scope, again, drop)
        if fault.action == "hang_after":
            await asyncio.sleep(fault.seconds)
        _reset(scope)

    # ------------------------------------------------------------------ the server

    def __enter__(self) -> Self:
        listening = socket.create_server(("127.0.0.1", 0), backlog=2048)
        self.url = self._control.url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        config = uvicorn.Config(
            self,
            log_level="critical",
            lifespan="off",
            http=_Protocol,
            timeout_graceful_shutdown=1,
            access_log=False,
        )
        self._server = uvicorn.Server(config)
        ready = threading.Event()

        async def serve() -> None:
            self._loop = asyncio.get_running_loop()
            self._loop.call_soon(ready.set)
            await self._server.serve([listening])

        self._thread = threading.Thread(target=lambda: asyncio.run(serve()), daemon=True)
        self._thread.start()
        ready.wait(60)
        return self

    def __exit__(self, *exc: object) -> None:
        with contextlib.suppress(Exception):
            self._there(self._end_all())
        self._server.should_exit = self._server.force_exit = True
        self._thread.join(60)

    async def _end_all(self) -> None:
        self.faults.clear()
        await asyncio.gather(*(self.state.destroy(sandbox) for sandbox in self.state.sandboxes.values()))
