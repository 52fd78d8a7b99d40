"""An engine that tells stories over its socket: `python engine.py DIR LIVE EVENTS_PER_SECOND`.

Prints the socket's path once it listens. Ends on SIGTERM. A rate below 0: the run is over.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from doubles.fake_engine import FakeEngine
from vf_core.link.server import SocketServer
from vf_core.runs.layout import RunDir


async def main(folder: Path, live: int, rate: float) -> None:
    over = rate < 0
    engine = FakeEngine(rollouts=live, rate=rate, endless=not over, total=live if over else live + live // 4)
    if over:
        engine.play()
        engine.finish()
    else:
        engine.warm_up()
    async with SocketServer(engine, RunDir.create(folder, "bench"), path=folder / "s") as server:
        print(server.path, flush=True)
        if rate > 0:
            await engine.run()
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])))
