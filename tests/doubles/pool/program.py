"""A stand-in for `pool exec`: reads exactly what the harness writes, refuses all else, talks real chat completions.

It is one file of the standard library, so that it runs wherever there is a Python. It is as strict as can be:
another argument, variable, settings key or place than those of the contract ends it with exit 2 and the reason.
Its one tool is `shell`, beside those of the MCP servers that its settings name (`<server>_<tool>`; bare for a server
named ""). Like the real one it also reads its user's own settings, which add to the prompt, and so shows whether they
were kept from it.

The model's last message decides the exit: a refusal is 4, `exit N` is N, `signal N` ends it by that signal; else 0.
"""

from __future__ import annotations

import http.client
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn
from urllib.parse import urlsplit

FLAGS = ["exec", "--unsafe-auto-allow", "--sandbox", "disabled", "--prompt-file"]
SETTINGS = Path(".poolside/settings.local.yaml")
VARIABLES = {"POOLSIDE_API_KEY", "POOLSIDE_STANDALONE_BASE_URL", "POOLSIDE_STANDALONE_MODEL"}
DECLINED = 4
SYSTEM = "You are the stand-in of pool."
SHELL = {
    "name": "shell",
    "description": "Run a command.",
    "parameters": {
        "type": "object",
        "properties": {"command": {"type": "string"}},
        "required": ["command"],
    },
}


def refuse(why: str) -> NoReturn:
    """End with exit 2."""
    sys.stderr.write(f"pool: {why}\n")
    raise SystemExit(2)


# ---------------------------------------------------------------------- what it is given


def prompt_file(argv: list[str]) -> Path:
    """The one argument that differs from run to run."""
    if argv[: len(FLAGS)] != FLAGS or len(argv) != len(FLAGS) + 1:
        refuse(f"these are not its arguments: {argv}")
    path = Path(argv[-1])
    if (
        path.is_absolute()
        or path.parts[:1] != (".vf-pool",)
        or not re.fullmatch(r"prompt-.+\.txt", path.name)
    ):
        refuse(f"no place for a prompt: {path}")
    return path


def credentials() -> tuple[str, str, str]:
    """Key, base URL and model."""
    given = {name: value for name, value in os.environ.items() if name.startswith("POOLSIDE_")}
    if set(given) != VARIABLES or not all(given.values()):
        refuse(f"it is not logged in, or asked to be more than it is: {sorted(given)}")
    return tuple(given[name] for name in sorted(VARIABLES))  # type: ignore[return-value]


def homes() -> dict[str, Path]:
    """Its directories, by variable; they must be there, in the workspace."""
    place = Path.cwd() / ".vf-pool"
    found = {}
    for name, inside in (("HOME", "home"), ("XDG_CONFIG_HOME", "config"), ("XDG_STATE_HOME", "state")):
        path = found[name] = Path(os.environ.get(name, ""))
        if path != place / inside:
            refuse(f"{name} is {path}, not in the workspace")
        if not path.is_dir():
            refuse(f"{name} is no directory: {path}")
    for name in ("XDG_DATA_HOME", "XDG_CACHE_HOME"):
        if name in os.environ:
            refuse(f"{name} is {os.environ[name]}, not in the workspace")
    return found


def settings() -> tuple[dict[str, str], set[str]]:
    """MCP servers by name, and the disabled tools. JSON only, and no key but these."""
    given = json.loads(SETTINGS.read_text(encoding="utf-8"))
    if set(given) != {"mcp_servers", "tools"}:
        refuse(f"settings: {sorted(given)}")
    servers = {}
    for name, server in given["mcp_servers"].items():
        transport = server["transport"]
        if set(server) != {"transport"} or set(transport) != {"type", "url"} or transport["type"] != "http":
            refuse(f"settings: server {name!r}: {server}")
        servers[name] = transport["url"]
    for name, tool in given["tools"].items():
        if tool != {"disabled": True}:
            refuse(f"settings: tool {name!r}: {tool}")
    return servers, set(given["tools"])


# ---------------------------------------------------------------------- HTTP


def opened(
    url: str, body: Any, headers: dict[str, str], method: str = "POST"
) -> tuple[http.client.HTTPConnection, int, str, http.client.HTTPResponse]:
    """An answer whose body is still to be read."""
    parts = urlsplit(url)
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    connection = kind(parts.netloc, timeout=600)
    headers = {"Content-Type": "application/json", **headers}
    connection.request(method, parts.path or "/", None if body is None else json.dumps(body), headers)
    answer = connection.getresponse()
    media = (answer.getheader("Content-Type") or "").partition(";")[0]
    return connection, answer.status, media, answer


def check_model(url: str, key: str, model: str) -> None:
    """As the real one does, ask for the models that there are."""
    connection, status, _, answer = opened(
        f"{url}/models", None, {"Authorization": f"Bearer {key}"}, method="GET"
    )
    found = answer.read().decode()
    connection.close()
    if status != 200 or model not in [entry["id"] for entry in json.loads(found)["data"]]:
        refuse(f"model {model!r} is not there: {status} {found[:300]}")


def data_lines(lines: Iterator[bytes]) -> Iterator[str]:
    """The data of server-sent events."""
    for line in lines:
        if line.startswith(b"data:"):
            yield line[5:].strip().decode()


# ---------------------------------------------------------------------- MCP


class Mcp:
    """The tools of the servers in the settings."""

    def __init__(self, servers: dict[str, str]) -> None:
        self.sessions: dict[str, str] = {}
        self.tools: dict[str, tuple[str, str]] = {}
        self.schemas: list[dict[str, Any]] = []
        for name, url in servers.items():
            about = {"protocolVersion": "2025-06-18", "capabilities": {}}
            self.ask(url, "initialize", {**about, "clientInfo": {"name": "pool", "version": "0"}})
            self.send(url, {"jsonrpc": "2.0", "method": "notifications/initialized"})
            for tool in self.ask(url, "tools/list", {})["tools"]:
                advertised = f"{name}_{tool['name']}" if name else tool["name"]
                self.tools[advertised] = (url, tool["name"])
                schema = {"name": advertised, "description": tool.get("description", "")}
                self.schemas.append({**schema, "parameters": tool["inputSchema"]})

    def send(self, url: str, message: dict[str, Any]) -> str:
        """Send a message to a server; the text of its answer."""
        headers = {"Accept": "application/json, text/event-stream", "MCP-Protocol-Version": "2025-06-18"}
        if self.sessions.get(url):
            headers["Mcp-Session-Id"] = self.sessions[url]
        connection, status, kind, answer = opened(url, message, headers)
        text = answer.read().decode()
        connection.close()
        if status not in (200, 202):
            refuse(f"MCP server at {url}: {status} {text[:300]}")
        self.sessions.setdefault(url, answer.getheader("Mcp-Session-Id") or "")
        return list(data_lines(iter(text.encode().splitlines())))[-1] if kind == "text/event-stream" else text

    def ask(self, url: str, method: str, params: dict[str, Any]) -> dict[str, Any]:
        """One request to a server; its result."""
        answer = json.loads(self.send(url, {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}))
        if "error" in answer:
            return {"content": [{"type": "text", "text": f"error: {answer['error']['message']}"}]}
        return dict(answer["result"])

    def call(self, name: str, arguments: dict[str, Any]) -> str:
        """Call a tool; the text of its result."""
        url, tool = self.tools[name]
        result = self.ask(url, "tools/call", {"name": tool, "arguments": arguments})
        return "\n".join(block.get("text", "") for block in result["content"])


# ---------------------------------------------------------------------- the loop


def streamed(url: str, key: str, body: dict[str, Any]) -> dict[str, Any]:
    """One answer of the model, put together from its pieces."""
    headers = {"Authorization": f"Bearer {key}"}
    connection, status, _, answer = opened(f"{url}/chat/completions", body, headers)
    if status != 200:
        refuse(f"the model answered {status}: {answer.read().decode()[:500]}")
    message: dict[str, Any] = {"role": "assistant", "content": ""}
    calls: dict[int, dict[str, Any]] = {}
    ended = False
    for data in data_lines(iter(answer)):
        if data == "[DONE]":
            ended = True
            break
        for choice in json.loads(data)["choices"]:
            add(message, calls, choice["delta"])
    connection.close()
    if not ended:
        refuse("the model's answer was cut off")
    if calls:
        message["tool_calls"] = [calls[index] for index in sorted(calls)]
    return message


def add(message: dict[str, Any], calls: dict[int, dict[str, Any]], delta: dict[str, Any]) -> None:
    """One piece."""
    for key in ("content", "refusal"):
        if delta.get(key):
            message[key] = (message.get(key) or "") + delta[key]
    for piece in delta.get("tool_calls") or ():
        call = calls.setdefault(
            piece["index"], {"id": "", "type": "function", "function": {"name": "", "arguments": ""}}
        )
        call["id"] = piece.get("id") or call["id"]
        for key, text in piece.get("function", {}).items():
            call["function"][key] += text or ""


def run_tool(mcp: Mcp, offered: set[str], call: dict[str, Any]) -> str:
    """What a tool answers."""
    name, text = call["function"]["name"], call["function"]["arguments"]
    if name not in offered:
        return f"error: there is no tool {name!r}"
    try:
        arguments = json.loads(text)
    except ValueError:
        return "error: the arguments are not JSON"
    if name != "shell":
        return mcp.call(name, arguments)
    done = subprocess.run(
        arguments["command"], shell=True, stdin=subprocess.DEVNULL, stdout=-1, stderr=-2, check=False
    )
    return done.stdout.decode(errors="replace")


def main(argv: list[str]) -> int:
    """Do the task; the exit code."""
    path = prompt_file(argv)
    key, url, model = credentials()
    place = homes()
    servers, disabled = settings()
    prompt = path.read_bytes().decode()
    personal = place["XDG_CONFIG_HOME"] / "poolside" / "settings.yaml"
    if personal.exists():
        prompt += personal.read_text(encoding="utf-8")
    check_model(url, key, model)
    mcp = Mcp(servers)
    tools = [schema for schema in (SHELL, *mcp.schemas) if schema["name"] not in disabled]
    messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": prompt}]
    while True:
        body = {
            "model": model,
            "messages": messages,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        body["tools"] = [{"type": "function", "function": schema} for schema in tools]
        message = streamed(url, key, body if tools else {k: v for k, v in body.items() if k != "tools"})
        messages.append(message)
        if not message.get("tool_calls"):
            break
        for call in message["tool_calls"]:
            told = run_tool(mcp, {str(schema["name"]) for schema in tools}, call)
            print(f"{call['function']['name']}: {told[:2000]}", flush=True)
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": told})
    trajectory = place["XDG_STATE_HOME"] / "poolside" / "trajectory.json"
    trajectory.parent.mkdir(parents=True, exist_ok=True)
    trajectory.write_text(json.dumps(messages), encoding="utf-8")
    return ended(message)


def ended(message: dict[str, Any]) -> int:
    """What the last message says of the end."""
    print(message.get("refusal") or message["content"], flush=True)
    if message.get("refusal"):
        return DECLINED
    how = re.fullmatch(r"(exit|signal) (\d+)", message["content"].strip())
    if how and how[1] == "signal":
        os.kill(os.getpid(), int(how[2]))
    return int(how[2]) if how else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
