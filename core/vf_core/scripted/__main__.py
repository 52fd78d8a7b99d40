"""`python -m vf_core.scripted`: serve a scenario until told to stop; prints one JSON line with the base URL."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import signal
import sys
import time
from pathlib import Path

from vf_core.errors import VfError
from vf_core.scripted.server import ScriptedServer


def main(argv: list[str] | None = None) -> int:
    """The command; its exit code: 0, or 2 when the scenario or the port is no good."""
    parser = argparse.ArgumentParser(prog="python -m vf_core.scripted", description=__doc__)
    parser.add_argument("--scenario", type=Path, help="a scenario file (default: the demo's)")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0, help="0 takes a free one")
    parser.add_argument("--speed", type=float, default=1.0, help="divides every wait; 0: no waits")
    parser.add_argument(
        "--idle-exit", type=float, metavar="SECONDS", help="end after so long without a request"
    )
    options = parser.parse_args(argv)
    try:
        server = ScriptedServer(options.scenario, host=options.host, port=options.port, speed=options.speed)
        asyncio.run(_serve(server, options.idle_exit))
    except (VfError, OSError) as e:
        sys.stderr.write(f"error: {e}\n")
        return 2
    return 0


async def _serve(server: ScriptedServer, idle: float | None) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    base_url = await server.start()
    ready = {"base_url": base_url, "model": server.scenario.model, "pid": os.getpid()}
    sys.stdout.write(json.dumps(ready) + "\n")
    sys.stdout.flush()
    try:
        while not stop.is_set():
            left = None if idle is None else idle - (time.monotonic() - server.last_active)
            if left is not None and left <= 0:
                if not server.open:
                    return
                left = idle
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), left)
    finally:
        await server.stop()


if __name__ == "__main__":
    sys.exit(main())
