"""Commands in one live sandbox, asked again while it does not answer, and the verdict when it ended or is lost."""

from __future__ import annotations

import asyncio
import itertools
import secrets
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, TypeVar

from vf_core.errors import SandboxError
from vf_core.runtimes.prime.client import Client, Executed
from vf_core.runtimes.prime.commands import Ground
from vf_core.runtimes.prime.pace import Pace
from vf_core.runtimes.prime.sdk import TERMINAL, CallError

T = TypeVar("T")

# One argument of a program holds 128 KiB; longer text goes by file.
_LONGEST: Final = 96 << 10
_ENDED: Final = {
    "TIMEOUT": "it reached its lifetime (timeout = {timeout:g} s)",
    "OOM_KILLED": "it ran out of memory (memory = {memory:g} GB)",
    "IMAGE_PULL_FAILED": "its image {image} could not be pulled",
}


def told(name: str, id: str, e: CallError, what: str) -> SandboxError:
    """The failure as it is shown."""
    return SandboxError(f"prime sandbox {name} ({id}): {what}: {e}", hint=e.hint)


class Shell:
    """`on_lost` is told once why nothing more can be done in the sandbox; `limits` are what the verdict names."""

    def __init__(
        self,
        client: Client,
        id: str,
        name: str,
        *,
        pace: Pace,
        limits: Mapping[str, object],
        on_lost: Callable[[str], None],
    ) -> None:
        self.client = client
        self.id = id
        self.name = name
        self.pace = pace
        # Known once it is up; and what of our directory is not needed any more.
        self.ground = Ground("", setsid=False, signals=False)
        self.rubbish: list[str] = []
        self._limits = limits
        self._on_lost = on_lost

    def new_path(self, suffix: str = "") -> str:
        """A name in our directory that nothing has."""
        return f"{self.ground.directory}/{secrets.token_hex(8)}{suffix}"

    def take_rubbish(self) -> list[str]:
        """What the next command is to remove."""
        rubbish, self.rubbish = self.rubbish, []
        return rubbish

    async def once(
        self,
        text: str,
        env: Mapping[str, str] | None = None,
        *,
        wait: float = 10.0,
        parse: Callable[[Executed], T],
    ) -> T:
        """Run shell text that takes about `wait` seconds. Raises `CallError`."""
        data = text.encode(errors="replace")
        if len(data) > _LONGEST:
            path = self.new_path(".sh")
            await self.client.upload(self.id, path, data)
            text = f"bash {path}; e=$?; rm -f {path}; exit $e"
        return parse(await self.client.execute(self.id, text, env, timeout=wait))

    async def insist(
        self,
        text: str,
        env: Mapping[str, str] | None = None,
        *,
        wait: float = 10.0,
        parse: Callable[[Executed], T],
        what: str = "a command",
    ) -> T:
        """As `once`, for text that may run twice: asked again until the sandbox answers. Raises `SandboxError` when
        it ended, when it has not answered for too long, or when nothing would come of asking again."""
        return await self.insist_on(lambda: self.once(text, env, wait=wait, parse=parse), what)

    async def insist_on(self, call: Callable[[], Awaitable[T]], what: str) -> T:
        """As `insist`, for any call of the client."""
        loop = asyncio.get_running_loop()
        since = 0.0
        for turn in itertools.count():
            try:
                return await call()
            except CallError as e:
                if e.kind in ("denied", "refused", "missing"):
                    raise told(self.name, self.id, e, what) from e
                since = since or loop.time()
                await self._judge(e)
                if loop.time() - since > self.pace.liveness:
                    raise self._lost(
                        f"it has not answered for {loop.time() - since:.0f} s, the last time: {e}"
                    ) from e
                await asyncio.sleep(self.pace.retry_delays[min(turn, len(self.pace.retry_delays) - 1)])
        raise AssertionError

    async def _judge(self, e: CallError) -> None:
        """Ask the provider what became of it. Returns when it may still answer."""
        try:
            now = await self.client.snapshot(self.id)
        except CallError as other:
            if other.kind == "missing":
                raise self._lost("Prime answers 404: there is no such sandbox any more") from e
            return
        if now.status not in TERMINAL:
            return
        error, message = now.error, now.message
        if not error:
            error, message = await self.client.why(self.id)
        raise self._lost(self.verdict(now.status, error, message)) from e

    def verdict(self, status: str, error: str, message: str) -> str:
        """Why it ended, for people."""
        kind = error or status
        reason = _ENDED.get(kind, "").format_map(self._limits)
        return ": ".join(part for part in (f"Prime ended it, {kind}", reason, message) if part)

    def _lost(self, detail: str) -> SandboxError:
        self._on_lost(detail)
        return SandboxError(f"prime sandbox {self.name} ({self.id}): {detail}")
