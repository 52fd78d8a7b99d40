"""The ledger: every sandbox that was ever asked for, on disk before it is asked for.

One SQLite file for all of this user's engines on this host, private to the user. It holds names, ids, states and
proofs, and no secrets. Where the state directory is on a network filesystem, each host has a file of its own there,
and sees what others made only in the providers' lists.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Collection
from concurrent.futures import Future
from pathlib import Path

from vf_core.errors import SandboxError
from vf_core.runtimes.lifecycle import LifecycleError, Recorder, State, Transition
from vf_core.sandboxes.owners import LOCAL, Owner
from vf_core.sandboxes.place import default_path
from vf_core.sandboxes.rows import Change, Row, new_key, plain, safe
from vf_core.sandboxes.worker import FORGET_DAYS, PATIENCE, Waiter, Worker, Write

__all__ = ["Ledger", "Owner", "Row"]


class Ledger:
    """The ledger in the file at `path`. Any number of processes, and of threads in each, may use it at once; one
    thread of its own does all work on the file. Nothing is opened or made before it is needed."""

    def __init__(self, path: Path, *, patience: float = PATIENCE) -> None:
        self.path = path
        self._worker = Worker(path, patience=patience)

    @classmethod
    def open(cls, path: Path | None = None, *, patience: float = PATIENCE) -> Ledger:
        """The ledger at `path` (default: see `place.default_path`). `patience`: seconds that a write
        waits for other processes."""
        return cls((path or default_path()).absolute(), patience=patience)

    def recorder(
        self, owner: Owner, *, rollout: str, attempt: int, account: str = "", price: float | None = None
    ) -> Recorder:
        """What writes one runtime's sandboxes down. `account` is where it is made, as its kind's `Provider.account`
        says it; `price` in $/h."""
        return _Recorder(self._worker, owner, rollout=rollout, attempt=attempt, account=account, price=price)

    def rows(
        self,
        *,
        unproven: bool = False,
        kinds: Collection[str] | None = None,
        run: str | None = None,
        keys: Collection[int] | None = None,
        ids: Collection[str] | None = None,
    ) -> list[Row]:
        """The rows that fit all that is given, oldest first; `unproven`: those not proven gone. Blocks, so not for an
        event loop. Raises `SandboxError`."""
        return self._worker.read(
            lambda store: store.read(unproven=unproven, kinds=kinds, run=run, keys=keys, ids=ids)
        ).result()

    async def read(
        self,
        *,
        unproven: bool = False,
        kinds: Collection[str] | None = None,
        run: str | None = None,
        keys: Collection[int] | None = None,
        ids: Collection[str] | None = None,
    ) -> list[Row]:
        """As `rows`, for an event loop."""
        return await asyncio.wrap_future(
            self._worker.read(
                lambda store: store.read(unproven=unproven, kinds=kinds, run=run, keys=keys, ids=ids)
            )
        )

    async def run_dirs(self, runs: Collection[str]) -> dict[str, str]:
        """The directories of those runs that have rows here. Raises `SandboxError`."""
        return await asyncio.wrap_future(self._worker.read(lambda store: store.run_dirs(runs)))

    async def settle(
        self, key: int, state: State, *, id: str = "", proof: str = "", detail: str = ""
    ) -> None:
        """Write down what was found out about a row's sandbox; on disk when this returns. `gone` needs its proof, and
        stays. Raises `SandboxError`."""
        if (state is State.GONE) != bool(proof):
            raise LifecycleError(f"the ledger's row {key}: {state} with proof {proof!r}")
        change = Change(key, state, time.time(), plain(id), safe(proof), safe(detail))
        await _written(self._worker, Write(changes=[change]))

    def forget_old(self, days: float = FORGET_DAYS) -> int:
        """Drop rows that were proven gone more than `days` ago, and no others; how many. Blocks. Raises
        `SandboxError`. (Whoever wrote to the ledger does this when it closes.)"""
        before = time.time() - days * 86_400
        return self._worker.read(lambda store: store.forget(before)).result()

    def flush(self) -> None:
        """Return when all that was noted is on disk, or was tried. Blocks."""
        done: Future[None] = Future()
        self._worker.put(Write(done=done))
        with contextlib.suppress(SandboxError):
            done.result()

    def close(self) -> None:
        """Write what is left and end the thread. Blocks for as long as `patience` at most. Idempotent; what is noted
        later is written all the same."""
        self._worker.close()

    async def aclose(self) -> None:
        """As `close`, for an event loop."""
        await asyncio.to_thread(self.close)


async def _written(worker: Worker, write: Write) -> None:
    loop = asyncio.get_running_loop()
    future: asyncio.Future[None] = loop.create_future()
    write.done = Waiter(loop, future)
    worker.put(write)
    await future


class _Recorder:
    """The sandboxes of one runtime, which has them one after another, or (a forced start) side by side."""

    def __init__(
        self, worker: Worker, owner: Owner, *, rollout: str, attempt: int, account: str, price: float | None
    ) -> None:
        self._worker = worker
        self._owner = owner
        self._rollout = rollout
        self._attempt = attempt
        self._account = account
        self._price = price
        # The rows of sandboxes that are not proven gone, by name.
        self._keys: dict[str, int] = {}

    async def reserve(self, move: Transition) -> None:
        """See `Recorder`. Raises `SandboxError` when it cannot be written down."""
        row = Row(
            key=new_key(),
            kind=move.kind,
            account=safe(move.account or self._account or _local_account(move.kind)),
            name=plain(move.sandbox),
            id=plain(move.id),
            owner=self._owner,
            rollout=plain(self._rollout),
            attempt=self._attempt,
            state=move.state,
            created=move.t,
            changed=move.t,
            detail=safe(move.detail),
            price=self._price,
        )
        self._keys[move.sandbox] = row.key
        try:
            await _written(self._worker, Write(new=[row]))
        except Exception:
            self._keys.pop(move.sandbox, None)
            raise

    def note(self, move: Transition) -> None:
        """See `Recorder`. What was never reserved was never asked for, and is passed over."""
        key = self._keys.get(move.sandbox)
        if key is None:
            return
        if move.state is State.GONE:
            del self._keys[move.sandbox]
        change = Change(key, move.state, move.t, plain(move.id), safe(move.proof), safe(move.detail))
        self._worker.put(Write(changes=[change]))


def _local_account(kind: str) -> str:
    """Where a local sandbox is made, which its runtime need not say."""
    if kind != LOCAL:
        return ""
    from vf_core.runtimes.leftovers import local_account

    return local_account()
