"""Running real engines in tests: real sandboxes, shell scripts for agents, and what the journal says of it all."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from vf_core.engine.engine import Engine
from vf_core.engine.session import EngineSession
from vf_core.eval_config import EvalConfig
from vf_core.events import types as ev
from vf_core.events.state import RolloutView, RunState
from vf_core.runs.layout import RunDir

DEADLINE = 60.0


def script_config(output_dir: Path, scripts: Sequence[str], **settings: Any) -> EvalConfig:
    """A config of the test plugins; `hook` and `group` go to the taskset, the rest is `a__b` for `a.b`."""
    taskset = {"id": "vf_test_tasks", "scripts": list(scripts)}
    for name in ("hook", "group"):
        if name in settings:
            taskset[name] = settings.pop(name)
    data: dict[str, Any] = {
        "model": "scripted",
        "output_dir": str(output_dir),
        "client": {"base_url": "http://127.0.0.1:9/v1"},
        "env": {
            "taskset": taskset,
            "agent": {"harness": {"id": "vf_test_harness"}, "runtime": {"type": "subprocess"}},
        },
    }
    for name, value in settings.items():
        *path, last = name.split("__")
        table = data
        for part in path:
            table = table.setdefault(part, {})
        table[last] = value
    return EvalConfig.from_dict(data)


class Kit:
    """An engine under test, and everything it published."""

    def __init__(self, engine: Engine, run_dir: RunDir) -> None:
        self.engine = engine
        self.run_dir = run_dir
        self.events: list[ev.Event] = []
        engine.bus.add_sink(self.events.append)
        self._changed = asyncio.Event()
        engine.bus.add_sink(lambda event: self._changed.set())

    @property
    def state(self) -> RunState:
        return self.engine.state

    def rollout(self, id: str = "0000-0") -> RolloutView:
        return self.state.rollouts[id]

    async def until(self, condition: Callable[[], object]) -> None:
        """Wait until an event makes `condition` true."""
        async with asyncio.timeout(DEADLINE):
            while not condition():
                self._changed.clear()
                await self._changed.wait()

    async def running(self, id: str = "0000-0", attempt: int = 1) -> None:
        """Wait until the program of an attempt runs."""
        await self.until(
            lambda: (
                id in self.state.rollouts
                and (r := self.rollout(id)).attempt >= attempt
                and r.program is not None
            )
        )

    def of(self, kind: type[ev.Event]) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]

    def records(self) -> list[dict[str, Any]]:
        """The records in `traces.jsonl`."""
        return [json.loads(line) for line in self.run_dir.traces.read_bytes().splitlines()]


@asynccontextmanager
async def engine_kit(config: EvalConfig) -> AsyncIterator[tuple[Kit, asyncio.Task[int]]]:
    """A running engine; it is shut down at the end if it still runs."""
    async with _running(config, RunDir.create(config.output_dir, config.run_name), resume=False) as got:
        yield got


@asynccontextmanager
async def resumed_kit(config: EvalConfig, path: Path) -> AsyncIterator[tuple[Kit, asyncio.Task[int]]]:
    """An engine that has taken up the run in `path`."""
    async with _running(config, RunDir(path), resume=True) as got:
        yield got


@asynccontextmanager
async def _running(
    config: EvalConfig, run_dir: RunDir, *, resume: bool
) -> AsyncIterator[tuple[Kit, asyncio.Task[int]]]:
    async with EngineSession.open(config, run_dir, serve=False, resume=resume) as session:
        kit = Kit(session.engine, run_dir)
        run = asyncio.create_task(session.run())
        try:
            yield kit, run
        finally:
            if not run.done():
                await kit.engine.command("shutdown", (), {}, "test")
            await run


async def run_whole(config: EvalConfig) -> tuple[Kit, int]:
    """Run to the end without touching it."""
    async with engine_kit(config) as (kit, run):
        code = await asyncio.wait_for(asyncio.shield(run), DEADLINE)
    return kit, code


async def resume_whole(config: EvalConfig, path: Path) -> tuple[Kit, int]:
    """Take the run in `path` up and run to the end without touching it."""
    async with resumed_kit(config, path) as (kit, run):
        code = await asyncio.wait_for(asyncio.shield(run), DEADLINE)
    return kit, code
