"""Running the shipped agent programs as a sandbox would: one file, an interpreter, nothing of ours beside it."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from vf_core.harnesses.program.assemble import program_source
from vf_core.scripted.scenario import Scenario
from vf_core.scripted.server import ScriptedServer

HARNESSES = Path(__import__("vf_core").__file__).parent / "harnesses"


@dataclass(frozen=True)
class Ended:
    """How a program ended, and what it printed."""

    code: int
    out: str
    err: str


async def run_agent(
    name: str, server: ScriptedServer | str, cwd: Path, *flags: str, env: Mapping[str, str] | None = None
) -> Ended:
    """Run program `name` against a scripted model (or a base URL) in `cwd` to its end."""
    base_url = server if isinstance(server, str) else server.base_url
    script = cwd / f".{name}-program.py"
    script.write_text(program_source(HARNESSES / name / "program.py"), encoding="utf-8")
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-I",
        str(script),
        f"--base-url={base_url}",
        "--api-key=rollout-secret",
        "--model=scripted",
        *flags,
        cwd=cwd,
        env={"PATH": os.environ["PATH"], **(env or {})},
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(60):
            out, err = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
    return Ended(process.returncode or 0, out.decode(errors="replace"), err.decode(errors="replace"))


def scenario(*steps: Mapping[str, object], **rule: object) -> Scenario:
    """A scenario with one rule, which matches every task unless `rule` says otherwise."""
    return Scenario.model_validate({"rule": [{"name": "only", "step": list(steps), **rule}]})


def bash(command: str) -> dict[str, object]:
    """A step that calls the bash tool."""
    return {"calls": [{"name": "bash", "arguments": {"command": command}}]}


def tool_results(server: ScriptedServer) -> list[str]:
    """The contents of the tool messages in the last request that a recording server got."""
    return [m["content"] for m in server.bodies[-1]["messages"] if m["role"] == "tool"]
