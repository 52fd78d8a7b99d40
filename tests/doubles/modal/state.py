"""What the double knows: apps, images, sandboxes and their ends."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import secrets
import shutil
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from grpclib import GRPCError, Status
from modal_proto import api_pb2

from doubles.modal.guest import FS_TOOL, MARK, CannotStart, Exec, FileCall, KeepAlive, Process, kill_marked

Result = api_pb2.GenericResult
APP_ROOT = "/app"
TMP_OURS = "/tmp/.vf-tui-"


@dataclass(eq=False)
class Sandbox:
    """One sandbox. `root` is a directory of this host; `env` are its variables."""

    id: str
    task: str
    app: str
    name: str
    tags: dict[str, str]
    created: float
    definition: Any
    root: Path
    env: dict[str, str]
    main: Exec = field(default_factory=KeepAlive)
    execs: list[Exec] = field(default_factory=list)
    result: Any = None
    booted: asyncio.Event = field(default_factory=asyncio.Event)
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    active: float = 0.0
    following: asyncio.Task[None] | None = None
    terminated: int = 0

    def inside(self, text: str) -> str:
        """An argument with the sandbox's own paths as places of this host."""
        if text == APP_ROOT or text.startswith(f"{APP_ROOT}/"):
            return f"{self.root}{text.removeprefix(APP_ROOT)}"
        if text.startswith(TMP_OURS):
            return f"{self.root}/{text.removeprefix('/tmp/')}"
        return text

    def describe(self) -> dict[str, Any]:
        """For those who look at the double from outside."""
        return {"id": self.id, "name": self.name, "app": self.app, "tags": self.tags}


class World:
    """All of it. `speed`: how many of a sandbox's seconds of life pass in one real second."""

    def __init__(self, *, boot: float = 0.0, speed: float = 1.0, idempotent: bool = True) -> None:
        self.boot, self.speed, self.idempotent = boot, speed, idempotent
        self.apps: dict[str, str] = {}
        self.images: dict[bytes, str] = {}
        self.secrets: dict[str, dict[str, str]] = {}
        self.sandboxes: dict[str, Sandbox] = {}
        self.tasks: dict[str, Sandbox] = {}
        self.execs: dict[str, Exec] = {}
        self.keys: dict[str, str] = {}
        self._numbers = itertools.count(1)
        self._token = secrets.token_hex(6)
        self._ending: set[str] = set()
        self._sweeping: asyncio.Task[None] | None = None

    def _mark(self, id: str) -> str:
        """Tells a sandbox's processes on this host, where other doubles may run."""
        return f"{self._token}-{id}"

    # ------------------------------------------------------------------ what is there

    def app(self, name: str, *, create: bool) -> str:
        """An app's id."""
        if name not in self.apps:
            if not create:
                raise GRPCError(Status.NOT_FOUND, f"App '{name}' not found")
            self.apps[name] = f"ap-{len(self.apps) + 1:022d}"
        return self.apps[name]

    def sandbox(self, id: str) -> Sandbox:
        """One that exists or existed."""
        if id not in self.sandboxes:
            raise GRPCError(Status.NOT_FOUND, f"Sandbox {id} not found")
        return self.sandboxes[id]

    def live(self) -> list[Sandbox]:
        """Those that cost something now."""
        return [sandbox for sandbox in self.sandboxes.values() if sandbox.result is None]

    def named(self, app: str, name: str) -> Sandbox | None:
        """The live one of that name in an app."""
        for sandbox in self.live():
            if sandbox.name == name and sandbox.app == app:
                return sandbox
        return None

    def page(self, query: Any, size: int) -> list[Sandbox]:
        """The newest `size` that fit and are older than the query's time."""
        wanted = {(tag.tag_name, tag.tag_value) for tag in query.tags}
        fit = [
            sandbox
            for sandbox in self.sandboxes.values()
            if query.app_id in ("", sandbox.app)
            and wanted <= set(sandbox.tags.items())
            and (query.include_finished or sandbox.result is None)
            and (not query.before_timestamp or sandbox.created < query.before_timestamp)
        ]
        return sorted(fit, key=lambda sandbox: -sandbox.created)[:size]

    # ------------------------------------------------------------------ making and ending

    async def make(
        self,
        definition: Any,
        app: str,
        tags: Iterable[Any],
        env: Mapping[str, str],
        *,
        v2: bool,
        key: str | None,
    ) -> Sandbox:
        """A sandbox; the same one for the same idempotency key, if those count."""
        if key and self.idempotent and key in self.keys:
            return self.sandboxes[self.keys[key]]
        if definition.name and self.named(app, definition.name):
            raise GRPCError(Status.ALREADY_EXISTS, f"Sandbox {definition.name} already exists")
        n = next(self._numbers)
        root = Path(tempfile.mkdtemp(prefix=f"modal-{n}-")).resolve()
        # The id's shape tells the SDK which generation it is of.
        id = f"sb-{n:026d}" if v2 else f"sb-{n:022d}"
        sandbox = Sandbox(
            id=id,
            task=f"ta-{n}{'V' if v2 else ''}",
            app=app,
            name=definition.name,
            tags={tag.tag_name: tag.tag_value for tag in tags},
            # Unique: a page ends at a time.
            created=time.time() + n * 1e-4,
            definition=definition,
            root=root,
            env={**_variables(root), MARK: self._mark(id), **env},
        )
        self.sandboxes[id] = self.tasks[sandbox.task] = sandbox
        if key:
            self.keys[key] = id
        await self._begin(sandbox)
        return sandbox

    async def _begin(self, sandbox: Sandbox) -> None:
        loop = asyncio.get_running_loop()
        argv = list(sandbox.definition.entrypoint_args) or ["sleep", "infinity"]
        if argv[0] != "sleep":
            sandbox.main = await self.start(sandbox, argv, "", {}, 0)
            sandbox.following = loop.create_task(self._follow(sandbox))
        loop.call_later(self.boot, sandbox.booted.set) if self.boot else sandbox.booted.set()
        loop.call_later(
            sandbox.definition.timeout_secs / self.speed, self.finish, sandbox, Result.GENERIC_STATUS_TIMEOUT
        )
        if sandbox.definition.idle_timeout_secs:
            sandbox.active = loop.time()
            self._watch_idle(sandbox)

    def _watch_idle(self, sandbox: Sandbox) -> None:
        loop = asyncio.get_running_loop()
        allowed = sandbox.definition.idle_timeout_secs / self.speed
        if any(not command.status for command in sandbox.execs):
            sandbox.active = loop.time()
        left = sandbox.active + allowed - loop.time()
        if left <= 0:
            self.finish(sandbox, Result.GENERIC_STATUS_IDLE_TIMEOUT)
        elif sandbox.result is None:
            loop.call_later(max(left, 0.05), self._watch_idle, sandbox)

    async def _follow(self, sandbox: Sandbox) -> None:
        await sandbox.main.over.wait()
        code = sandbox.main.status.get("code", 128 + sandbox.main.status.get("signal", 0))
        self.finish(
            sandbox, Result.GENERIC_STATUS_SUCCESS if code == 0 else Result.GENERIC_STATUS_FAILURE, code
        )

    def finish(self, sandbox: Sandbox, status: int, code: int = 0) -> None:
        """It ends: with a status of the provider's, or a number that is none."""
        if sandbox.result is not None:
            return
        result = Result(exitcode=code)
        result.status = status
        sandbox.result = result
        for command in (sandbox.main, *sandbox.execs):
            command.kill()
        sandbox.ended.set()
        self._ending.add(sandbox.id)
        if self._sweeping is None or self._sweeping.done():
            self._sweeping = asyncio.get_running_loop().create_task(self._sweep())

    async def _sweep(self) -> None:
        """Processes that left their group; looked for once for all sandboxes that end about now."""
        while self._ending:
            await asyncio.sleep(0.02)
            ids, self._ending = self._ending, set()
            marks = frozenset(map(self._mark, ids))
            for _ in range(20):
                if not await asyncio.to_thread(kill_marked, marks):
                    break
            for id in ids:
                await asyncio.to_thread(shutil.rmtree, self.sandboxes[id].root, ignore_errors=True)

    async def close(self) -> None:
        """End everything and leave nothing on this host."""
        for sandbox in self.live():
            self.finish(sandbox, Result.GENERIC_STATUS_TERMINATED)
        if self._sweeping is not None:
            await self._sweeping
        for sandbox in self.sandboxes.values():
            for command in sandbox.execs:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(command.over.wait(), 5)
                command.close()

    # ------------------------------------------------------------------ commands

    async def start(
        self, sandbox: Sandbox, argv: Sequence[str], cwd: str, env: Mapping[str, str], timeout: float
    ) -> Exec:
        """Start a command in a sandbox."""
        if argv[0] == FS_TOOL:
            ((op, asked),) = json.loads(argv[1]).items()
            return FileCall({op: {**asked, "path": sandbox.inside(asked["path"])}})
        where = sandbox.inside(cwd) if cwd else str(sandbox.root)
        inside = [sandbox.inside(text) for text in argv]
        try:
            return Process.start(inside, where, {**sandbox.env, "PWD": where, **env}, timeout)
        except CannotStart as e:
            raise GRPCError(Status.INVALID_ARGUMENT, str(e)) from e


def _variables(root: Path) -> dict[str, str]:
    """What a sandbox of this host has: its programs, none of its secrets."""
    path = f"{os.path.dirname(sys.executable)}:{os.environ.get('PATH', os.defpath)}"
    return {"PATH": path, "HOME": str(root), "TMPDIR": str(root), "LANG": "C.UTF-8"}
