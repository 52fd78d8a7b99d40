"""The tool servers that all rollouts of a run share: started when a rollout first needs them, started again when they
die, ended with the run."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vf_core.errors import RolloutError, ToolsetError
from vf_core.events import types as ev
from vf_core.interception.channel import STATE_PATH
from vf_core.rollout.context import RunContext
from vf_core.rollout.sandboxes import stop_all
from vf_core.rollout.tools import all_or_none, as_server, channel_root, external, port_of, tools_box
from vf_core.runtimes.base import Runtime
from vf_core.runtimes.lifecycle import State
from vf_core.tasks.toolset import Toolset, needs_channel
from vf_core.tools.launch import Served, label, start

if TYPE_CHECKING:
    from vf_core.interception.tool_server import ToolServer

log = logging.getLogger(__name__)

RESTARTS = 3
"""How often a run's servers are started anew, all together."""
LOOK_SECONDS = 1.0


@dataclass(slots=True)
class _Running:
    """A server as rollouts know it, and where it serves; None: it is not ours to start."""

    toolset: Toolset[Any, Any]
    server: ToolServer
    served: Served | None = None


class SharedTools:
    """Starts, watches and ends a run's shared servers. One for each engine."""

    def __init__(self, toolsets: Sequence[Toolset[Any, Any]], context: RunContext) -> None:
        self._toolsets = tuple(toolsets)
        self._context = context
        self._current: asyncio.Task[list[_Running]] | None = None
        self._watching: asyncio.Task[None] | None = None
        self._runtimes: list[Runtime] = []
        self._restarts = RESTARTS
        self._given_up = ""

    @property
    def unsettled(self) -> list[Runtime]:
        """Their sandboxes that are not proven gone."""
        self._runtimes = [r for r in self._runtimes if r.state is not State.GONE]
        return [r for r in self._runtimes if not r.state.settled]

    async def servers(self) -> Sequence[ToolServer]:
        """The servers, started if need be. All who ask meanwhile wait for the same start; one that failed is tried
        anew by who asks next. Raises `ToolsetError`, `SandboxError`."""
        if self._given_up:
            raise ToolsetError(self._given_up)
        if self._current is None:
            self._current = asyncio.create_task(self._start_all(), name="shared tools")
        current = self._current
        try:
            running = await asyncio.shield(current)
        except asyncio.CancelledError:
            me = asyncio.current_task()
            if current.cancelled() and not (me is not None and me.cancelling()):
                raise ToolsetError("the shared tool servers were ended while they started") from None
            raise
        except BaseException:
            if self._current is current:
                self._current = None
                self._failed()
            raise
        if self._watching is None and self._current is current:
            self._watching = asyncio.create_task(self._watch(running), name="shared tools' health")
        return [one.server for one in running]

    async def close(self) -> None:
        """End them, with proof where that can be had. Who needs them from now on gets new ones. Idempotent."""
        current, self._current = self._current, None
        watching, self._watching = self._watching, None
        mine = self.unsettled
        # Rollouts that are restarted after this are a new beginning.
        self._restarts, self._given_up = RESTARTS, ""
        for task in (watching, current):
            if task is not None and not task.done():
                task.cancel()
                await asyncio.wait({task})
            elif task is not None and not task.cancelled():
                task.exception()
        await stop_all(mine, confirm=True)

    async def _start_all(self) -> list[_Running]:
        before = list(self._runtimes)
        try:
            return await all_or_none([self._start(k, one) for k, one in enumerate(self._toolsets, 1)])
        except BaseException:
            # Those that had started are not wanted without the others.
            made = [runtime for runtime in self._runtimes if runtime not in before]
            await asyncio.shield(stop_all(made, confirm=True))
            raise

    async def _start(self, k: int, toolset: Toolset[Any, Any], before: Served | None = None) -> _Running:
        """Start one. In place of `before` it takes that one's port and secrets, so that who uses it goes on."""
        if toolset.config.url is not None:
            return _Running(toolset, external(toolset, shared=True))
        runtime = self._box(k, toolset)
        try:
            await runtime.start()
            states = ""
            if needs_channel(type(toolset), shared=True):
                states = await channel_root(runtime, self._context) + STATE_PATH
            port = port_of(runtime, 0)
            try:
                served = await start(
                    toolset,
                    runtime,
                    channel=(states, ""),
                    port=port or (before.port if before is not None else 0),
                    like=before,
                )
            except ToolsetError:
                if before is None:
                    raise
                # Somebody else may have that port by now, and is told by rollouts what lets in there: no longer here.
                served = await start(toolset, runtime, channel=(states, ""))
        except BaseException:
            await asyncio.shield(stop_all([runtime], confirm=True))
            raise
        return _Running(toolset, as_server(served, shared=True), served)

    def _box(self, k: int, toolset: Toolset[Any, Any]) -> Runtime:
        name = f"vf-{self._context.run[:8]}-shared-{k}-{secrets.token_hex(3)}"
        runtime = tools_box(toolset, name, f"shared-{k}", self._context)
        self._runtimes.append(runtime)
        return runtime

    # ------------------------------------------------------------------ their health

    async def _watch(self, running: list[_Running]) -> None:
        """Look after the servers until it is cancelled; one that died is started anew, as long as that is allowed."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            for k, one in enumerate(running):
                if one.served is None or await one.served.lives():
                    continue
                if self._restarts <= 0:
                    self._given_up = (
                        f"shared {label(one.toolset)} died again; it was started {RESTARTS} more times"
                    )
                    self._say("error", self._given_up)
                    return
                self._restarts -= 1
                await self._replace(k, running)

    def _failed(self) -> None:
        """A start failed: the rollouts that come next try it as often as restarts are left."""
        self._restarts -= 1
        if self._restarts < 0:
            self._given_up = f"shared tool servers could not be started {RESTARTS + 1} times: not tried again"

    async def _replace(self, k: int, running: list[_Running]) -> None:
        """Start the server at `k` anew. `running` is what rollouts are given: it is changed in place."""
        dead = running[k]
        what, served = label(dead.toolset), dead.served
        if served is None:
            return
        try:
            last = await served.last_words()
            more = f"starting it again ({self._restarts} more such starts)"
            self._say("warning", f"shared {what} died; {more}{last}")
            await stop_all([served.runtime], confirm=True)
            running[k] = await self._start(k + 1, dead.toolset, served)
        except RolloutError as e:
            self._say("error", f"shared {what} could not be started again: {e}")
        except Exception as e:
            log.exception("shared %s", what)
            self._say("error", f"shared {what} could not be started again: {type(e).__name__}: {e}")

    def _say(self, level: str, message: str) -> None:
        self._context.publish(ev.Log(level=level, message=message[: ev.MESSAGE_LIMIT]))
