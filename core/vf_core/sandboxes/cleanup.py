"""Getting rid of what is left over: asked again whose it is, ended, and proven gone by its provider."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import TypeVar

from vf_core.errors import SandboxError, VfError
from vf_core.runtimes.lifecycle import State
from vf_core.runtimes.provider import Listed, Provider
from vf_core.sandboxes import join, providers
from vf_core.sandboxes.asking import arrival, made_elsewhere
from vf_core.sandboxes.bounds import bounded, quietly
from vf_core.sandboxes.items import Item, Outcome
from vf_core.sandboxes.ledger import Ledger
from vf_core.sandboxes.owners import Verdict, verdict
from vf_core.sandboxes.providers import Makers
from vf_core.sandboxes.rows import Row, safe

__all__ = ["Outcome", "clean"]

log = logging.getLogger(__name__)

T = TypeVar("T")

PARALLEL = 32
TIMEOUT = 60.0
_HOLD = 5.0
"""Seconds after which one that only waits lets another begin beside it."""
_PAUSES = (0.05, 0.1, 0.2, 0.5, 1.0)


async def clean(
    ledger: Ledger,
    items: Sequence[Item],
    *,
    claimed: Collection[str] = (),
    parallel: int = PARALLEL,
    timeout: float = TIMEOUT,
    on_result: Callable[[Outcome], None] | None = None,
    makers: Makers | None = None,
    halt: asyncio.Event | None = None,
) -> list[Outcome]:
    """End leftovers, and items whose keys are `claimed`; all others are skipped, and those of a live owner whatever
    is claimed. Outcomes in the order of `items`; `on_result` hears each as it is known. `timeout`: seconds for each.

    Whether an owner lives is asked again right before each request. GONE is what the provider said after it, and is
    written to the ledger; SURVIVED and UNKNOWN remain, and can be cleaned up again. From when `halt` is set no other
    one is begun: those are skipped.
    """
    usable = makers if makers is not None else providers.makers()
    cleaner = _Cleaner(ledger, frozenset(claimed), timeout, usable)
    slots = asyncio.Semaphore(max(1, parallel))

    async def one(item: Item) -> Outcome:
        await slots.acquire()
        with _slot(slots):
            began = time.monotonic()
            if halt is not None and halt.is_set():
                outcome = Outcome(item, "skipped", detail="interrupted before it was begun")
            else:
                outcome = await cleaner.outcome(item)
            outcome = replace(outcome, seconds=time.monotonic() - began)
        if on_result is not None:
            on_result(outcome)
        return outcome

    try:
        return list(await asyncio.gather(*(one(item) for item in items)))
    finally:
        await cleaner.close()


@contextmanager
def _slot(slots: asyncio.Semaphore) -> Iterator[None]:
    """An acquired slot, given back at the end, or when it was held for long: who waits in vain holds up nobody."""
    timer = asyncio.get_running_loop().call_later(_HOLD, slots.release)
    try:
        yield
    finally:
        if asyncio.get_running_loop().time() < timer.when():
            timer.cancel()
            slots.release()


class _Cleaner:
    """One cleanup: its providers, each made once, and the fate of each item."""

    def __init__(self, ledger: Ledger, claimed: frozenset[str], timeout: float, makers: Makers) -> None:
        self._ledger = ledger
        self._claimed = claimed
        self._timeout = timeout
        self._makers = makers
        self._providers: dict[str, Provider | str] = {}

    async def outcome(self, item: Item) -> Outcome:
        """What became of one item. Never raises."""
        try:
            outcome = await self._clean(item)
        except VfError as e:
            outcome = Outcome(item, "UNKNOWN", detail=str(e))
        except Exception as e:
            log.exception("cleaning up sandbox %s failed", item.key)
            outcome = Outcome(item, "UNKNOWN", detail=f"{type(e).__name__}: {e}")
        if outcome.state != "skipped":
            outcome = await self._written(outcome)
        return outcome

    async def close(self) -> None:
        """Let go of the providers."""
        for provider in self._providers.values():
            if isinstance(provider, Provider):
                await quietly(provider.close())

    # ------------------------------------------------------------------ one item

    async def _clean(self, item: Item) -> Outcome:
        if not item.leftover and item.key not in self._claimed:
            return Outcome(item, "skipped", detail=item.why or "it is not left over")
        rows = await self._rows(item)
        refusal = await self._refusal(item)
        if refusal:
            return Outcome(item, "skipped", detail=refusal)
        provider = await self._provider(item)
        deadline = time.monotonic() + self._timeout
        ids = [item.id] if item.id else await self._ids(provider, item, rows, deadline)
        if not ids:
            return Outcome(item, "GONE", proof=f"{provider.account}: nothing has the name {item.name}")
        proofs = []
        for id in ids:
            refusal = await self._refusal(item)
            if refusal:
                return Outcome(item, "skipped", detail=refusal)
            outcome = await self._end(provider, item, id, deadline)
            if outcome.state != "GONE":
                return outcome
            proofs.append(outcome.proof)
        return Outcome(item, "GONE", proof="; ".join(dict.fromkeys(proofs)))

    async def _rows(self, item: Item) -> list[Row]:
        with suppress(SandboxError):
            return await self._ledger.read(keys=item.rows) if item.rows else []
        return []

    async def _refusal(self, item: Item) -> str:
        """Why it must not be ended; asked right before that is done."""
        origin = item.origin
        if not origin.run_dir:
            with suppress(SandboxError):
                places = await self._ledger.run_dirs({origin.run})
                origin = replace(origin, run_dir=places.get(origin.run, ""))
        now: Verdict = await asyncio.to_thread(verdict, origin, item.kind, recorded=bool(item.rows))
        if now.owner == "live":
            return f"in use: {now.proof}"
        if now.owner != "dead" and item.key not in self._claimed:
            return f"not claimed, and its owner is no longer known to be dead: {now.proof}"
        return ""

    async def _provider(self, item: Item) -> Provider:
        found = self._providers.get(item.kind)
        if found is None:
            await asyncio.to_thread(providers.load, item.kind)
            found = self._providers.get(item.kind) or self._make(item.kind)
            self._providers[item.kind] = found
        if isinstance(found, str):
            raise SandboxError(found)
        here = item.account in ("", safe(found.account))
        if not here and not await asyncio.to_thread(found.reaches, item.account):
            raise SandboxError(made_elsewhere(found, item.account))
        return found

    def _make(self, kind: str) -> Provider | str:
        make = self._makers.get(kind)
        if make is None:
            return f"this vf-tui has no sandboxes of kind {kind!r}"
        try:
            return make()
        except VfError as e:
            return str(e)

    async def _ids(self, provider: Provider, item: Item, rows: Sequence[Row], deadline: float) -> list[str]:
        """Those that have its name; none when there are none, and none can come any more."""
        until = max((arrival(row) for row in rows), default=0.0)
        for turn in range(1_000_000):
            found = await self._until(deadline, provider.find(item.name))
            ids = [entry.id for entry in found if entry.alive and _is_of(rows, entry)]
            if ids or time.time() >= until:
                return ids
            pause = min(_PAUSES[min(turn, len(_PAUSES) - 1)], max(0.01, until - time.time()))
            if time.monotonic() + pause >= deadline:
                wait = until - time.time()
                raise SandboxError(
                    f"nothing has its name yet, and for {wait:.0f} s it may still be on its way"
                )
            await asyncio.sleep(pause)
        return []

    async def _end(self, provider: Provider, item: Item, id: str, deadline: float) -> Outcome:
        """Ask for its end, then ask whether it is there until it is not."""
        refused = ""
        try:
            await self._until(deadline - self._timeout / 4, provider.delete(id))
        except TimeoutError:
            refused = "the request to delete it was not answered in time"
        except Exception as e:
            refused = _say(e)
        said = ""
        for turn in range(1_000_000):
            try:
                answer = await self._until(deadline, provider.probe(id))
            except TimeoutError:
                # What was said before the silence still holds.
                break
            except Exception as e:
                return Outcome(item, "UNKNOWN", detail=refused or _say(e))
            if answer.gone:
                return Outcome(item, "GONE", proof=answer.text)
            said = answer.text
            pause = _PAUSES[min(turn, len(_PAUSES) - 1)]
            if refused or time.monotonic() + pause >= deadline:
                break
            await asyncio.sleep(pause)
        if not said:
            return Outcome(item, "UNKNOWN", detail=refused or f"no answer within {self._timeout:g} s")
        return Outcome(item, "SURVIVED", detail=f"{refused}; {said}" if refused else said)

    @staticmethod
    async def _until(deadline: float, work: Awaitable[T]) -> T:
        return await bounded(work, max(0.05, deadline - time.monotonic()))

    async def _written(self, outcome: Outcome) -> Outcome:
        """The outcome in the ledger. What cannot be written down is told; the proof holds all the same."""
        try:
            for key in outcome.item.rows:
                await self._ledger.settle(
                    key, State[outcome.state], proof=outcome.proof, detail=outcome.detail
                )
        except SandboxError as e:
            return replace(outcome, detail=f"{outcome.detail}; {e}".lstrip("; "))
        return outcome


def _say(e: Exception) -> str:
    return str(e) if isinstance(e, VfError) else f"{type(e).__name__}: {e}"


def _is_of(rows: Sequence[Row], entry: Listed) -> bool:
    return any(join.is_of(row, entry, named=False) for row in rows)
