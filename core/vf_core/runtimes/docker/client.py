"""What is asked of an engine: every call has its deadline, and fails as one kind of error.

A client is opened for each call and closed after it: nothing is kept that a restarted engine could make stale, or
that belongs to an event loop which ended.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from http.client import HTTPException
from typing import TYPE_CHECKING, Any, Final, TypeVar
from urllib.parse import quote

from vf_core.errors import SandboxError
from vf_core.runtimes.docker import endpoint as endpoints
from vf_core.runtimes.docker import identity
from vf_core.runtimes.docker.endpoint import Endpoint
from vf_core.text import bound, clean

if TYPE_CHECKING:
    import aiohttp
    from aiodocker import Docker
    from aiodocker.execs import Exec
    from aiodocker.stream import Stream

T = TypeVar("T")

CONNECT: Final = 10.0
CALL: Final = 20.0
LOOK: Final = 10.0
CREATE: Final = 120.0
START: Final = 120.0
EXEC: Final = 60.0
REMOVE: Final = 30.0
LIST: Final = 30.0
_REMOVE_PAUSES: Final = (0.2, 0.5, 1.0, 2.0)
NOT_FOUND, CONFLICT, SERVER_ERROR = 404, 409, 500
_REFUSALS = {
    401: "it wants credentials: look at its authorization plugin, or at what stands before it",
    403: "it forbids that to you: look at its authorization plugin, or at what stands before it",
}


class EngineError(SandboxError):
    """An engine's answer was no, or none came. `status`: its HTTP status, 0 without an answer. `sent`: the engine may
    have acted on the request."""

    def __init__(self, message: str, *, status: int = 0, sent: bool = True, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.status = status
        self.sent = sent

    @property
    def certain(self) -> bool:
        """The engine refused, or never heard of it: the request has no effect. What stands between us and the engine
        (502 and more) does not know."""
        return not self.sent or 400 <= self.status <= SERVER_ERROR


class Engine:
    """An engine at an address. `silence`: seconds after which a call that says nothing is looked into."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self.silence = 15.0
        self._version = ""
        self._podman = ""
        self._tls = endpoint.tls()

    @property
    def account(self) -> str:
        """The engine by its address."""
        return self.endpoint.account

    @property
    def is_podman(self) -> bool:
        """It said so when it was first asked."""
        return bool(self._podman)

    # ------------------------------------------------------------------ calls

    @asynccontextmanager
    async def _client(self) -> AsyncIterator[Docker]:
        import aiodocker
        import aiohttp

        connector: aiohttp.BaseConnector
        if self.endpoint.path:
            connector = aiohttp.UnixConnector(self.endpoint.path, limit=0, force_close=True)
            url = "unix://localhost"
        else:
            connector = aiohttp.TCPConnector(ssl=self._tls or True, limit=0, force_close=True)
            url = self.endpoint.url
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT)
        session = aiohttp.ClientSession(
            connector=connector, timeout=timeout, cookie_jar=aiohttp.DummyCookieJar()
        )
        try:
            # Asking for the version would do as well, but some engines run programs to answer that.
            if not self._version:
                self._version, self._podman = await _ping(session, url)
            yield aiodocker.Docker(
                url=url, connector=connector, session=session, timeout=timeout, api_version=self._version
            )
        finally:
            await session.close()

    async def _ask(self, what: str, deadline: float, work: Callable[[Docker], Awaitable[T]]) -> T:
        try:
            async with asyncio.timeout(deadline), self._client() as docker:
                return await work(docker)
        except Exception as e:
            raise self.failure(what, e, deadline) from e

    def failure(self, what: str, e: Exception, deadline: float = 0.0) -> EngineError:
        """A failed call as `EngineError`."""
        if isinstance(e, EngineError):
            return e
        where = f"docker engine {self.account}"
        status = getattr(e, "status", 0)
        if isinstance(e, ImportError):
            return EngineError(
                f"the docker runtime needs the package aiodocker: {e}",
                sent=False,
                hint="pip install 'vf-tui[docker]'",
            )
        if isinstance(e, TimeoutError):
            return EngineError(f"{where} could not {what}: no answer within {deadline:g} s")
        cause = _connect_error(e)
        if cause is not None:
            return EngineError(
                f"{where} cannot be reached to {what}: {os.strerror(cause.errno) if cause.errno else cause}",
                sent=False,
                hint=endpoints.advice(cause),
            )
        said = bound(" ".join(clean(str(getattr(e, "message", "") or e)).split()), 500)
        answered = isinstance(status, int) and 400 <= status < 600
        return EngineError(
            f"{where} could not {what}: {said or type(e).__name__}{f' ({status})' if answered else ''}",
            status=status if answered else 0,
            hint=_REFUSALS.get(status),
        )

    async def ping(self) -> None:
        """Have an answer that only an engine gives."""

        async def work(docker: Docker) -> None:
            self._version, self._podman = await _ping(docker.session, docker.docker_host)

        await self._ask("answer a ping", CALL, work)

    async def identity(self) -> str:
        """Which engine it is: see `identity.of`."""
        try:
            async with asyncio.timeout(CALL):
                return await asyncio.to_thread(identity.of, self.endpoint)
        except (OSError, HTTPException) as e:
            raise self.failure("say who it is", e, CALL) from e

    async def product(self) -> str:
        """What the engine calls itself, such as `Docker Desktop 4.44`."""

        async def work(docker: Docker) -> str:
            return str(((await docker.version()).get("Platform") or {}).get("Name") or "")

        return await self._ask("say its version", CALL, work)

    async def version(self) -> str:
        """The engine's software and its version for a reader, such as `Podman Engine 4.3.1`."""

        async def work(docker: Docker) -> str:
            said = dict(await docker.version())
            parts = said.get("Components") or [{}]
            return f"{dict(parts[0]).get('Name') or 'Docker Engine'} {said.get('Version', '')}".strip()

        return await self._ask("say its version", CALL, work)

    # ------------------------------------------------------------------ images

    async def image(self, name: str) -> dict[str, Any] | None:
        """An image's description; None when the engine does not have it."""

        async def work(docker: Docker) -> dict[str, Any]:
            return dict(await docker.images.inspect(quote(name, safe="/:@")))

        try:
            return await self._ask(f"look for image {name}", CALL, work)
        except EngineError as e:
            if e.status == NOT_FOUND:
                return None
            raise

    @asynccontextmanager
    async def pulling(self, name: str) -> AsyncIterator[AsyncIterator[dict[str, Any]]]:
        """The engine's reports while it gets an image."""
        try:
            async with self._client() as docker:
                yield docker.images.pull(name, stream=True)
        except Exception as e:
            raise self.failure(f"pull image {name}", e) from e

    # ------------------------------------------------------------------ containers

    async def create(self, name: str, config: Mapping[str, Any]) -> str:
        """Make a container; its id."""

        async def work(docker: Docker) -> str:
            return (await docker.containers.create(dict(config), name=name)).id

        return await self._ask("create a container", CREATE, work)

    async def start(self, id: str) -> None:
        """Start a container."""

        async def work(docker: Docker) -> None:
            await docker.containers.container(id).start()

        await self._ask("start its container", START, work)

    async def inspect(self, id: str) -> dict[str, Any] | None:
        """A container, by id or name; None when the engine answers that there is none."""

        async def work(docker: Docker) -> dict[str, Any]:
            return dict(await docker.containers.container(id).show())

        try:
            return await self._ask("look at a container", LOOK, work)
        except EngineError as e:
            if e.status == NOT_FOUND:
                return None
            raise

    async def remove(self, id: str) -> bool:
        """Kill and remove a container with its own volumes, by id or name; False when there is none.

        Tried again a few times when that fails in a way that may pass.
        """

        async def work(docker: Docker) -> None:
            await docker.containers.container(id).delete(force=True, v=True)

        for pause in (*_REMOVE_PAUSES, None):
            try:
                await self._ask("remove a container", REMOVE, work)
            except EngineError as e:
                if e.status == NOT_FOUND:
                    return False
                if e.status == CONFLICT:
                    return True  # its removal is under way
                if pause is None or 400 <= e.status < SERVER_ERROR:
                    raise
                await asyncio.sleep(pause)
            else:
                return True
        return True

    async def containers(self, labels: Sequence[str]) -> list[dict[str, Any]]:
        """All containers with these labels (`key` or `key=value`), those that ended too."""

        async def work(docker: Docker) -> list[dict[str, Any]]:
            asked = {"all": "true", "filters": json.dumps({"label": list(labels)})}
            try:
                return [dict(row._container) for row in await docker.containers.list(**asked)]
            except Exception as e:
                if getattr(e, "status", 0) != SERVER_ERROR or not self._podman:
                    raise
            # Podman lists nothing for Docker's clients while one container is half made (its creation was cut
            # short); for its own it does.
            url = f"{docker.docker_host}/v{self._podman}/libpod/containers/json"
            async with docker.session.get(url, params=asked, raise_for_status=True) as answer:
                return [dict(row) for row in await answer.json()]

        return await self._ask("list its containers", LIST, work)

    # ------------------------------------------------------------------ commands

    @asynccontextmanager
    async def exec(
        self,
        id: str,
        argv: Sequence[str],
        *,
        env: Mapping[str, str],
        workdir: str = "",
        user: str = "",
        stdin: bool = False,
    ) -> AsyncIterator[tuple[Exec, Stream]]:
        """A command that was started in a container, with its output. Leaving closes that; the command runs on."""
        stream: Stream | None = None
        async with self._client() as docker:
            try:
                try:
                    async with asyncio.timeout(EXEC):
                        container = docker.containers.container(id)
                        made = await container.exec(
                            list(argv), environment=dict(env), workdir=workdir, user=user, stdin=stdin
                        )
                        stream = made.start(detach=False)
                        await stream.__aenter__()
                except Exception as e:
                    raise self.failure("start a command in a container", e, EXEC) from e
                yield made, stream
            finally:
                if stream is not None:
                    # Fails, after it closed what there was, when the engine had closed it before.
                    with suppress(Exception):
                        await stream.close()

    async def exec_state(self, id: str) -> tuple[bool, int | None]:
        """Whether a command still runs, and its exit code."""

        async def work(docker: Docker) -> dict[str, Any]:
            return await docker.containers.exec(id).inspect()

        found = await self._ask("look at a command", LOOK, work)
        code = found.get("ExitCode")
        return bool(found.get("Running")), code if isinstance(code, int) else None


async def _ping(session: aiohttp.ClientSession, url: str) -> tuple[str, str]:
    """The API's version that an engine speaks, as it stands in its paths, and that of Podman's own API, if it is one.
    Raises `ValueError` for what is no engine."""
    async with session.get(f"{url}/_ping") as answer:
        version = answer.headers.get("Api-Version", "")
        strange = answer.status < 400 and not version.replace(".", "", 1).isdigit()
        # Who does not know this path knows nothing of an image or a container either.
        if strange or answer.status == NOT_FOUND:
            raise ValueError(
                "what answers there is no docker engine (look at DOCKER_HOST and the docker context)"
            )
        if answer.status >= 400:
            raise _Refusal(answer.status, " ".join((await answer.text()).split()) or answer.reason or "")
        return f"v{version}", answer.headers.get("Libpod-Api-Version", "")


class _Refusal(Exception):
    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


def _connect_error(e: BaseException) -> OSError | None:
    """What kept a call from reaching the engine at all; None when it may have arrived."""
    import aiohttp

    seen: BaseException | None = e
    while seen is not None:
        if isinstance(seen, aiohttp.ClientConnectorError):
            inner = seen.os_error
            return inner.__cause__ if isinstance(inner.__cause__, OSError) else inner
        seen = seen.__cause__ or seen.__context__
    return None
