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
    resumed: bool
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
            "resumed": self.resumed,
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
    resume: bool = False,
) -> Launched:
    """Start an engine, as a process of its own or (`embedded`) on a thread of this one, and wait until it is up.

    A process that is not up yet when `abandoned` is set is ended. `resume`: it takes up the run that is there.

    Raises `ConfigError` when it refuses the config: nothing of a new run is left then. `LinkError` when it fails.
    """
    from vf_core.runtimes.environment import hide_own_secrets, withhold

    withhold(config.secret_variables())
    # We may be an ancestor of the agents' programs, which can read an ancestor's environment.
    hide_own_secrets()
    try:
        if embedded:
            return _in_thread(config, run_dir, mode, resume)
        return _in_process(config, run_dir, mode, abandoned, resume)
    except ConfigError:
        if not resume:
            _forget(run_dir)
        raise
    except LinkError:
        if abandoned is not None and abandoned.is_set() and not resume:
            _forget(run_dir)
        raise


def _in_process(
    config: EvalConfig, run_dir: RunDir, mode: str, abandoned: threading.Event | None, resume: bool
) -> Launched:
    from vf_core.engine.resume import reading_seconds
    from vf_core.engine.spawn import START_TIMEOUT, start_engine

    timeout = START_TIMEOUT + (reading_seconds(run_dir) if resume else 0)
    handle = start_engine(config, run_dir, timeout=timeout, abandoned=abandoned, resume=resume)

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

    return Launched(config, run_dir, mode, handle.pid, handle.socket, link, interrupt, resume, ended)


def _in_thread(config: EvalConfig, run_dir: RunDir, mode: str, resume: bool) -> Launched:
    from vf_core.engine.session import embedded
    from vf_core.link.local import EngineThread, LocalLink

    thread = EngineThread(embedded(config, run_dir, resume=resume))
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
        resume,
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
