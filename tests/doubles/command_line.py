"""The command line as a user runs it: a process of its own, with its own home, and small configs to give it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

PLUGINS = Path(__file__).parent / "plugins"
DEADLINE = 60.0
# As the installed command: the current directory is not on its path.
ARGV = (sys.executable, "-P", "-c", "from vf_tui.cli import main; main()")


@dataclass
class Home:
    """A user's directories below `path`; commands run in `path / "work"`."""

    path: Path
    env: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.work = self.path / "work"
        self.work.mkdir(parents=True, exist_ok=True)
        # Sockets go to the test session's own place, which is short, and removed at its end.
        kept = ("XDG_RUNTIME_DIR",)
        inherited = {n: value for n, value in os.environ.items() if n in kept or not n.startswith("XDG_")}
        inherited.pop("SSH_CONNECTION", None)
        places = {f"XDG_{name}_HOME": str(self.path / name.lower()) for name in ("CONFIG", "STATE", "CACHE")}
        path = os.pathsep.join(filter(None, (str(PLUGINS), os.environ.get("PYTHONPATH"))))
        self.env = {**inherited, **places, "HOME": str(self.path), "PYTHONPATH": path, **self.env}

    def config(self, scripts: Sequence[str], name: str = "eval.toml", head: str = "") -> Path:
        """A config whose tasks are shell scripts that the test harness runs; they make no model calls."""
        file = self.work / name
        file.write_text(
            f'model = "scripted"\n{head}\n'
            '[client]\nbase_url = "http://127.0.0.1:9/v1"\n'
            f'[env.taskset]\nid = "vf_test_tasks"\nscripts = {json.dumps(list(scripts))}\n'
            '[env.agent.harness]\nid = "vf_test_harness"\n',
            encoding="utf-8",
        )
        return file

    def __call__(self, *args: str | Path, **env: str) -> subprocess.CompletedProcess[str]:
        """Run a command to its end, without a terminal."""
        return subprocess.run(
            [*ARGV, *map(str, args)],
            cwd=self.work,
            env={**self.env, **env},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            timeout=2 * DEADLINE,
            check=False,
        )

    def start(self, *args: str | Path) -> subprocess.Popen[str]:
        """Start a command without a terminal; its output goes to the files `out` and `err` in `path`."""
        with (self.path / "out").open("w") as out, (self.path / "err").open("w") as err:
            return subprocess.Popen(
                [*ARGV, *map(str, args)],
                cwd=self.work,
                env=self.env,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                encoding="utf-8",
            )

    def out(self) -> str:
        """What the command begun with `start` has printed."""
        return (self.path / "out").read_text(encoding="utf-8")

    def err(self) -> str:
        """What it has printed on standard error."""
        return (self.path / "err").read_text(encoding="utf-8")

    def runs(self) -> list[dict[str, Any]]:
        """What `ls --json` says."""
        runs: list[dict[str, Any]] = json.loads(self("ls", "--json").stdout)
        return runs

    def stop_all(self) -> None:
        """End every run that is live."""
        for file in self.work.rglob("engine.json"):
            pid = json.loads(file.read_text())["pid"]
            if alive(pid):
                os.kill(pid, signal.SIGTERM)
                wait_for(lambda pid=pid: not alive(pid), f"the end of engine {pid}")


def alive(pid: int) -> bool:
    """There is such a process, and it is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def wait_for(condition: Callable[[], Any], what: str, timeout: float = DEADLINE) -> Any:
    """Wait until `condition` holds; its value."""
    deadline = time.monotonic() + timeout
    while not (value := condition()):
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {timeout} s for {what}")
        time.sleep(0.02)
    return value


def records(text: str) -> list[dict[str, Any]]:
    """The JSON lines in `text`; every line must be one."""
    return [json.loads(line) for line in text.splitlines()]
