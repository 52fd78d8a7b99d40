"""The fake engine as a process of its own, with a run directory, a journal and a socket.

`python -m doubles.engine_process RUN_DIR RATE ROLLOUTS`: prints the socket's path, plays until it is killed or told
to shut down.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from doubles.fake_engine import FakeEngine
from vf_core.link.server import SocketServer
from vf_core.runs.layout import RunDir
from vf_core.runs.recorder import Recorder


@dataclass
class EngineProcess:
    """A started one."""

    process: subprocess.Popen[str]
    run_dir: RunDir
    socket: Path


def start(run_dir: RunDir, *, rate: int = 500, rollouts: int = 40) -> EngineProcess:
    """Start one and wait until it listens."""
    process = subprocess.Popen(
        [sys.executable, "-m", "doubles.engine_process", str(run_dir.path), str(rate), str(rollouts)],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent)},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    line = process.stdout.readline().strip()
    assert line, f"the engine ended with {process.wait()}"
    return EngineProcess(process, run_dir, Path(line))


async def main(path: Path, rate: float, rollouts: int) -> None:
    run_dir = RunDir(path)
    engine = FakeEngine(rollouts=rollouts, rate=rate, run=run_dir.run_id)
    async with SocketServer(engine, run_dir) as server:
        recorder = Recorder(run_dir, engine.bus, version="0.1.0", protocol=1, socket=server.path)
        print(server.path, flush=True)
        await engine.run()
        await recorder.close()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3])))
