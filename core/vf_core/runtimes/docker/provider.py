"""An engine's list of our containers, for the inventory and for cleanup."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from datetime import datetime
from http.client import HTTPException
from typing import Any, ClassVar

from vf_core.errors import SandboxError
from vf_core.runtimes import labels
from vf_core.runtimes.box import Answer
from vf_core.runtimes.docker import container, identity, last_resort
from vf_core.runtimes.docker.client import Engine
from vf_core.runtimes.docker.endpoint import UNIX, Endpoint, resolve
from vf_core.runtimes.provider import Listed, Provider


class DockerProvider(Provider):
    """The engine that `DOCKER_HOST`, the docker context or the usual sockets name. Raises `SandboxError` when they
    name none; one that does not answer is found out by asking."""

    kind: ClassVar[str] = "docker"

    def __init__(self, endpoint: Endpoint | None = None) -> None:
        self._engine = Engine(endpoint or resolve())

    @property
    def account(self) -> str:
        """See `Provider.account`: the engine by its address."""
        return self._engine.account

    async def listed(self) -> list[Listed]:
        """See `Provider.listed`; containers that ended are there until they are removed."""
        return [_listed(row) for row in await self._engine.containers([labels.MARK])]

    async def find(self, name: str) -> list[Listed]:
        """See `Provider.find`."""
        named = f"{labels.PREFIX}{container.NAME_LABEL}={name}"
        return [_listed(row) for row in await self._engine.containers([labels.MARK, named])]

    async def delete(self, id: str) -> None:
        """See `Provider.delete`: killed and removed, with its own volumes."""
        await self._engine.remove(_checked(id))

    async def probe(self, id: str) -> Answer:
        """See `Provider.probe`."""
        found = await self._engine.inspect(_checked(id))
        if found is not None:
            status = (found.get("State") or {}).get("Status", "there")
            return Answer(False, f"docker engine {self.account}: the container is {status}")
        await self._engine.ping()  # what said "not found" is an engine
        return Answer(True, last_resort.gone(self.account, id))

    def delete_command(self, id: str) -> str:
        """See `Provider.delete_command`."""
        podman = self._engine.is_podman or "podman" in self.account
        client = "podman --remote --url" if podman else "docker --host"
        return f"{client} {shlex.quote(_host(self.account))} rm --force --volumes {shlex.quote(id)}"

    def reaches(self, account: str) -> bool:
        """See `Provider.reaches`: made by the engine that answers, whatever its address was then. Blocks."""
        address, maker = identity.split(account)
        if not maker:
            return address in ("", self.account)
        try:
            return identity.of(self._engine.endpoint) == maker
        except (OSError, HTTPException):
            return False

    def way_to(self, account: str) -> str:
        """See `Provider.way_to`."""
        address, _ = identity.split(account)
        if address == self.account:
            return "another engine answers at that address by now: start the one that made it"
        return f"set DOCKER_HOST={shlex.quote(_host(address))}"


def _host(account: str) -> str:
    """An engine's address as its clients take it."""
    return account if account.startswith(UNIX) else f"tcp://{account.partition('://')[2]}"


def _checked(id: str) -> str:
    if not id or not all(c.isalnum() or c in "_.-" for c in id):
        raise SandboxError(f"{id!r} is no container's id")
    return id


def _listed(row: Mapping[str, Any]) -> Listed:
    """A row of an engine's list, whatever it lacks."""
    names = [name.lstrip("/") for name in row.get("Names") or [] if isinstance(name, str)]
    given = {key: str(value) for key, value in (row.get("Labels") or {}).items()}
    ours = labels.decode(given)
    id = str(row.get("Id") or row.get("ID") or row.get("id") or "")
    created = row.get("Created")
    return Listed(
        id=id,
        name=ours.get(container.NAME_LABEL) or (names[0] if names else ""),
        labels={key: value for key, value in ours.items() if key != container.NAME_LABEL},
        status=str(row.get("State") or row.get("Status") or ""),
        alive=True,
        created=_seconds(created),
        ends=None,
        image=str(row.get("Image") or ""),
    )


def _seconds(value: object) -> float | None:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    if isinstance(value, str):
        try:
            return datetime.fromisoformat(value).timestamp()
        except ValueError:
            return None
    return None
