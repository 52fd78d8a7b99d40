"""From a create call's answer to a sandbox that takes commands."""

from __future__ import annotations

import asyncio
import itertools
import secrets
from collections.abc import Callable

from vf_core.errors import SandboxError
from vf_core.runtimes.prime import commands
from vf_core.runtimes.prime.board import Snapshot
from vf_core.runtimes.prime.sdk import TERMINAL, CallError
from vf_core.runtimes.prime.shell import Shell, told


async def boot(shell: Shell, workdir: str, image: str, say: Callable[[str], None]) -> None:
    """Wait until it runs and answers; make its directories. `say` is told how far it is.

    Raises `SandboxError` when it ends meanwhile or takes too long.
    """
    await _running(shell, image, say)
    name = f".vf-tui-{secrets.token_hex(8)}"
    text = commands.settle(workdir, name)
    since = _now()
    for turn in itertools.count():
        try:
            shell.ground = await shell.once(text, parse=commands.settled, wait=10)
        except CallError as e:
            if e.kind in ("denied", "refused"):
                raise told(shell.name, shell.id, e, f"its directory {workdir} cannot be made") from e
            # The gateway may know it later than the control plane: "ended" is believed of that one only.
            if e.kind == "ended":
                await _running(shell, image, say)
            if _now() - since > shell.pace.boot:
                raise told(
                    shell.name, shell.id, e, f"it runs, but takes no commands for {_now() - since:.0f} s"
                ) from e
            say(f"RUNNING, not reachable yet: {e}")
            await asyncio.sleep(_delay(shell, turn + 1))
        else:
            return


async def _running(shell: Shell, image: str, say: Callable[[str], None]) -> None:
    since, building = _now(), 0.0
    last: CallError | None = None
    for turn in itertools.count():
        now = None
        try:
            now = await shell.client.watch(shell.id)
            last = None
        except CallError as e:
            if e.kind in ("denied", "missing", "refused"):
                raise told(shell.name, shell.id, e, "it was made, but cannot be looked at") from e
            last = e
        if now is not None:
            if now.status == "RUNNING":
                return
            if now.status in TERMINAL:
                raise await _ended(shell, now)
            if now.building:
                building, since = building or _now(), _now()
        waited = _now() - since
        allowed = shell.pace.boot
        if building and now is not None and now.building:
            waited, allowed = _now() - building, shell.pace.build
        if waited > allowed:
            raise SandboxError(
                f"prime sandbox {shell.name} ({shell.id}) does not run after {waited:.0f} s: "
                f"{_stage(now, image) if now else last}"
            )
        say(_stage(now, image) if now else f"cannot be looked at: {last}")
        await asyncio.sleep(_delay(shell, turn + 1))


async def _ended(shell: Shell, now: Snapshot) -> SandboxError:
    error, message = now.error, now.message
    if not error:
        error, message = await shell.client.why(shell.id)
    return SandboxError(
        f"prime sandbox {shell.name} ({shell.id}) did not start: {shell.verdict(now.status, error, message)}"
    )


def _stage(now: Snapshot, image: str) -> str:
    if now.building:
        return f"{now.status}: Prime makes a VM image of {image}, once; that may take some 10 minutes"
    return now.status or "no status"


def _delay(shell: Shell, turn: int) -> float:
    delays = shell.pace.boot_delays
    return delays[min(turn, len(delays) - 1)]


def _now() -> float:
    return asyncio.get_running_loop().time()
