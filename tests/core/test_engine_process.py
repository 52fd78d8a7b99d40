"""The engine as a process of its own: it outlives what started it, and dies tidily."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from doubles.engine_kit import script_config
from doubles.sandbox_commands import long_sleep
from vf_core.engine.spawn import EngineHandle, start_engine
from vf_core.errors import ConfigError, LinkError
from vf_core.eval_config import EvalConfig
from vf_core.events import types as ev
from vf_core.events.fold import fold
from vf_core.events.journal import read_journal
from vf_core.link.base import Events, Lost, Snapshot
from vf_core.link.socket import SocketLink
from vf_core.runs.layout import RunDir
from vf_core.runtimes.lifecycle import State

DEADLINE = 60.0
PLUGINS = Path(__file__).parents[1] / "doubles" / "plugins"


@pytest.fixture(autouse=True)
def plugins_for_children(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(PLUGINS))


def wait_for(condition: object, what: str) -> None:
    deadline = time.monotonic() + DEADLINE
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < deadline, f"{what} did not happen"
        time.sleep(0.02)


@contextmanager
def engine(config: EvalConfig) -> Iterator[tuple[EngineHandle, RunDir]]:
    run_dir = RunDir.create(config.output_dir, config.run_name)
    handle = start_engine(config, run_dir)
    try:
        yield handle, run_dir
    finally:
        with suppress(ProcessLookupError):
            os.kill(handle.pid, signal.SIGKILL)
        handle.process.wait()


def events(run_dir: RunDir) -> list[ev.Event]:
    return list(read_journal(run_dir.events))


def programs(run_dir: RunDir) -> int:
    """How many programs the journal says were started."""
    return sum(isinstance(event, ev.ProgramStarted) for event in events(run_dir))


def marked(word: str) -> list[int]:
    """Processes whose command line holds `word`."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                if word.encode() in (entry / "cmdline").read_bytes():
                    found.append(int(entry.name))
    return found


def test_a_refused_config_starts_nothing(tmp_path: Path) -> None:
    config = script_config(tmp_path, [])
    run_dir = RunDir.create(config.output_dir, config.run_name)
    with pytest.raises(ConfigError, match="has no tasks"):
        start_engine(config, run_dir)
    assert run_dir.events.read_bytes() == b""


def test_a_taskset_that_ends_the_process_is_told_as_that(tmp_path: Path) -> None:
    def start(hook: str) -> None:
        config = script_config(tmp_path, ["true"], hook=hook)
        start_engine(config, RunDir.create(config.output_dir, config.run_name))

    with pytest.raises(ConfigError, match="did not load: SystemExit: 3"):
        start("load exits")
    with pytest.raises(LinkError, match="ended before it was up, with exit code 7"):
        start("load kills")


@pytest.mark.parametrize("numbers", [[signal.SIGTERM], [signal.SIGINT] * 3, [signal.SIGTERM, signal.SIGINT]])
def test_signals_end_the_run_gracefully_however_often(tmp_path: Path, numbers: list[signal.Signals]) -> None:
    seconds = f"3{os.getpid()}.{len(numbers)}{numbers[0]}"  # like no other test's
    config = script_config(tmp_path, [f"trap '' TERM; sleep {seconds} & wait; wait"] * 3)
    with engine(config) as (handle, run_dir):
        wait_for(lambda: programs(run_dir) == 3, "start")
        for number in numbers:
            os.kill(handle.pid, number)
        assert handle.process.wait(DEADLINE) == 130
        state = fold(events(run_dir))
        assert state.status == "stopped"
        assert state.totals.stopped == 3
        assert state.unconfirmed == set()
        assert marked(seconds) == []
        assert "Traceback" not in run_dir.engine_log.read_text()


def test_a_hang_up_changes_nothing(tmp_path: Path) -> None:
    go = tmp_path / "go"
    with engine(script_config(tmp_path, [f"until [ -e {go} ]; do sleep 0.05; done"])) as (handle, run_dir):
        wait_for(lambda: programs(run_dir) == 1, "start")
        os.kill(handle.pid, signal.SIGHUP)
        go.touch()
        assert handle.process.wait(DEADLINE) == 0
        assert fold(events(run_dir)).totals.completed == 1


def test_killing_the_engine_ends_its_programs_and_loses_nothing(tmp_path: Path) -> None:
    sleep = long_sleep()
    scripts = ["true", f"{sleep} & (setsid {sleep} &) ; wait"]
    with engine(script_config(tmp_path, scripts)) as (handle, run_dir):
        wait_for(lambda: len(marked(sleep.replace(" ", "\0"))) == 2, "start")
        wait_for(lambda: run_dir.traces.read_bytes().count(b"\n") == 1, "the first trace")
        wait_for(lambda: any(getattr(e, "proof", "") for e in events(run_dir)), "the first proof")
        os.kill(handle.pid, signal.SIGKILL)
        handle.process.wait()
        wait_for(lambda: not marked(sleep.split()[1]), "the end of its programs")
        state = fold(events(run_dir))
        assert state.rollouts["0000-0"].status == "completed"
        assert state.rollouts["0001-0"].status == "active"
        assert not state.over
        # What was there and is not proven gone is still named.
        left = [box for box in state.sandboxes.values() if not box.state.settled]
        assert [(box.rollout, box.state, bool(box.id)) for box in left] == [("0001-0", State.LIVE, True)]


async def test_a_viewer_sees_the_run_and_its_death(tmp_path: Path) -> None:
    with engine(script_config(tmp_path, ["sleep 600"])) as (handle, _):
        link = SocketLink(handle.socket)
        state = await link.connect()
        batches, killed = link.batches(), False
        async with asyncio.timeout(DEADLINE):
            while True:
                view = state.rollouts.get("0000-0")
                # Seen in a snapshot, if it began before we came.
                if not killed and view is not None and view.program is not None:
                    os.kill(handle.pid, signal.SIGKILL)
                    killed = True
                batch = await anext(batches)
                if isinstance(batch, Snapshot):
                    state = batch.state
                elif isinstance(batch, Events):
                    fold(batch.events, state)
                elif isinstance(batch, Lost):
                    assert not batch.clean
                    break
        await link.close()
        assert state.rollouts["0000-0"].status == "active"


def test_secrets_pass_by_pipe_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "canary-key-aaaa")
    monkeypatch.setenv("MY_UNRELATED_TOKEN", "canary-token-bbbb")
    config = script_config(
        tmp_path,
        ["env; tr '\\0' '\\n' < /proc/$PPID/cmdline"],
        client__headers={"X-Team": "canary-header-cccc"},
    )
    with engine(config) as (handle, run_dir):
        command_line = Path(f"/proc/{handle.pid}/cmdline").read_bytes()
        assert handle.process.wait(DEADLINE) == 0
    for file in run_dir.path.rglob("*"):
        if file.is_file():
            assert b"canary" not in file.read_bytes(), file
            assert file.stat().st_mode & 0o077 == 0
    assert command_line
    assert b"canary" not in command_line
