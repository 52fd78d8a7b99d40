"""`python -m vf_tui.demo_model RUN_DIR [SCENARIO]`: the scripted model of a run, for as long as its engine lives.

Prints one JSON line with its base URL. The engine comes after it and may outlive whoever started both.
"""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from vf_core.errors import LinkError

PERIOD = 0.5
START_TIMEOUT = 150.0
"""Seconds for the engine to appear; then the run was given up."""


def start_model(run_dir: Path, scenario: Path | None = None) -> str:
    """Start the process (`scenario` None: the bundled one); its base URL. Raises `LinkError` when it does not come
    up."""
    process = subprocess.Popen(
        [
            sys.executable,
            "-P",
            "-m",
            "vf_tui.demo_model",
            str(run_dir),
            *([str(scenario)] if scenario else ()),
        ],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    assert process.stdout is not None  # noqa: S101
    with process.stdout:
        line = process.stdout.readline()
    if not line:
        raise LinkError(f"the scripted model did not start: exit code {process.wait()}")
    ready: dict[str, Any] = json.loads(line)
    return str(ready["base_url"])


def main(argv: list[str]) -> int:
    """Serve until the engine of the run directory `argv[0]` has ended."""
    # Both reach the whole terminal's processes; the engine's end is what counts.
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    asyncio.run(_serve(Path(argv[0]), Path(argv[1]) if argv[1:] else None))
    return 0


async def _serve(run_dir: Path, scenario: Path | None) -> None:
    from vf_core.scripted.server import ScriptedServer

    async with ScriptedServer(scenario) as server:
        sys.stdout.write(json.dumps({"base_url": server.base_url}) + "\n")
        sys.stdout.flush()
        sys.stdout.close()
        deadline, seen = time.monotonic() + START_TIMEOUT, False
        while True:
            await asyncio.sleep(PERIOD)
            live = await asyncio.to_thread(_engine_lives, run_dir)
            if live is False and (seen or time.monotonic() > deadline):
                return
            if live is None:
                return
            seen = seen or live


def _engine_lives(run_dir: Path) -> bool | None:
    """Whether it does; None when there is no run directory any more."""
    from vf_core.runs.engine_file import read_engine_info
    from vf_core.runs.layout import RunDir

    if not run_dir.exists():
        return None
    info = read_engine_info(RunDir(run_dir).engine_json)
    return info is not None and info.liveness() == "live"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
