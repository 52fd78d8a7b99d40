"""The README's pictures, exported by the app itself from a real demo run half-way: `make screenshots`.

python tests/perf/screenshots.py DIRECTORY
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path

from vf_core.config.settings import Settings
from vf_core.engine.session import EngineSession
from vf_core.eval_config import EvalConfig
from vf_core.events.state import RunState
from vf_core.link.socket import SocketLink
from vf_core.runs.layout import RunDir
from vf_core.sandboxes.ledger import Ledger, Row
from vf_core.scripted.server import ScriptedServer
from vf_tui.app import VfTuiApp

DEADLINE = 90.0
WIDE, NARROW = (120, 36), (80, 24)
WORKER = "0002-0"
"""A rollout that is still at work then, on its third command: it builds in steps."""


@contextlib.asynccontextmanager
async def demo() -> AsyncIterator[tuple[EngineSession, RunDir]]:
    """A demo run of 16 rollouts, 8 at once, on this loop."""
    with tempfile.TemporaryDirectory() as out:
        async with ScriptedServer() as model:
            config = EvalConfig.from_dict(
                {
                    "model": "scripted-demo",
                    "num_tasks": 16,
                    "max_concurrent": 8,
                    "client": {"base_url": model.base_url},
                    "env": {"taskset": {"id": "demo"}},
                }
            )
            run_dir = RunDir.create(Path(out), config.run_name)
            async with EngineSession.open(config, run_dir, serve=True) as session:
                run = asyncio.create_task(session.run())
                try:
                    yield session, run_dir
                finally:
                    await session.engine.command("shutdown", (), {"reason": "seen enough"})
                    await run


async def until(state: RunState, holds: Callable[[RunState], bool]) -> None:
    """Wait for the run to be where a picture is to be taken."""
    async with asyncio.timeout(DEADLINE):
        while not holds(state):
            await asyncio.sleep(0.1)


async def shoot(
    socket: Path,
    run_dir: RunDir,
    size: tuple[int, int],
    file: Path,
    *,
    on: str = "",
    keys: Sequence[str] = (),
) -> None:
    """Attach a screen of `size`, focus on the rollout `on`, press `keys`, and export what it shows."""
    settings = Settings(theme="dark", ascii=False)
    app = VfTuiApp(SocketLink(socket, run=run_dir.run_id, run_dir=run_dir.path), settings=settings)
    async with app.run_test(size=size) as pilot:
        await pilot.pause(1.5)
        if on:
            app.focus_on(on)
        for key in keys:
            await pilot.pause(0.5)
            await pilot.press(key)
        await pilot.pause(1.0)
        file.write_text(keep_blanks(app.export_screenshot(title="vf-tui")), encoding="utf-8")
    print(file)


async def shoot_leftovers(size: tuple[int, int], file: Path) -> None:
    """A demo run whose engine is killed, and the screen of all sandboxes after that."""
    with tempfile.TemporaryDirectory(prefix="vfs-") as home:
        names = ("XDG_STATE_HOME", "XDG_RUNTIME_DIR", "TMPDIR")
        for name in names:
            place = Path(home) / name.lower()
            place.mkdir(mode=0o700)
            os.environ[name] = str(place)
        tempfile.tempdir = os.environ["TMPDIR"]
        command = [sys.executable, "-c", "from vf_tui.cli import main; main()", "demo", "--detach", "--json"]
        launched = json.loads(subprocess.run(command, cwd=home, check=True, capture_output=True).stdout)
        async with asyncio.timeout(DEADLINE):
            while len(left := _asked_for()) < 4:
                await asyncio.sleep(0.1)
        os.kill(launched["pid"], signal.SIGKILL)
        app = VfTuiApp(settings=Settings(theme="dark", ascii=False))
        async with app.run_test(size=size) as pilot:
            await pilot.press("4")
            async with asyncio.timeout(DEADLINE):
                while app.cleaning.view.taken is None:
                    await pilot.pause(0.2)
            await pilot.pause(1.0)
            await pilot.press("space", "space", "space")
            await pilot.pause(1.0)
            file.write_text(keep_blanks(app.export_screenshot(title="vf-tui")), encoding="utf-8")
    print(f"{file} ({len(left)} sandboxes were asked for)")


def _asked_for() -> list[Row]:
    with contextlib.closing(Ledger.open()) as ledger:
        return ledger.rows(unproven=True)


def keep_blanks(svg: str) -> str:
    """`svg` told to keep the blanks at the ends of its texts, which some renderers leave out."""
    return svg.replace("<svg ", '<svg xml:space="preserve" ', 1)


async def main(directory: Path) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    async with demo() as (session, run_dir):
        state, socket = session.engine.state, session.socket
        assert socket is not None
        await until(state, lambda s: s.totals.ended >= 4 and s.totals.tool_calls >= 24)
        await shoot(socket, run_dir, WIDE, directory / "run.svg")
        await shoot(socket, run_dir, WIDE, directory / "sandbox.svg", on=WORKER, keys=["plus", "home", "end"])
        await shoot(socket, run_dir, NARROW, directory / "narrow.svg")
    await shoot_leftovers(WIDE, directory / "cleanup.svg")


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
