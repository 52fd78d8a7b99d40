"""Tools of MCP servers over streamable HTTP, without a session that is held.

Tools are listed once; each call opens a session of its own and leaves it in the task that entered it. A call
whose answer was lost is repeated, so a tool may see a call more than once.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any

from vf_core.harnesses.program.address import is_loopback

MCP_CALL_TIMEOUT = 600.0
MCP_CONNECT_TIMEOUT = 5.0
MCP_CLOSE_TIMEOUT = 5.0
MCP_LIST_TIMEOUT = 60.0
MCP_ATTEMPTS = 6
MCP_FIRST_DELAY = 0.5
MCP_LONGEST_DELAY = 30.0
_EVENT_LIMIT = 256 * 1024 * 1024
# Answers that another try would only bring again: unknown method, bad parameters; the last is what the interception
# server says of a server that is gone, or silent, and of a message that is too large.
_FINAL_CODES = (-32601, -32602, -32060)
_FINAL_STATUS = (401, 403, 405, 406, 415)


class McpSetupError(Exception):
    """The servers' tools can't be offered: a server did not list them, or two share a name."""


class McpTools:
    """The tools of `servers` (name to `{"url": …, "headers": {…}}`), advertised as `<server>_<tool>`.

    A server named "" advertises its tools bare. Names in `reserved` are the program's own.
    """

    def __init__(self, servers: dict[str, Any], reserved: dict[str, str]) -> None:
        import asyncio
        import logging

        # The SDK logs what it also raises; its tool results say it to the model.
        logging.getLogger("mcp").setLevel(logging.CRITICAL)
        logging.getLogger("client").setLevel(logging.CRITICAL)
        self.schemas: list[dict[str, Any]] = []
        self._servers = servers
        self._tools: dict[str, tuple[str, str]] = {}
        owners = dict(reserved)
        for server, tools in zip(servers, asyncio.run(_list_all(servers)), strict=True):
            for tool in tools:
                name = f"{server}_{tool.name}" if server else tool.name
                whose = f"tool {tool.name!r} of MCP server {server!r}"
                if name in owners:
                    raise McpSetupError(f"the name {name!r} is taken twice: by {owners[name]} and by {whose}")
                owners[name] = whose
                self._tools[name] = (server, tool.name)
                self.schemas.append(_schema(name, tool))

    def __contains__(self, name: str) -> bool:
        return name in self._tools

    def call(self, name: str, arguments: dict[str, Any]) -> str | list[dict[str, Any]]:
        """What the tool answers, as chat content; a failure of the call is told in the same way."""
        import asyncio

        server, tool = self._tools[name]
        try:
            result = asyncio.run(_call(self._servers[server], tool, arguments))
        except Exception as e:
            why = _cause(e, self._servers[server])
            return f"error: MCP tool {tool!r} of server {server!r} could not be called: {why}"
        if not result.content and result.structured_content is not None:
            return json.dumps(result.structured_content)
        return chat_content(result.content)


def chat_content(blocks: list[Any]) -> str | list[dict[str, Any]]:
    """MCP content blocks as the content of a `tool` message: text joined by newlines; with an image, parts."""
    parts: list[dict[str, Any]] = []
    for block in blocks:
        if block.type == "text":
            parts.append({"type": "text", "text": block.text})
        elif block.type == "image":
            url = f"data:{block.mime_type};base64,{block.data}"
            parts.append({"type": "image_url", "image_url": {"url": url}})
        else:
            parts.append({"type": "text", "text": _text_form(block)})
    if all(part["type"] == "text" for part in parts):
        return "\n".join(part["text"] for part in parts)
    return parts


def _text_form(block: Any) -> str:
    resource = getattr(block, "resource", None)
    text = getattr(resource, "text", None)
    return text if isinstance(text, str) else str(block.model_dump_json(by_alias=True, exclude_none=True))


def _schema(name: str, tool: Any) -> dict[str, Any]:
    function = {"name": name, "description": tool.description or "", "parameters": tool.input_schema}
    return {"type": "function", "function": function}


async def _list_all(servers: dict[str, Any]) -> list[list[Any]]:
    """Each server's tools, in the servers' order. Raises `McpSetupError` naming those that did not answer."""
    import asyncio

    async def one(spec: dict[str, Any]) -> list[Any]:
        tools: list[Any] = await _retried(lambda: _in_session(spec, _list, MCP_LIST_TIMEOUT))
        return tools

    tasks = {name: asyncio.create_task(one(spec)) for name, spec in servers.items()}
    _, late = await asyncio.wait(tasks.values(), timeout=MCP_LIST_TIMEOUT)
    for task in late:
        task.cancel()
    await asyncio.gather(*tasks.values(), return_exceptions=True)
    failed = {}
    for name, task in tasks.items():
        if task.cancelled():
            failed[name] = f"no answer within {MCP_LIST_TIMEOUT:g} s"
        elif error := task.exception():
            failed[name] = _cause(error, servers[name])
    if failed:
        told = "; ".join(f"{name!r}: {why}" for name, why in failed.items())
        raise McpSetupError(f"MCP servers did not list their tools: {told}")
    return [task.result() for task in tasks.values()]


async def _list(session: Any) -> list[Any]:
    import mcp_types as types

    tools: list[Any] = []
    cursor: str | None = None
    while True:
        params = types.PaginatedRequestParams(cursor=cursor) if cursor else None
        page = await session.list_tools(params=params)
        tools += page.tools
        cursor = page.next_cursor
        if not cursor:
            return tools


async def _call(spec: dict[str, Any], tool: str, arguments: dict[str, Any]) -> Any:
    import mcp_types as types

    request = types.CallToolRequest(params=types.CallToolRequestParams(name=tool, arguments=arguments))

    async def ask(session: Any) -> Any:
        # Not `call_tool`: in a fresh session it asks for the tool list again, after the answer is there.
        return await session.send_request(request, types.CallToolResult)

    return await _retried(lambda: _in_session(spec, ask, MCP_CALL_TIMEOUT))


async def _in_session(spec: dict[str, Any], ask: Callable[[Any], Awaitable[Any]], seconds: float) -> Any:
    """`ask` through a session of its own; what fails once its answer is there is of no interest."""
    import asyncio
    from contextlib import AsyncExitStack

    import httpx2
    from mcp.client.session import ClientSession
    from mcp.client.streamable_http import streamable_http_client

    status: list[int] = []

    async def seen(response: httpx2.Response) -> None:
        # A server may well refuse the listening GET; what matters is how it answers messages.
        if response.request.method == "POST":
            status.append(response.status_code)

    answers: list[Any] = []
    try:
        async with asyncio.timeout(seconds) as limit, AsyncExitStack() as stack:
            client = await stack.enter_async_context(
                httpx2.AsyncClient(
                    headers=spec.get("headers") or {},
                    # The limit around it ends a silent call; this one only backs it up.
                    timeout=httpx2.Timeout(seconds + 30, connect=MCP_CONNECT_TIMEOUT),
                    trust_env=not is_loopback(spec["url"]),
                    event_hooks={"response": [seen]},
                )
            )
            streams = await stack.enter_async_context(
                streamable_http_client(spec["url"], http_client=client, max_sse_event_size=_EVENT_LIMIT)
            )
            session = await stack.enter_async_context(ClientSession(*streams))
            await session.initialize()
            answers.append(await ask(session))
            limit.reschedule(asyncio.get_running_loop().time() + MCP_CLOSE_TIMEOUT)
    except Exception as e:
        if answers:
            return answers[0]
        if isinstance(e, TimeoutError) and limit.expired():
            raise TimeoutError(f"no answer within {seconds:g} s") from None
        raise _Failed(e, status[-1] if status else None) from e
    return answers[0]


class _Failed(Exception):
    """A session that gave no answer, and the last HTTP status that was seen in it."""

    def __init__(self, error: BaseException, status: int | None) -> None:
        super().__init__(str(error))
        self.error = _innermost(error)
        self.status = status if status is not None and status >= 400 else None

    def __str__(self) -> str:
        said = f"{type(self.error).__name__}: {self.error}"
        return f"HTTP {self.status}: {said}" if self.status else said


async def _retried(call: Callable[[], Awaitable[Any]]) -> Any:
    """`call`, again after each failure that may pass. One that is not answered in time is not asked again."""
    import tenacity

    async for attempt in tenacity.AsyncRetrying(
        stop=tenacity.stop_after_attempt(MCP_ATTEMPTS),
        wait=tenacity.wait_exponential(multiplier=MCP_FIRST_DELAY, max=MCP_LONGEST_DELAY)
        + tenacity.wait_random(0, MCP_FIRST_DELAY),
        retry=tenacity.retry_if_exception(_may_pass),
        reraise=True,
    ):
        with attempt:
            return await call()
    raise AssertionError("tenacity re-raises the last error")


def _may_pass(error: BaseException) -> bool:
    if not isinstance(error, _Failed):
        return False
    # What the SDK cannot read, it could not read the next time either.
    if type(error.error).__name__ == "ValidationError":
        return False
    return getattr(error.error, "code", None) not in _FINAL_CODES and error.status not in _FINAL_STATUS


def _innermost(error: BaseException) -> BaseException:
    """The first cause inside nested exception groups."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def _cause(error: BaseException, spec: dict[str, Any]) -> str:
    """What went wrong, without the server's address: there is a secret in it."""
    text = str(error).replace(str(spec.get("url")), "its address")
    return text or type(error).__name__
