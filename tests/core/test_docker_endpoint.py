"""Which engine is meant, and what is said when it cannot be used."""

from __future__ import annotations

import asyncio
import hashlib
import json
import socket

import pytest

from doubles import engine_proxy
from doubles.engine_boxes import docker_box, left, live, new_run
from doubles.engine_host import engine_url, need_engine
from doubles.engine_images import busybox_image
from doubles.engine_proxy import EngineProxy
from doubles.lifecycle_contract import watched
from vf_core.errors import ConfigError, SandboxError
from vf_core.runtimes.docker import client, config, endpoint
from vf_core.runtimes.docker.config import DockerConfig
from vf_core.runtimes.docker.images import Progress
from vf_core.runtimes.docker.provider import DockerProvider
from vf_core.runtimes.lifecycle import State
from vf_core.trace.task import TaskData, TaskResources


@pytest.fixture(autouse=True)
def _home(monkeypatch, tmp_path):
    """A user who has set nothing."""
    for name in ("DOCKER_HOST", "DOCKER_CONTEXT", "DOCKER_TLS_VERIFY", "DOCKER_TLS", "DOCKER_CERT_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "docker"))


def add_context(tmp_path, name: str, host: str, *, current: bool = False) -> None:
    meta = tmp_path / "docker" / "contexts" / "meta" / hashlib.sha256(name.encode()).hexdigest()
    meta.mkdir(parents=True)
    (meta / "meta.json").write_text(json.dumps({"Name": name, "Endpoints": {"docker": {"Host": host}}}))
    if current:
        (tmp_path / "docker" / "config.json").write_text(json.dumps({"currentContext": name, "auths": {}}))


# ---------------------------------------------------------------------- which one


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("unix:///run/x.sock", "unix:///run/x.sock"),
        ("/run/x.sock", "unix:///run/x.sock"),
        ("tcp://10.0.0.5:2375", "http://10.0.0.5:2375"),
        ("tcp://engine.example", "http://engine.example:2375"),
        ("tcp://[::1]:99", "http://[::1]:99"),
        ("https://user:secret@engine.example", "https://engine.example:2376"),
    ],
)
def test_an_address_in_docker_host(monkeypatch, host, url):
    monkeypatch.setenv("DOCKER_HOST", host)
    found = endpoint.resolve()
    assert (found.url, found.source) == (url, "DOCKER_HOST")
    assert "secret" not in repr(found)


def test_tls_as_the_docker_command_has_it(monkeypatch, tmp_path):
    monkeypatch.setenv("DOCKER_HOST", "tcp://engine.example:2376")
    monkeypatch.setenv("DOCKER_TLS_VERIFY", "1")
    monkeypatch.setenv("DOCKER_CERT_PATH", str(tmp_path))
    found = endpoint.resolve()
    assert (found.url, found.certificates) == ("https://engine.example:2376", tmp_path)
    assert found.tls() is not None
    (tmp_path / "ca.pem").write_text("no certificate")
    with pytest.raises(SandboxError, match=r"certificates.*cannot be used"):
        found.tls()


@pytest.mark.parametrize(
    ("host", "says"),
    [
        ("ssh://me@box.example", r"over ssh \(me@box\.example\).*ssh -nNT -L"),
        ("npipe:////./pipe/docker_engine", r"names no engine.*unix:///PATH"),
        ("nonsense", "names no engine"),
        ("unix://relative", "no absolute path"),
        ("tcp://:2375", "names no engine"),
        ("tcp://host:port", "names no engine"),
    ],
)
def test_an_address_that_cannot_be_used(monkeypatch, host, says):
    monkeypatch.setenv("DOCKER_HOST", host)
    with pytest.raises(SandboxError, match=says):
        endpoint.resolve()
    with pytest.raises(ConfigError, match=says):
        DockerConfig().validate_here()


def test_what_goes_before_what(monkeypatch, tmp_path):
    """As for the docker command: the variable of the host, that of the context, the context that is set."""
    add_context(tmp_path, "far", "tcp://far.example:1", current=True)
    add_context(tmp_path, "near", "unix:///near.sock")
    assert endpoint.resolve().url == "http://far.example:1"
    monkeypatch.setenv("DOCKER_CONTEXT", "near")
    assert (endpoint.resolve().url, endpoint.resolve().source) == ("unix:///near.sock", "context near")
    monkeypatch.setenv("DOCKER_HOST", "unix:///host.sock")
    assert endpoint.resolve().url == "unix:///host.sock"


def test_contexts_that_are_not_there(monkeypatch, tmp_path):
    monkeypatch.setenv("DOCKER_CONTEXT", "gone")
    with pytest.raises(
        SandboxError, match=r"'gone', named by DOCKER_CONTEXT, is not known here.*docker context ls"
    ):
        endpoint.resolve()
    (tmp_path / "docker").mkdir()
    (tmp_path / "docker" / "config.json").write_text("{")
    monkeypatch.delenv("DOCKER_CONTEXT")
    with pytest.raises(SandboxError, match=r"config\.json cannot be read"):
        endpoint.resolve()


def test_usual_sockets_are_tried(monkeypatch, tmp_path):
    served, dead = tmp_path / "served.sock", tmp_path / "dead.sock"
    with socket.socket(socket.AF_UNIX) as left_over, socket.socket(socket.AF_UNIX) as server:
        left_over.bind(str(dead))
        server.bind(str(served))
        server.listen()
        monkeypatch.setattr(
            endpoint, "usual_sockets", lambda env: iter([str(tmp_path / "none"), str(dead), str(served)])
        )
        assert endpoint.resolve().path == str(served)
    with pytest.raises(
        SandboxError, match=r"dead\.sock cannot be reached: Connection refused.*systemctl start"
    ):
        endpoint.resolve()
    monkeypatch.setattr(endpoint, "usual_sockets", lambda env: iter([str(tmp_path / "none")]))
    with pytest.raises(SandboxError, match=r"there is no docker engine here.*install and start"):
        endpoint.resolve()


def test_one_place_has_one_name(tmp_path):
    (tmp_path / "real.sock").write_text("")
    (tmp_path / "link.sock").symlink_to(tmp_path / "real.sock")
    accounts = {endpoint.Endpoint(f"unix://{tmp_path}/{name}.sock").account for name in ("real", "link")}
    assert len(accounts) == 1


async def test_r35_a_context_is_used_for_runs_and_for_their_cleanup(monkeypatch, tmp_path):
    real = need_engine()
    image, run = busybox_image(), new_run()
    with EngineProxy() as second:
        add_context(tmp_path, "second", second.url, current=True)
        box = docker_box(run, image=image)
        moves = watched(box)
        async with live(box):
            rows = [row for row in await DockerProvider().listed() if row.labels.get("run") == run]
            assert [row.id for row in rows] == [box.sandbox_id]
        assert DockerProvider().account == box.account == second.url != real
        assert second.asked("containers/create") == 1
        assert f"docker engine {second.url}" in [move.detail for move in moves]
        assert second.url in box.proof
        monkeypatch.setenv("DOCKER_HOST", real)
        assert engine_url() in DockerProvider().account
    assert left(run) == []


# ---------------------------------------------------------------------- what is said


def test_without_the_extra(monkeypatch):
    monkeypatch.setattr(config, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"needs the package aiodocker.*pip install 'vf-tui\[docker\]'"):
        DockerConfig().validate_here()


def test_a_user_who_may_not(monkeypatch):
    monkeypatch.setenv("DOCKER_HOST", "unix:///var/run/docker.sock")
    monkeypatch.setattr(endpoint, "connect_problem", lambda engine: PermissionError(13, "Permission denied"))
    with pytest.raises(ConfigError, match=r"docker\.sock.*Permission denied.*usermod -aG docker") as e:
        DockerConfig().validate_here()
    assert "\n" not in str(e.value)


def test_a_dead_tcp_engine_is_told_before_anything_starts(monkeypatch):
    with socket.socket() as engine:
        engine.bind(("127.0.0.1", 0))
        monkeypatch.setenv("DOCKER_HOST", f"tcp://127.0.0.1:{engine.getsockname()[1]}")
        with pytest.raises(
            ConfigError, match=r"cannot be reached: Connection refused.*systemctl start docker"
        ):
            DockerConfig().validate_here()
        engine.listen()
        DockerConfig().validate_here()


def test_a_tcp_engine_behind_a_slow_network_is_not_refused(monkeypatch):
    def slow(*args):
        raise TimeoutError

    monkeypatch.setattr(socket, "create_connection", slow)
    assert endpoint.connect_problem(endpoint.Endpoint("http://192.0.2.1:2375")) is None


async def test_a_user_who_may_not_when_asked(monkeypatch):
    refused = client.Engine(endpoint.Endpoint("unix:///run/x.sock"))

    async def denied(*args, **options):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(asyncio.get_running_loop(), "create_unix_connection", denied)
    with pytest.raises(SandboxError, match=r"cannot be reached.*Permission denied.*usermod -aG docker"):
        await refused.ping()


async def test_a_stopped_engine(monkeypatch, tmp_path):
    path = str(tmp_path / "stopped.sock")
    with socket.socket(socket.AF_UNIX) as left_over:
        left_over.bind(path)
    for host in (f"unix://{path}", f"unix://{tmp_path}/missing.sock"):
        monkeypatch.setenv("DOCKER_HOST", host)
        with pytest.raises(ConfigError, match=r"cannot be reached.*systemctl start docker"):
            DockerConfig().validate_here()
        box = docker_box(image="any")
        with pytest.raises(
            SandboxError, match=r"docker engine unix://.*cannot be reached.*systemctl start docker"
        ):
            await box.start()
        assert box.state is State.FAILED
        await box.stop_confirmed()
        assert "never asked" in box.proof
        with pytest.raises(SandboxError, match="cannot be reached"):
            await DockerProvider().listed()


async def test_an_engine_that_is_not_there_over_the_network(monkeypatch, tmp_path):
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        monkeypatch.setenv("DOCKER_HOST", f"tcp://127.0.0.1:{unused.getsockname()[1]}")
        with pytest.raises(SandboxError, match=r"docker engine http://127.*: Connection refused"):
            await DockerProvider().listed()


@pytest.mark.parametrize("code", [401, 403])
async def test_an_engine_that_refuses(monkeypatch, code):
    need_engine()
    with EngineProxy() as refusing:
        refusing.on(".", engine_proxy.status(code, "not you"))
        monkeypatch.setenv("DOCKER_HOST", refusing.url)
        with pytest.raises(SandboxError, match=rf"not you.*\({code}\).*authorization plugin"):
            await docker_box(image="any").start()


@pytest.mark.parametrize(
    "answer", [engine_proxy.says(b"<html>hello</html>"), engine_proxy.status(404, "not here")]
)
async def test_what_is_no_engine(monkeypatch, answer):
    need_engine()
    with EngineProxy() as page:
        page.on(".", answer)
        monkeypatch.setenv("DOCKER_HOST", page.url)
        with pytest.raises(SandboxError, match="is no docker engine"):
            await docker_box(image="any").start()


# ---------------------------------------------------------------------- images that are pulled

_REPORTS = [
    {"status": "Pulling from library/x", "id": "latest"},
    {"status": "Pulling fs layer", "id": "a", "progressDetail": {}},
    {"status": "Downloading", "id": "a", "progressDetail": {"current": 50, "total": 100}},
    {"status": "Downloading", "id": "b", "progressDetail": {"current": 0, "total": 100}},
    {"status": "Download complete", "id": "a", "progressDetail": {}},
]


def test_how_far_a_pull_is():
    progress, told = Progress(), []
    for report in _REPORTS:
        progress.add(report)
        told.append(progress.text())
    assert told == [
        "image pull Pulling from library/x",
        "image pull Pulling fs layer",
        "image pull 50 %",
        "image pull 25 %",
        "image pull 50 %",
    ]
    progress.add({"status": 3, "id": None, "progressDetail": "x"})
    progress.add({})


async def test_a_pull_tells_how_far_it_is_and_is_shared(monkeypatch):
    need_engine()
    image, run = busybox_image(), new_run()
    with EngineProxy() as engine:
        monkeypatch.setenv("DOCKER_HOST", engine.url)
        lines = "".join(json.dumps(report) + "\n" for report in _REPORTS).encode()
        engine.on(r"^GET .*/images/", engine_proxy.status(404, "no such image"), times=3)

        async def once_all_wait(exchange):
            while engine.asked(r"^GET .*/images/") < 3:
                await asyncio.sleep(0.01)
            await exchange.answer(200, lines)

        engine.on(r"^POST .*/images/create", once_all_wait)
        boxes = [docker_box(run, f"pull-{n}", image=image, pull="missing") for n in range(3)]
        moves = [watched(box) for box in boxes]
        await asyncio.gather(*(box.start() for box in boxes))
        await asyncio.gather(*(box.stop_confirmed() for box in boxes))
        assert engine.asked("images/create") == 1
        for told in moves:
            assert any(move.detail.startswith("image pull") for move in told)
    assert left(run) == []


@pytest.mark.parametrize(
    ("reply", "says"),
    [
        (engine_proxy.says(b'{"errorDetail": {"message": "denied"}, "error": "denied"}\n'), "denied"),
        (engine_proxy.status(404, "manifest unknown"), "manifest unknown"),
        (engine_proxy.status(500, "no route to host"), "no route to host"),
        (engine_proxy.says(b'{"status": "half"}\n'), "ended without it"),
    ],
)
async def test_a_pull_that_fails_names_the_image_and_why(monkeypatch, reply, says):
    need_engine()
    with EngineProxy() as engine:
        monkeypatch.setenv("DOCKER_HOST", engine.url)
        engine.on(r"^POST .*/images/create", reply)
        box = docker_box(image="org/private:1", pull="missing")
        with pytest.raises(
            SandboxError, match=rf"image org/private:1 is not on docker engine .*{says}.*docker login"
        ):
            await box.start()
        await box.stop_confirmed()
        assert engine.asked("containers/create") == 0


# ---------------------------------------------------------------------- the config


def test_what_a_config_may_say():
    DockerConfig(gpu="A100:2", labels={"team": "x"}, timeout=60)
    for wrong in (
        {"image": "x y"},
        {"image": "../containers/json"},
        {"image": "x;$(touch y)"},
        {"labels": {"vf-tui.run": "mine"}},
        {"labels": {"": "x"}},
        {"timeout": 5},
        {"pull": "sometimes"},
        {"workdir": "relative"},
        {"gpu": "A100:"},
        {"netwrok": "x"},
    ):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            DockerConfig.model_validate(wrong)


def test_a_tasks_own_wishes():
    data = TaskData(idx=0, image="task:1", resources=TaskResources(cpu=2, memory=4, disk=9))
    assert DockerConfig(memory=1).for_task(data) == DockerConfig(image="task:1", cpu=2, memory=1, disk=9)
    assert DockerConfig(timeout=90).lifetime == 90.0
    assert DockerConfig().lifetime is None
