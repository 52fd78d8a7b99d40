"""Putting a toolset's program into a sandbox that is not this host."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from vf_core.errors import HarnessError, ToolsetError
from vf_core.tasks.toolset import Toolset
from vf_core.tools.wheels import Shipment, own_wheel, shipment

if TYPE_CHECKING:
    from vf_core.runtimes.base import Runtime

CHECK_TIMEOUT = 120.0
_PROGRAM = """\
# /// script
# requires-python = ">=3.11"
# dependencies = []
# ///
from vf_core.tools.serve import main

main()
"""
# $1: a check in Python; prints the first interpreter for which it holds.
_HAVE = """
code=$1; shift
for python in python3 python; do
  path=$(command -v "$python") || continue
  "$path" -I -c "$code" "$@" >/dev/null 2>&1 && echo "$path" && exit 0
done
exit 1
"""
_CHECK = """
import importlib, sys
from importlib.metadata import version
for pin in sys.argv[1].split():
    name, _, wanted = pin.partition("==")
    assert version(name) == wanted
for module in sys.argv[2].split():
    importlib.import_module(module)
"""


def goods(toolset: Toolset[Any, Any]) -> list[Shipment]:
    """The distributions that a toolset's program needs. Blocks. Raises `ToolsetError` for one that cannot be sent."""
    cls = type(toolset)
    found = [own_wheel()]
    for module, extras in ((cls.__module__, cls.EXTRAS), (type(toolset.config).__module__, ())):
        one = shipment(module, tuple(extras))
        if one is not None and one.name not in [have.name for have in found]:
            found.append(one)
    return found


async def install(toolset: Toolset[Any, Any], runtime: Runtime, directory: str) -> list[str]:
    """The argv prefix that serves `toolset` in `runtime`, what it needs installed there; `directory` is a private one
    in it. Raises `ToolsetError`, `SandboxError`."""
    needed = await asyncio.to_thread(goods, toolset)
    modules = ("vf_core.tools.app", "mcp.server.mcpserver", "uvicorn", type(toolset).__module__)
    pins = " ".join(f"{one.name}=={one.version}" for one in needed if one.version)
    argv = ["sh", "-c", _HAVE, "vf-have", _CHECK, pins, " ".join(modules)]
    found = await runtime.run(argv, timeout=CHECK_TIMEOUT)
    if found.exit_code == 0 and found.stdout.strip():
        return [found.stdout.strip(), "-I", "-u", "-X", "utf8", "-m", "vf_core.tools.serve"]
    for one in needed:
        await runtime.write(f"{directory}/{one.file}", one.data)
        if not one.is_wheel:
            unpacked = await runtime.run(["tar", "-xzf", f"{directory}/{one.file}", "-C", directory])
            if unpacked.exit_code != 0:
                raise ToolsetError(f"{one.name} cannot be unpacked in the sandbox: {unpacked.stderr[-500:]}")
    try:
        return await runtime.prepare_script(_PROGRAM, [one.requirement(directory) for one in needed])
    except HarnessError as e:
        raise ToolsetError(
            f"{type(toolset).__name__} cannot be installed in the sandbox: {e.message}", hint=e.hint
        ) from e
