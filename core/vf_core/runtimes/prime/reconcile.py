"""What became of a create call, and ending whatever it made: by id, else by the name that was reserved for it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Literal, TypeVar

from vf_core.errors import SandboxError
from vf_core.runtimes.box import Answer
from vf_core.runtimes.prime import sdk
from vf_core.runtimes.prime.client import Client
from vf_core.runtimes.prime.sdk import CallError

T = TypeVar("T")

Outcome = Literal["unsent", "open", "answered", "refused", "cut"]
"""unsent: not asked. open: not answered yet. answered: made, its id is known. refused: the provider said no. cut:
nobody knows; it may have been made, or may still be."""

# Answers after which nothing more is on its way: a look at the list tells what there is.
_ANSWERED_BADLY = frozenset({500, 501, 503})


@dataclass(eq=False, slots=True)
class Claim:
    """One create call. `key` makes the provider answer a repeated call with the same sandbox; `ids` are all that are
    known to have come of it; `deadline` (of the loop's clock) is when whoever stops it waits no longer."""

    key: str
    name: str = ""
    ids: list[str] = field(default_factory=list)
    call: asyncio.Task[None] | None = None
    outcome: Outcome = "unsent"
    refusal: str = ""
    quiet_from: float = 0.0
    deadline: float = 0.0

    @property
    def in_flight(self) -> bool:
        """The create call was sent and may still be answered."""
        return self.outcome == "open" and self.call is not None and not self.call.done()

    def sent(self) -> None:
        """The provider is about to be asked."""
        self.outcome = "open"

    def answered(self, id: str) -> None:
        """It was made."""
        self.outcome = "answered"
        self.ids = [id, *(other for other in self.ids if other != id)]

    def failed(self, e: CallError, settle: float) -> None:
        """It failed: with the provider's no, or so that a sandbox may exist, or appear within `settle` seconds."""
        if self.outcome == "unsent":
            return
        if not sdk.retryable(e) or e.status == 429:
            self.outcome, self.refusal = "refused", str(e)
            return
        self.cut(0.0 if e.status in _ANSWERED_BADLY else settle)

    def cut(self, settle: float) -> None:
        """Its answer will not be known."""
        if self.outcome == "open":
            self.outcome = "cut"
            self.quiet_from = asyncio.get_running_loop().time() + settle

    def time_is_up(self) -> bool:
        """Whoever stops it waits no longer."""
        return asyncio.get_running_loop().time() >= self.deadline


async def terminate(client: Client, claim: Claim) -> None:
    """Ask for the end of all that came of a create call. Raises `CallError`, or `SandboxError` when the call is still
    open and nothing of it is listed."""
    await _wait_for_answer(client, claim)
    if claim.outcome in ("cut", "refused"):
        await _look(client, claim)
    results = await asyncio.gather(*(client.delete(id) for id in claim.ids), return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result


async def probe(client: Client, claim: Claim) -> Answer:
    """Whether something of it is still there. Raises as `terminate` does."""
    texts = []
    for id in list(claim.ids):
        answer = await client.probe(id)
        if not answer.gone:
            return answer
        texts.append(answer.text)
    if claim.outcome == "answered":
        return Answer(True, "; ".join(texts))
    if claim.outcome == "refused":
        return Answer(True, "; ".join(texts) or f"Prime refused to make it: {claim.refusal}")
    if claim.outcome == "unsent":
        return Answer(True, "Prime was never asked to make it")
    return await _settled(client, claim, texts)


async def _settled(client: Client, claim: Claim, texts: list[str]) -> Answer:
    """After a lost answer: nothing of its name may appear for a while."""
    loop = asyncio.get_running_loop()
    while True:
        since = loop.time()
        fresh = await _look(client, claim)
        if fresh:
            await asyncio.gather(*(client.delete(id) for id in fresh))
            return Answer(False, f"a sandbox of its name has appeared: {', '.join(fresh)}")
        left = claim.quiet_from - since
        if left <= 0 and not claim.in_flight:
            said = f"Prime lists no sandbox {claim.name}, and its create call is long over"
            return Answer(True, "; ".join([*texts, said]))
        if claim.time_is_up():
            raise SandboxError(
                "the answer to its create call was lost; none of its name is listed, but one may still appear"
            )
        await asyncio.sleep(min(1.0, max(0.05, left)))


async def _wait_for_answer(client: Client, claim: Claim) -> None:
    while claim.call is not None and claim.in_flight:
        if await _look(client, claim):
            # It was made; the answer would tell nothing new.
            claim.call.cancel()
            await asyncio.wait({claim.call}, timeout=1)
            return
        if claim.time_is_up():
            raise SandboxError(
                "Prime has not answered its create call, and lists no sandbox of its name: one may still appear"
            )
        await asyncio.wait({claim.call}, timeout=1)


async def _look(client: Client, claim: Claim) -> list[str]:
    """Ids under its name that were not known yet; they are added to `claim.ids`."""
    try:
        rows = await _again(lambda: client.find(claim.name), client.pace.delete_delays[:2])
    except CallError as e:
        # Who may neither make nor list sandboxes has made none.
        if claim.outcome == "refused" and e.kind == "denied":
            return []
        raise
    fresh = [row.id for row in rows if row.id not in claim.ids]
    claim.ids.extend(fresh)
    return fresh


async def _again(call: Callable[[], Awaitable[T]], delays: tuple[float, ...]) -> T:
    for delay in delays:
        try:
            return await call()
        except CallError as e:
            if not sdk.retryable(e):
                raise
            await asyncio.sleep(delay)
    return await call()
