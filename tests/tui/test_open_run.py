"""What the app says of the run it shows, asked without a screen."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from doubles.fake_engine import FakeEngine
from vf_core.events.journal import JournalWriter
from vf_core.link.file import FileLink
from vf_tui.bridge import Bridge
from vf_tui.open_run import OpenRun


async def test_a_journal_that_breaks_off_without_an_engine_file_is_a_lost_engine(tmp_path: Path) -> None:
    engine = FakeEngine(rollouts=4, run="r")
    journal = JournalWriter(tmp_path / "events.jsonl")
    engine.bus.add_sink(journal.append)
    engine.begin()
    engine.step(30)
    journal.close()
    # Nobody says who writes it: it counts as alive as long as it grows.
    os.utime(tmp_path / "events.jsonl", (1.0, 1.0))
    app = OpenRun()
    app.bridge = Bridge(FileLink(tmp_path))
    following = asyncio.create_task(app.bridge.run())
    async with asyncio.timeout(60):
        while not app.bridge.connected:
            await asyncio.sleep(0.01)
    assert app.state.status == "died"
    assert "ENGINE LOST" in app.alarm()
    assert "not proven gone" in app.alarm()
    await app.bridge.close()
    await asyncio.wait_for(following, 60)
