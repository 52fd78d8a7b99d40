"""The gateway of the double: files, and commands by Connect RPC."""

from __future__ import annotations

import asyncio
import json
import struct
import uuid
from collections.abc import AsyncIterator
from typing import Any

from prime_sandboxes._proto.command_session import command_session_pb2 as pb
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from doubles.prime.guest import Process
from doubles.prime.state import Sandbox, State, now

_STREAM = "application/connect+proto"
_UNARY = "application/proto"


def _frame(message: bytes, flag: int = 0) -> bytes:
    return struct.pack(">BI", flag, len(message)) + message


def _event(**fields: Any) -> bytes:
    # The vendor's generated module has no types.
    event = pb.CommandSessionEvent(**fields)  # type: ignore[attr-defined]
    return _frame(pb.StartResponse(event=event).SerializeToString())  # type: ignore[attr-defined]


def _failed(code: str) -> Response:
    """A stream's error travels in its end frame; the HTTP status is 200."""
    return Response(
        _frame(json.dumps({"error": {"code": code, "message": code}}).encode(), 2), media_type=_STREAM
    )


async def _output(process: Process) -> AsyncIterator[bytes]:
    """What one reader gets: output that comes while nobody reads is kept for the next one."""
    yield _event(start={"pid": process.pid})
    while process.code is None or not process.chunks.empty():
        item = await process.chunks.get()
        if item is None:
            process.chunks.put_nowait(None)
            break
        yield _event(data={item[0]: item[1]})
    yield _event(end={"exit_code": process.code}) + _frame(b"{}", 2)


class Gateway:
    """Answers for the sandboxes of a `State`."""

    def __init__(self, state: State) -> None:
        self.state = state

    def routes(self) -> list[Route]:
        at = "/gw/{ns}/{id}"
        rpc = f"{at}/command_session.CommandSession"
        return [
            Route(f"{at}/upload", self.upload, methods=["POST"]),
            Route(f"{at}/download", self.download, methods=["GET"]),
            Route(f"{at}/read-file", self.read_file, methods=["GET"]),
            Route(f"{rpc}/Start", self.start, methods=["POST"]),
            Route(f"{rpc}/Connect", self.connect, methods=["POST"]),
            Route(f"{rpc}/SendInput", self.send_input, methods=["POST"]),
            Route(f"{rpc}/SendSignal", self.send_signal, methods=["POST"]),
        ]

    def _enter(self, request: Request) -> tuple[Sandbox | None, Response]:
        sandbox = self.state.find(request.path_params["id"])
        if sandbox is None or sandbox.ended:
            return None, JSONResponse({"error": "sandbox_terminated"}, 410)
        if request.headers.get("authorization") != f"Bearer {sandbox.token}":
            return None, JSONResponse({"code": "unauthenticated"}, 401)
        return sandbox, Response()

    # ------------------------------------------------------------------ files

    async def upload(self, request: Request) -> Response:
        sandbox, refusal = self._enter(request)
        if sandbox is None:
            return refusal
        target = sandbox.root.file(request.query_params["path"])
        async with request.form() as form:
            data = await form["file"].read()  # type: ignore[union-attr]
        if target.suffix == ".sh":
            data = sandbox.root.host(data.decode()).encode()  # commands by file
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(data)
        except OSError as e:
            return JSONResponse({"detail": str(e)}, 400)
        return JSONResponse({"success": True, "path": str(target), "size": len(data), "timestamp": now()})

    async def download(self, request: Request) -> Response:
        sandbox, refusal = self._enter(request)
        if sandbox is None:
            return refusal
        file = sandbox.root.file(request.query_params["path"])
        return (
            Response(file.read_bytes()) if file.is_file() else JSONResponse({"detail": "File not found"}, 404)
        )

    async def read_file(self, request: Request) -> Response:
        """As for VMs: offset and length are ignored, and bytes are not kept."""
        sandbox, refusal = self._enter(request)
        if sandbox is None:
            return refusal
        file = sandbox.root.file(request.query_params["path"])
        if not file.is_file():
            return JSONResponse({"detail": "File not found"}, 404)
        data = file.read_bytes()
        return JSONResponse({"content": data.decode("utf-8", "replace"), "size": len(data)})

    # ------------------------------------------------------------------ commands

    async def start(self, request: Request) -> Response:
        sandbox, refusal = self._enter(request)
        if sandbox is None:
            return _failed("not_found" if refusal.status_code == 410 else "unauthenticated")
        start = pb.StartRequest.FromString((await request.body())[5:])  # type: ignore[attr-defined]
        session = start.session_uuid if start.HasField("session_uuid") else uuid.uuid4().hex
        process = sandbox.sessions.get(session)
        if process is None:
            command, root = start.command, sandbox.root
            process = sandbox.sessions[session] = Process(
                [command.cmd, *map(root.host, command.args)],
                cwd=root.host(command.cwd) if command.HasField("cwd") else str(root.path),
                env=root.environment(sandbox.row["environmentVars"] or {}, command.envs),
                stdin=start.stdin,
                loop=asyncio.get_running_loop(),
            )
        return StreamingResponse(_output(process), media_type=_STREAM)

    async def connect(self, request: Request) -> Response:
        sandbox, _ = self._enter(request)
        message = pb.ConnectRequest.FromString((await request.body())[5:])  # type: ignore[attr-defined]
        process = sandbox and sandbox.sessions.get(message.session.session_uuid)
        if not process:
            return _failed("not_found")
        return StreamingResponse(_output(process), media_type=_STREAM)

    async def send_input(self, request: Request) -> Response:
        sandbox, refusal = self._enter(request)
        if sandbox is None:
            return refusal
        message = pb.SendInputRequest.FromString(await request.body())  # type: ignore[attr-defined]
        sandbox.sessions[message.session.session_uuid].write(message.input.stdin)
        return Response(b"", media_type=_UNARY)

    async def send_signal(self, request: Request) -> Response:
        sandbox, refusal = self._enter(request)
        if sandbox is None:
            return refusal
        message = pb.SendSignalRequest.FromString(await request.body())  # type: ignore[attr-defined]
        sandbox.sessions[message.session.session_uuid].signal(message.signal)
        return Response(b"", media_type=_UNARY)
