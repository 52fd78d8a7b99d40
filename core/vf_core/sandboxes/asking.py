"""Asking one provider what it has, and what became of the sandboxes that it does not list."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

from vf_core.errors import SandboxError
from vf_core.runtimes.lifecycle import State
from vf_core.runtimes.provider import Listed, Provider
from vf_core.sandboxes import join
from vf_core.sandboxes.items import Item, ProviderReport
from vf_core.sandboxes.join import Facts
from vf_core.sandboxes.ledger import Ledger
from vf_core.sandboxes.owners import LOCAL, Owner, Verdict, verdict
from vf_core.sandboxes.rows import Row, safe

PARALLEL = 16
"""Questions that one provider is asked at a time."""
ARRIVAL = 60.0
"""Seconds after which a create call whose answer was lost can no longer make a sandbox."""
_ARRIVALS = {LOCAL: 0.0, "docker": 15.0}

Report = Callable[[ProviderReport], None]


def arrival(row: Row) -> float:
    """The Unix time from which on the row's sandbox is there, or never will be: it is asked for right after its row
    is written."""
    return row.created + _ARRIVALS.get(row.kind, ARRIVAL)


class Asked:
    """One provider: asked once, and what it said. `rows` are the ledger's of its kind that are not proven gone."""

    def __init__(self, kind: str, rows: Sequence[Row], ledger: Ledger, *, needed: bool) -> None:
        self.kind = kind
        self.rows = rows
        self.items: list[Item] = []
        self.report = ProviderReport(kind, "", None, needed=needed)
        self._ledger = ledger
        self._began = time.monotonic()
        self._provider: Provider | None = None
        self._covered: set[int] = set()
        self._reached: set[str] = set()
        self._slots = asyncio.Semaphore(PARALLEL)

    async def ask(self, make: Callable[[], Provider], told: Report) -> None:
        """Find out. What this raises is why the provider could not be asked."""
        provider = self._provider = make()
        self.report = replace(self.report, account=safe(provider.account))
        told(self.report)
        accounts = {row.account for row in self.rows}
        self._reached = await asyncio.to_thread(lambda: set(filter(provider.reaches, accounts)))
        listed = await provider.listed()
        self._answered(count=sum(entry.alive for entry in listed))
        told(self.report)
        # No id is given twice: what is listed is the row's sandbox, whatever the way to it was called.
        here = {entry.id for entry in listed if provider.whole}
        mine = [row for row in self.rows if self._covers(row) or row.id in here]
        mine += await self._proven([entry for entry in listed if entry.alive], mine)
        matched = join.match(mine, listed)
        await self._of_list([entry for entry in matched.unknown if entry.alive])
        turned_up = await self._of_rows(matched.rows)
        self.items = [item for item in self.items if item.rows or item.id not in turned_up]

    def _covers(self, row: Row) -> bool:
        return row.account in ("", self.report.account) or row.account in self._reached

    def failed(self, error: str) -> None:
        """It could not be asked, or did not answer in time: what it has is not known."""
        if self.report.ok is None:
            self.report = replace(self.report, ok=False, seconds=self._seconds(), error=error)

    def _answered(self, count: int) -> None:
        self.report = replace(
            self.report, ok=True, seconds=self._seconds(), answered=time.time(), count=count
        )

    def _seconds(self) -> float:
        return time.monotonic() - self._began

    async def close(self) -> None:
        """Let go of the provider."""
        if self._provider is not None:
            with suppress(Exception):
                await self._provider.close()

    # ------------------------------------------------------------------ what it said

    async def _proven(self, listed: Sequence[Listed], rows: Sequence[Row]) -> list[Row]:
        """Rows of what is listed in spite of a proof that it is gone."""
        known = {row.id for row in rows}
        ids = [entry.id for entry in listed if entry.id not in known]
        with suppress(SandboxError):  # the ledger's own report says so
            found = await self._ledger.read(kinds=[self.kind], ids=ids) if ids else []
            whole = self._provider is not None and self._provider.whole
            return [row for row in found if whole or self._covers(row)]
        return []

    async def _of_rows(self, pairs: Sequence[tuple[Row, Listed | None]]) -> set[str]:
        """Items of the ledger's sandboxes; returns the ids that turned up under a row's name."""
        verdicts = await judged([row.owner for row, _ in pairs], self.kind, recorded=True)
        turned_up: set[str] = set()

        async def one(row: Row, entry: Listed | None) -> None:
            whose, facts = verdicts[row.owner], None
            if row.state is State.GONE and entry is None:
                return
            if (entry is None or not entry.alive) and whose.owner != "live":
                async with self._slots:
                    entry, facts = await self._ask_for(row, entry, whose)
            if entry is not None:
                turned_up.add(entry.id)
            self._add(row, entry, whose, facts)

        await asyncio.gather(*(one(row, entry) for row, entry in pairs))
        return turned_up

    async def _ask_for(
        self, row: Row, entry: Listed | None, whose: Verdict
    ) -> tuple[Listed | None, Facts | None]:
        """About a sandbox that is not in the list, or as one that has ended."""
        provider = self._provider
        assert provider is not None  # noqa: S101 - for the type checker
        try:
            if row.id or entry is not None:
                answer = await provider.probe(row.id or (entry.id if entry else ""))
                if not answer.gone:
                    state = State.LIVE if row.state in (State.STARTING, State.FAILED) else row.state
                    return None, Facts(state, status=answer.text)
                return None, await self._settled(row, answer.text, whose)
            found = [e for e in await provider.find(row.name) if join.is_of(row, e, named=False) and e.alive]
            if found:
                return found[0], None
        except Exception as e:
            said = str(e) if isinstance(e, SandboxError) else f"{type(e).__name__}: {e}"
            return None, Facts(State.UNKNOWN, detail=said, why=f"could not be asked: {said}")
        wait = arrival(row) - time.time()
        if wait > 0:
            detail = f"nothing has its name yet, and for {wait:.0f} s it may still be on its way"
            return None, Facts(row.state, detail=detail)
        return None, await self._settled(
            row, f"{self.report.account}: nothing has the name {row.name}", whose
        )

    async def _settled(self, row: Row, proof: str, whose: Verdict) -> Facts:
        if whose.owner != "dead":
            # Its engine may be writing about it on another host.
            return Facts(row.state, status="not there", detail=proof)
        with suppress(SandboxError):
            await self._ledger.settle(row.key, State.GONE, proof=proof)
        return Facts(State.GONE, proof=proof)

    async def _of_list(self, listed: Sequence[Listed]) -> None:
        owners = {entry.id: Owner.from_labels(entry.labels) for entry in listed}
        places: dict[str, str] = {}
        with suppress(SandboxError):
            places = await self._ledger.run_dirs({owner.run for owner in owners.values()})
        owners = {id: replace(owner, run_dir=places.get(owner.run, "")) for id, owner in owners.items()}
        verdicts = await judged(list(owners.values()), self.kind, recorded=False)
        for entry in listed:
            owner = owners[entry.id]
            item = join.of_list(
                self.kind,
                self.report.account,
                entry,
                owner=owner,
                verdict=verdicts[owner],
                command=self._command,
            )
            self.items.append(item)

    def _add(self, row: Row, entry: Listed | None, whose: Verdict, facts: Facts | None) -> None:
        # A question that was given up may be answered all the same.
        if row.key not in self._covered:
            self._covered.add(row.key)
            here = self.report.account
            # Where it is listed it can be ended. What is asked now has no command for what was made elsewhere.
            account = here if entry is not None and not self._covers(row) else row.account or here
            command = self._command if entry is not None or self._covers(row) else lambda id: ""
            self.items.append(join.of_row(row, entry, whose, facts, account=account, command=command))

    def _command(self, id: str) -> str:
        with suppress(Exception):
            return self._provider.delete_command(id) if self._provider is not None else ""
        return ""

    # ------------------------------------------------------------------ what stays unknown

    async def unanswered(self) -> None:
        """Items of the rows that the provider did not speak of: another account's, or it could not be asked."""
        left = [row for row in self.rows if row.key not in self._covered]
        verdicts = await judged([row.owner for row in left], self.kind, recorded=True)
        for row in left:
            whose = verdicts[row.owner]
            reason = self._reason(row)
            unknown = Facts(State.UNKNOWN, detail=reason, why=f"cannot be asked: {reason}")
            facts = unknown if whose.owner != "live" else None
            self._add(row, None, whose, facts)

    def _reason(self, row: Row) -> str:
        account = self.report.account
        if account and not self._covers(row) and self._provider is not None:
            return made_elsewhere(self._provider, row.account)
        return self.report.error or "no answer in time"


def made_elsewhere(provider: Provider, account: str) -> str:
    """Why what was made at `account` cannot be asked of `provider`, and what to do."""
    way = provider.way_to(account)
    asked = safe(provider.account)
    return f"it was made at {account}; what can be asked now is {asked}" + (f" ({way})" if way else "")


async def judged(owners: Sequence[Owner], kind: str, *, recorded: bool) -> Mapping[Owner, Verdict]:
    """Verdicts on all of them, each judged once."""
    return await asyncio.to_thread(
        lambda: {owner: verdict(owner, kind, recorded=recorded) for owner in dict.fromkeys(owners)}
    )
