"""The agent loop, and the command line that the programs share."""

from __future__ import annotations

import gc
import getopt
import json
import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from vf_core.harnesses.program.chat import ChatClient, ModelCallError
from vf_core.harnesses.program.mcp_tools import McpSetupError, McpTools

DECLINED = 4
"""Exit code when the model's last message is a refusal (the API's own `refusal` field)."""

Content = str | list[dict[str, Any]]

VALUE_FLAGS = (
    "base-url", "api-key", "model", "system-prompt", "prompt", "initial-messages-file", "mcp-config", "disable",
)  # fmt: skip
PLAIN_FLAGS = ("no-stream",)


class UsageError(Exception):
    """The command line is wrong."""


class Toolbox:
    """The tools that the model is offered, and how each is run."""

    def __init__(self) -> None:
        self.schemas: list[dict[str, Any]] = []
        self._run: dict[str, Callable[[dict[str, Any]], Content]] = {}

    def add(self, schema: dict[str, Any], run: Callable[[dict[str, Any]], Content]) -> None:
        """Offer one tool."""
        self.schemas.append(schema)
        self._run[schema["function"]["name"]] = run

    def add_mcp(self, config: str) -> None:
        """Offer the tools of the servers in `config` (`{"mcpServers": {…}}`). Raises `McpSetupError`."""
        try:
            servers = json.loads(config).get("mcpServers") or {}
        except (ValueError, AttributeError):
            raise UsageError("--mcp-config is not a JSON object") from None
        if not servers:
            return
        for name, spec in servers.items():
            if not isinstance(spec, dict) or not isinstance(spec.get("url"), str):
                raise UsageError(f"--mcp-config: server {name!r} has no url")
        tools = McpTools(servers, {name: f"the program's own tool {name!r}" for name in self._run})
        for schema in tools.schemas:
            name = schema["function"]["name"]
            self.add(schema, partial(tools.call, name))

    def remove(self, names: list[str]) -> None:
        """Offer these no longer. Raises `UsageError` for a name that is not among them."""
        unknown = [name for name in names if name not in self._run]
        if unknown:
            raise UsageError(
                f"there is no tool {unknown[0]!r} to disable; there are: {', '.join(self._run) or 'none'}"
            )
        self.schemas = [schema for schema in self.schemas if schema["function"]["name"] not in names]
        self._run = {name: run for name, run in self._run.items() if name not in names}

    def run(self, call: dict[str, Any]) -> Content:
        """The result of one tool call, whatever becomes of it."""
        function = call.get("function") or {}
        name = str(function.get("name") or "")
        run = self._run.get(name)
        if run is None:
            return f"error: there is no tool {name!r}; there are: {', '.join(self._run) or 'none'}"
        arguments = function.get("arguments") or "{}"
        if isinstance(arguments, str):
            try:
                arguments = json.loads(arguments)
            except ValueError as e:
                return f"error: the arguments are not valid JSON ({e}); resend the call with valid JSON"
        if not isinstance(arguments, dict):
            kind = type(arguments).__name__
            return f"error: the arguments must be a JSON object, not {kind}; resend the call with an object"
        try:
            return run(arguments)
        except Exception as e:
            return f"error: tool {name!r} failed: {type(e).__name__}: {e}"


def agent_loop(client: ChatClient, messages: list[dict[str, Any]], tools: Toolbox) -> dict[str, Any]:
    """Ask the model and run its tool calls, in order, until it makes none; its last message.

    Raises `ModelCallError` when the model can't be asked.
    """
    while True:
        message = client.complete(messages, tools.schemas)
        messages.append(message)
        if isinstance(text := message.get("content"), str) and text.strip():
            say(text)
        calls = message.get("tool_calls")
        if not calls:
            return message
        for number, call in enumerate(calls):
            call["id"] = call.get("id") or f"call_{len(messages)}_{number}"
            say(_as_logged(call.get("function") or {}))
            result = tools.run(call)
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})


def _as_logged(function: dict[str, Any]) -> str:
    """A tool call as one reads it in a log: a command after a dollar sign, any other with its arguments."""
    name, arguments = function.get("name"), function.get("arguments") or ""
    try:
        parsed = json.loads(arguments)
        return f"\n$ {parsed['command']}" if set(parsed) == {"command"} else f"\n{name} {arguments}"
    except (ValueError, TypeError):
        return f"\n{name} {arguments}"


def say(text: str) -> None:
    """One line or more on stdout, whatever the locale can encode."""
    sys.stdout.buffer.write(text.encode(errors="replace") + b"\n")
    sys.stdout.buffer.flush()


def read_flags(argv: list[str], values: tuple[str, ...], plain: tuple[str, ...]) -> dict[str, list[str]]:
    """The flags given (without their dashes) and their values, in order. Raises `UsageError`."""
    names = [*(f"{name}=" for name in values), *plain]
    try:
        pairs, rest = getopt.getopt(argv, "", names)
    except getopt.GetoptError as e:
        raise UsageError(str(e)) from None
    if rest:
        raise UsageError(f"unexpected argument {rest[0]!r}")
    flags: dict[str, list[str]] = {}
    for name, value in pairs:
        flags.setdefault(name.removeprefix("--"), []).append(value)
    missing = [name for name in ("base-url", "api-key", "model") if name not in flags]
    if missing:
        raise UsageError(f"--{missing[0]} is required")
    return flags


def first_messages(flags: dict[str, list[str]]) -> list[dict[str, Any]]:
    """The messages to begin with: system prompt, then those of the file, else the prompt."""
    out: list[dict[str, Any]] = []
    if system := flags.get("system-prompt", [""])[-1]:
        out.append({"role": "system", "content": system})
    if file := flags.get("initial-messages-file", [""])[-1]:
        path = Path(file)
        raw = path.read_bytes()
        path.unlink()
        out += json.loads(raw)
    elif prompt := flags.get("prompt", [""])[-1]:
        out.append({"role": "user", "content": prompt})
    if not out:
        raise UsageError("there is nothing to ask: no prompt, no messages")
    return out


def run_agent(flags: dict[str, list[str]], tools: Toolbox) -> int:
    """Everything after the program's own tools are there; the exit code."""
    messages = first_messages(flags)
    if config := flags.get("mcp-config", [""])[-1]:
        tools.add_mcp(config)
    tools.remove(flags.get("disable", []))
    client = ChatClient(
        flags["base-url"][-1], flags["api-key"][-1], flags["model"][-1], stream="no-stream" not in flags
    )
    # What has been imported stays; a collector that walks it again and again costs start-up time.
    gc.freeze()
    gc.enable()
    return DECLINED if agent_loop(client, messages, tools).get("refusal") else 0


def run_main(main: Callable[[list[str]], int]) -> None:
    """End the process with what `main` returns: 2 for a wrong command line, 1 for any other failure."""
    gc.disable()
    try:
        code = main(sys.argv[1:])
    except UsageError as e:
        sys.stderr.write(f"error: {e}\n")
        code = 2
    except (ModelCallError, McpSetupError) as e:
        sys.stderr.write(f"error: {e}\n")
        code = 1
    except Exception:
        import traceback

        traceback.print_exc()
        code = 1
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            pass
    # Taking the interpreter down in good order costs a fifth of a short program; there is nothing to save.
    os._exit(code)
