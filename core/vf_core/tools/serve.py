"""`python -m vf_core.tools.serve FILE`: serves one toolset as FILE says, until it is ended.

In the file that FILE names for it, it says where it listens once it serves, or why it cannot.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import json
import logging
import os
import stat
import sys
import threading
import time
import traceback
from dataclasses import replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import socket

    from vf_core.tools.spec import ServeSpec

_CLOSE_SECONDS = 1
LOG_LIMIT = 32 * 1024 * 1024
"""Bytes of what is printed that are kept: more, and it begins anew."""
_LOG_LOOK_SECONDS = 1.0
_ERROR_LIMIT = 2_000


def main() -> None:
    """See the module."""
    from vf_core.tools.spec import ServeSpec, told

    file = sys.argv[1]
    with open(file, "rb") as f:
        data = f.read()
    os.unlink(file)
    spec = ServeSpec.load(data)
    # Others' code may change the directory.
    spec = replace(spec, ready=os.path.abspath(spec.ready))
    sys.path += [entry for entry in spec.path if entry not in sys.path]
    threading.Thread(target=_bound_log, daemon=True).start()
    code = 0
    try:
        asyncio.run(_serve(spec))
    except BaseException as e:
        traceback.print_exc()
        _say(spec, {"error": told(e)[:_ERROR_LIMIT]})
        code = 1
    # A tool that hangs in its thread does not keep the server alive.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _bound_log() -> None:
    """Keep a server that prints without end from filling the disk."""
    while True:
        time.sleep(_LOG_LOOK_SECONDS)
        cut_log(1)


def cut_log(fd: int) -> None:
    """Empty the file that `fd` appends to when it is too long."""
    with contextlib.suppress(OSError):
        found = os.fstat(fd)
        if stat.S_ISREG(found.st_mode) and found.st_size > LOG_LIMIT:
            os.ftruncate(fd, 0)


async def _serve(spec: ServeSpec) -> None:
    from vf_core.tools.app import make_app
    from vf_core.tools.channel import Caller, Channel
    from vf_core.tools.spec import find

    config = find(spec.config_cls).model_validate(spec.config)
    toolset = find(spec.cls)(config)
    channel = Channel()
    own = Caller(spec.channel, spec.channel_secret) if spec.channel_secret else None
    listener = _listen(spec)
    try:
        await _called(toolset.setup)
        if own is not None and not getattr(toolset.setup_task, "does_nothing", False):
            await _called(toolset.setup_task, await channel.task(own))
        app = make_app(toolset, spec.token, channel, own, states=spec.channel, seal=spec.seal)
        # The SDK's own way is slow, and draws its log for a terminal.
        logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s", force=True)
        await _answer(spec, app, listener)
    finally:
        listener.close()
        with contextlib.suppress(Exception):
            await channel.aclose()


def _listen(spec: ServeSpec) -> socket.socket:
    import socket

    family = socket.AF_INET6 if ":" in spec.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((spec.host, spec.port))
    except BaseException:
        listener.close()
        raise
    return listener


async def _called(hook: Any, *args: Any) -> None:
    result = hook(*args)
    if inspect.isawaitable(result):
        await result


async def _answer(spec: ServeSpec, app: Any, listener: socket.socket) -> None:
    import uvicorn

    class Server(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            if self.started:
                _say(spec, {"port": listener.getsockname()[1]})

    config = uvicorn.Config(
        app,
        log_level="critical",
        access_log=False,
        lifespan="on",
        server_header=False,
        timeout_graceful_shutdown=_CLOSE_SECONDS,
    )
    server = Server(config)
    await server.serve(sockets=[listener])
    if not server.started:
        raise RuntimeError("the server could not be started")


def _say(spec: ServeSpec, what: dict[str, Any]) -> None:
    """Whole at any moment: whoever reads it may look at any time."""
    temporary = f"{spec.ready}.tmp"
    with contextlib.suppress(OSError):
        with open(temporary, "w", encoding="utf-8") as f:
            json.dump(what, f)
        os.replace(temporary, spec.ready)


if __name__ == "__main__":
    main()
