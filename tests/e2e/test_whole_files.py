"""What a run leaves on disk, however it ends (T19), and who may read it (S08)."""

from __future__ import annotations

import json
import os
import re
import signal
import stat
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from doubles.command_line import ARGV, Home, wait_for
from doubles.pty_driver import PtyProcess
from doubles.sandbox_commands import long_sleep

# Works outside its directory as little as a task should, and leaves things where programs leave them.
SCRIPT = "echo x > made; mkdir -p d/e; ln -s /etc d/link; touch $TMPDIR/agent-$$ 2>/dev/null; rm $TMPDIR/agent-$$; "


@pytest.fixture
def home() -> Iterator[Home]:
    """A user whose temporary and runtime directories are below the home, too: a short one, as sockets need."""
    with tempfile.TemporaryDirectory(prefix="vf-", dir="/tmp", ignore_cleanup_errors=True) as path:
        home = Home(Path(path))
        for name, variable in (("tmp", "TMPDIR"), ("run", "XDG_RUNTIME_DIR")):
            (home.path / name).mkdir(mode=0o700)
            home.env[variable] = str(home.path / name)
        yield home
        home.stop_all()


def left(home: Home) -> dict[str, list[str]]:
    """Everything below the home that no page documents, by its place; and what the run directory holds."""
    known = {"config", "traces", "events", "engine", "logs"}
    places: dict[str, list[str]] = {}
    for above, _, names in os.walk(home.path):
        for name in names:
            path = (Path(above) / name).relative_to(home.path)
            places.setdefault(path.parts[0], []).append(str(path))
    run = [Path(p) for p in places.pop("work", []) if "outputs" in p]
    assert {path.parts[4].partition(".")[0] for path in run} <= known, run
    documented = ("state/vf-tui/logs/", "state/vf-tui/runs/", "state/vf-tui/sandboxes.db")
    state = places.pop("state", [])
    assert all(p.startswith(documented) for p in state), state
    assert all(p.startswith("cache/vf-tui/scripts/") for p in places.pop("cache", []))
    for name in ("out", "err"):
        places.pop(name, None)
    return places


def ended(home: Home, act: Callable[[dict[str, Any]], object], *scripts: str) -> dict[str, Any]:
    process = home.start("run", home.config(list(scripts)), "--json")
    launch = json.loads(wait_for(lambda: home.out().splitlines(), "the launch record")[0])
    events = Path(launch["dir"]) / "events.jsonl"
    wait_for(lambda: events.read_text().count("program.started") == len(scripts), "the rollouts")
    act(launch)
    process.wait(60)
    return launch


def test_t19_nothing_undocumented_is_left(home: Home) -> None:
    before = set(home.work.iterdir())
    assert home("run", home.config([SCRIPT, SCRIPT + "exit 3"]), "--json").returncode == 3
    assert left(home) == {}
    ended(home, lambda launch: home("stop", launch["run"], "all"), SCRIPT + "sleep 600")
    assert left(home) == {}
    assert {path.name for path in set(home.work.iterdir()) - before} == {"eval.toml", "outputs"}
    assert os.listdir(home.path / "tmp") == os.listdir(home.path / "run/vf-tui") == []


def test_t19_what_a_killed_engine_leaves_is_on_record(home: Home) -> None:
    def kill(launch: dict[str, Any]) -> None:
        os.kill(launch["pid"], signal.SIGKILL)

    sleep = long_sleep()
    launch = ended(home, kill, f"{SCRIPT}exec {sleep}")
    wait_for(lambda: not processes(sleep.split()[1]), "the end of its programs")
    rest = left(home)
    (record,) = [path for path in rest["tmp"] if path.endswith(".json")]
    sandbox = json.loads((home.path / record).read_text())
    assert (sandbox["run"], sandbox["pid"]) == (launch["run"], launch["pid"])
    inside = Path(sandbox["directory"]).relative_to(home.path)
    assert all(inside in Path(path).parents for path in rest["tmp"] if path != record), rest
    # Its socket and the lock beside it: nobody holds them.
    assert {Path(path).suffix for path in rest.pop("run")} <= {".sock", ".lock"}
    assert set(rest) == {"tmp"}


@pytest.fixture
def open_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


@pytest.mark.pty
@pytest.mark.usefixtures("open_umask")
def test_s08_everything_is_private_whatever_the_umask(home: Home) -> None:
    def look(launch: dict[str, Any]) -> None:
        with PtyProcess([*ARGV, "attach"], env=home.env, cwd=home.work) as term:
            term.wait_for("script 0")
            wait_for(lambda: len(list(Path(launch["dir"]).rglob("attempt-1.std*.log"))) == 2, "its output")
            term.send("q")
            term.wait_exit()
        assert exposed(home) == []
        os.kill(launch["pid"], signal.SIGKILL)

    assert home("demo", "-n", "1", "--detach").returncode == 0
    assert home("stop", home.runs()[0]["run"], "all").returncode == 0
    ended(home, look, "echo out; echo err >&2; echo x > made; exec sleep 600")
    assert exposed(home) == []


def exposed(home: Home) -> list[str]:
    """What others may enter or read below the home, made by a program of ours."""
    ours = [home.path / name for name in ("config", "state", "cache", "tmp", "run")]
    ours += [home.work / "outputs"]
    out = []
    for top in ours:
        for path in (top, *top.rglob("*")):
            # An agent's own files have the modes it gives them, behind a directory that nobody else enters.
            theirs = any(re.search(r"-a1-[0-9a-f]{8}$", above.name) for above in path.parents)
            if (
                os.path.lexists(path)
                and not theirs
                and not path.is_symlink()
                and path.lstat().st_mode & 0o077
            ):
                out.append(f"{stat.filemode(path.lstat().st_mode)} {path.relative_to(home.path)}")
    return out


def processes(word: str) -> list[str]:
    """The processes whose command line holds `word`."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if word.encode() in path.read_bytes():
                found.append(path.parent.name)
        except OSError:
            continue
    return found
