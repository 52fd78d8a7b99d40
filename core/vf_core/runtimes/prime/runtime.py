"""A sandbox at Prime."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar

from vf_core.errors import ConfigError, SandboxError
from vf_core.runtimes import guest
from vf_core.runtimes.base import Collected, ProgramResult, Runtime
from vf_core.runtimes.box import Answer, Box
from vf_core.runtimes.lifecycle import Observer
from vf_core.runtimes.limiter import CreationLimiter
from vf_core.runtimes.prime import client as clients
from vf_core.runtimes.prime import commands, files, last_resort, reconcile, sdk
from vf_core.runtimes.prime.boot import boot
from vf_core.runtimes.prime.client import Client
from vf_core.runtimes.prime.config import PrimeConfig
from vf_core.runtimes.prime.jobs import Job, Spawn
from vf_core.runtimes.prime.pace import PACE, Pace
from vf_core.runtimes.prime.reconcile import Claim
from vf_core.runtimes.prime.request import create_request, is_loopback
from vf_core.runtimes.prime.sdk import CallError
from vf_core.runtimes.prime.shell import Shell

# Of a config, what a trace record's `runtime` has no field for.
_NOT_IN_RECORDS = frozenset({"timeout"})

# How long a sandbox may take to be told that its programs shall end, in seconds.
_ASKING = 3.0

# $1: the log, then the program.
_APPEND = """\
mkdir -p -- "$(dirname -- "$1")" && exec >>"$1" 2>&1 || exit 126
shift
exec "$@"
"""


@dataclass(eq=False, slots=True)
class Handle:
    """One sandbox. `claim`: what was asked for, and what came of it; `jobs`: its foreground commands."""

    claim: Claim = field(default_factory=lambda: Claim(key=uuid.uuid4().hex))
    client: Client | None = None
    access: last_resort.Access | None = None
    shell: Shell | None = None
    jobs: set[Job] = field(default_factory=set)
    halted: asyncio.Event = field(default_factory=asyncio.Event)
    image_cached: bool | None = None


class PrimeRuntime(Runtime):
    """One sandbox at Prime. The SDK has no deadlines and, in 0.5.1, no way to publish a port: see `expose`."""

    kind: ClassVar[str] = "prime"
    probe_delays: ClassVar[tuple[float, ...]] = (0.2, 0.5, 1.0, 2.0)
    pace: ClassVar[Pace] = PACE
    config: PrimeConfig

    def __init__(
        self,
        config: PrimeConfig,
        *,
        name: str,
        labels: Mapping[str, str] | None = None,
        observer: Observer | None = None,
    ) -> None:
        super().__init__(config, name=name, labels=labels, observer=observer)

    @property
    def account(self) -> str:
        """See `Runtime.account`."""
        return clients.account_of(sdk.load().Config())

    def info(self) -> dict[str, Any]:
        """See `Runtime.info`; `image_cached`: the image was there when the sandbox was asked for."""
        out = {key: value for key, value in super().info().items() if key not in _NOT_IN_RECORDS}
        if isinstance(out.get("creates_per_min"), float):
            out["creates_per_min"] = max(1, round(out["creates_per_min"]))
        cached = self._box.handle.image_cached
        return out if cached is None else {**out, "image_cached": cached}

    # ------------------------------------------------------------------ lifecycle

    def _new_handle(self) -> Handle:
        return Handle()

    async def _admit(self, box: Box[Handle]) -> None:
        handle = box.handle
        try:
            handle.client = clients.acquire(self.pace)
            handle.access = handle.client.access
        except ConfigError as e:
            raise SandboxError(e.message, hint=e.hint) from e
        try:
            await self._may_create(handle.client)
        except BaseException:
            # Nobody was asked for anything: there will be no end to let go at.
            clients.release(handle.client)
            handle.client = None
            raise

    async def _may_create(self, client: Client) -> None:
        try:
            await client.check()
        except CallError as e:
            raise SandboxError(f"Prime cannot be asked for a sandbox: {e}", hint=e.hint) from e
        if self.config.creates_per_min is not None:
            name = f"prime {client.account}"
            await CreationLimiter(name, self.config.creates_per_min / 60).admit()

    async def _create(self, box: Box[Handle]) -> None:
        handle = box.handle
        client = _of(handle)
        claim = handle.claim
        claim.name = box.name
        claim.call = self._spawn(self._claim(box, client), "create call of")
        await _first(claim.call, handle.halted, self._spawn)
        if not claim.call.done():
            if not claim.in_flight:
                claim.call.cancel()
            await asyncio.wait({claim.call}, timeout=client.pace.create_grace)
        if not claim.call.done():
            raise SandboxError(f"sandbox {box.name} was stopped before Prime answered its create call")
        if claim.call.cancelled():
            raise SandboxError(f"sandbox {box.name} was stopped before Prime was asked for it")
        claim.call.result()
        booting = self._spawn(self._boot(box), "boot of")
        await _first(booting, handle.halted, self._spawn)
        if not booting.done():
            booting.cancel()
            await asyncio.wait({booting})
            raise SandboxError(f"sandbox {box.name} was stopped while it started")
        booting.result()

    async def _claim(self, box: Box[Handle], client: Client) -> None:
        claim = box.handle.claim
        try:
            sandbox = await client.create(
                create_request(self.config, box.name, self.labels, claim.key), claim.sent
            )
        except CallError as e:
            client.doubt()
            claim.failed(e, client.pace.settle)
            raise SandboxError(f"Prime did not make sandbox {box.name}: {e}", hint=e.hint) from e
        except BaseException:
            claim.cut(client.pace.settle)
            raise
        claim.answered(sandbox.id)
        box.identify(sandbox.id)
        box.handle.image_cached = not sandbox.pending_image_build_id

    async def _boot(self, box: Box[Handle]) -> None:
        handle = box.handle
        handle.shell = Shell(
            _of(handle),
            box.id,
            box.name,
            pace=_of(handle).pace,
            limits=self.config.model_dump(include={"timeout", "memory", "image"}),
            on_lost=lambda detail: self._lost(detail) if box is self._box else None,
        )
        await boot(handle.shell, self.config.workdir, self.config.image, box.life.remark)

    def _begin_stop(self, box: Box[Handle], timeout: float) -> asyncio.Task[None] | None:
        box.handle.halted.set()
        box.handle.claim.deadline = asyncio.get_running_loop().time() + timeout - 1
        return super()._begin_stop(box, timeout)

    def _begin_confirm(self, box: Box[Handle], timeout: float) -> asyncio.Task[None]:
        box.handle.claim.deadline = asyncio.get_running_loop().time() + timeout - 1
        return super()._begin_confirm(box, timeout)

    async def _terminate(self, box: Box[Handle]) -> None:
        handle = box.handle
        if handle.shell is not None and handle.jobs and not box.forced.is_set():
            await _first(
                self._spawn(self._ask_jobs(handle, handle.shell), "ask programs in"), box.forced, self._spawn
            )
        for job in handle.jobs:
            job.abandon()
        with self._spoken(box):
            await reconcile.terminate(self._client(box), handle.claim)
        if handle.claim.ids and not box.id:
            box.identify(handle.claim.ids[0])

    async def _ask_jobs(self, handle: Handle, shell: Shell) -> None:
        """Let the programs end as they wish, so that they can say how."""
        jobs = list(handle.jobs)
        grace = shell.pace.grace
        text = commands.ask([job.place.directory for job in jobs], grace)
        try:
            async with asyncio.timeout(grace + _ASKING):
                ended = await shell.once(text, wait=grace, parse=lambda executed: executed.exit_code == 0)
        except (CallError, TimeoutError):
            return
        if not ended:
            return
        ends = [asyncio.ensure_future(job.over()) for job in jobs]
        _, late = await asyncio.wait(ends, timeout=grace / 2)
        if late:
            for job in jobs:
                job.poke()
            await asyncio.wait(late, timeout=grace / 2)

    async def _probe(self, box: Box[Handle]) -> Answer:
        with self._spoken(box):
            return await reconcile.probe(self._client(box), box.handle.claim)

    @contextmanager
    def _spoken(self, box: Box[Handle]) -> Iterator[None]:
        """Failures as the lifecycle has them. A client whose sandbox may not even exist is let go of."""
        try:
            yield
        except (CallError, SandboxError, ConfigError) as e:
            claim = box.handle.claim
            if not claim.ids and not claim.in_flight:
                self._release(box)
            if isinstance(e, SandboxError):
                raise
            raise SandboxError(e.message if isinstance(e, ConfigError) else str(e), hint=e.hint) from e

    def _client(self, box: Box[Handle]) -> Client:
        """The client that made it, or a new one after that was let go of."""
        if box.handle.client is None:
            box.handle.client = clients.acquire(self.pace)
        return box.handle.client

    def _release(self, box: Box[Handle]) -> None:
        client, box.handle.client = box.handle.client, None
        if client is not None:
            clients.release(client)

    def _cleanup(self, box: Box[Handle]) -> Answer | None:
        claim = box.handle.claim
        access = box.handle.access
        return last_resort.end(access, box.name, claim.ids) if access else None

    # ------------------------------------------------------------------ programs

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
        box, job = self._job(argv, env, cwd, output)
        box.handle.jobs.add(job)
        try:
            return await job.run(timeout)
        finally:
            box.handle.jobs.discard(job)

    def _job(
        self,
        argv: Sequence[str],
        env: Mapping[str, str] | None,
        cwd: str | None,
        output: Collected,
    ) -> tuple[Box[Handle], Job]:
        shell, box = self._shell(), self._box
        if not argv or any("\0" in text for text in (*argv, *(env or {}), *(env or {}).values(), cwd or "")):
            raise SandboxError("no program was named" if not argv else "an argument or variable has a NUL")
        where = guest.resolve(cwd or ".", self.config.workdir)
        return box, Job(
            shell,
            argv,
            env,
            where,
            limit=output.limit,
            sink=output.on_output,
            spawn=self._spawn,
            serving=lambda: not box.handle.halted.is_set(),
        )

    async def run_background(
        self, argv: Sequence[str], env: Mapping[str, str] | None = None, log: str = "background.log"
    ) -> None:
        """See `Runtime.run_background`."""
        appending = ["sh", "-c", _APPEND, "vf-background", self._path(log), *argv] if argv else ()
        _, job = self._job(appending, env, None, Collected(1000))
        await job.launch()

    # ------------------------------------------------------------------ scripts, files, network

    async def prepare_script(self, source: str, requires: Sequence[str] = ()) -> list[str]:
        """See `Runtime.prepare_script`: by the image's Python, else by uv in the sandbox."""
        self._shell()
        return await guest.prepare_script(self, self.config.image, source, requires)

    async def read(self, path: str) -> bytes:
        """See `Runtime.read`."""
        return await files.read(self._shell(), self._path(path))

    async def read_bounded(self, path: str, limit: int) -> bytes:
        """See `Runtime.read_bounded`."""
        return await files.read(self._shell(), self._path(path), limit)

    async def write(self, path: str, data: bytes) -> None:
        """See `Runtime.write`."""
        await files.write(self._shell(), self._path(path), data)

    async def expose(self, port: int) -> str:
        """See `Runtime.expose`. Raises `SandboxError`: the SDK has no way to do it."""
        raise SandboxError(
            f"port {port} of a prime sandbox cannot be reached from outside: prime-sandboxes cannot publish ports",
            hint="serve it on this host, or in a docker or modal sandbox",
        )

    def host_url(self, url: str) -> str:
        """See `Runtime.host_url`: any address but this host's own loopback. Raises `SandboxError` for that."""
        if is_loopback(url):
            raise SandboxError(
                f"{url} is this host's own address: no prime sandbox reaches it",
                hint="give runs with remote sandboxes a tunnel: [env.interception] tunnel",
            )
        return url

    def _shell(self) -> Shell:
        handle = self._work_here()
        assert isinstance(handle, Handle)  # noqa: S101 - for the type checker
        assert handle.shell is not None  # noqa: S101 - live, so it booted
        return handle.shell

    def _path(self, path: str) -> str:
        if "\0" in path:
            raise SandboxError(f"{path!r} is no path")
        return guest.resolve(path, self.config.workdir)


def _of(handle: Handle) -> Client:
    assert handle.client is not None  # noqa: S101 - held from the admission until its end is proven
    return handle.client


async def _first(task: asyncio.Task[Any], event: asyncio.Event, spawn: Spawn) -> None:
    """Wait for the end of `task`, but no longer than for `event`."""
    waiter = spawn(event.wait(), "wait for")
    try:
        await asyncio.wait({task, waiter}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        waiter.cancel()
