"""The scripted model over HTTP: `/v1/chat/completions` (streamed and not) and `/v1/models`."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from typing import Any

from aiohttp import web

from vf_core.scripted.replies import Player, Reply
from vf_core.scripted.scenario import DEMO, PREFIX, Fault, Scenario, load_scenario

_BODY_LIMIT = 256 * 1024 * 1024
_FINGERPRINT = "scripted: not a real model"


class ScriptedServer:
    """Serves a scenario (a file, a `Scenario`; None: the demo's). `speed` divides every wait; 0: no waits at all.

    With `record`, `bodies` keeps every request's body, in order of arrival.
    """

    def __init__(
        self,
        scenario: Scenario | Path | None = None,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        speed: float = 1.0,
        record: bool = False,
    ) -> None:
        if not isinstance(scenario, Scenario):
            scenario = load_scenario(scenario or DEMO)
        self.scenario = scenario
        self.base_url = ""
        self.requests = 0
        self.bodies: list[dict[str, Any]] = []
        self.last_active = time.monotonic()
        self.open = 0
        self._address = (host, port)
        self._slowness = 1 / speed if speed > 0 else 0.0
        self._record = record
        self._player = Player(scenario)
        self._runner: web.AppRunner | None = None

    async def start(self) -> str:
        """Listen; the base URL. Raises OSError when the port is taken."""
        app = web.Application(client_max_size=_BODY_LIMIT)
        app.router.add_get("/v1/models", self._models)
        app.router.add_post("/v1/chat/completions", self._complete)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.5, handler_cancellation=True)
        await self._runner.setup()
        host, port = self._address
        site = web.TCPSite(self._runner, host, port, backlog=4096)
        await site.start()
        host, port = self._runner.addresses[0][:2]
        self.base_url = f"http://{host}:{port}/v1"
        return self.base_url

    async def stop(self) -> None:
        """Close every connection and listen no longer."""
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def __aenter__(self) -> ScriptedServer:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    # ------------------------------------------------------------------ requests

    async def _models(self, _: web.Request) -> web.Response:
        model = {
            "id": self.scenario.model,
            "object": "model",
            "created": 0,
            "owned_by": "vf-tui scripted model",
        }
        return web.json_response({"object": "list", "data": [model]})

    async def _complete(self, request: web.Request) -> web.StreamResponse:
        self.requests += 1
        self.open += 1
        try:
            return await self._answer(request)
        finally:
            self.open -= 1
            self.last_active = time.monotonic()

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        try:
            body = json.loads(await request.read())
        except ValueError:
            return _error(400, "the body is not JSON")
        if not isinstance(body, dict) or not isinstance(body.get("messages"), list):
            return _error(400, "the body has no messages")
        model = str(body.get("model"))
        if not model.startswith(PREFIX):
            return _error(
                404, f"there is no model {model!r} here: this is the scripted model, not a real one"
            )
        if self._record:
            self.bodies.append(body)
        retry = request.headers.get("x-stainless-retry-count", "")
        reply = self._player.reply(body, retry=int(retry) if retry.isdigit() else None)
        fault = reply.fault
        if fault is not None and fault.kind == "status":
            headers = {} if fault.retry_after is None else {"retry-after": str(fault.retry_after)}
            return _error(fault.status, fault.message, headers)
        if fault is not None and fault.kind == "empty":
            return web.Response(status=200, content_type="application/json")
        if body.get("stream"):
            options = body.get("stream_options")
            told = bool(isinstance(options, dict) and options.get("include_usage"))
            return await self._stream(request, model, reply, tell_usage=told)
        return await self._whole(request, model, reply)

    async def _whole(self, request: web.Request, model: str, reply: Reply) -> web.StreamResponse:
        await self._wait(reply.first_wait + sum(piece.wait for piece in reply.pieces))
        choice = {"index": 0, "message": reply.message, "finish_reason": reply.finish_reason}
        answer = {**_head("chat.completion", self.requests, model), "choices": [choice]}
        if reply.usage is not None:
            answer["usage"] = reply.usage
        raw = json.dumps(answer).encode()
        if reply.fault is None:
            return web.Response(body=raw, content_type="application/json")
        if reply.fault.kind == "error":
            return _error(200, reply.fault.message)
        response = web.StreamResponse(headers={"content-type": "application/json"})
        response.content_length = len(raw) if reply.fault.kind in ("break", "hang") else None
        await response.prepare(request)
        await response.write(raw[: len(raw) // 2])
        await self._spoil(request, response, reply.fault)
        return response

    async def _stream(
        self, request: web.Request, model: str, reply: Reply, *, tell_usage: bool
    ) -> web.StreamResponse:
        headers = {"content-type": "text/event-stream; charset=utf-8", "cache-control": "no-cache"}
        response = web.StreamResponse(headers=headers)
        head = _head("chat.completion.chunk", self.requests, model)

        async def send(choices: list[dict[str, Any]], **more: Any) -> None:
            await response.write(
                b"data: " + json.dumps({**head, "choices": choices, **more}).encode() + b"\n\n"
            )

        async def delta(piece: dict[str, Any], finish: str | None = None) -> None:
            await send([{"index": 0, "delta": piece, "finish_reason": finish}])

        await self._wait(reply.first_wait)
        fault = reply.fault
        if fault is not None and fault.kind == "hang" and fault.after_chunks == 0:
            await asyncio.Event().wait()
        await response.prepare(request)
        await delta({"role": "assistant", "content": None})
        for number, piece in enumerate(reply.pieces):
            if fault is not None and number >= fault.after_chunks:
                break
            await self._wait(piece.wait)
            await delta(piece.delta)
        if fault is not None:
            await self._spoil(request, response, fault)
            return response
        await delta({}, reply.finish_reason)
        if tell_usage and reply.usage is not None:
            await send([], usage=reply.usage)
        await response.write(b"data: [DONE]\n\n")
        await response.write_eof()
        return response

    async def _spoil(self, request: web.Request, response: web.StreamResponse, fault: Fault) -> None:
        """End an answer that has begun in the way of `fault`."""
        if fault.kind == "hang":
            await asyncio.Event().wait()
        if fault.kind == "break":
            if request.transport is not None:
                request.transport.abort()
            return
        if fault.kind == "error":
            error = {"error": {"message": fault.message, "type": "server_error", "code": fault.status}}
            await response.write(b"data: " + json.dumps(error).encode() + b"\n\n")
        elif fault.kind == "garbage":
            await response.write(b"data: <html>Bad Gateway</html>\n\n")
        await response.write_eof()

    async def _wait(self, seconds: float) -> None:
        if seconds * self._slowness > 0:
            await asyncio.sleep(seconds * self._slowness)


def _head(kind: str, number: int, model: str) -> dict[str, Any]:
    return {
        "id": f"scripted-{number}",
        "object": kind,
        "created": int(time.time()),
        "model": model,
        "system_fingerprint": _FINGERPRINT,
    }


def _error(status: int, message: str, headers: dict[str, str] | None = None) -> web.Response:
    error = {"error": {"message": message, "type": "scripted_error", "code": status}}
    return web.json_response(error, status=status, headers=headers)
