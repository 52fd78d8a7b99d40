"""Local sandboxes for tests, and an independent look at the processes of this host."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from vf_core.runtimes.lifecycle import Observer
from vf_core.runtimes.subprocess import SubprocessConfig, SubprocessRuntime


def local_box(name: str = "box", observer: Observer | None = None, **options: Any) -> SubprocessRuntime:
    """Not started; a short grace period unless told otherwise."""
    config = SubprocessConfig(**{"grace": 0.2, **options})
    return SubprocessRuntime(config, name=name, labels={"run": "test"}, observer=observer)


def sh(command: str) -> list[str]:
    return ["sh", "-c", command]


def environment_of(pid: int) -> dict[str, str]:
    block = Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace")
    return dict(entry.partition("=")[::2] for entry in block.split("\0") if entry)


def processes_with(text: str) -> list[int]:
    """Living processes that have `text` in their command line or their environment."""
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) != os.getpid():
            try:
                state = Path(f"/proc/{name}/stat").read_text(errors="replace").rpartition(")")[2].split()[0]
                said = Path(f"/proc/{name}/cmdline").read_bytes() + Path(f"/proc/{name}/environ").read_bytes()
            except OSError:
                continue
            if state not in "ZX" and text.encode() in said:
                found.append(int(name))
    return found


def zombies_of(parent: int) -> list[int]:
    """Children of `parent` that ended and were not waited for."""
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                fields = Path(f"/proc/{name}/stat").read_text(errors="replace").rpartition(")")[2].split()
            except OSError:
                continue
            if fields[0] == "Z" and int(fields[1]) == parent:
                found.append(int(name))
    return found


async def until(true: Callable[[], Any], seconds: float = 60.0) -> None:
    """Wait until `true()` holds."""
    async with asyncio.timeout(seconds):
        while not true():
            await asyncio.sleep(0.01)
