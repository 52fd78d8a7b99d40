"""A harness without a program: it makes the tool calls that the task's prompt lists, `[[server, tool, arguments]]`.

With a text as fourth, a call is made again until its answer has that.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any

import httpx2

from vf_core.harnesses.base import Harness, HarnessConfig, ModelContext
from vf_core.runtimes.base import OutputSink, ProgramResult, Runtime
from vf_core.trace.record import Trace

__all__ = ["CallerHarness"]


async def call_tool(
    client: httpx2.AsyncClient, url: str, tool: str, arguments: Any, headers: Mapping[str, str] | None = None
) -> str:
    """What a tool answers, or what stands in the way."""
    message = {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "tools/call",
        "params": {"name": tool, "arguments": arguments},
    }
    accept = {"accept": "application/json, text/event-stream"}
    answer = await client.post(url, json=message, headers={**accept, **(headers or {})})
    try:
        told = answer.json()
    except ValueError:
        return f"HTTP {answer.status_code}: {answer.text}"
    if "result" not in told:
        return f"HTTP {answer.status_code}: {told}"
    return "\n".join(block["text"] for block in told["result"]["content"])


class CallerHarness(Harness[HarnessConfig]):
    """Leaves the answers in the trace: `info["answers"]`."""

    SUPPORTS_MCP = True

    async def launch(
        self,
        ctx: ModelContext,
        trace: Trace[Any, Any],
        runtime: Runtime,
        endpoint: str,
        secret: str,
        mcp_urls: Mapping[str, str],
        on_output: OutputSink,
    ) -> ProgramResult:
        answers = trace.info["answers"] = []
        trace.info["servers"] = sorted(mcp_urls)
        async with httpx2.AsyncClient(trust_env=False, timeout=60) as client:
            for server, tool, arguments, *wanted in json.loads(trace.task.data.prompt_text):
                on_output("stdout", f"{server}: {tool}\n".encode())
                answer = await call_tool(client, mcp_urls[server], tool, arguments)
                while wanted and wanted[0] not in answer:
                    await asyncio.sleep(0.1)
                    answer = await call_tool(client, mcp_urls[server], tool, arguments)
                answers.append(answer)
        return ProgramResult(0, "", "")
