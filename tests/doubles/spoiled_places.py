"""Providers as whole runs meet them: what they see of a create call, and each way in which an end can go wrong."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from grpclib import Status

from doubles.engine_boxes import left, remove_by_hand
from doubles.engine_host import need_engine
from doubles.engine_images import python_image
from doubles.engine_kit import script_config
from doubles.engine_proxy import EngineProxy, says, status
from doubles.modal import kit as modal
from doubles.prime import kit as prime
from vf_core.eval_config import EvalConfig
from vf_core.runtimes import at_exit
from vf_core.runtimes.docker import client as docker_client
from vf_core.runtimes.modal import account as at_modal
from vf_core.runtimes.prime.runtime import PrimeRuntime
from vf_core.runtimes.subprocess import SubprocessRuntime

CREATE, DELETE, INSPECT = (
    r"^POST .*/containers/create",
    r"^DELETE .*/containers/",
    r"^GET .*/containers/[^/]+/json",
)


class Place:
    """A provider. `on_create` has a function called whenever a create call arrives, before anything is made."""

    kind = "subprocess"
    image: dict[str, Any] = {}

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.patch = monkeypatch

    def on_create(self, look: Callable[[], None]) -> None:
        original = SubprocessRuntime._create

        async def create(runtime: SubprocessRuntime, box: Any) -> None:
            look()
            await original(runtime, box)

        self.patch.setattr(SubprocessRuntime, "_create", create)

    def live(self) -> int:
        raise AssertionError("the subclass asks its provider")

    def remove(self, id: str) -> None:
        """Somebody else ends a sandbox, behind our back."""
        raise AssertionError("the subclass asks its provider")

    def spoil(self, fault: str) -> None:
        """From now on an end goes wrong this way."""
        raise AssertionError("the subclass knows its faults")

    def calm(self) -> None: ...


class AtPrime(Place):
    kind = "prime"

    def __init__(self, monkeypatch: pytest.MonkeyPatch, double: Any) -> None:
        super().__init__(monkeypatch)
        self.double = double
        monkeypatch.setattr(PrimeRuntime, "pace", prime.QUICK)
        monkeypatch.setattr(PrimeRuntime, "probe_delays", (0.05, 0.1))

    def on_create(self, look: Callable[[], None]) -> None:
        original = self.double.state.add

        def add(*args: Any) -> Any:
            look()
            return original(*args)

        self.patch.setattr(self.double.state, "add", add)

    def live(self) -> int:
        return len(self.double.live())

    def remove(self, id: str) -> None:
        self.double.expire(id, "TERMINATED", "")

    def spoil(self, fault: str) -> None:
        delete, get = prime.OPERATIONS["delete"], prime.OPERATIONS["get"]
        faults: dict[str, list[tuple[str, str, dict[str, Any]]]] = {
            "401": [(delete, "status", {"status": 401})],
            "403": [(delete, "status", {"status": 403})],
            "500": [(delete, "status", {"status": 500})],
            "look fails": [(get, "status", {"status": 500})],
            "says 404": [
                (op, "status", {"status": 403, "body": {"detail": "HTTP 404: not found"}})
                for op in (delete, get)
            ],
            "404 of one that lives": [(delete, "status", {"status": 404})],
            "hang": [(delete, "hang", {"seconds": 60})],
            "look hangs": [(get, "hang", {"seconds": 60})],
            "reset": [(delete, "reset_before", {})],
            "linger": [("linger", "linger", {"seconds": 3600})],
        }
        for op, action, details in faults[fault]:
            self.double.faults.add(op, action, times=-1, **details)

    def calm(self) -> None:
        self.double.faults.clear()
        for sandbox in self.double.state.sandboxes.values():
            sandbox.gone_at = sandbox.gone_at and 0.0


class AtModal(Place):
    kind = "modal"

    def __init__(self, monkeypatch: pytest.MonkeyPatch, double: Any) -> None:
        super().__init__(monkeypatch)
        self.double = double
        for name, value in (("TERMINATE", 0.5), ("CALL", 1.0), ("TRIES", 2)):
            monkeypatch.setattr(at_modal, name, value)

    def on_create(self, look: Callable[[], None]) -> None:
        original = self.double.world.make

        async def make(*args: Any, **options: Any) -> Any:
            look()
            return await original(*args, **options)

        self.patch.setattr(self.double.world, "make", make)

    def live(self) -> int:
        return len(self.double.live())

    def remove(self, id: str) -> None:
        self.double.expire(id)

    def spoil(self, fault: str) -> None:
        end, look = "^SandboxTerminateV2$", "^SandboxWaitV2$"
        faults: dict[str, tuple[str, str, Status | None]] = {
            "401": (end, "status", Status.UNAUTHENTICATED),
            "403": (end, "status", Status.PERMISSION_DENIED),
            "500": (end, "status", Status.INTERNAL),
            "look fails": (look, "status", Status.INTERNAL),
            "hang": (end, "hang", None),
            "look hangs": (look, "hang", None),
            "reset": (end, "reset_before", None),
            "linger": ("linger", "linger", None),
        }
        op, action, code = faults[fault]
        details = {"status": code.value} if code else {"seconds": 3600.0}
        self.double.faults.add(op, action, times=-1, **details)

    def calm(self) -> None:
        self.double.faults.clear()


class AtDocker(Place):
    kind = "docker"

    def __init__(self, monkeypatch: pytest.MonkeyPatch, proxy: EngineProxy) -> None:
        super().__init__(monkeypatch)
        self.proxy, self.run = proxy, ""
        self.image = {"image": python_image(), "pull": "never"}
        monkeypatch.setattr(docker_client, "_REMOVE_PAUSES", (0.01,))
        monkeypatch.setattr(docker_client, "REMOVE", 0.3)

    def on_create(self, look: Callable[[], None]) -> None:
        async def seen(exchange: Any) -> None:
            look()
            await exchange.join(*await exchange.ask())

        self.proxy.on(CREATE, seen)

    def live(self) -> int:
        return len(left(self.run))

    def remove(self, id: str) -> None:
        remove_by_hand(id)

    def spoil(self, fault: str) -> None:
        faults = {
            "403": (DELETE, status(403, "no such container")),
            "look fails": (INSPECT, status(500)),
            "says 404": (INSPECT, status(403, "No such container: 404")),
            "linger": (DELETE, says(b"", 204)),
        }
        self.proxy.on(*faults[fault])

    def calm(self) -> None:
        self.proxy.clear()


def serving(kind: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Place]:
    """A place of this kind, for a fixture."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    if kind == "prime":
        for double in prime.serving(monkeypatch, tmp_path, boot_polls=0):
            yield AtPrime(monkeypatch, double)
    elif kind == "modal":
        for other in modal.serving(monkeypatch):
            yield AtModal(monkeypatch, other)
    elif kind == "docker":
        need_engine()
        with EngineProxy() as proxy:
            monkeypatch.setenv("DOCKER_HOST", proxy.url)
            yield AtDocker(monkeypatch, proxy)
    else:
        yield Place(monkeypatch)
    # Their providers are gone with the test: nobody is left to be asked when the interpreter ends.
    at_exit._UNSETTLED.clear()


def config_of(place: Place, tmp_path: Path, scripts: list[str], **settings: Any) -> EvalConfig:
    """A run of shell scripts there."""
    with socket.create_server(("127.0.0.1", 0)) as found:
        port = found.getsockname()[1]
    if place.kind in ("prime", "modal"):
        tunnel = {"type": "custom", "url": f"http://tunnel.test:{port}", "port": port, "host": "127.0.0.1"}
        settings["env__interception__tunnel"] = {**tunnel, "check": False}
        place.image = {"workdir": str(tmp_path / "app"), "price": 0.5}
    runtime = {"type": place.kind, **place.image}
    return script_config(tmp_path / "runs", scripts, env__agent__runtime=runtime, **settings)
