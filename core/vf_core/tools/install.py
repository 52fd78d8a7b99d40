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
# $1: a check in Python; $2…: its arguments. Prints the first interpreter for which it holds.
_HAVE = """
code=$1; shift
for python in python3 python; do
  path=$(command -v "$python") || continue
  "$path" -I -c "$code" "$@" >/dev/null 2>&1 && echo "$path" && exit 0
done
exit 1
"""
# Its arguments: modules to import, distributions of certain versions, others of any, a directory, and the wheels to
# be unpacked there first.
_CHECK = """
import importlib, sys, zipfile
from importlib.metadata import version
modules, pins, names, directory, *wheels = sys.argv[1:]
if directory:
    for wheel in wheels:
        zipfile.ZipFile(wheel).extractall(directory)
    sys.path.insert(0, directory)
for pin in pins.split():
    name, _, wanted = pin.partition("==")
    assert version(name) == wanted
for name in names.split():
    version(name)
for module in modules.split():
    importlib.import_module(module)
"""
_SERVE = "import sys; sys.path.insert(0, sys.argv.pop(1)); from vf_core.tools.serve import main; main()"
_PYTHON = ("-I", "-u", "-X", "utf8")
_MODULES = (
    "vf_core.tools.app",
    "vf_core.tools.channel",
    "mcp.server.mcpserver",
    "uvicorn",
    "tenacity",
    "httpx2",
)


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
    """The argv prefix that serves `toolset` in `runtime`; `directory` is a private one in it.

    The image's own packages are used when it has what is needed: all of it, or all but what is worked on here, which
    is put beside them. Else everything is installed. Raises `ToolsetError`, `SandboxError`.
    """
    needed = await asyncio.to_thread(goods, toolset)
    modules = " ".join((*_MODULES, type(toolset).__module__))
    names = " ".join(name for one in needed for name in one.of_extras)
    pins = " ".join(f"{one.name}=={one.version}" for one in needed if one.version)
    if python := await _found(runtime, [modules, pins, names, ""]):
        return [python, *_PYTHON, "-m", "vf_core.tools.serve"]
    for one in needed:
        await runtime.write(f"{directory}/{one.file}", one.data)
    if all(one.is_wheel for one in needed):
        site, files = f"{directory}/site", [f"{directory}/{one.file}" for one in needed]
        if python := await _found(runtime, [modules, "", names, site, *files]):
            return [python, *_PYTHON, "-c", _SERVE, site]
    for one in needed:
        if not one.is_wheel:
            unpacked = await runtime.run(["tar", "-xzf", f"{directory}/{one.file}", "-C", directory])
            if unpacked.exit_code != 0:
                raise ToolsetError(f"{one.name} cannot be unpacked in the sandbox: {unpacked.stderr[-500:]}")
    try:
        return await runtime.prepare_script(_PROGRAM, [one.requirement(directory) for one in needed])
    except HarnessError as e:
        what = type(toolset).__name__
        raise ToolsetError(f"{what} cannot be installed in the sandbox: {e.message}", hint=e.hint) from e


async def _found(runtime: Runtime, check: list[str]) -> str:
    """The interpreter of the image for which the check holds; empty when there is none."""
    argv = ["sh", "-c", _HAVE, "vf-have", _CHECK, *check]
    found = await runtime.run(argv, timeout=CHECK_TIMEOUT)
    return found.stdout.strip() if found.exit_code == 0 else ""
