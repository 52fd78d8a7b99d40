"""Starting a toolset's program in a sandbox, and finding out where it serves."""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from vf_core.errors import SandboxError, SandboxFileNotFoundError, ToolsetError
from vf_core.tasks.toolset import Toolset
from vf_core.text import clean
from vf_core.tools.app import PATH
from vf_core.tools.install import install
from vf_core.tools.spec import ServeSpec, reference, secrets_in, told_config

if TYPE_CHECKING:
    from vf_core.runtimes.base import Runtime

# A second of a core each: a hundred that start at once on a small or busy machine take minutes.
START_SECONDS = 600.0
_LOOK_SECONDS = 10.0
_SAID_LIMIT = 10_000
_LOG_TAIL = 2_000
# $0: where the server says how it is; the end of one that said nothing is said there.
_WATCHED = (
    '"$@"; code=$?; [ -s "$0" ] || { printf \'{"exit": %s}\' "$code" >"$0.exit" && mv "$0.exit" "$0"; }'
)


@dataclass(frozen=True, slots=True)
class Served:
    """A server that serves: its address from this host, what lets in, and the `seal` of what it alone is to read.
    `log` is its output, in its sandbox."""

    toolset: Toolset[Any, Any]
    runtime: Runtime
    url: str
    port: int
    token: str = field(repr=False)
    seal: str = field(default="", repr=False)
    log: str = ""
    hidden: tuple[str, ...] = field(default=(), repr=False)

    @property
    def headers(self) -> Mapping[str, str]:
        """What each request must bring."""
        return {"authorization": f"Bearer {self.token}"}

    async def lives(self) -> bool:
        """Whether somebody listens there. Only a refusal says that nobody does."""
        parts = urlsplit(self.url)
        port = parts.port or (443 if parts.scheme == "https" else 80)
        try:
            async with asyncio.timeout(_LOOK_SECONDS):
                _, writer = await asyncio.open_connection(parts.hostname, port)
        except ConnectionRefusedError:
            return False
        except (OSError, TimeoutError):
            return True
        writer.close()
        return True

    async def last_words(self) -> str:
        """The end of its log, to be put after a message."""
        return await log_tail(self.runtime, self.log, self.hidden)


def label(toolset: Toolset[Any, Any]) -> str:
    """How messages name a server."""
    name = toolset.server_name
    return f"tool server {name!r}" if name else f"tool server {type(toolset).__name__}"


async def start(
    toolset: Toolset[Any, Any],
    runtime: Runtime,
    *,
    channel: tuple[str, str] = ("", ""),
    port: int = 0,
    like: Served | None = None,
) -> Served:
    """Start `toolset`'s program in a live sandbox and wait until it serves. `channel` is the address of the state,
    and the secret of its rollout's (see `ServeSpec`); `port` the one to listen on (0: any). One that is `like`
    another takes the same token and seal.

    Raises `ToolsetError` with the end of the server's log, `SandboxError`.
    """
    here = runtime.kind == "subprocess"
    room = f".vf-tools/{secrets.token_hex(4)}" if here else await _private_directory(runtime)
    argv = [sys.executable, "-P", "-u", "-X", "utf8", "-m", "vf_core.tools.serve"]
    if not here:
        argv = await install(toolset, runtime, room)
    token = like.token if like is not None else secrets.token_urlsafe(32)
    seal = like.seal if like is not None else secrets.token_urlsafe(32)
    spec = ServeSpec(
        cls=reference(type(toolset)),
        config_cls=reference(type(toolset.config)),
        config=told_config(toolset),
        token=token,
        ready=f"{room}/ready.json",
        host=await _host(runtime, port),
        port=port,
        channel=channel[0],
        channel_secret=channel[1],
        seal=seal,
        path=tuple(entry for entry in map(_absolute, sys.path) if entry) if here else (),
    )
    file, log = f"{room}/spec.json", f"{room}/server.log"
    await runtime.write(file, spec.dump())
    environment = {"TMPDIR": runtime.directory} if here and hasattr(runtime, "directory") else {}
    await runtime.run_background(["sh", "-c", _WATCHED, spec.ready, *argv, file], environment, log)
    hidden = tuple(filter(None, (token, seal, channel[1], *secrets_in(toolset.config))))
    listening = await _listening(toolset, runtime, spec.ready, log, hidden)
    url = await runtime.expose(listening) + PATH
    return Served(toolset, runtime, url, listening, token, seal, log, hidden)


def _absolute(entry: str) -> str:
    return entry and str(Path(entry).absolute())


async def _private_directory(runtime: Runtime) -> str:
    made = await runtime.run(["mktemp", "-d", "/tmp/vf-tools-XXXXXX"], timeout=60)  # noqa: S108 - in a sandbox
    if made.exit_code != 0 or not made.stdout.startswith("/"):
        raise ToolsetError(f"no place for tools in sandbox {runtime.name}: {made.stderr.strip()[-500:]}")
    return made.stdout.strip()


async def _host(runtime: Runtime, port: int) -> str:
    """The address to listen on, so that this host gets there and as few others as possible."""
    way = await runtime.expose(port or 1) if port or runtime.is_local else ""
    host = urlsplit(way).hostname or ""
    return "127.0.0.1" if runtime.is_local and host in ("127.0.0.1", "localhost", "::1") else "0.0.0.0"  # noqa: S104


async def _listening(
    toolset: Toolset[Any, Any], runtime: Runtime, ready: str, log: str, hidden: Sequence[str]
) -> int:
    """The port that the server listens on, once it does. Raises `ToolsetError`."""
    said, how = dict[str, Any](), f" within {START_SECONDS:g} s"
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(START_SECONDS):
            said = await _said(runtime, ready)
            why = said.get("error") or f"exit {said.get('exit')}"
            how = f": {_without(str(why), hidden)}"
    if "port" in said:
        return int(said["port"])
    raise ToolsetError(f"{label(toolset)} did not start{how}{await log_tail(runtime, log, hidden)}")


async def _said(runtime: Runtime, ready: str) -> dict[str, Any]:
    """What the server says of its start, waited for."""
    pause = 0.02 if runtime.kind == "subprocess" else 0.2
    while True:
        try:
            found = json.loads(await runtime.read_bounded(ready, _SAID_LIMIT))
            return found if isinstance(found, dict) else {"error": "it wrote nonsense"}
        except SandboxFileNotFoundError:
            await asyncio.sleep(pause)
            pause = min(1.0, pause * 1.3)
        except ValueError as e:
            return {"error": f"it wrote nonsense: {e}"}


def _without(text: str, hidden: Sequence[str]) -> str:
    """A server's words without what it was told in confidence."""
    for secret in hidden:
        text = text.replace(secret, "[secret]")
    return clean(text).strip()


async def log_tail(runtime: Runtime, log: str, hidden: Sequence[str] = ()) -> str:
    """The end of a server's log, to be put after a message, without the `hidden` words."""
    try:
        found = await runtime.run(["tail", "-c", str(_LOG_TAIL), log], timeout=30)
    except SandboxError:
        return ""
    text = _without(found.stdout, hidden) if found.exit_code == 0 else ""
    return f"\nits log ends:\n{text}" if text else ""
