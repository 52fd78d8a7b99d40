"""A user's home in which engines were killed. Directories and sockets of its runs are its own, and no engine of this
machine is asked. Processes are seen host-wide: a cleanup here names its run, or it would end those of other tests."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from doubles.command_line import Home, alive, wait_for
from vf_core.runtimes.lifecycle import State, Transition
from vf_core.sandboxes.ledger import Ledger, Owner

NO_ENGINE = "unix:///nonexistent/engine.sock"
_CREDENTIALS = ("PRIME_API_KEY", "MODAL_TOKEN_ID", "MODAL_TOKEN_SECRET", "DOCKER_CONTEXT")


@contextmanager
def apart(path: Path, **env: str) -> Iterator[Home]:
    """A home with its own places for local sandboxes and sockets, and no provider but this machine."""
    sockets = Path(tempfile.mkdtemp(prefix="vft-"))
    boxes = path / "boxes"
    boxes.mkdir(mode=0o700)
    places = {"TMPDIR": str(boxes), "XDG_RUNTIME_DIR": str(sockets), "DOCKER_HOST": NO_ENGINE}
    home = Home(path, {**places, **dict.fromkeys(_CREDENTIALS, ""), "MODAL_CONFIG_PATH": os.devnull, **env})
    try:
        yield home
    finally:
        home.stop_all()
        shutil.rmtree(sockets, ignore_errors=True)


def run_of(home: Home, sandboxes: int = 2, name: str = "eval.toml") -> dict[str, Any]:
    """Start a run of that many programs that sleep, each in its sandbox; its facts once they are at work."""
    before = {run["run"] for run in home.runs()}
    done = home("run", home.config(["sleep 600"] * sandboxes, name=name), "--detach", "--json")
    assert done.returncode == 0, done.stderr

    def started() -> Any:
        new = [run for run in home.runs() if run["run"] not in before and run["active"] == sandboxes]
        return new[0] if new and len(ledger_rows(home, new[0]["run"])) == sandboxes else None

    return dict(wait_for(started, "the sandboxes"))


def kill(run: dict[str, Any]) -> None:
    """`kill -9` of a run's engine."""
    os.kill(run["pid"], signal.SIGKILL)
    wait_for(lambda: not alive(run["pid"]), "the engine's end")


def ledger_rows(home: Home, run: str | None = None) -> list[Any]:
    """What the home's ledger holds."""
    with closing(Ledger.open(_file(home))) as ledger:
        return ledger.rows(run=run)


def forget_about(home: Home, kind: str, *, dead: bool = True) -> None:
    """Write a sandbox of `kind` into the home's ledger, of an owner that is gone, or of one on another host."""
    me = Owner.this_process("11112222-gone")
    owner = Owner(me.run, "", me.host, me.machine, me.boot, me.space, 2**22 + 5, "1")
    if not dead:
        owner = Owner(me.run, "", "farm-7", "other-machine", "other-boot", "pid:[1]", 99, "1")

    async def write() -> None:
        with closing(Ledger.open(_file(home))) as ledger:
            recorder = ledger.recorder(owner, rollout="0000-0", attempt=1, account="", price=0.25)
            move = Transition(f"vf-lost-{kind}", kind, State.STARTING, time.time() - 4000)
            await recorder.reserve(move)
            recorder.note(
                Transition(f"vf-lost-{kind}", kind, State.LIVE, time.time() - 3990, id=f"{kind}-lost-1")
            )
            await asyncio.to_thread(ledger.flush)

    asyncio.run(write())


def _file(home: Home) -> Path:
    return Path(home.env["XDG_STATE_HOME"]) / "vf-tui" / "sandboxes.db"


def listed(home: Home, *options: str) -> dict[str, Any]:
    """What `vf-tui sandboxes --json` says."""
    out: dict[str, Any] = json.loads(home("sandboxes", "--json", *options).stdout)
    return out
