"""An engine with everything around it: the plan, the bus, what is written down, and the socket screens come by."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from vf_core import __version__
from vf_core.engine.engine import Engine
from vf_core.engine.plan import Plan, make_plan
from vf_core.engine.saved import Saved
from vf_core.errors import RunDirError
from vf_core.eval_config import EvalConfig
from vf_core.events.bus import Bus
from vf_core.link.base import EnginePort
from vf_core.link.server import PROTOCOL, SocketServer
from vf_core.runs.layout import RunDir, write_private
from vf_core.runs.lock import RunLock
from vf_core.runs.recorder import Recorder
from vf_core.runtimes.environment import withhold
from vf_core.sandboxes.ledger import Ledger

log = logging.getLogger(__name__)


@dataclass(slots=True)
class EngineSession:
    """A ready engine; `run` it once. `socket` is None when it serves none."""

    engine: Engine
    socket: Path | None

    @staticmethod
    @asynccontextmanager
    async def open(
        config: EvalConfig, run_dir: RunDir, *, serve: bool, resume: bool = False
    ) -> AsyncIterator[EngineSession]:
        """Check `config`, then make the engine and what belongs to it in `run_dir`; everything is closed at the end.
        With `resume` it goes on with the run that is there, whose saved config stays as it is.

        Raises `ConfigError` before anything is started, `RunDirError` when nothing can be written, or another engine
        is at work there.
        """
        if resume:
            from vf_core.engine.resume import check_files

            check_files(run_dir)
        async with AsyncExitStack() as stack:
            stack.callback(RunLock(run_dir.events).release)
            withhold(config.secret_variables())
            plan = await asyncio.to_thread(make_plan, config)
            ledger = Ledger.open()
            stack.push_async_callback(ledger.aclose)
            saved = await asyncio.to_thread(_take_over, run_dir, plan, ledger) if resume else None
            if saved is None:
                _save_config(config, run_dir)
            bus = Bus(saved.state if saved is not None else None)
            bus.bind(asyncio.get_running_loop())
            engine = Engine(plan, run_dir, bus, ledger, saved)
            server = None
            if serve:
                server = await stack.enter_async_context(SocketServer(engine, run_dir))
            recorder = Recorder(
                run_dir,
                bus,
                version=__version__,
                protocol=PROTOCOL,
                socket=server.path if server else None,
                on_error=engine.cannot_write,
            )
            stack.push_async_callback(recorder.close)
            run_dir.on_output_error = engine.cannot_keep_output
            try:
                yield EngineSession(engine, server.path if server else None)
            finally:
                bus.close()

    async def run(self) -> int:
        """Run to the end; the exit code."""
        return await self.engine.run()


def _save_config(config: EvalConfig, run_dir: RunDir) -> None:
    try:
        write_private(run_dir.config, config.to_toml().encode())
    except OSError as e:
        raise RunDirError(f"cannot write {run_dir.config}: {e.strerror or e}") from e


def _take_over(run_dir: RunDir, plan: Plan, ledger: Ledger) -> Saved:
    from vf_core.engine.resume import left_by, take_over

    try:
        run_dir.logs.mkdir(mode=0o700, exist_ok=True)
    except OSError as e:
        raise RunDirError(f"cannot write {run_dir.path}: {e.strerror or e}") from e
    return take_over(run_dir, plan, left_by(ledger, run_dir.run_id))


def embedded(
    config: EvalConfig, run_dir: RunDir, *, resume: bool = False
) -> Callable[[Callable[[EnginePort], None]], Awaitable[None]]:
    """The `main` of an `EngineThread`: the same engine on a thread and loop of its own, in this process."""

    async def main(up: Callable[[EnginePort], None]) -> None:
        async with EngineSession.open(
            config, run_dir, serve=sys.platform != "win32", resume=resume
        ) as session:
            up(session.engine)
            await session.run()

    return main
