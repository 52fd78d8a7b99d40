"""Whether a container that was just started is what was asked for: only then it is live."""

from __future__ import annotations

from vf_core.errors import SandboxError
from vf_core.runtimes.docker.client import Engine, EngineError
from vf_core.runtimes.docker.command import LostError
from vf_core.runtimes.docker.config import DockerConfig
from vf_core.runtimes.docker.shell import ROOT, Shell
from vf_core.runtimes.remote import parse_gpu

_OWN = '[ -n "$(ls -A "$1")" ] || chown "$2" "$1"'
_GPUS = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]


async def settle_in(engine: Engine, id: str, shell: Shell, config: DockerConfig, user: str) -> None:
    """Have a command run in the container `id`, and its working directory belong to `user`, the image's.

    Raises `SandboxError` when the container takes no commands, or has not got the GPU that was asked for.
    """
    argv = ["true"]
    if user.partition(":")[0] not in ("", "0", "root"):
        # The engine made the working directory for root.
        argv = ["sh", "-c", _OWN, "vf-own", config.workdir, user]
    try:
        await shell.collect(argv, user=ROOT, cwd="/")
    except (LostError, EngineError) as e:
        if isinstance(e, EngineError) and not e.status:
            raise
        raise SandboxError(
            f"a container of image {config.image} takes no commands: {e.message}",
            hint="the image needs a POSIX shell as /bin/sh, and sleep",
        ) from e
    if config.gpu is not None:
        await check_gpu(engine, id, shell, config.gpu)


async def check_gpu(engine: Engine, id: str, shell: Shell, wanted: str) -> None:
    """Raise `SandboxError` for what an engine does not know and so ignores, or has not got and so replaces."""
    found = await engine.inspect(id) or {}
    if not (found.get("HostConfig") or {}).get("DeviceRequests"):
        raise SandboxError(
            f"docker engine {engine.account} gave the container no GPU: it ignores such requests",
            hint="use Docker with the NVIDIA container toolkit, or leave runtime.gpu out",
        )
    kind, _ = parse_gpu(wanted)
    if kind is None:
        return
    code, said, _ = await shell.collect(_GPUS, cwd="/")
    names = said.decode(errors="replace").strip()
    if code == 0 and kind.lower() not in names.lower():
        raise SandboxError(
            f"docker engine {engine.account} gave the container another GPU than {kind}: {names[:200]}"
        )
