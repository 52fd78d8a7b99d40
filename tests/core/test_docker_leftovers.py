"""What is left of containers on a real engine, and who finds it."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager, suppress

import pytest

from doubles.engine_boxes import docker_box, left, new_run
from doubles.engine_host import call, need_engine, start_service, unavailable
from doubles.engine_images import busybox_image
from doubles.sandbox_commands import sh
from vf_core.errors import SandboxError, SandboxUnconfirmedError
from vf_core.runtimes.docker import identity
from vf_core.runtimes.docker.provider import DockerProvider
from vf_core.runtimes.lifecycle import State


@pytest.fixture(autouse=True)
def _engine(monkeypatch):
    monkeypatch.setenv("DOCKER_HOST", need_engine())


@pytest.fixture
def run():
    """A run whose containers are all gone in the end."""
    run = new_run()
    yield run
    assert left(run) == []


async def test_r05_nothing_is_left_however_it_ends(run):
    boxes = [docker_box(run, f"end-{n}") for n in range(4)]
    await asyncio.gather(*(box.start() for box in boxes))
    assert len(left(run)) == 4
    await asyncio.gather(
        boxes[0].run(["true"]),
        boxes[1].run(["false"]),
        boxes[2].run(["sleep", "60"], timeout=0.2),
        boxes[3].run(sh("kill -9 $$")),
    )
    await asyncio.gather(*(box.stop_confirmed() for box in boxes))
    assert left(run) == []


async def test_another_engine_at_the_same_address_proves_nothing(run, monkeypatch, tmp_path):
    """A second engine of its own kind, with a store of its own: it has no such container, and is not to be asked."""
    if shutil.which("podman") is None:
        unavailable("only podman serves two stores from one machine")
    usual = os.environ["DOCKER_HOST"]
    store = tmp_path / "storage.conf"
    store.write_text(
        f'[storage]\ndriver = "vfs"\ngraphroot = "{tmp_path}/graph"\nrunroot = "{tmp_path}/run"\n'
    )
    with tempfile.TemporaryDirectory(prefix="vfe-") as directory:
        path = f"{directory}/p.sock"
        box = docker_box(run, "switched")
        with _service(path):
            monkeypatch.setenv("DOCKER_HOST", f"unix://{path}")
            await box.start()
            made_at = identity.place(box.account, box._box.handle.maker)
            assert DockerProvider().reaches(made_at)
        with _service(path, {"CONTAINERS_STORAGE_CONF": str(store)}):
            with pytest.raises(SandboxUnconfirmedError, match="another engine answers"):
                await box.stop_confirmed(timeout=20)
            assert box.state is State.UNKNOWN
            provider = DockerProvider()
            assert not provider.reaches(made_at)
            assert "start the one that made it" in provider.way_to(made_at)
        with _service(path):
            # Whatever way leads to the engine that made it.
            monkeypatch.setenv("DOCKER_HOST", usual)
            assert DockerProvider().reaches(made_at)
            await box.stop_confirmed()
            assert box.state is State.GONE


@contextmanager
def _service(path, env=None):
    process = start_service(path, env)
    try:
        yield
    finally:
        process.terminate()
        process.wait(60)
        with suppress(FileNotFoundError):
            os.unlink(path)


async def test_others_containers_are_left_alone(run):
    spec = {
        "Image": busybox_image(),
        "Cmd": ["sleep", "600"],
        "Labels": {"vf-tuis": "1", "vf-tui-other": "1"},
    }
    status, made = call("POST", "/v1.41/containers/create", spec)
    assert status == 201
    listed = await DockerProvider().listed()
    assert made["Id"] not in [row.id for row in listed]
    call("DELETE", f"/v1.41/containers/{made['Id']}?force=true")


async def test_a_provider_lists_finds_deletes_and_proves(run):
    box = docker_box(run, "to-find")
    await box.start()
    provider = DockerProvider()
    assert provider.account == box.account
    (row,) = [row for row in await provider.listed() if row.labels.get("run") == run]
    assert (row.id, row.name, row.alive, row.status) == (box.sandbox_id, "to-find", True, "running")
    assert row.labels == {"run": run, "rollout": "r-0", "attempt": "1"}
    assert abs((row.created or 0) - time.time()) < 120
    assert row in await provider.find("to-find")
    assert await provider.find(f"to-fin-{run}") == []
    assert not (await provider.probe(row.id)).gone
    await provider.delete(row.id)
    await provider.delete(row.id)
    answer = await provider.probe(row.id)
    assert answer.gone
    assert provider.account in answer.text
    await box.stop_confirmed()
    with pytest.raises(SandboxError, match="no container's id"):
        await provider.delete("../images/x")
    await provider.close()


async def test_those_that_ended_by_themselves_are_listed(run):
    box = docker_box(run)
    await box.start()
    call("POST", f"/v1.41/containers/{box.sandbox_id}/kill")
    (row,) = [row for row in await DockerProvider().listed() if row.labels.get("run") == run]
    assert (row.status, row.alive) == ("exited", True)
    await box.stop_confirmed()


async def test_the_command_for_a_deletion_does_it(run):
    box = docker_box(run)
    await box.start()
    command = DockerProvider().delete_command(box.sandbox_id)
    process = await asyncio.create_subprocess_shell(command, stdout=asyncio.subprocess.PIPE)
    assert box.sandbox_id in (await process.communicate())[0].decode()
    assert left(run) == []
    await box.stop_confirmed()
    assert "no such container" in box.proof


_PROGRAM = """
import asyncio, os, sys
from doubles.engine_boxes import docker_box
box = docker_box(sys.argv[1])
asyncio.run(box.start())
print(box.sandbox_id, flush=True)
if sys.argv[2] == "killed":
    os.kill(os.getpid(), 9)
"""


def test_at_exit_nothing_is_left(run):
    argv = [sys.executable, "-c", _PROGRAM, run, "ends"]
    ended = subprocess.run(argv, env=_with_paths(), capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert len(ended.stdout.strip()) == 64
    assert left(run) == []


async def test_t04_what_a_killed_process_leaves_is_found_by_its_labels(run):
    argv = [sys.executable, "-c", _PROGRAM, run, "killed"]
    ended = subprocess.run(argv, env=_with_paths(), capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == -9
    (row,) = [row for row in await DockerProvider().listed() if row.labels.get("run") == run]
    assert row.id == ended.stdout.strip()
    await DockerProvider().delete(row.id)
    assert (await DockerProvider().probe(row.id)).gone


def _with_paths() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
