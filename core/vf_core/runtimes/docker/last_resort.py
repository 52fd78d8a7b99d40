"""Asking an engine without an event loop: to remove a container, at interpreter exit, and who it is."""

from __future__ import annotations

import http.client
import json
import socket
import time
from typing import Any, Final

from vf_core.runtimes.box import Answer
from vf_core.runtimes.docker.endpoint import Endpoint

TIMEOUT: Final = 10.0
_PATIENCE: Final = 5.0
_PAUSE: Final = 0.1

# Engines that did not answer: the next container does not wait for them again.
_silent: set[str] = set()


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=TIMEOUT)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(TIMEOUT)
        self.sock.connect(self._path)


def remove(endpoint: Endpoint, id: str) -> Answer:
    """Remove a container, by id or name, and ask whether it is gone. Raises `OSError` or `http.client.HTTPException`
    when the engine cannot be asked."""
    if endpoint.account in _silent:
        raise OSError(f"docker engine {endpoint.account} did not answer before")
    try:
        _call(endpoint, "DELETE", f"/containers/{id}?force=1&v=1")
        deadline = time.monotonic() + _PATIENCE
        while (status := _call(endpoint, "GET", f"/containers/{id}/json")) != http.HTTPStatus.NOT_FOUND:
            if status != http.HTTPStatus.OK:
                raise OSError(f"docker engine {endpoint.account} answered {status}")
            if time.monotonic() > deadline:
                return Answer(False, f"docker engine {endpoint.account}: the container is still there")
            time.sleep(_PAUSE)
    except (TimeoutError, ConnectionError, FileNotFoundError):
        _silent.add(endpoint.account)
        raise
    return Answer(True, gone(endpoint.account, id))


def gone(account: str, id: str) -> str:
    """The proof: what a reachable engine said."""
    return f"docker engine {account}: no such container {id[:12] if _is_id(id) else id} (404)"


def _is_id(text: str) -> bool:
    return len(text) == 64 and all(c in "0123456789abcdef" for c in text)


def info(endpoint: Endpoint) -> tuple[dict[str, Any], bool]:
    """What an engine says of itself, and whether it is Podman. Raises as `remove`."""
    answer, body = _exchange(endpoint, "GET", "/info")
    if answer.status != http.HTTPStatus.OK:
        raise OSError(f"docker engine {endpoint.account} did not say who it is: {answer.status}")
    try:
        said = json.loads(body)
    except ValueError as e:
        raise OSError(f"what answers at {endpoint.account} is no docker engine") from e
    return (said if isinstance(said, dict) else {}), answer.headers.get("Libpod-Api-Version") is not None


def _call(endpoint: Endpoint, method: str, path: str) -> int:
    """An answer's status. A 404 counts only as an engine's own: with a message, in JSON."""
    answer, body = _exchange(endpoint, method, path)
    if answer.status == http.HTTPStatus.NOT_FOUND:
        try:
            json.loads(body)["message"]
        except (ValueError, KeyError, TypeError) as e:
            raise OSError(f"what answers at {endpoint.account} is no docker engine") from e
    return answer.status


def _exchange(endpoint: Endpoint, method: str, path: str) -> tuple[http.client.HTTPResponse, bytes]:
    if endpoint.path:
        connection: http.client.HTTPConnection = _UnixConnection(endpoint.path)
    else:
        host = endpoint.url.partition("://")[2]
        tls = endpoint.tls()
        connection = (
            http.client.HTTPSConnection(host, timeout=TIMEOUT, context=tls)
            if tls is not None
            else http.client.HTTPConnection(host, timeout=TIMEOUT)
        )
    try:
        connection.request(method, path)
        answer = connection.getresponse()
        return answer, answer.read()
    finally:
        connection.close()
