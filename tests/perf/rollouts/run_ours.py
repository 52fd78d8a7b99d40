"""One run of the bench taskset in this process: `run_ours.py BASE_URL HARNESS ROLLOUTS CONCURRENT MODEL`.

Prints JSON: seconds from the first rollout to the last, CPU of this process over that time, and of its children.
"""

from __future__ import annotations

import asyncio
import json
import resource
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from vf_core.engine.process import tune
from vf_core.engine.session import EngineSession
from vf_core.eval_config import EvalConfig
from vf_core.runs.layout import RunDir


def cpu(who: int) -> float:
    usage = resource.getrusage(who)
    return usage.ru_utime + usage.ru_stime


async def main() -> None:
    base_url, harness, rollouts, concurrent, model = sys.argv[1:6]
    with tempfile.TemporaryDirectory() as out:
        config = EvalConfig.from_dict(
            {
                "model": model,
                "max_concurrent": int(concurrent),
                "num_tasks": int(rollouts),
                "client": {"base_url": base_url},
                "env": {"taskset": {"id": "bench_tasks"}, "agent": {"harness": {"id": harness}}},
            }
        )
        run_dir = RunDir.create(Path(out), config.run_name)
        async with EngineSession.open(config, run_dir, serve=True) as session:
            tune()
            begun, own = time.perf_counter(), cpu(resource.RUSAGE_SELF)
            await session.run()
            wall, own = time.perf_counter() - begun, cpu(resource.RUSAGE_SELF) - own
            totals = session.engine.state.totals
    print(
        json.dumps(
            {
                "good": totals.completed,
                "reward": totals.reward_sum,
                "seconds": wall,
                "engine_cpu": own,
                "children_cpu": cpu(resource.RUSAGE_CHILDREN),
                "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
            }
        )
    )


if __name__ == "__main__":
    asyncio.run(main())
