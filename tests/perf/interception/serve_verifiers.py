"""The peer's own interception server with registered sessions; run it with a Python that has verifiers 0.2.1.dev64.

Arguments and output as `serve_ours`.
"""

from __future__ import annotations

import asyncio
import json
import os
import resource
import signal
import sys

from verifiers import __version__
from verifiers.v1.clients import ModelContext, resolve_client
from verifiers.v1.clients.config import EvalClientConfig
from verifiers.v1.harnesses.null import NullHarnessConfig
from verifiers.v1.interception import InterceptionServer
from verifiers.v1.session import RolloutLimits, RolloutSession
from verifiers.v1.state import State
from verifiers.v1.task import TaskData
from verifiers.v1.trace import AgentInfo, Trace, TraceTask, VersionInfo
from verifiers.v1.types import SamplingConfig


def usage() -> dict[str, float]:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return {"cpu_s": used.ru_utime + used.ru_stime, "peak_mb": used.ru_maxrss / 1024}


async def main() -> None:
    base_url, count, model = sys.argv[1:4]
    os.environ["BENCH_KEY"] = "bench-key"
    client = resolve_client(EvalClientConfig(base_url=base_url, api_key_var="BENCH_KEY"))
    sampling = SamplingConfig()
    context = ModelContext(client=client, model=model, sampling=sampling)
    agent = AgentInfo(model=model, sampling=sampling, harness=NullHarnessConfig(id="null"))
    async with InterceptionServer() as server:
        secrets = []
        for i in range(int(count)):
            trace = Trace(
                task=TraceTask(type="Bench", data=TaskData(idx=i, prompt="x")),
                state=State(),
                verifiers=VersionInfo(version=__version__),
                agent=agent,
            )
            secrets.append(server.register(RolloutSession(context, trace, [], RolloutLimits())))
        stop = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
        print(json.dumps({"base_url": server.base_url + "/v1", "secrets": secrets, **usage()}), flush=True)
        await stop.wait()
        turns = sum(session.trace.num_turns for session in server.sessions.values())
        print(json.dumps({"turns": turns, **usage()}), flush=True)
    await client.close()


if __name__ == "__main__":
    asyncio.run(main())
