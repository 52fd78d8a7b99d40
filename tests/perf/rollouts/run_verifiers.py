"""As `run_ours.py`, for verifiers 0.2.1.dev64: run by the interpreter of its own environment."""

import asyncio
import json
import os
import resource
import sys
import tempfile
import time
from pathlib import Path

import verifiers.v1 as vf
from verifiers.v1.cli.eval.runner import run_eval
from verifiers.v1.clients.config import EvalClientConfig
from verifiers.v1.configs.eval import EvalConfig

PEER_TASKS = """
import itertools
import verifiers.v1 as vf

__all__ = ["BenchTaskset"]


class BenchTask(vf.Task[vf.TaskData]):
    @vf.reward
    async def done(self, trace) -> float:
        return float("done" in trace.last_reply)


class BenchTaskset(vf.Taskset[BenchTask, vf.TasksetConfig]):
    INFINITE = True

    def load(self):
        for i in itertools.count():
            yield BenchTask(vf.TaskData(idx=i, name=f"bench {i}", prompt=f"task {i}: do what is needed"))
"""


def cpu(who):
    usage = resource.getrusage(who)
    return usage.ru_utime + usage.ru_stime


async def main():
    base_url, harness, rollouts, concurrent, model = sys.argv[1:6]
    os.environ["BENCH_KEY"] = "none"
    with tempfile.TemporaryDirectory() as out:
        Path(out, "peer_bench_tasks.py").write_text(PEER_TASKS)
        sys.path.insert(0, out)
        config = EvalConfig.model_validate(
            {
                "model": model,
                "max_concurrent": int(concurrent),
                "num_tasks": int(rollouts),
                "client": EvalClientConfig(base_url=base_url, api_key_var="BENCH_KEY"),
                "taskset": {"id": "peer_bench_tasks"},
                "harness": {"id": harness},
                "output_dir": str(Path(out, "run")),
                "rich": False,
                "push": False,
            }
        )
        env = vf.Environment(config)
        if "--prepare" in sys.argv:
            config = config.model_copy(update={"num_tasks": 1})
        begun, own = time.perf_counter(), cpu(resource.RUSAGE_SELF)
        traces = await run_eval(env, config)
        wall, own = time.perf_counter() - begun, cpu(resource.RUSAGE_SELF) - own
    errors = [trace.error.message for trace in traces if trace.error is not None]
    if errors:
        print(errors[0], file=sys.stderr)
    print(
        json.dumps(
            {
                "good": sum(trace.error is None for trace in traces),
                "reward": sum(trace.reward for trace in traces),
                "seconds": wall,
                "engine_cpu": own,
                "children_cpu": cpu(resource.RUSAGE_CHILDREN),
                "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
            }
        )
    )


if __name__ == "__main__":
    asyncio.run(main())
