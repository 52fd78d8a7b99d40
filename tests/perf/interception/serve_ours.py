"""Our interception server with registered sessions. Arguments: UPSTREAM_BASE_URL SESSIONS MODEL.

`--live`: deltas are told. `--relaxed-gc`: the garbage collector runs less often. Prints
`{"base_url", "secrets", "cpu_s"}` when it is ready, and on SIGTERM `{"turns", "cpu_s", "peak_mb"}`.
"""

from __future__ import annotations

import asyncio
import gc
import json
import resource
import signal
import sys

from vf_core.events.types import Event
from vf_core.interception import InterceptionServer, Session, Upstream
from vf_core.trace.record import Trace, TraceTask
from vf_core.trace.task import WireTaskData


def usage() -> dict[str, float]:
    """CPU seconds and peak memory of this process."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return {"cpu_s": used.ru_utime + used.ru_stime, "peak_mb": used.ru_maxrss / 1024}


async def main() -> None:
    base_url, count, model = sys.argv[1:4]
    heard = 0

    def emit(event: Event) -> None:
        nonlocal heard
        heard += 1

    upstream = Upstream(base_url, "bench-key")
    async with InterceptionServer(upstream) as server:
        sessions = []
        for i in range(int(count)):
            trace = Trace(task=TraceTask(type="Bench", data=WireTaskData(idx=i, prompt="x")))
            sessions.append(Session(str(i), 1, trace, model=model, emit=emit, emit_live="--live" in sys.argv))
        secrets = [server.register(session) for session in sessions]
        stop = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
        if "--relaxed-gc" in sys.argv:
            gc.collect()
            gc.freeze()
            gc.set_threshold(20_000, 20, 50)
        print(json.dumps({"base_url": server.base_url, "secrets": secrets, **usage()}), flush=True)
        await stop.wait()
        turns = sum(session.trace.num_turns for session in sessions)
        print(json.dumps({"turns": turns, "events": heard, **usage()}), flush=True)
    await upstream.aclose()


if __name__ == "__main__":
    asyncio.run(main())
