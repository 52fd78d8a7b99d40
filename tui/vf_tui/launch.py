"""Starting a run: a run directory, an engine in it, and the way to that engine."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vf_core import __version__
from vf_core.config.paths import text_of
from vf_core.errors import ConfigError, LinkError
from vf_core.runs.layout import RunDir

if TYPE_CHECKING:
    from vf_core.eval_config import EvalConfig
    from vf_core.events.state import RunState
    from vf_core.link.base import Link

GRACE = 5.0
"""Seconds for an engine that nobody can reach any more to end."""
ENDING = 30.0
"""Seconds that an engine is given to end by itself once its run is over and nobody watches."""


@dataclass(slots=True)
class Launched:
    """A started engine. `interrupt` asks it, as a signal would, to end the run; `ended` waits for it to end and
    tells whether it did."""

    config: EvalConfig
    run_dir: RunDir
    mode: str
    pid: int
    socket: Path | None
    link: Callable[[], Link]
    interrupt: Callable[[str], None]
    ended: Callable[[float], bool] = field(default=lambda timeout: True)

    def record(self) -> dict[str, Any]:
        """What a script needs to find the run again."""
        config = self.config
        return {
            "type": "launch",
            "run": self.run_dir.run_id,
            "name": config.run_name,
            "dir": text_of(self.run_dir.path),
            "mode": self.mode,
            "pid": self.pid,
            "socket": str(self.socket) if self.socket else None,
            "model": config.model,
            "taskset": config.env.taskset.id,
            "harness": config.env.agent.harness.id,
            "runtime": config.env.agent.runtime.type,
            "version": __version__,
        }


async def connect(launched: Launched) -> tuple[Link, RunState]:
    """The way to a run that was just started, and its state. An engine that was done before we came is read from
    its files. Raises `LinkError` when it is there but can't be reached."""
    link = launched.link()
    try:
        return link, await link.connect()
    except LinkError:
        await link.close()
        if not await asyncio.to_thread(launched.ended, GRACE):
            raise
    from vf_core.link.file import FileLink

    files = FileLink(launched.run_dir.path)
    return files, await files.connect()


def new_run_dir(config: EvalConfig) -> RunDir:
    """A directory for a run of `config`, never one that was there. Raises `RunDirError`."""
    return RunDir.create(config.output_dir, config.run_name)


def launch(
    config: EvalConfig,
    run_dir: RunDir,
    *,
    embedded: bool,
    mode: str,
    abandoned: threading.Event | None = None,
) -> Launched:
    """Start an engine, as a process of its own or (`embedded`) on a thread of this one, and wait until it is up.

    A process that is not up yet when `abandoned` is set is ended.

    Raises `ConfigError` when it refuses the config: nothing of the run is left then. `LinkError` when it fails.
    """
    from vf_core.runtimes.environment import hide_own_secrets, withhold

    withhold(config.secret_variables())
    # We may be an ancestor of the agents' programs, which can read an ancestor's environment.
    hide_own_secrets()
    try:
        return (
            _in_thread(config, run_dir, mode) if embedded else _in_process(config, run_dir, mode, abandoned)
        )
    except ConfigError:
        _forget(run_dir)
        raise
    except LinkError:
        if abandoned is not None and abandoned.is_set():
            _forget(run_dir)
        raise


def _in_process(
    config: EvalConfig, run_dir: RunDir, mode: str, abandoned: threading.Event | None
) -> Launched:
    from vf_core.engine.spawn import start_engine

    handle = start_engine(config, run_dir, abandoned=abandoned)

    def link() -> Link:
        from vf_core.link.socket import SocketLink

        return SocketLink(handle.socket, run=run_dir.run_id, run_dir=run_dir.path)

    def interrupt(name: str) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(handle.pid, signal.Signals[name])

    def ended(timeout: float) -> bool:
        try:
            handle.process.wait(timeout)
        except subprocess.TimeoutExpired:
            return False
        return True

    return Launched(config, run_dir, mode, handle.pid, handle.socket, link, interrupt, ended)


def _in_thread(config: EvalConfig, run_dir: RunDir, mode: str) -> Launched:
    from vf_core.engine.session import embedded
    from vf_core.link.local import EngineThread, LocalLink

    thread = EngineThread(embedded(config, run_dir))
    engine: Any = thread.start()

    def interrupt(name: str) -> None:
        with contextlib.suppress(RuntimeError):
            thread.loop.call_soon_threadsafe(engine.interrupt, name)

    return Launched(
        config,
        run_dir,
        mode,
        os.getpid(),
        None,
        lambda: LocalLink(thread, run_dir=run_dir.path),
        interrupt,
        thread.join,
    )


def _forget(run_dir: RunDir) -> None:
    """Remove the directory of a run that was refused before anything happened in it."""
    for results in (run_dir.traces, run_dir.events):
        if results.exists() and results.stat().st_size:
            return
    shutil.rmtree(run_dir.path, ignore_errors=True)
    with contextlib.suppress(OSError):
        run_dir.path.parent.rmdir()
