"""A canary in every secret of a real run whose agent looks for them: nothing holds one afterwards (S01)."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import pytest

from doubles.command_line import ARGV, Home, wait_for
from doubles.pty_driver import PtyProcess
from doubles.upstream import Provider, Wire, completion, tool

CANARY = "zq7canary"
# What a user has in the environment: ours, providers', clouds', a database's, a browser's.
HOST = {
    "OPENAI_API_KEY": f"sk-{CANARY}-key",
    "PRIME_API_KEY": f"{CANARY}-prime",
    "MODAL_TOKEN_SECRET": f"{CANARY}-modal",
    "SERPER_API_KEY": f"{CANARY}-serper",
    "AWS_SECRET_ACCESS_KEY": f"{CANARY}-aws",
    "GITHUB_TOKEN": f"{CANARY}-github",
    "PGPASSWORD": f"{CANARY}-pg",
    "DATABASE_URL": f"postgres://me:{CANARY}@db/x",
    "HTTP_COOKIE": f"{CANARY}-cookie",
    "ACME_CREDENTIALS": f"{CANARY}-acme",
    "GATEWAY_TOKEN": f"{CANARY}-gateway",
    "BLUE_HORSE": f"{CANARY}-judge",  # nothing but the config says that it is a key
}
# Up the ancestors: what each was started with, and how it was called.
LOOK = (
    "env; pid=$$; while [ $pid -gt 1 ]; do "
    "tr '\\0' '\\n' </proc/$pid/environ; tr '\\0' ' ' </proc/$pid/cmdline; "
    "pid=$(sed -n 's/^PPid:\\t//p' /proc/$pid/status); done; echo looked-$((40 + 2))"
)


def bash(command: str) -> dict[str, Any]:
    return completion(None, [tool(arguments=json.dumps({"command": command}))])


def model(go: Path) -> Any:
    """Lets the first task look round, and fails the second with all that it was sent."""

    async def behave(wire: Wire) -> None:
        messages = wire.request.body["messages"]
        if messages[-1]["content"] == "fail" or wire.request.body["model"] == "judge":
            told = json.dumps({"error": {"message": f"who is this? {wire.request.headers}"}}).encode()
            wire.whole(told, 401, f"X-Seen: {wire.request.headers['authorization']}")
            return
        turn = sum(message["role"] == "assistant" for message in messages)
        wait = f"while [ ! -e {go} ]; do sleep 0.1; done"
        answer = [bash(LOOK), bash(wait), completion("done")][turn]
        wire.whole(json.dumps(answer).encode())

    return behave


@pytest.fixture
def home(tmp_path: Path) -> Any:
    home = Home(tmp_path, {**HOST, "TERM": "xterm-256color", "LANG": "C.UTF-8"})
    (tmp_path / "tmp").mkdir()
    home.env["TMPDIR"] = str(tmp_path / "tmp")
    yield home
    home.stop_all()


@pytest.mark.pty
async def test_s01_no_canary_is_left_or_shown_anywhere(home: Home) -> None:
    go = home.work / "go"
    async with Provider() as provider:
        provider.default = model(go)
        (home.work / "tasks.jsonl").write_text(
            "".join(json.dumps({"prompt": p, "answer": "done"}) + "\n" for p in ("look", "fail"))
        )
        (home.work / "eval.toml").write_text(
            'model = "m"\n[client]\n'
            f'base_url = "{provider.base_url}"\n'
            f'headers = {{ X-Acme = "{CANARY}-header", X-Ref = {{ env = "GATEWAY_TOKEN" }} }}\n'
            '[env.taskset]\nid = "jsonl"\npath = "tasks.jsonl"\n'
            "[env.agent.harness]\nstream = false\n"
            '[[env.taskset.task.judges]]\nid = "reference"\nmodel = "judge"\napi_key_var = "BLUE_HORSE"\n'
            f'base_url = "{provider.base_url}"\nheaders = {{ X-Judge = "{CANARY}-judge-header" }}\n'
        )
        await asyncio.to_thread(watch_it, home, go)
        heard = provider.requests[0].headers
        assert (heard["authorization"], heard["x-acme"]) == (f"Bearer sk-{CANARY}-key", f"{CANARY}-header")
        assert heard["x-ref"] == f"{CANARY}-gateway"
        (judge,) = (r.headers for r in provider.requests if r.body["model"] == "judge")
        assert (judge["authorization"], judge["x-judge"]) == (
            f"Bearer {CANARY}-judge",
            f"{CANARY}-judge-header",
        )
        looked = [m for r in provider.requests for m in r.body["messages"] if m["role"] == "tool"]
    assert "looked-42" in looked[0]["content"]
    assert "PATH=" in looked[0]["content"]
    assert CANARY not in json.dumps(looked)


def watch_it(home: Home, go: Path) -> None:
    """Look at the run on a screen, at every process and file while it runs, and at every file afterwards."""
    argv = [*ARGV, "run", "eval.toml"]
    with PtyProcess(argv, size=(110, 40), env=home.env, cwd=home.work) as term:
        term.wait_for("ProviderError")
        term.wait_for("while [ ! -e")
        assert [pid for pid, line in command_lines() if CANARY in line] == []
        assert holders(home) == []
        for keys, shown in (("\r", "Activity"), ("d", "proof"), ("i", "task")):
            term.send(keys)
            term.wait_for(shown)
        go.touch()
        term.send("q")
        term.send("q")
        wait_for(lambda: term.poll() is not None or term.send("q"), "the screen's end")
        assert CANARY not in bytes(term.raw).decode(errors="replace")
    (run,) = home.runs()
    wait_for(lambda: not home.runs()[0]["live"], "the run's end")
    assert CANARY not in home("show", run["run"]).stdout + home("events", run["run"], "--json").stdout
    assert holders(home) == []
    log = "".join(p.read_text(errors="replace") for p in home.work.rglob("*.log"))
    traces = (Path(run["dir"]) / "traces.jsonl").read_text()
    assert "answered 401: who is this?" in traces
    assert "JudgeError" in traces
    assert "[redacted]" in traces
    assert "[redacted]" in log


def command_lines() -> list[tuple[str, str]]:
    lines = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            lines.append((process.name, (process / "cmdline").read_bytes().decode(errors="replace")))
        except OSError:
            continue
    return [(pid, line) for pid, line in lines if pid != str(os.getpid())]


def holders(home: Home) -> list[Path]:
    """The files below the user's home that hold a canary, the config as it was written left out."""
    return [
        path
        for path in home.path.rglob("*")
        if path.is_file() and CANARY.encode() in path.read_bytes() and path.name != "eval.toml"
    ]
