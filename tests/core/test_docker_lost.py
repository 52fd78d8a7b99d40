"""Commands whose container, engine or output goes away in the middle."""

from __future__ import annotations

import asyncio

import pytest

from doubles import engine_proxy
from doubles.engine_boxes import docker_box, left, live, new_run, remove_by_hand
from doubles.engine_host import call, need_engine
from doubles.engine_images import busybox_image
from doubles.engine_proxy import EngineProxy, status
from doubles.lifecycle_contract import watched
from doubles.sandbox_commands import Output, long_sleep, sh
from vf_core.errors import SandboxError
from vf_core.runtimes.docker import client, command
from vf_core.runtimes.lifecycle import State

EXEC = r"^POST .*/exec/\w+/start"


@pytest.fixture
def engine(monkeypatch):
    need_engine()
    busybox_image()
    with EngineProxy() as proxy:
        monkeypatch.setenv("DOCKER_HOST", proxy.url)
        yield proxy


@pytest.fixture
def soon(monkeypatch):
    """The engine is given less time to notice the end of a container."""
    monkeypatch.setattr(command, "_NOTICE", 0.3)


@pytest.fixture
def run():
    """A run whose containers are all gone in the end."""
    run = new_run()
    yield run
    assert left(run) == []


async def test_r17_a_container_that_is_removed_by_hand(engine, run):
    box = docker_box(run)
    moves = watched(box)
    await box.start()
    output = Output()
    running = asyncio.ensure_future(box.run_program(sh("echo up; sleep 600"), on_output=output))
    await asyncio.wait_for(output.came.wait(), 60)
    remove_by_hand(box.sandbox_id)
    with pytest.raises(SandboxError, match=r"lost.*no such container"):
        await asyncio.wait_for(running, 60)
    assert box.state is State.UNKNOWN
    assert "lost" in moves[-1].detail
    with pytest.raises(SandboxError):
        await box.run(["true"])
    await box.stop_confirmed()
    assert box.state is State.GONE


async def test_r17_a_container_that_is_killed_by_hand(engine, run):
    box = docker_box(run)
    await box.start()
    output = Output()
    running = asyncio.ensure_future(box.run_program(sh("echo up; sleep 600"), on_output=output))
    await asyncio.wait_for(output.came.wait(), 60)
    assert call("POST", f"/v1.41/containers/{box.sandbox_id}/kill")[0] in (200, 204)
    with pytest.raises(SandboxError, match=r"lost.*its container ended"):
        await asyncio.wait_for(running, 60)
    await box.stop_confirmed()


async def test_r17_a_program_that_ends_with_137_by_itself(engine, run, soon):
    async with live(docker_box(run)) as box:
        for command in ("exit 137", "kill -9 $$", "kill -9 $PPID; sleep 5"):
            result = await box.run_program(sh(command), on_output=Output())
            assert result.exit_code == 137
        assert box.state is State.LIVE


async def test_r16_output_that_stops_without_an_end(engine, run, soon):
    """The program ended, and its engine does not pass that on."""
    box = docker_box(run)
    await box.start()
    box._box.handle.engine.silence = 0.2
    engine.on(EXEC, engine.stalls(after=b"one\n"), times=1)
    with pytest.raises(SandboxError, match=r"lost.*output before its end"):
        await asyncio.wait_for(box.run(sh("echo one; sleep 1; echo two")), 60)
    engine.clear()
    await box.stop_confirmed()


async def test_r16_an_engine_that_falls_silent(engine, run, soon, monkeypatch):
    monkeypatch.setattr(client, "LOOK", 0.3)
    box = docker_box(run)
    await box.start()
    box._box.handle.engine.silence = 0.2
    output = Output()
    running = asyncio.ensure_future(box.run_program(sh("echo up; sleep 600"), on_output=output))
    await asyncio.wait_for(output.came.wait(), 60)
    engine.on(".", engine.hangs())
    with pytest.raises(SandboxError, match=r"lost.*does not answer"):
        await asyncio.wait_for(running, 60)
    assert box.state is State.UNKNOWN
    engine.clear()
    await box.stop_confirmed()


async def test_a_cancelled_caller_stays_cancelled_whatever_the_engine_does(engine, run):
    """T11."""
    box = docker_box(run)
    await box.start()
    output = Output()
    running = asyncio.ensure_future(box.run_program(sh("echo up; sleep 600"), on_output=output))
    await asyncio.wait_for(output.came.wait(), 60)
    engine.on(r"^POST .*/exec", status(500, "not now"))
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(running, 60)
    engine.clear()
    await box.stop_confirmed()


async def test_a_program_whose_output_cannot_be_kept_is_ended(engine, run):
    def full(stream: str, data: bytes) -> None:
        raise OSError(28, "No space left on device")

    async with live(docker_box(run)) as box:
        sleep = long_sleep()
        with pytest.raises(OSError, match="No space left"):
            await asyncio.wait_for(box.run_program(sh(f"echo up; {sleep}"), on_output=full), 60)
        assert sleep not in (await box.run(["ps", "-o", "args"])).stdout


async def test_a_time_limit_that_cannot_be_enforced_is_an_error(engine, run):
    box = docker_box(run)
    await box.start()
    engine.on(r"^POST .*/exec", status(500, "not now"))
    with pytest.raises(SandboxError, match="not now"):
        await box.run(["sleep", "600"], timeout=0.5)
    engine.clear()
    await box.stop_confirmed()


async def test_r16_a_silent_program_is_not_lost(engine, run):
    async with live(docker_box(run)) as box:
        box._box.handle.engine.silence = 0.1
        assert (await box.run(sh("sleep 1; echo well"))).stdout == "well\n"


async def test_r16_output_that_breaks_off(engine, run, soon):
    box = docker_box(run)
    await box.start()
    engine.on(EXEC, engine_proxy.cuts(after=300), times=1)
    sleep = long_sleep()
    with pytest.raises(SandboxError, match="broke off"):
        await asyncio.wait_for(box.run(sh(f"yes | head -c 3000; {sleep}")), 60)
    assert box.state is State.LIVE
    assert sleep not in (await box.run(["ps", "-o", "args"])).stdout
    await box.stop_confirmed()


async def test_an_engine_that_restarts_meanwhile_is_a_lost_sandbox_until_asked(engine, run):
    box = docker_box(run)
    await box.start()
    output = Output()
    running = asyncio.ensure_future(box.run_program(sh("echo up; sleep 600"), on_output=output))
    await asyncio.wait_for(output.came.wait(), 60)
    engine.stop()
    with pytest.raises(SandboxError, match=r"lost.*does not answer"):
        await asyncio.wait_for(running, 60)
    engine.restart()
    await box.stop_confirmed()
    assert box.state is State.GONE
