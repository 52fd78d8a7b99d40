"""The docker runtime: a sandbox is a container, its commands are the engine's execs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPException
from typing import Any, ClassVar

from vf_core.errors import SandboxError
from vf_core.runtimes import guest
from vf_core.runtimes.base import (
    Answer,
    Box,
    Collected,
    ProgramResult,
    Runtime,
)
from vf_core.runtimes.docker import container, files, identity, images, last_resort, reach
from vf_core.runtimes.docker.client import Engine, EngineError
from vf_core.runtimes.docker.command import EXIT_KILLED, LostError
from vf_core.runtimes.docker.config import DockerConfig
from vf_core.runtimes.docker.endpoint import Endpoint, resolve
from vf_core.runtimes.docker.settle import settle_in
from vf_core.runtimes.docker.shell import Shell
from vf_core.runtimes.lifecycle import Observer, State

_RECORDED = ("type", "id", "image", "workdir", "cpu", "memory", "gpu", "disk")
# Engines that were found to have no init binary.
_WITHOUT_INIT: set[str] = set()
_NOTHING_MADE = "the engine refused to make it, or was never reached"


@dataclass(eq=False, slots=True)
class Handle:
    """What is known of one container. `name` is its own, `user` and `checked` (for health) its image's. `unsure`:
    since when it may exist although the engine did not say so (0: it does not); `seen`: it turned up since.
    `started`: when it was started, in Unix seconds. `maker`: which engine made it."""

    name: str
    engine: Engine | None = None
    user: str = ""
    checked: bool = False
    unsure: float = 0.0
    seen: bool = False
    started: float = 0.0
    shell: Shell | None = None
    maker: str = ""


class DockerRuntime(Runtime):
    """A sandbox that is a container on the host's network."""

    kind: ClassVar[str] = "docker"
    is_local: ClassVar[bool] = True
    # How long a container whose create call got no answer is looked for: before giving up, and before its absence
    # counts as proof.
    reconcile: ClassVar[float] = 10.0
    config: DockerConfig

    def __init__(
        self,
        config: DockerConfig,
        *,
        name: str,
        labels: Mapping[str, str] | None = None,
        observer: Observer | None = None,
    ) -> None:
        super().__init__(config, name=name, labels=labels, observer=observer)
        self._endpoint: Endpoint | None = None

    def info(self) -> dict[str, Any]:
        """See `Runtime.info`: the record's format knows these fields only."""
        return {name: value for name, value in super().info().items() if name in _RECORDED}

    @property
    def account(self) -> str:
        """The engine by its address; empty when none is to be found."""
        try:
            return self._resolved().account
        except SandboxError:
            return ""

    def _resolved(self) -> Endpoint:
        """Found once: an engine that the ledger names is the one that is asked, also after a restart."""
        if self._endpoint is None:
            self._endpoint = resolve()
        return self._endpoint

    # ------------------------------------------------------------------ lifecycle

    def _new_handle(self) -> Handle:
        return Handle(container.unique_name(self._name))

    async def _admit(self, box: Box[Handle]) -> None:
        with _plain():
            handle = box.handle
            handle.engine = engine = Engine(self._resolved())
            box.life.remark(f"docker engine {engine.account}")
            image = await images.ensure(engine, self.config.image, self.config.pull, box.life.remark)
            handle.maker = await engine.identity()
            box.life.remark(f"docker engine {engine.account}")
            described = image.get("Config") or {}
            handle.user = str(described.get("User") or "")
            handle.checked = bool(described.get("Healthcheck"))

    async def _create(self, box: Box[Handle]) -> None:
        with _plain():
            engine = _engine(box)
            try:
                await self._make(box, init=engine.account not in _WITHOUT_INIT)
            except EngineError as e:
                # Engines without an init binary refuse to make or to start such a container.
                if not e.status or engine.account in _WITHOUT_INIT:
                    raise
                if box.id:
                    await engine.remove(box.id)
                await self._make(box, init=False)
                _WITHOUT_INIT.add(engine.account)
            assert box.handle.shell is not None  # noqa: S101 - it was just made
            await settle_in(engine, box.id, box.handle.shell, self.config, box.handle.user)

    async def _make(self, box: Box[Handle], *, init: bool) -> None:
        handle, engine = box.handle, _engine(box)
        spec = container.spec(self.config, box.name, self.labels, init=init, checked=handle.checked)
        handle.unsure = _now()
        try:
            id = await engine.create(handle.name, spec)
        except EngineError as e:
            if e.certain:
                handle.unsure = 0.0
                raise
            handle.unsure = _now()
            id = await self._look_for(handle, engine)
            if not id:
                raise
        handle.unsure = 0.0
        box.identify(id)
        handle.shell = Shell(engine, id, self.config.workdir, self._spawn)
        handle.started = time.time()
        await engine.start(id)

    async def _look_for(self, handle: Handle, engine: Engine) -> str:
        """The id of a container whose create call failed without an answer; empty when it does not turn up."""
        pause, deadline = 0.1, _now() + self.reconcile
        while True:
            try:
                found = await engine.inspect(handle.name)
            except EngineError:
                found = None
            if found is not None:
                return str(found["Id"])
            if _now() + pause > deadline:
                return ""
            await asyncio.sleep(pause)
            pause = min(1.0, 2 * pause)

    async def _terminate(self, box: Box[Handle]) -> None:
        with _plain():
            handle, reference = box.handle, _reference(box)
            if handle.engine is None or not reference:
                return
            if handle.shell is not None:
                await handle.shell.end_all(box.forced)
            handle.seen |= await handle.engine.remove(reference)

    async def _probe(self, box: Box[Handle]) -> Answer:
        with _plain():
            handle, engine, reference = box.handle, box.handle.engine, _reference(box)
            if engine is None or not reference:
                return Answer(True, _NOTHING_MADE)
            try:
                found = await engine.inspect(reference)
            except EngineError as e:
                if not handle.unsure or not e.status:
                    raise
                # It may just be being made, or was cut short in that.
                handle.seen |= await engine.remove(reference)
                return Answer(False, e.message)
            where = f"docker engine {engine.account}"
            if found is not None:
                if handle.unsure:
                    # Made late, after its stop: nobody else would end it.
                    handle.unsure = 0.0
                    box.identify(str(found["Id"]))
                    await engine.remove(box.id)
                return Answer(False, f"{where}: the container is {(found.get('State') or {}).get('Status')}")
            if handle.maker and await engine.identity() != handle.maker:
                raise _another(engine)
            await engine.ping()  # what said "not found" is an engine
            if handle.unsure and not handle.seen and _now() - handle.unsure < self.reconcile:
                return Answer(False, f"{where} may still make it: its create call is unanswered")
            return Answer(True, last_resort.gone(engine.account, reference))

    def _place(self, box: Box[Handle]) -> str:
        return identity.place(self.account, box.handle.maker)

    def _cleanup(self, box: Box[Handle]) -> Answer | None:
        handle, reference = box.handle, _reference(box)
        if handle.engine is None or not reference:
            return Answer(True, _NOTHING_MADE)
        try:
            if handle.maker and identity.of(handle.engine.endpoint) != handle.maker:
                raise _another(handle.engine)
            answer = last_resort.remove(handle.engine.endpoint, reference)
        except (OSError, HTTPException) as e:
            raise SandboxError(f"docker engine {handle.engine.account} could not be asked: {e}") from e
        return None if answer.gone and handle.unsure else answer

    # ------------------------------------------------------------------ programs

    async def run_background(
        self, argv: Sequence[str], env: Mapping[str, str] | None = None, log: str = "background.log"
    ) -> None:
        """See `Runtime.run_background`."""
        shell = self._shell_for(argv)
        with self._placed(self._box):
            code = await shell.background(argv, env, log)
            if code != 0:
                raise SandboxError(f"{argv[0]}: there is no such program in the sandbox (exit {code})")

    async def _collect(
        self,
        argv: Sequence[str],
        env: Mapping[str, str] | None,
        output: Collected,
        *,
        cwd: str | None = None,
        timeout: float | None = None,
        program: bool = False,
    ) -> ProgramResult:
        shell, box = self._shell_for(argv), self._box

        code, timed_out = EXIT_KILLED, False
        with self._placed(box):
            try:
                code, timed_out = await shell.follow(argv, env, output, cwd=cwd, timeout=timeout)
            except LostError:
                if box.state is State.LIVE:
                    raise
                # Its own stop took it away: the program was killed by that.
        return output.result(code, timed_out=timed_out)

    def _shell_for(self, argv: Sequence[str]) -> Shell:
        shell = self._shell()
        if not argv:
            raise SandboxError("no program was named")
        if any("\0" in part for part in argv):
            raise SandboxError("an argument of a command holds a NUL character")
        return shell

    def _shell(self) -> Shell:
        shell = self._work_here().shell
        assert isinstance(shell, Shell)  # noqa: S101 - for the type checker
        return shell

    @contextmanager
    def _placed(self, box: Box[Handle]) -> Iterator[None]:
        """Work in a container: when that is gone, the sandbox is lost, and says so."""
        try:
            with _plain():
                yield
        except LostError as e:
            why = e.message
            if self.config.timeout and time.time() - box.handle.started >= self.config.timeout:
                why = f"its lifetime of {self.config.timeout} s ended ({why})"
            if box is self._box:
                self._lost(why)
            raise SandboxError(f"sandbox {box.name} was lost: {why}", hint=e.hint) from e

    # ------------------------------------------------------------------ scripts, files, network

    async def prepare_script(self, source: str, requires: Sequence[str] = ()) -> list[str]:
        """See `Runtime.prepare_script`: by the image's own Python, else by uv or pip there."""
        self._work_here()
        return await guest.prepare_script(self, self.config.image, source, requires)

    async def read(self, path: str) -> bytes:
        """See `Runtime.read`."""
        return await self._read(path, None)

    async def read_bounded(self, path: str, limit: int) -> bytes:
        """See `Runtime.read_bounded`."""
        return await self._read(path, limit)

    async def _read(self, path: str, limit: int | None) -> bytes:
        files.check(path)
        shell, full = self._shell(), guest.resolve(path, self.config.workdir)
        with self._placed(self._box):
            code, data, said = await shell.collect(guest.read_argv(full, limit), cwd="/")
        if code != 0:
            raise guest.read_failed(code, path, said)
        return data

    async def write(self, path: str, data: bytes) -> None:
        """See `Runtime.write`."""
        files.check(path)
        shell, full = self._shell(), guest.resolve(path, self.config.workdir)
        if path.endswith("/"):
            raise files.write_failed(files.DIRECTORY, path, "")
        with self._placed(self._box):
            argv = files.write_argv(full, len(data))
            code, _, said = await shell.collect(argv, cwd="/", stdin=bytes(data) or None)
        if code != 0:
            raise files.write_failed(code, path, said)

    async def expose(self, port: int) -> str:
        """See `Runtime.expose`: the container shares its engine's network."""
        engine = _engine(self._box)
        self._work_here()
        return f"http://{engine.endpoint.host}:{port}"

    def host_url(self, url: str) -> str:
        """See `Runtime.host_url`: the same, where containers share this host's network; see `check_reach`."""
        return url

    async def check_reach(self, url: str) -> None:
        """Raise `SandboxError` when a program in the container gets no answer from `url`, with why and what to do.

        Says nothing when the container has nothing to ask with (python3, curl, bash, nc, wget)."""
        shell, argv = self._shell(), reach.ask_argv(url)
        with self._placed(self._box):
            code, _, said = await shell.collect(argv, cwd="/", timeout=30.0)
        if code == reach.NO_ANSWER:
            with _plain():
                product = await _engine(self._box).product()
            raise reach.unreachable(url, self.account, product, said)


def _engine(box: Box[Handle]) -> Engine:
    engine = box.handle.engine
    assert engine is not None  # noqa: S101 - nothing is made before it is admitted
    return engine


def _another(engine: Engine) -> SandboxError:
    return SandboxError(
        f"another engine answers at {engine.account} by now than the one that made the container",
        hint="start that one again, and confirm its stop once more",
    )


def _reference(box: Box[Handle]) -> str:
    """What the engine is asked for: the id, or the name while a create call's outcome is not known; empty when it
    made nothing."""
    return box.handle.name if box.handle.unsure else box.id


def _now() -> float:
    return asyncio.get_running_loop().time()


@contextmanager
def _plain() -> Iterator[None]:
    """What is recorded is a `SandboxError`, whoever said it."""
    try:
        yield
    except EngineError as e:
        raise SandboxError(e.message, hint=e.hint) from e
