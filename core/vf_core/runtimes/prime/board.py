"""Asking how sandboxes are: many waiters, few questions."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from vf_core.runtimes.prime.sdk import CallError

# Ids in one question: the provider's limit. Waiters who come within the pause share it.
_BATCH: Final = 100
_PAUSE: Final = 0.05


@dataclass(frozen=True, slots=True)
class Snapshot:
    """How a sandbox is, in the provider's words. `building`: its image is being made first."""

    status: str
    error: str = ""
    message: str = ""
    building: bool = False

    @staticmethod
    def of(row: Mapping[str, Any]) -> Snapshot:
        """From an answer, whichever way it spells its keys."""

        def text(snake: str, camel: str) -> str:
            return str(row.get(snake) or row.get(camel) or "")

        return Snapshot(
            status=str(row.get("status") or ""),
            error=text("error_type", "errorType"),
            message=text("error_message", "errorMessage"),
            building=bool(text("pending_image_build_id", "pendingImageBuildId")),
        )


class Board:
    """`many` asks about up to 100 sandboxes, `one` about one, where the provider cannot do the other."""

    def __init__(
        self,
        many: Callable[[Sequence[str]], Awaitable[dict[str, Any]]],
        one: Callable[[str], Awaitable[Snapshot]],
    ) -> None:
        self._many = many
        self._one = one
        self._waiting: dict[str, asyncio.Future[Snapshot]] = {}
        self._asking: set[asyncio.Task[None]] = set()
        self._alone = False

    async def look(self, id: str) -> Snapshot:
        """See `Client.watch`."""
        if self._alone:
            return await self._one(id)
        future = self._waiting.get(id)
        if future is None:
            if not self._waiting:
                asyncio.get_running_loop().call_later(_PAUSE, self._ask)
            future = self._waiting[id] = asyncio.get_running_loop().create_future()
            future.add_done_callback(_seen)
        return await asyncio.shield(future)

    def _ask(self) -> None:
        waiting, self._waiting = self._waiting, {}
        ids = list(waiting)
        for at in range(0, len(ids), _BATCH):
            batch = {id: waiting[id] for id in ids[at : at + _BATCH]}
            task = asyncio.get_running_loop().create_task(self._fill(batch))
            self._asking.add(task)
            task.add_done_callback(self._asking.discard)

    async def _fill(self, batch: dict[str, asyncio.Future[Snapshot]]) -> None:
        try:
            found = await self._batch(list(batch))
        except CallError as e:
            found = dict.fromkeys(batch, e)
        except BaseException:
            for future in batch.values():
                future.cancel()
            raise
        for id, future in batch.items():
            result = found.get(id) or CallError("garbled", "nothing was said of it")
            if future.done():
                continue
            if isinstance(result, Snapshot):
                future.set_result(result)
            else:
                future.set_exception(result)

    async def _batch(self, ids: Sequence[str]) -> dict[str, Snapshot | CallError]:
        try:
            answer = await self._many(ids)
        except CallError as e:
            if e.status not in (404, 405):
                raise
            # A platform without this question.
            self._alone = True
            looks = await asyncio.gather(*(self._one(id) for id in ids), return_exceptions=True)
            return {
                id: look if isinstance(look, Snapshot | CallError) else CallError("garbled", repr(look))
                for id, look in zip(ids, looks, strict=True)
            }
        found: dict[str, Snapshot | CallError] = {}
        for row in answer.get("statuses") or ():
            found[str(row.get("sandbox_id"))] = Snapshot.of(row)
        for row in answer.get("errors") or ():
            id, code = str(row.get("sandbox_id")), str(row.get("code"))
            kind = {"NOT_FOUND": "missing", "FORBIDDEN": "denied"}.get(code, "refused")
            found[id] = CallError(kind, f"{code}: {row.get('message')}")  # type: ignore[arg-type]
        return found


def _seen(future: asyncio.Future[Snapshot]) -> None:
    if not future.cancelled():
        future.exception()  # its waiters may all be gone
