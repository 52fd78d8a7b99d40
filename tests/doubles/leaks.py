"""Providers of sandboxes as the leak tests see them: their own lists, and how to make them misbehave."""

from __future__ import annotations

import json
import socket
from abc import ABC, abstractmethod
from contextlib import ExitStack
from typing import Any
from urllib.parse import quote

from doubles import engine_host, engine_images
from doubles.modal.server import ModalProcess
from doubles.prime import kit as prime


class Place(ABC):
    """A provider with a bystander's sandbox on it. `create` and `delete` are patterns of its calls, for faults."""

    kind: str
    env: dict[str, str]
    create = ""
    delete = ""

    def __init__(self) -> None:
        self.stack = ExitStack()

    @abstractmethod
    def ours(self) -> set[str]:
        """Ids of what is there and not the bystander's, by the provider's own list."""

    @abstractmethod
    def bystander_lives(self) -> bool: ...

    def runtime(self) -> str:
        """The config's tables for it."""
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        return (
            f'[env.agent.runtime]\ntype = "{self.kind}"\n'
            "[env.interception.tunnel]\n"
            f'type = "custom"\nurl = "http://tunnel.test:{port}"\nport = {port}\nhost = "127.0.0.1"\ncheck = false\n'
        )

    def fault(self, op: str, action: str, **details: Any) -> None:
        """The next calls that fit `op` go wrong."""
        raise NotImplementedError(f"{self.kind} knows no faults")

    def calm(self) -> None:
        """Nothing goes wrong any more."""
        raise NotImplementedError(f"{self.kind} knows no faults")

    def close(self) -> None:
        self.stack.close()


class Docker(Place):
    """The real engine; what other tests have on it is told apart by our runs' labels."""

    kind = "docker"

    def __init__(self, runs: set[str]) -> None:
        super().__init__()
        self.runs = runs
        self.env = {"DOCKER_HOST": engine_host.need_engine()}
        self.image = engine_images.python_image()
        spec = {"Image": self.image, "Cmd": ["sleep", "600"], "Labels": {"somebody": "else"}}
        status, made = engine_host.call("POST", "/containers/create", spec)
        assert status == 201, made
        self.bystander = made["Id"]
        self.stack.callback(engine_host.call, "DELETE", f"/containers/{self.bystander}?force=true")
        assert engine_host.call("POST", f"/containers/{self.bystander}/start")[0] == 204

    def runtime(self) -> str:
        return f'[env.agent.runtime]\ntype = "docker"\nimage = "{self.image}"\n'

    def ours(self) -> set[str]:
        filters = quote(json.dumps({"label": ["vf-tui"]}))
        for _ in range(100):
            status, found = engine_host.call("GET", f"/containers/json?all=true&filters={filters}")
            if status == 200:  # podman's list fails while a container in it goes
                break
        assert status == 200, found
        return {c["Id"] for c in found if (c["Labels"] or {}).get("vf-tui.run") in self.runs}

    def bystander_lives(self) -> bool:
        _, found = engine_host.call("GET", f"/containers/{self.bystander}/json")
        return bool(found["State"]["Running"])


class Prime(Place):
    """The double as a process: it survives whoever uses it."""

    kind = "prime"
    create, delete = prime.OPERATIONS["create"], prime.OPERATIONS["delete"]

    def __init__(self) -> None:
        super().__init__()
        self.double = self.stack.enter_context(prime.process(boot_polls=0))
        self.env = self.double.env
        self.bystander = self.double.ask("bystander")

    def ours(self) -> set[str]:
        return {sandbox["id"] for sandbox in self.double.ask("live")} - {self.bystander}

    def bystander_lives(self) -> bool:
        return self.bystander in {sandbox["id"] for sandbox in self.double.ask("live")}

    def fault(self, op: str, action: str, **details: Any) -> None:
        self.double.ask("fault", op=op, action=action, **details)

    def calm(self) -> None:
        self.double.ask("calm")


class Modal(Place):
    """As `Prime`."""

    kind = "modal"
    create, delete = "SandboxCreate", "SandboxTerminate"

    def __init__(self) -> None:
        super().__init__()
        self.double = ModalProcess()
        self.stack.callback(self.double.close)
        self.env = self.double.env
        self.bystander = self.double.ask("bystander")[0]

    def ours(self) -> set[str]:
        return {sandbox["id"] for sandbox in self.double.live()} - {self.bystander}

    def bystander_lives(self) -> bool:
        return self.bystander in {sandbox["id"] for sandbox in self.double.live()}

    def fault(self, op: str, action: str, **details: Any) -> None:
        self.double.ask("fault", op=op, action=action, **details)

    def calm(self) -> None:
        self.double.ask("calm")
