"""Containers on a real engine: what they are made with, what is seen in them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess

import pytest

from doubles.engine_boxes import docker_box, left, live, new_run
from doubles.engine_host import call, containers, engine_url, need_engine
from doubles.engine_images import busybox_image, python_image, shellless_image
from doubles.sandbox_commands import Output, long_sleep, sh
from vf_core.errors import SandboxError
from vf_core.harnesses.bash.harness import BashHarness
from vf_core.harnesses.program.assemble import program_source
from vf_core.runtimes.docker import container, reach, settle
from vf_core.runtimes.lifecycle import State

CANARY = "canary-77aa"


@pytest.fixture(autouse=True)
def _engine(monkeypatch):
    monkeypatch.setenv("DOCKER_HOST", need_engine())


@pytest.fixture
def run():
    """A run whose containers are all gone in the end."""
    run = new_run()
    yield run
    assert left(run) == []


def inspect(id: str) -> dict:
    status, found = call("GET", f"/v1.41/containers/{id}/json")
    assert status == 200
    return found


# ---------------------------------------------------------------------- how it is made


@pytest.mark.parametrize("entrypoint", ['["/bin/false"]', '["/bin/sh", "-c", "exit 3"]', '["/no/such/file"]'])
async def test_r02_an_entrypoint_of_the_images_own(run, entrypoint):
    async with live(docker_box(run, image=busybox_image(f"ENTRYPOINT {entrypoint}"))) as box:
        assert (await box.run(["echo", "here"])).stdout == "here\n"


async def test_r07_no_networks_are_made(run):
    before = call("GET", "/v1.41/networks")[1]
    boxes = [docker_box(run, f"net-{n}") for n in range(4)]
    await asyncio.gather(*(box.start() for box in boxes))
    assert call("GET", "/v1.41/networks")[1] == before
    assert {inspect(box.sandbox_id)["HostConfig"]["NetworkMode"] for box in boxes} == {"host"}
    await asyncio.gather(*(box.stop_confirmed() for box in boxes))
    assert call("GET", "/v1.41/networks")[1] == before


async def test_limits_and_labels(run):
    box = docker_box(run, "limited", cpu=0.5, memory=0.25, disk=3, labels={"team": "evals"}, timeout=600)
    async with live(box):
        found = inspect(box.sandbox_id)
        host, given = found["HostConfig"], found["Config"]["Labels"]
        assert (host["NanoCpus"], host["Memory"], host["AutoRemove"]) == (5 * 10**8, 1 << 28, False)
        assert given["team"] == "evals"
        ours = {key: value for key, value in given.items() if key.startswith("vf-tui")}
        assert ours == {
            "vf-tui": "1",
            "vf-tui.run": run,
            "vf-tui.rollout": "r-0",
            "vf-tui.attempt": "1",
            "vf-tui.name": "limited",
        }
        assert box.info() == {
            "type": "docker",
            "id": box.sandbox_id,
            "image": busybox_image(),
            "workdir": "/app",
            "cpu": 0.5,
            "memory": 0.25,
            "disk": 3,
        }
        assert box.account == engine_url().replace("tcp://", "http://")


async def test_a_gpu_that_is_not_there_is_an_error(run):
    """Some engines ignore the request; others refuse it."""
    box = docker_box(run, gpu="1")
    with pytest.raises(SandboxError, match=r"no GPU|device driver"):
        await box.start()
    await box.stop_confirmed()


@pytest.mark.parametrize(("names", "fits"), [(b"NVIDIA A100-SXM4-80GB\n", True), (b"Tesla T4\n", False)])
async def test_another_gpu_than_the_one_asked_for_is_an_error(run, monkeypatch, names, fits):
    async with live(docker_box(run)) as box:
        engine, shell = box._box.handle.engine, box._box.handle.shell

        async def inspect(id):
            return {"HostConfig": {"DeviceRequests": [{"Count": 1}]}}

        async def collect(argv, **options):
            return 0, names, ""

        with monkeypatch.context() as patched:
            patched.setattr(engine, "inspect", inspect)
            patched.setattr(shell, "collect", collect)
            with (
                contextlib.nullcontext()
                if fits
                else pytest.raises(SandboxError, match="another GPU than A100")
            ):
                await settle.check_gpu(engine, box.sandbox_id, shell, "A100:1")


@pytest.mark.parametrize("workdir", ["/app", "/deep/er/place", "/with space/$(touch x)`touch x`;'q"])
async def test_s05_the_working_directory_is_made(run, workdir):
    async with live(docker_box(run, workdir=workdir)) as box:
        assert (await box.run(["pwd"])).stdout == f"{workdir}\n"
        await box.write("file", b"x")
        assert (await box.run(["ls", "-a", workdir])).stdout.split() == [".", "..", "file"]


async def test_volumes_of_the_image_go_with_it(run):
    def names() -> set[str]:
        return {volume["Name"] for volume in call("GET", "/v1.41/volumes")[1]["Volumes"] or []}

    image = busybox_image("VOLUME /data")
    async with live(docker_box(run, image=image)) as box:
        mounts = {mount["Name"] for mount in inspect(box.sandbox_id)["Mounts"]}
        assert mounts <= names()
        assert mounts
    assert not mounts & names()


async def test_s01_what_an_engine_shows_holds_no_secret(run, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", CANARY)
    async with live(docker_box(run)) as box:
        output = Output()
        running = asyncio.ensure_future(
            box.run_program(
                sh("echo up; until [ -e go ]; do sleep 0.1; done"), {"SECRET": CANARY}, on_output=output
            )
        )
        await asyncio.wait_for(output.came.wait(), 60)
        shown = json.dumps([inspect(box.sandbox_id), containers(f"vf-tui.run={run}")])
        shown += "".join(
            json.dumps(call("GET", f"/v1.41/exec/{id}/json")[1])
            for id in inspect(box.sandbox_id)["ExecIDs"] or []
        )
        seen = await box.run(["env"])
        await box.write("go", b"")
        await running
    assert CANARY not in shown
    assert CANARY not in seen.stdout


# ---------------------------------------------------------------------- images


async def test_an_image_that_is_not_there(run):
    box = docker_box(run, image="localhost/vf-tui-test-no-such-image:x")
    with pytest.raises(
        SandboxError, match=r"vf-tui-test-no-such-image:x is not on docker engine.*pulling is off"
    ):
        await box.start()
    await box.stop_confirmed()
    assert "never asked" in box.proof


async def test_an_image_that_cannot_be_pulled(run):
    image = "localhost:1/vf-tui-test/none:x"
    box = docker_box(run, image=image, pull="missing")
    with pytest.raises(
        SandboxError, match=rf"image {image} is not on docker engine.*could not be pulled"
    ) as e:
        await box.start()
    assert "\n" not in str(e.value)
    await box.stop_confirmed()


async def test_an_image_without_a_shell(run):
    box = docker_box(run, image=shellless_image())
    with pytest.raises(SandboxError, match=r"/bin/sh"):
        await box.start()
    await box.stop_confirmed()


# ---------------------------------------------------------------------- inside


async def test_r19_its_lifetime_ends_it(run):
    box = docker_box(run)
    box.config = box.config.model_copy(update={"timeout": 2})
    await box.start()
    with pytest.raises(SandboxError, match=r"lost.*its lifetime of 2 s ended"):
        await asyncio.wait_for(box.run_program(["sleep", "600"], on_output=Output()), 60)
    assert box.state is State.UNKNOWN
    await box.stop_confirmed()


async def test_r10_children_left_behind_are_reaped(run):
    async with live(docker_box(run)) as box:
        result = await box.run(sh("(sleep 0.2 &); sleep 0.3 & echo word"))
        assert result.stdout == "word\n"
        await box.run(["sleep", "0.6"])
        zombies = await box.run(sh("ps -o stat,comm | grep '^Z' ; true"))
        assert zombies.stdout == ""


async def test_processes_of_another_user_are_ended_too(run):
    """The image's user is not root, and yet has started something as root."""
    async with live(docker_box(run, image=busybox_image("USER 1234"))) as box:
        sleep = long_sleep()
        root = "0"
        shell = box._box.handle.shell
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1):
                await shell.follow(sleep.split(), None, lambda *_: None, user=root)
        assert sleep not in (await box.run(["ps", "-o", "args"])).stdout


async def test_r23_a_user_without_a_name_or_a_home(run):
    box = docker_box(run, image=python_image("USER 4321:4321", "ENV HOME=/nonexistent"))
    async with live(box):
        assert (await box.run(["id", "-u"])).stdout == "4321\n"
        await box.write("sub/file", b"data")
        assert (await box.run(["stat", "-c", "%u", "sub/file"])).stdout == "4321\n"
        assert await box.read("sub/file") == b"data"
        with pytest.raises(SandboxError, match=r"/usr/x"):
            await box.write("/usr/x", b"")
        argv = await box.prepare_script(program_source(BashHarness.PROGRAM))
        result = await box.run([*argv, "--base-url", "http://127.0.0.1:9/v1", "--no-such-flag"])
        assert "no-such-flag" in result.stderr
        assert "Traceback" not in result.stderr


async def test_r25_settings_of_the_task_are_not_ours(run):
    async with live(docker_box(run, image=python_image("ENV PATH=/app/bin:/usr/local/bin:/bin"))) as box:
        await box.write("uv.toml", b'required-version = ">=99"\n')
        await box.write("pyproject.toml", b'[tool.uv]\nrequired-version = ">=99"\n')
        await box.write("sitecustomize.py", b"raise SystemExit('not mine')\n")
        await box.write("json.py", b"raise SystemExit('not mine')\n")
        await box.write("bin/uv", b"#!/bin/sh\necho 'uv 0.0.1'; exit 2\n")
        await box.run(["chmod", "+x", "bin/uv"])
        argv = await box.prepare_script(program_source(BashHarness.PROGRAM))
        result = await box.run([*argv, "--no-such-flag"])
        assert "no-such-flag" in result.stderr


@pytest.mark.parametrize("image", ["python", "busybox"])
async def test_r28_whether_a_program_reaches_this_host(run, image):
    async def answer(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    url = f"http://127.0.0.1:{port}/health"
    async with live(docker_box(run, image=python_image() if image == "python" else busybox_image())) as box:
        await box.check_reach(box.host_url(url))
        assert await box.expose(port) == f"http://127.0.0.1:{port}"
        server.close()
        await server.wait_closed()
        with pytest.raises(SandboxError, match=r"cannot reach http://127.*refused.*rootless"):
            await box.check_reach(url)


async def test_r28_a_loopback_of_its_own(run, monkeypatch):
    """As on Docker Desktop and some rootless engines."""
    server = await asyncio.start_server(lambda reader, writer: writer.close(), "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/health"
    made = container.spec

    def apart(*args, **options):
        body = made(*args, **options)
        body["HostConfig"]["NetworkMode"] = "none"
        return body

    monkeypatch.setattr(container, "spec", apart)
    async with live(docker_box(run, image=python_image())) as box:
        with pytest.raises(SandboxError, match=r"cannot reach http://127.*env\.interception\.tunnel"):
            await box.check_reach(url)
    server.close()


def test_r28_nothing_to_ask_with_is_no_failure():
    argv = reach.ask_argv("http://127.0.0.1:1/")
    asked = subprocess.run(["/bin/sh", *argv[1:]], env={"PATH": "/nowhere"}, timeout=60, check=False)
    assert asked.returncode not in (0, reach.NO_ANSWER)
