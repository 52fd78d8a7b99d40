"""Containers on an engine that misbehaves: words, proofs, and nothing left or lost."""

from __future__ import annotations

import asyncio
import contextlib
import json

import pytest

from doubles import engine_proxy
from doubles.engine_boxes import docker_box, left, live, new_run
from doubles.engine_host import need_engine
from doubles.engine_images import busybox_image
from doubles.engine_proxy import EngineProxy, status
from doubles.sandbox_commands import sh
from vf_core.errors import SandboxError, SandboxUnconfirmedError
from vf_core.runtimes.docker import client
from vf_core.runtimes.docker.provider import DockerProvider
from vf_core.runtimes.docker.runtime import DockerRuntime
from vf_core.runtimes.lifecycle import State

CREATE, DELETE, START = (
    r"^POST .*/containers/create",
    r"^DELETE .*/containers/",
    r"^POST .*/containers/\w+/start",
)
INSPECT = r"^GET .*/containers/[^/]+/json"


@pytest.fixture
def engine(monkeypatch):
    need_engine()
    busybox_image()
    with EngineProxy() as proxy:
        monkeypatch.setenv("DOCKER_HOST", proxy.url)
        yield proxy


@pytest.fixture
def run():
    """A run whose containers are all gone in the end."""
    run = new_run()
    yield run
    assert left(run) == []


# ---------------------------------------------------------------------- creating


async def test_r01_stopped_while_create_calls_are_unanswered(engine, run):
    engine.on(CREATE, engine.late())
    boxes = [docker_box(run, f"late-{n}") for n in range(4)]
    starts = [asyncio.ensure_future(box.start()) for box in boxes]
    async with asyncio.timeout(60):
        while len(left(run)) < 4:
            await asyncio.sleep(0.05)
    for start in starts:
        start.cancel()
    assert {type(e) for e in await asyncio.gather(*starts, return_exceptions=True)} == {
        asyncio.CancelledError
    }
    engine.release()
    await asyncio.gather(*(box.stop_confirmed() for box in boxes))
    assert {box.state for box in boxes} == {State.GONE}
    assert engine.asked(CREATE) == engine.asked(DELETE) == 4


async def test_r01_an_answer_that_is_lost_is_looked_for_by_name(engine, run):
    engine.on(CREATE, engine_proxy.loses_answer, times=1)
    async with live(docker_box(run)) as box:
        assert (await box.run(["echo", "found"])).stdout == "found\n"
    assert engine.asked(CREATE) == 1


async def test_r01_a_container_that_appears_after_its_stop(engine, run, monkeypatch):
    monkeypatch.setattr(DockerRuntime, "reconcile", 0.5)
    engine.on(CREATE, engine.acts_later(), times=1)
    box = docker_box(run)
    with pytest.raises(SandboxError, match="create a container"):
        await box.start()
    assert box.state is State.FAILED
    monkeypatch.setattr(DockerRuntime, "reconcile", 60.0)
    confirming = asyncio.ensure_future(box.stop_confirmed())
    async with asyncio.timeout(60):
        while not engine.asked(DELETE):
            await asyncio.sleep(0.02)
    assert not confirming.done()
    engine.release()
    await confirming
    assert box.state is State.GONE
    assert box.sandbox_id[:12] in box.proof


async def test_a_creation_that_was_cut_short_hides_no_others(engine, run, monkeypatch):
    """Podman keeps a container half made when its client leaves early, and then fails to list any."""
    monkeypatch.setattr(DockerRuntime, "reconcile", 0.2)
    engine.on(CREATE, engine_proxy.cuts(0), times=1)
    box = docker_box(run, "half")
    with contextlib.suppress(SandboxError):
        await box.start()
    async with live(docker_box(run, "whole")) as whole:
        assert whole.sandbox_id in [row.id for row in await DockerProvider().listed()]
    await box.stop_confirmed()
    assert await DockerProvider().find(f"half-{run}") == []


async def test_no_proof_before_an_unanswered_create_call_is_over(engine, run, monkeypatch):
    monkeypatch.setattr(DockerRuntime, "reconcile", 0.1)
    engine.on(CREATE, engine_proxy.drops, times=1)
    box = docker_box(run)
    with pytest.raises(SandboxError):
        await box.start()
    monkeypatch.setattr(DockerRuntime, "reconcile", 60.0)
    with pytest.raises(SandboxUnconfirmedError, match="may still make it"):
        await box.stop_confirmed(timeout=0.5)
    assert box.state is State.SURVIVED
    monkeypatch.setattr(DockerRuntime, "reconcile", 0.1)
    await box.stop_confirmed()
    assert box.state is State.GONE


@pytest.mark.parametrize("code", [400, 403, 409, 500])
async def test_a_refused_create_call_leaves_nothing_to_ask_for(engine, run, code):
    engine.on(CREATE, status(code, "not like that"))
    box = docker_box(run)
    with pytest.raises(SandboxError, match="not like that"):
        await box.start()
    engine.on(".", status(500))
    await box.stop_confirmed()
    assert "refused" in box.proof


async def test_a_create_call_has_its_own_deadline(engine, run, monkeypatch):
    monkeypatch.setattr(client, "CREATE", 0.2)
    monkeypatch.setattr(DockerRuntime, "reconcile", 0.1)
    engine.on(CREATE, engine.hangs())
    box = docker_box(run)
    with pytest.raises(SandboxError, match=r"no answer within 0\.2 s"):
        await box.start()
    await box.stop_confirmed()


async def test_a_container_that_cannot_be_started_is_removed(engine, run):
    engine.on(START, status(500, "no cgroups today"))
    box = docker_box(run)
    with pytest.raises(SandboxError, match="no cgroups today"):
        await box.start()
    assert box.state is State.FAILED
    await box.stop_confirmed()
    assert engine.asked(CREATE) == 2  # with and without the engine's init


async def test_an_engine_without_init_programs(engine, run):
    """R04."""

    async def refuses_init(exchange):
        body = json.loads(exchange.request.partition(b"\r\n\r\n")[2])
        if body["HostConfig"].get("Init"):
            await exchange.answer(500, {"message": "container-init binary not found on the host"})
        else:
            await exchange.join(*await exchange.ask())

    engine.on(CREATE, refuses_init)
    async with live(docker_box(run)) as box:
        await box.run(sh("(sleep 0.1 &) ; (true &)"))
        zombies = sh("sleep 0.5; ps -o stat,comm | grep '^Z' ; true")
        assert (await box.run(zombies)).stdout == ""
        first = (await box.run(sh("tr '\\0' ' ' </proc/1/cmdline"))).stdout
        assert first.startswith("/bin/sh -c ")
    async with live(docker_box(run)):
        pass
    assert engine.asked(CREATE) == 3  # the second one is not asked for an init again


async def test_a_second_try_that_appears_late_is_not_covered_by_the_first(engine, run, monkeypatch):
    """The first container is gone; whether there is another one is not known."""
    monkeypatch.setattr(DockerRuntime, "reconcile", 0.2)
    engine.on(START, status(500, "no init"), times=1)

    async def second_is_late(exchange):
        if engine.asked(CREATE) == 2:
            return await engine.acts_later()(exchange)
        await exchange.join(*await exchange.ask())

    engine.on(CREATE, second_is_late)
    box = docker_box(run)
    with pytest.raises(SandboxError):
        await box.start()
    monkeypatch.setattr(DockerRuntime, "reconcile", 60.0)
    with pytest.raises(SandboxUnconfirmedError, match="may still make it"):
        await box.stop_confirmed(timeout=0.5)
    engine.release()
    await box.stop_confirmed()
    assert box.state is State.GONE


# ---------------------------------------------------------------------- ending


async def test_r04_an_idle_container_is_given_no_time_to_end(engine, run):
    boxes = [docker_box(run, f"idle-{n}") for n in range(8)]
    await asyncio.gather(*(box.start() for box in boxes))
    commands = engine.asked(r"^POST .*/exec")
    await asyncio.gather(*(box.stop_confirmed() for box in boxes))
    assert engine.asked(r"^POST .*/(stop|kill)") == 0
    assert engine.asked(r"^POST .*/exec") == commands
    assert engine.asked(DELETE + r"\w+\?(?=.*force=(true|1|True))(?=.*v=(true|1|True))") == 8


async def test_a_removal_is_tried_again(engine, run):
    box = docker_box(run)
    await box.start()
    engine.on(DELETE, status(500, "busy"), times=2)
    await box.stop_confirmed()
    assert box.state is State.GONE
    assert engine.asked(DELETE) == 3


async def test_a_removal_whose_answer_is_lost(engine, run):
    box = docker_box(run)
    await box.start()
    engine.on(DELETE, engine_proxy.loses_answer, times=1)
    await box.stop_confirmed()
    assert "no such container" in box.proof


@pytest.mark.parametrize(("code", "tries"), [(401, 1), (403, 1), (500, 5)])
async def test_a_refused_removal_is_unknown_and_can_be_confirmed_later(engine, run, code, tries, monkeypatch):
    monkeypatch.setattr(client, "_REMOVE_PAUSES", (0.01,) * 4)
    box = docker_box(run)
    await box.start()
    engine.on(DELETE, status(code, "no such container"))
    with pytest.raises(SandboxUnconfirmedError, match=f"UNKNOWN.*{code}"):
        await box.stop_confirmed()
    assert (box.state, box.proof) == (State.UNKNOWN, "")
    assert engine.asked(DELETE) == tries
    engine.clear()
    await box.stop_confirmed()
    assert box.state is State.GONE


async def test_a_removal_that_hangs_is_unknown(engine, run, monkeypatch):
    monkeypatch.setattr(client, "REMOVE", 0.1)
    monkeypatch.setattr(client, "_REMOVE_PAUSES", (0.01,))
    box = docker_box(run)
    await box.start()
    engine.on(DELETE, engine.hangs())
    with pytest.raises(SandboxUnconfirmedError, match="no answer within"):
        await box.stop_confirmed()
    engine.clear()
    monkeypatch.setattr(client, "REMOVE", 30.0)
    await box.stop_confirmed()


async def test_a_removal_that_is_only_promised_is_survived(engine, run):
    box = docker_box(run)
    await box.start()
    engine.on(DELETE, engine_proxy.says(b"", 204))
    with pytest.raises(SandboxUnconfirmedError, match=r"SURVIVED.*running"):
        await box.stop_confirmed(timeout=0.5)
    engine.clear()
    await box.stop_confirmed()


@pytest.mark.parametrize(
    "fault",
    [
        status(500, "no such container"),
        status(403, "No such container: 404"),
        engine_proxy.cuts(0),
        engine_proxy.says(b"<html>404 not found</html>"),
    ],
    ids=["500", "403", "reset", "page"],
)
async def test_only_an_engines_own_not_found_is_proof(engine, run, fault):
    box = docker_box(run)
    await box.start()
    engine.on(INSPECT, fault)
    with pytest.raises(SandboxUnconfirmedError, match="UNKNOWN"):
        await box.stop_confirmed()
    engine.clear()
    await box.stop_confirmed()


async def test_not_found_by_what_is_no_engine_is_no_proof(engine, run):
    box = docker_box(run)
    await box.start()
    engine.on(".", status(404, "no such container"))
    with pytest.raises(SandboxUnconfirmedError, match="UNKNOWN"):
        await box.stop_confirmed()
    engine.clear()
    await box.stop_confirmed()


async def test_an_engine_that_is_stopped(engine, run, monkeypatch):
    monkeypatch.setattr(client, "_REMOVE_PAUSES", (0.01,))
    box = docker_box(run)
    await box.start()
    engine.stop()
    with pytest.raises(SandboxUnconfirmedError, match=r"UNKNOWN.*(start it|DOCKER_HOST)"):
        await box.stop_confirmed()
    with pytest.raises(SandboxError, match="cannot be reached"):
        await docker_box(run, "other").start()
    engine.restart()
    await box.stop_confirmed()
    assert box.state is State.GONE


def test_at_exit_an_engine_that_is_stopped_is_no_proof(engine, run):
    box = docker_box(run)
    asyncio.run(box.start())
    engine.stop()
    box.cleanup()
    assert (box.state, box.proof) == (State.UNKNOWN, "")
    engine.restart()
    asyncio.run(box.stop_confirmed())


# ---------------------------------------------------------------------- lists


async def test_r34_rows_that_lack_something(engine):
    rows = [
        {"Id": "a" * 64, "Names": [], "State": "running"},
        {"Id": "b" * 64, "Names": None, "Labels": None, "State": "dreaming", "Created": None},
        {"Id": "c" * 64, "Names": ["/named"], "Labels": {"vf-tui": "1", "vf-tui.run": "r", "other": "x"}},
        {"Id": "d" * 64, "Labels": {"vf-tui.name": "by-label"}, "Created": 1700000000, "Image": "i"},
    ]
    engine.on(r"^GET .*/containers/json", engine_proxy.says(rows))
    listed = await DockerProvider().listed()
    assert [(row.id[0], row.name, dict(row.labels), row.alive) for row in listed] == [
        ("a", "", {}, True),
        ("b", "", {}, True),
        ("c", "named", {"run": "r"}, True),
        ("d", "by-label", {}, True),
    ]
    assert [row.status for row in listed] == ["running", "dreaming", "", ""]
    assert listed[3].created == 1700000000.0


@pytest.mark.parametrize(
    "fault", [status(500), status(401), engine_proxy.cuts(20), engine_proxy.says({"rows": []})]
)
async def test_a_list_that_cannot_be_had_is_an_error_and_not_empty(engine, fault):
    engine.on(r"^GET .*/containers/json", fault)
    with pytest.raises(SandboxError, match=r"docker engine unix://.*could not list"):
        await DockerProvider().listed()
