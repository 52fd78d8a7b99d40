"""The `bash` program's own tools: `bash`, `edit`, `search`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from vf_core.harnesses.program.shell import COMMAND_TIMEOUT, run_command

SEARCH_URL = "https://google.serper.dev/search"
SEARCH_TIMEOUT = 45.0
SEARCH_RESULTS = 5
ECHO_LIMIT = 1024 * 1024
"""Bytes of one command's output that are repeated on this program's own output."""


def tool_schema(
    name: str, description: str, required: dict[str, str], **optional: dict[str, Any]
) -> dict[str, Any]:
    """A function tool whose `required` parameters are strings (name to description)."""
    properties: dict[str, Any] = {
        key: {"type": "string", "description": text} for key, text in required.items()
    }
    parameters = {"type": "object", "properties": properties | optional, "required": list(required)}
    return {
        "type": "function",
        "function": {"name": name, "description": description, "parameters": parameters},
    }


BASH = tool_schema(
    "bash",
    "Run a command with bash and get what it printed (stdout and stderr together). There is no terminal and no"
    " input; each call is a new shell in the same working directory.",
    {"command": "The command to run."},
)
EDIT = tool_schema(
    "edit",
    "Replace a text in a file. The old text must occur exactly once.",
    {
        "path": "The file, absolute or relative to the working directory.",
        "old_str": "The text to replace, exactly as it is in the file.",
        "new_str": "The text to put in its place.",
    },
)
SEARCH = tool_schema(
    "search",
    "Search the web (Google) and get title, URL and snippet of the best results.",
    {"query": "What to search for."},
    num_results={"type": "integer", "description": f"How many results (default {SEARCH_RESULTS})."},
)

Tool = Callable[[dict[str, Any]], str]


def bash_tool(seconds: float = COMMAND_TIMEOUT) -> Tool:
    """The `bash` tool, its commands limited to `seconds`."""

    def run(arguments: dict[str, Any]) -> str:
        command = arguments.get("command")
        if not isinstance(command, str) or not command.strip():
            return "error: 'command' must be a string that is not empty"
        return run_command(command, seconds=seconds, echo=_Echo())

    return run


class _Echo:
    """Repeats output on stdout, up to a limit."""

    def __init__(self) -> None:
        self._left = ECHO_LIMIT

    def __call__(self, data: bytes) -> None:
        if self._left <= 0:
            return
        shown = data[: self._left]
        self._left -= len(data)
        if self._left <= 0:
            shown += b"\n[the rest of this output is not repeated here]\n"
        sys.stdout.buffer.write(shown)
        sys.stdout.buffer.flush()


def edit_tool(arguments: dict[str, Any]) -> str:
    """Replace `old_str`, which must occur exactly once in the file at `path`, by `new_str`."""
    path, old, new = (arguments.get(key) for key in ("path", "old_str", "new_str"))
    if not isinstance(path, str) or not path:
        return "error: 'path' must be a string that is not empty"
    if not isinstance(old, str) or not isinstance(new, str):
        return "error: 'old_str' and 'new_str' must be strings"
    if not old:
        return "error: 'old_str' must not be empty"
    try:
        file = Path(path)
        # As bytes, so that line ends stay as they are.
        content = file.read_bytes().decode()
        count = content.count(old)
        if count != 1:
            return f"error: 'old_str' must occur exactly once in {path}; it occurs {count} times"
        file.write_bytes(content.replace(old, new).encode())
    except (OSError, ValueError) as e:
        return f"error: {path} could not be edited: {e}"
    return f"Edited {path}."


def search_tool(key: str) -> Tool:
    """The `search` tool, asking Serper with `key`."""

    def run(arguments: dict[str, Any]) -> str:
        query = arguments.get("query")
        if not isinstance(query, str) or not query.strip():
            return "error: 'query' must be a string that is not empty"
        wanted = arguments.get("num_results")
        count = wanted if isinstance(wanted, int) and wanted > 0 else SEARCH_RESULTS
        try:
            found = _serper(query, key)
        except Exception as e:
            return f"error: the search failed: {type(e).__name__}: {e}"
        return "\n\n".join(_shown(result) for result in found[:count]) or f"No results for {query!r}."

    return run


def _serper(query: str, key: str) -> list[dict[str, Any]]:
    import httpx

    answer = httpx.post(SEARCH_URL, json={"q": query}, headers={"X-API-KEY": key}, timeout=SEARCH_TIMEOUT)
    answer.raise_for_status()
    return list(answer.json().get("organic") or [])


def _shown(result: dict[str, Any]) -> str:
    lines = (str(result.get(key) or "").strip() for key in ("title", "link", "snippet"))
    return "\n".join(line for line in lines if line)
