"""A protocol double of Modal: control plane and command router on one loopback port, with faults on demand.

In this process on a thread (`ModalDouble`), or as one of its own that outlives a killed engine (`ModalProcess`). An
action of its own: `later` does the work after `seconds`, also when its caller has given up; nobody gets the answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any, Self

from grpclib import GRPCError, Status
from grpclib.const import Handler
from grpclib.server import Server
from modal._utils.grpc_utils import custom_detail_codec
from modal_proto import api_grpc, api_pb2, task_command_router_grpc

from doubles.faults import Fault, Faults
from doubles.modal.control import ControlPlane
from doubles.modal.router import CommandRouter
from doubles.modal.state import Result, World

TOKEN = ("ak-test", "as-test")
_ROUTER_CALLS = ("TaskExec", "SandboxStdio")
_HANDLED = ("status", "hang", "hang_after", "later", "reset_before", "reset_after", "cut")


def environment(url: str, token: tuple[str, str] = TOKEN) -> dict[str, str]:
    """The variables that lead the SDK here and nowhere else."""
    return {
        "MODAL_SERVER_URL": url,
        "MODAL_TOKEN_ID": token[0],
        "MODAL_TOKEN_SECRET": token[1],
        "MODAL_CONFIG_PATH": os.devnull,
        "MODAL_DISABLE_API_PROXY": "1",
        "MODAL_ENVIRONMENT": "",
        "NO_PROXY": "127.0.0.1,localhost",
    }


class ModalDouble(ControlPlane, CommandRouter):
    """`page`: how many sandboxes a page of a list has; `boot`: seconds until a sandbox takes commands; `speed`: how
    fast lifetimes pass; `idempotent`: a repeated create call makes nothing new."""

    def __init__(
        self,
        *,
        token: tuple[str, str] = TOKEN,
        page: int = 50,
        boot: float = 0.0,
        speed: float = 1.0,
        idempotent: bool = True,
        port: int = 0,
    ) -> None:
        self.token, self.page, self.port, self.url = token, page, port, ""
        self.faults = Faults()
        self.world = World(boot=boot, speed=speed, idempotent=idempotent)
        self._later: set[asyncio.Future[None]] = set()

    # ------------------------------------------------------------------ for the tests

    @property
    def env(self) -> dict[str, str]:
        """See `environment`."""
        return environment(self.url, self.token)

    def live(self) -> list[dict[str, Any]]:
        """Its own list of what is there."""
        return self.do(self._live())

    async def _live(self) -> list[dict[str, Any]]:
        return [sandbox.describe() for sandbox in self.world.live()]

    def expire(self, id: str, status: int = Result.GENERIC_STATUS_TIMEOUT, code: int = 0) -> None:
        """End a sandbox as if by itself."""

        async def end() -> None:
            self.world.finish(self.world.sandbox(id), status, code)

        self.do(end())

    def bystander(
        self, count: int = 1, app: str = "somebody-else", tags: dict[str, str] | None = None
    ) -> list[str]:
        """Sandboxes of somebody else; their ids."""

        async def make() -> list[str]:
            place = self.world.app(app, create=True)
            pairs = [api_pb2.SandboxTag(tag_name=k, tag_value=v) for k, v in (tags or {}).items()]
            made = []
            for _ in range(count):
                what = api_pb2.Sandbox(timeout_secs=86400)
                made.append(await self.world.make(what, place, pairs, {}, v2=True, key=None))
            return [sandbox.id for sandbox in made]

        return self.do(make())

    def do(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Run something on its loop."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(30)

    # ------------------------------------------------------------------ calls

    def __mapping__(self) -> dict[str, Handler]:
        out: dict[str, Handler] = {}
        for base in (api_grpc.ModalClientBase, task_command_router_grpc.TaskCommandRouterBase):
            stub = type("Stub", (base,), dict.fromkeys(base.__abstractmethods__))()
            for path, handler in stub.__mapping__().items():
                name = path.rsplit("/", 1)[1]
                method = getattr(self, name, None) or getattr(self, name.removesuffix("V2"), self._unknown)
                out[path] = Handler(self._wrap(name, method), *handler[1:])
        return out

    async def _unknown(self, stream: Any) -> None:
        # Said explicitly: grpclib's own answer has no content type, which the SDK takes for an outage.
        raise GRPCError(Status.UNIMPLEMENTED, f"{stream._method_name} is not in the double")

    def _wrap(self, name: str, method: Callable[[Any], Awaitable[None]]) -> Callable[[Any], Awaitable[None]]:
        async def handler(stream: Any) -> None:
            self.faults.record(name)
            self._authorize(name, stream.metadata)
            fault = self.faults.take(name, _HANDLED)
            if fault is None:
                return await method(stream)
            if fault.action == "status":
                details = [api_pb2.RPCRetryPolicy(retry_after_secs=fault.seconds)] if fault.seconds else None
                status = Status(fault.status)
                raise GRPCError(status, fault.body.get("message") or f"injected {status.name}", details)
            if fault.action == "later":
                # Nobody who waits for it ends it.
                work = asyncio.ensure_future(
                    self._do_later(_Muted(stream, await stream.recv_message()), method, fault)
                )
                self._later.add(work)
                work.add_done_callback(self._later.discard)
                return await asyncio.shield(work)
            if fault.action == "hang":
                await asyncio.sleep(fault.seconds)
            elif fault.action == "cut":
                asyncio.get_running_loop().call_later(fault.seconds, _reset, stream)
            elif fault.action.endswith("_after"):
                await asyncio.shield(method(_Muted(stream)))  # the work is done, its answer lost
                if fault.action == "hang_after":
                    await asyncio.sleep(fault.seconds)
            if fault.action.startswith("reset"):
                return _reset(stream)
            if not fault.action.endswith("_after"):
                await method(stream)
            return None

        return handler

    async def _do_later(self, stream: _Muted, method: Callable[[Any], Awaitable[None]], fault: Fault) -> None:
        await asyncio.sleep(fault.seconds)
        await method(stream)

    def _authorize(self, name: str, metadata: Any) -> None:
        if name.startswith(_ROUTER_CALLS):
            if not metadata.get("authorization", "").startswith("Bearer "):
                raise GRPCError(Status.UNAUTHENTICATED, "no token of the router")
        elif (metadata.get("x-modal-token-id"), metadata.get("x-modal-token-secret")) != self.token:
            raise GRPCError(Status.UNAUTHENTICATED, "Token validation failed")

    # ------------------------------------------------------------------ server

    async def serve(self, ready: Callable[[], None]) -> None:
        """Serve until `stop` is set, then end all sandboxes."""
        logging.getLogger("grpclib").setLevel(logging.CRITICAL)
        self.loop, self.stop = asyncio.get_running_loop(), asyncio.Event()
        server = Server([self], status_details_codec=custom_detail_codec)
        await server.start("127.0.0.1", self.port, backlog=1024)
        assert server._server is not None
        self.url = f"http://127.0.0.1:{server._server.sockets[0].getsockname()[1]}"
        ready()
        await self.stop.wait()
        server.close()
        await self.world.close()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(server.wait_closed(), 2)

    def __enter__(self) -> Self:
        ready = threading.Event()
        self._thread = threading.Thread(target=asyncio.run, args=(self.serve(ready.set),), daemon=True)
        self._thread.start()
        assert ready.wait(60)
        return self

    def __exit__(self, *error: object) -> None:
        self.loop.call_soon_threadsafe(self.stop.set)
        self._thread.join(60)


class _Muted:
    """A stream whose answer is swallowed; `message`: its request, if that was read already."""

    def __init__(self, stream: Any, message: Any = None) -> None:
        self._stream = stream
        self._message = message

    async def recv_message(self) -> Any:
        return self._message if self._message is not None else await self._stream.recv_message()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    async def send_message(self, message: Any, **options: Any) -> None:
        """Nobody gets it."""


def _reset(stream: Any) -> None:
    """Cut the connection; every call on it dies with it."""
    transport = stream._stream._transport
    if not transport.is_closing():
        transport.get_extra_info("socket").setsockopt(
            socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)
        )
        transport.abort()


class ModalProcess:
    """The double as a process of its own. It ends with `close`, or with the process that started it."""

    def __init__(self, **options: Any) -> None:
        tests = Path(__file__).resolve().parents[2]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "doubles.modal", json.dumps(options)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=tests,
            env={**os.environ, "PYTHONPATH": str(tests), "MODAL_CONFIG_PATH": os.devnull},
            start_new_session=True,
        )
        self.pid = self._process.pid
        self.url = str(self._answer()["url"])

    @property
    def env(self) -> dict[str, str]:
        """See `environment`."""
        return environment(self.url)

    def ask(self, what: str, **arguments: Any) -> Any:
        """`live`, `bystander`, `expire`, `fault`, `calm`, `count`: see `__main__`."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"do": what, **arguments}) + "\n")
        self._process.stdin.flush()
        return self._answer()["answer"]

    def live(self) -> list[dict[str, Any]]:
        """Its own list of what is there."""
        return list(self.ask("live"))

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError("the Modal double has ended")
        return dict(json.loads(line))

    def close(self) -> None:
        """End it and all its sandboxes."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        self._process.wait(60)
        assert self._process.stdout is not None
        self._process.stdout.close()

    def kill(self) -> None:
        """As an outage: its sandboxes' processes stay."""
        self._process.kill()
        self._process.wait(60)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
