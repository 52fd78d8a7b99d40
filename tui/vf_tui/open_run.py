"""What the app knows and says of the run it shows: no Textual here, so that it can be asked without a screen."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from vf_core.config.settings import Settings
from vf_core.events.state import RolloutView, RunState
from vf_tui import glyphs
from vf_tui.actions import Context
from vf_tui.bridge import Bridge
from vf_tui.keymap import Keymap
from vf_tui.render import timefmt
from vf_tui.requests import standing

ID_SHOWN = 8


class OpenRun:
    """The open run, if any, and what stands in the way of acting on it.

    `embedded`: its engine lives in this process and ends with it. `locked`: the user's read-only lock.
    `leaving`: the app ends as soon as the run has been torn down. `clock` gives Unix seconds.
    """

    def __init__(
        self,
        *,
        settings: Settings | None = None,
        read_only: bool = False,
        embedded: bool = False,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.settings = settings or Settings()
        self.keymap = Keymap()
        self.bridge: Bridge | None = None
        self.embedded = embedded
        self.locked = read_only
        self.leaving = False
        self.busy: dict[str, int] = {}
        self.clock = clock
        self._watched: set[str] = set()

    @property
    def state(self) -> RunState:
        """The run as it stands; an empty one when none is open."""
        return self.bridge.state if self.bridge is not None else _NO_RUN

    @property
    def stall_seconds(self) -> float:
        """After how long without progress a rollout counts as stalled."""
        return self.settings.stall_seconds

    @property
    def is_live(self) -> bool:
        """It is not over, and its engine can be reached."""
        return self.bridge is not None and self.bridge.ticking

    @property
    def dir(self) -> Path | None:
        """Its directory, if it has one."""
        where = self.bridge.about.dir if self.bridge is not None else ""
        return Path(where) if where else None

    @property
    def come_back(self) -> str:
        """The command that shows it again."""
        if self.bridge is None:
            return "vf-tui"
        about = self.bridge.about
        if about.how == "file" or self.bridge.lost or self.state.over:
            return f"vf-tui open {about.dir}"
        # The start of an id that a person can type; `attach` says so when two runs share it.
        return f"vf-tui attach {(self.state.run or about.run)[:4]}"

    @property
    def exit_code(self) -> int:
        """0, or what the run ended with."""
        return (self.state.exit_code or 0) if self.state.over else 0

    def now(self) -> float:
        """The time to measure ages against, in Unix seconds."""
        return self.bridge.now() if self.bridge is not None else self.clock()

    def remark(self) -> str:
        """What the header says besides the run."""
        parts = ["cleaning up, then leaving"] if self.leaving else []
        if (reason := self.read_only_reason()) and self.is_live:
            parts.append(reason)
        return glyphs.between().join(parts)

    def alarm(self) -> str:
        """What must not be overlooked; "" when all is well."""
        bridge = self.bridge
        if bridge is None:
            return ""
        pid = bridge.about.pid or bridge.state.pid
        who = f"pid {pid}, " if pid else ""
        if bridge.silent_since is not None:
            shown = "what is shown is as it was then" if bridge.connected else "still trying"
            return (
                f"ENGINE SILENT ({who}since {timefmt.at(bridge.silent_since)}): paused or overloaded; {shown}"
            )
        if not bridge.connected:
            return f"NO ENGINE: {bridge.lost}" if bridge.lost else ""
        reason = self._lost(bridge)
        if not reason:
            return ""
        left, keys = self.left_behind(), self.keymap.first("go.sandboxes")
        tail = f" · {left}{f' ({keys} {keys} lists them)' if keys else ''}" if left else ""
        return f"ENGINE LOST{tail} · {who}last heard of {timefmt.at(bridge.state.now)} · {reason}"

    def left_behind(self) -> str:
        """`4 sandboxes not proven gone`: what an engine that is lost may have left; "" when there is none."""
        bridge = self.bridge
        if bridge is None or not self.engine_lost():
            return ""
        left = len(standing(bridge.state))
        return f"{left} sandbox{'es' * (left != 1)} not proven gone" if left else ""

    def engine_lost(self) -> bool:
        """The engine of a run that is not over is gone."""
        bridge = self.bridge
        return bridge is not None and bridge.connected and not bridge.state.over and bool(self._lost(bridge))

    def _lost(self, bridge: Bridge) -> str:
        """Why nothing more is to be heard of the engine of a run that is not over; "" while there is hope."""
        if bridge.lost or bridge.alive or bridge.state.over or not (bridge.about.pid or bridge.state.pid):
            return bridge.lost
        return bridge.about.note or "it ended without a word"

    def waiting_text(self) -> str:
        """What an empty list says."""
        bridge = self.bridge
        if bridge is None or bridge.lost:
            return "nothing to show"
        return "no rollouts yet" if bridge.connected else "connecting to the engine"

    def read_only_reason(self) -> str:
        """Why nothing may be done to the run; "" when it may."""
        if self.bridge is not None and self.bridge.link.read_only:
            return self.bridge.about.note or "read-only"
        return self._lock_reason()

    def _lock_reason(self) -> str:
        return f"read-only lock ({self.keymap.first('app.lock')} releases it)" if self.locked else ""

    def unreachable(self) -> str:
        """Why the engine can't be asked for anything; "" when it can. It stays a while after its run is over."""
        if self.bridge is None or (self.bridge.alive and not self.bridge.lost):
            return ""
        return "the engine is lost" if self.bridge.lost else "the engine has ended"

    def context(self, scope: str, targets: Sequence[RolloutView], **more: Any) -> Context:
        """What the registry may look at, for a screen of `scope`."""
        bridge, state = self.bridge, self.state
        return Context(
            scope=scope,
            targets=tuple(targets),
            has_run=bridge is not None,
            over=state.over,
            lost=self.unreachable(),
            read_only=self.read_only_reason(),
            locked=self._lock_reason(),
            stopping=state.status == "stopping",
            paused=state.paused,
            busy=frozenset(self.busy),
            standing=standing(state),
            failed=state.totals.error,
            active=state.totals.active,
            **more,
        )

    def watch_rollouts(self, ids: set[str]) -> None:
        """Tell the engine which rollouts are looked at."""
        if self.bridge is not None and self._watched != ids:
            self._watched = set(ids)
            self.bridge.link.watch(set(ids))

    async def trace(self, rollout: str, attempt: int) -> dict[str, Any] | None:
        """A rollout's trace record so far; None when there is none."""
        return await self.bridge.link.trace(rollout, attempt) if self.bridge is not None else None


_NO_RUN = RunState()
