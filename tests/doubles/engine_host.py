"""The container engine that tests use: the one that `DOCKER_HOST` names, else Podman's, started here if need be."""

from __future__ import annotations

import atexit
import fcntl
import http.client
import json
import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, NoReturn

import pytest

from vf_core.errors import SandboxError
from vf_core.runtimes.docker.endpoint import UNIX, Endpoint, connect_problem, resolve

CACHE = Path(__file__).parents[2] / ".cache" / "engine"
REQUIRED = "VF_REQUIRE_DOCKER"
_START = 60.0


@contextmanager
def locked(name: str) -> Iterator[None]:
    """One process of this work tree at a time."""
    CACHE.mkdir(parents=True, exist_ok=True)
    with open(CACHE / f"{name}.lock", "w") as f:
        fcntl.flock(f, fcntl.LOCK_EX)
        yield


def start_service(path: str, env: dict[str, str] | None = None) -> subprocess.Popen[bytes]:
    """`podman system service` at a socket, which answers when this returns; the caller ends it."""
    process = subprocess.Popen(
        ["podman", "system", "service", "--time=0", f"unix://{path}"],
        env={**{k: v for k, v in os.environ.items() if not k.startswith("XDG_")}, **(env or {})},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    deadline = time.monotonic() + _START
    while connect_problem(Endpoint(UNIX + path)) is not None:
        if process.poll() is not None or time.monotonic() > deadline:
            process.kill()
            said = process.communicate()[1].decode(errors="replace").strip()
            raise SandboxError(f"podman's service did not start: {said[-500:]}")
        time.sleep(0.05)
    return process


@cache
def engine_url() -> str:
    """The engine's `DOCKER_HOST`. Raises `SandboxError` when there is none, with the reason."""
    try:
        found = resolve()
    except SandboxError as e:
        return _own_service(str(e))
    if found.path and (problem := connect_problem(found)) is not None:
        return _own_service(f"{found.account}: {problem}")
    return found.url if found.path else found.url.replace("http://", "tcp://")


def _own_service(why: str) -> str:
    if shutil.which("podman") is None:
        raise SandboxError(f"{why}; and podman is not installed, which would be started for the tests")
    directory = tempfile.mkdtemp(prefix="vfe-")
    process = start_service(f"{directory}/podman.sock")

    def end() -> None:
        process.terminate()
        process.wait(60)
        shutil.rmtree(directory, ignore_errors=True)

    atexit.register(end)
    return f"unix://{directory}/podman.sock"


def need_engine() -> str:
    """The engine's `DOCKER_HOST`; without one the test is skipped, or fails where engines are required."""
    try:
        return engine_url()
    except SandboxError as e:
        unavailable(f"no container engine here: {e}")


def unavailable(reason: str) -> NoReturn:
    """What a test needs is not on this machine."""
    if os.environ.get(REQUIRED) == "1":
        pytest.fail(f"{reason} ({REQUIRED}=1)")
    pytest.skip(reason)


class _Unix(http.client.HTTPConnection):
    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=60)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(60)
        self.sock.connect(self._path)


def call(method: str, path: str, body: Any = None, *, url: str = "") -> tuple[int, Any]:
    """Ask the engine itself, past all of our code: the status, and its JSON (or text)."""
    url = url or engine_url()
    connection = (
        _Unix(url.removeprefix("unix://"))
        if url.startswith("unix://")
        else http.client.HTTPConnection(url.partition("://")[2], timeout=60)
    )
    headers = {"Content-Type": "application/x-tar" if hasattr(body, "read") else "application/json"}
    data = body if body is None or hasattr(body, "read") else json.dumps(body)
    connection.request(method, path, body=data, headers=headers, encode_chunked=hasattr(body, "read"))
    answer = connection.getresponse()
    text = answer.read().decode(errors="replace")
    connection.close()
    try:
        return answer.status, json.loads(text) if text else None
    except ValueError:
        return answer.status, text


def containers(*labels: str, url: str = "") -> list[dict[str, Any]]:
    """All containers with these labels, as the engine lists them, those that ended too."""
    from urllib.parse import quote

    query = f"all=true&filters={quote(json.dumps({'label': list(labels)}))}"
    status, rows = call("GET", f"/v1.41/containers/json?{query}", url=url)
    if status == 500:  # another test has Podman keep a container half made: only its own API lists any then
        status, rows = call("GET", f"/v4.0.0/libpod/containers/json?{query}", url=url)
    assert status == 200, rows
    return list(rows)
