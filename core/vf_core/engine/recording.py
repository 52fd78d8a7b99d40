"""Writing a run's sandboxes down before they are asked for."""

from __future__ import annotations

import logging
from collections.abc import Callable

from vf_core.errors import SandboxError
from vf_core.events import types as ev
from vf_core.runtimes.base import Runtime
from vf_core.runtimes.lifecycle import Recorder, Transition
from vf_core.sandboxes.ledger import Ledger
from vf_core.sandboxes.owners import Owner

log = logging.getLogger(__name__)


class Recording:
    """Makes what writes the sandboxes of a run down in `ledger`, one for each attempt."""

    def __init__(self, ledger: Ledger, owner: Owner, publish: Callable[[ev.Event], None]) -> None:
        self._ledger = ledger
        self._owner = owner
        self._publish = publish
        self._warned = False

    def __call__(self, runtime: Runtime, rollout: str, attempt: int) -> Recorder:
        """The recorder of an attempt's sandbox."""
        recorder = self._ledger.recorder(
            self._owner,
            rollout=rollout,
            attempt=attempt,
            account=runtime.account,
            price=getattr(runtime.config, "price", None),
        )
        return _Lenient(recorder, self._warn) if runtime.kind == "subprocess" else recorder

    def _warn(self, error: SandboxError) -> None:
        if not self._warned:
            self._warned = True
            message = f"local sandboxes are not in the ledger: {error}"
            self._publish(ev.Log(level="warning", message=message[: ev.MESSAGE_LIMIT]))


class _Lenient:
    """For sandboxes that cost nothing and are written down on this host's disk besides: a ledger that cannot be
    written does not stand in their way."""

    def __init__(self, recorder: Recorder, warn: Callable[[SandboxError], None]) -> None:
        self._recorder = recorder
        self._warn = warn
        self._lost = False

    async def reserve(self, move: Transition) -> None:
        """See `Recorder.reserve`; never raises."""
        try:
            await self._recorder.reserve(move)
        except SandboxError as e:
            self._lost = True
            self._warn(e)

    def note(self, move: Transition) -> None:
        """See `Recorder.note`."""
        if not self._lost:
            self._recorder.note(move)
