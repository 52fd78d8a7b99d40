"""When the engine dies without a word, its sandboxes' programs die too, and only they."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from typing import Any

import pytest

from doubles.local_boxes import local_box, processes_with, until
from vf_core.runtimes import records, watchdog
from vf_core.runtimes.identity import boot_id

ENGINE = """
import asyncio, json, os, sys
from vf_core.runtimes import make_runtime, runtime_config_class, watchdog

async def main(end):
    config = runtime_config_class("subprocess")(type="subprocess")
    boxes = [make_runtime(config, name=f"dog-{n}", labels={"run": "dead-run"}) for n in range(2)]
    for box in boxes:
        await box.start()
        await box.run_background(["sh", "-c", "trap '' TERM; setsid sleep 600 & (env -i sleep 600; true) & wait"])
    print(json.dumps({"watchdog": watchdog.ensure(), "ids": [b.sandbox_id for b in boxes],
                      "directories": [b.directory for b in boxes], "pid": os.getpid()}), flush=True)
    if end == "wait":
        await asyncio.sleep(600)
    raise SystemExit(3)

asyncio.run(main(sys.argv[1]))
"""


async def engine(end: str) -> tuple[asyncio.subprocess.Process, dict[str, Any]]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", ENGINE, end, stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    return process, json.loads(await asyncio.wait_for(process.stdout.readline(), 60))


def exists(pid: int) -> bool:
    """It runs; a child of a dead engine may have become ours, and wait to be buried."""
    try:
        with open(f"/proc/{pid}/stat") as f:
            return f.read().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


async def test_killed_engine():
    """T04, T10."""
    stranger = await asyncio.create_subprocess_exec(
        "sleep", "60", env={**os.environ, "VF_TUI_ENGINE": "1-another", "VF_TUI_SANDBOX": "another/1"}
    )
    process, said = await engine("wait")
    assert all(processes_with(id) for id in said["ids"])
    process.send_signal(signal.SIGKILL)
    await process.wait()
    await until(lambda: not any(processes_with(id) for id in said["ids"]), 5)
    await until(lambda: not exists(said["watchdog"]), 5)
    assert stranger.returncode is None
    stranger.kill()
    await stranger.wait()
    # What is left on disk is listed with all that a cleanup needs.
    left = {record.id: record for record in records.read_records() if record.pid == said["pid"]}
    assert sorted(left) == sorted(said["ids"])
    for record in left.values():
        assert (record.run, record.boot) == ("dead-run", boot_id())
        assert os.path.isdir(record.directory)
        assert records.remove_tree(record.directory) == ""
        records.forget(record)


async def test_engine_that_ends_without_stopping_its_sandboxes():
    """T19: at interpreter exit, processes and directories go."""
    process, said = await engine("exit")
    assert await asyncio.wait_for(process.wait(), 60) == 3
    assert not any(processes_with(id) for id in said["ids"])
    assert not exists(said["watchdog"])
    assert not any(os.path.lexists(directory) for directory in said["directories"])
    assert not [record for record in records.read_records() if record.pid == said["pid"]]


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
async def test_a_signal_to_the_whole_group_leaves_the_watchdog(signum):
    box = local_box()
    await box.start()
    pid = watchdog.ensure()
    assert os.getsid(pid) == pid
    await until(lambda: ignores(pid, signum))
    os.kill(pid, signum)
    assert watchdog.ensure() == pid
    await box.stop_confirmed()


def ignores(pid: int, signum: int) -> bool:
    with open(f"/proc/{pid}/status") as f:
        mask = next(int(line.split()[1], 16) for line in f if line.startswith("SigIgn"))
    return bool(mask >> (signum - 1) & 1)


async def test_a_killed_watchdog_is_replaced_while_sandboxes_are_at_work(caplog):
    box = local_box()
    await box.start()
    first = watchdog.ensure()
    # Nothing is started meanwhile that would ask for one.
    os.kill(first, signal.SIGKILL)
    await until(lambda: "watchdog ended by itself" in caplog.text)
    second = watchdog.ensure()
    assert second != first
    assert exists(second)
    assert not exists(first)
    await box.stop_confirmed()


async def test_the_watchdog_knows_no_secrets_and_carries_no_mark(monkeypatch):
    monkeypatch.setenv("SOME_API_KEY", "canary")
    box = local_box()
    await box.start()
    pid = watchdog.ensure()
    with open(f"/proc/{pid}/environ") as f:
        assert "VF_TUI" not in (block := f.read())
    assert "canary" not in block
    await box.stop_confirmed()
    assert exists(pid)
