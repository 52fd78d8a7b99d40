"""What an engine leaves behind for whoever comes later: the journal, `engine.json`, and its entry in the index."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from vf_core.events import types as ev
from vf_core.events.background import Background
from vf_core.events.bus import Bus
from vf_core.events.journal import JournalWriter
from vf_core.runs import index
from vf_core.runs.engine_file import EngineInfo, write_engine_info
from vf_core.runs.layout import RunDir

INTERVAL = 1.0
"""Seconds between two versions of `engine.json`, at least."""


class Recorder:
    """Writes down what passes over `bus`, off the engine's loop, from `open` to `close`.

    `on_error` is told once, on the loop, when the journal can't be written: no new work should be begun. The
    other files are of less weight: when they can't be written, they stay as they are.
    """

    def __init__(
        self,
        run_dir: RunDir,
        bus: Bus,
        *,
        version: str,
        protocol: int = 0,
        socket: Path | None = None,
        on_error: Callable[[OSError], None] | None = None,
    ) -> None:
        self._path = run_dir.engine_json
        self._bus = bus
        self._info = EngineInfo.of_this_process(
            run_dir.run_id,
            run_dir.path,
            socket=str(socket or ""),
            version=version,
            protocol=protocol,
        )
        self._journal = JournalWriter(run_dir.events, on_error=on_error)
        self._background = Background("engine.json", delay=0)
        self._timer: asyncio.TimerHandle | None = None
        self._remove = bus.add_sink(self._note)
        self._write_info()
        index.remember(run_dir.path, run_dir.run_id)

    @property
    def info(self) -> EngineInfo:
        """What `engine.json` says of this engine, up to date."""
        return self._info.at(self._bus.state)

    async def close(self) -> None:
        """Write all that is left. Idempotent."""
        self._remove()
        self._info = replace(self._info, ended=True)
        self._write_info()
        await self._journal.aclose()
        await self._background.aclose()

    def _note(self, event: ev.Event) -> None:
        self._journal.append(event)
        if isinstance(event, ev.RunStarted | ev.RunFinished):
            self._write_info()
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(INTERVAL, self._write_info)

    def _write_info(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        info = self.info

        def write() -> None:
            try:
                write_engine_info(self._path, info)
            except OSError:
                pass  # the journal says the same, and tells of the failure

        self._background.soon(write, now=True)
