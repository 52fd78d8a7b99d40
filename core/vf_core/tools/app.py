"""The MCP server of a toolset, as an ASGI application: stateless, over streamable HTTP, behind a token.

Whom it is addressed as (the `Host` header) does not matter, since it is reached through relays and tunnels; a web
page that finds it (DNS rebinding) has no token.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import logging
import secrets
from collections.abc import Awaitable, Callable, MutableMapping
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import Any

from vf_core.tasks.toolset import NoState, Toolset, call_state, tool_names, toolset_state
from vf_core.tools.channel import SECRET_HEADER, Caller, Channel, ChannelError, caller
from vf_core.tools.seal import opened
from vf_core.tools.spec import told

log = logging.getLogger(__name__)

PATH = "/mcp"
BODY_LIMIT = 32 * 1024 * 1024
THREADS = 64
"""Plain tools that may be at work at once."""

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]


def make_app(
    toolset: Toolset[Any, Any],
    token: str,
    channel: Channel,
    own: Caller | None = None,
    *,
    states: str = "",
    seal: str = "",
) -> App:
    """The application. `own` is the rollout that all calls are of; without it each request says whose it is, under
    `seal`, and the state is at `states`.

    Raises what the SDK raises for a tool whose signature cannot be told to a model.
    """
    from mcp.server.mcpserver import MCPServer
    from mcp.server.transport_security import TransportSecuritySettings

    async def of_rollout(ctx: Any, call_next: Callable[[Any], Awaitable[Any]]) -> Any:
        mark = caller.set(own or _said(ctx.request, states, seal))
        try:
            return await call_next(ctx)
        finally:
            caller.reset(mark)

    server: Any = MCPServer(toolset.server_name or "tools", log_level="ERROR", middleware=[of_rollout])
    for name, method in tool_names(type(toolset)).items():
        fn = getattr(toolset, method)
        server.add_tool(
            Call(toolset, fn, channel).wrapped(), name=name, description=inspect.getdoc(fn) or None
        )
    app = server.streamable_http_app(
        streamable_http_path=PATH,
        json_response=True,
        stateless_http=True,
        max_request_body_size=BODY_LIMIT,
        transport_security=TransportSecuritySettings(enable_dns_rebinding_protection=False),
    )
    return guarded(app, token)


def _said(request: Any, states: str, seal: str) -> Caller | None:
    """Whose a request says that it is."""
    secret = opened(request.headers.get(SECRET_HEADER, ""), seal) if request is not None and states else ""
    return Caller(states, secret) if secret else None


def guarded(app: App, token: str) -> App:
    """`app`, for those who bring `token` as bearer; nothing else of a request is looked at before."""
    expected = f"bearer {token}".encode()

    async def guard(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await app(scope, receive, send)
            return
        given = next((value for name, value in scope["headers"] if name.lower() == b"authorization"), b"")
        scheme, _, rest = given.partition(b" ")
        if secrets.compare_digest(scheme.lower() + b" " + rest.strip(), expected):
            await app(scope, receive, send)
            return
        head = [(b"content-type", b"application/json"), (b"www-authenticate", b"Bearer")]
        await send({"type": "http.response.start", "status": 401, "headers": head})
        await send({"type": "http.response.body", "body": b'{"error": "unauthorized"}'})

    return guard


@functools.cache
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(THREADS, thread_name_prefix="tool")


class Call:
    """Calls one tool: with its rollout's state, plain functions in a thread, failures told to the model."""

    def __init__(self, toolset: Toolset[Any, Any], fn: Callable[..., Any], channel: Channel) -> None:
        self._fn = fn
        self._channel = channel
        self._state = toolset_state(type(toolset))

    def wrapped(self) -> Callable[..., Awaitable[Any]]:
        """The tool as the SDK is to call it."""
        from mcp.server.mcpserver.exceptions import ToolError
        from mcp.shared.exceptions import MCPError

        @functools.wraps(self._fn)
        async def call(*args: Any, **kwargs: Any) -> Any:
            try:
                result = await self._with_state(*args, **kwargs)
                return _sound(result) if isinstance(result, str) else result
            except (ToolError, MCPError):
                raise
            except ChannelError as e:
                raise ToolError(str(e)) from e
            except asyncio.CancelledError as e:
                # One that the tool was not asked for: something that it waited for was cancelled.
                task = asyncio.current_task()
                if task is not None and task.cancelling():
                    raise
                raise ToolError(_sound(told(e))) from e
            # `sys.exit` in a tool ends its call: others may use this server.
            except (Exception, SystemExit, KeyboardInterrupt) as e:
                log.exception("tool %s failed", self._fn.__name__)
                raise ToolError(_sound(told(e))) from e

        call.__signature__ = inspect.signature(self._fn, eval_str=True)  # type: ignore[attr-defined]
        return call

    async def _with_state(self, *args: Any, **kwargs: Any) -> Any:
        whose = caller.get()
        if self._state is NoState:
            return await self._run(*args, **kwargs)
        state = self._state() if whose is None else await self._channel.pull(whose, self._state)
        before = state.model_dump(mode="json")
        mark = call_state.set(state)
        try:
            result = await self._run(*args, **kwargs)
        finally:
            call_state.reset(mark)
        if whose is not None:
            await self._channel.push(whose, state, before)
        return result

    async def _run(self, *args: Any, **kwargs: Any) -> Any:
        if inspect.iscoroutinefunction(self._fn):
            return await self._fn(*args, **kwargs)
        run = functools.partial(copy_context().run, _plain, self._fn, *args, **kwargs)
        result = await asyncio.get_running_loop().run_in_executor(_threads(), run)
        return await result if inspect.isawaitable(result) else result


def _plain(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """`fn` in a thread. No future takes a `StopIteration`: its call would wait for ever."""
    try:
        return fn(*args, **kwargs)
    except StopIteration as e:
        raise RuntimeError(f"StopIteration: {e}" if e.args else "StopIteration") from e


def _sound(text: str) -> str:
    """`text` as UTF-8 can hold it: file names, for one, may hold what it cannot."""
    return text.encode("utf-8", "replace").decode()
