"""The list of all sandboxes that are known of: what is shown of it, what is marked, what became of it.

Pure: no Textual, and time is given. A mark is on a key, and only a proven leftover can carry one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from vf_core.runtimes.lifecycle import State
from vf_tui.filter import Filter, Vocabulary
from vf_tui.render import timefmt

if TYPE_CHECKING:
    from vf_core.sandboxes.items import Item, Outcome, ProviderReport

SORTS = ("leftovers", "age", "provider", "owner", "state", "price")
OWNERS = {"dead": 0, "unknown": 1, "elsewhere": 2, "live": 3}
NOT_OURS = "not ours"

_STATES = ("survived", "unknown", "failed", "checking", "sent", "stopping", "starting", "live", "new", "gone")


def word(item: Item) -> str:
    """The word for where an item is: one of the lifecycle, or `not ours`."""
    return item.state.word if isinstance(item.state, State) else NOT_OURS


def seen_by(item: Item) -> str:
    """`both`, `ledger`, `list` or blank: where it is known from."""
    return "both" if len(item.seen) > 1 else next(iter(item.seen), "")


def doubtful(item: Item) -> bool:
    """A human may have to do something about it: proven leftovers, and what can't be told from one."""
    return item.leftover or item.claimable


def _state_rank(item: Item) -> int:
    return _STATES.index(item.state.value) if isinstance(item.state, State) else len(_STATES)


_KEYS: Mapping[str, Callable[[Item], Any]] = {
    "leftovers": lambda i: (not i.leftover, not i.claimable, OWNERS.get(i.owner, 9), i.created or 0.0),
    "age": lambda i: i.created if i.created is not None else float("inf"),
    "provider": lambda i: (i.kind, i.account),
    "owner": lambda i: (OWNERS.get(i.owner, 9), i.host, i.run),
    "state": _state_rank,
    "price": lambda i: -(i.price or 0.0),
}


def _haystack(i: Item) -> str:
    parts = (
        i.kind, i.account, i.id, i.name, i.run, i.rollout, i.host, i.owner, i.owner_proof, word(i), i.status, i.why,
        " ".join(sorted(i.seen)), f"pid {i.pid}" if i.pid else "", "leftover" if i.leftover else "",
    )  # fmt: skip
    return "\n".join(parts)


ITEMS: Vocabulary[Item] = Vocabulary(
    _haystack,
    texts={
        "provider": lambda i: f"{i.kind} {i.account}",
        "id": lambda i: f"{i.id} {i.name}",
        "run": lambda i: i.run,
        "rollout": lambda i: i.rollout,
        "host": lambda i: i.host,
        "owner": lambda i: i.owner,
        "seen": seen_by,
        "state": word,
        "status": lambda i: i.status,
    },
    numbers={"price": lambda i: i.price, "pid": lambda i: float(i.pid or 0)},
    examples={"owner": "dead", "state": "UNKNOWN", "provider": "docker", "seen": "list", "price": ">0.5"},
)


@dataclass(slots=True)
class InventoryView:
    """`items` by key; `reports` by kind and account; `working` are being cleaned up, since when; `outcomes` what
    became of those that were. `only_doubtful`: leave out what nobody needs to look at."""

    items: dict[str, Item] = field(default_factory=dict)
    reports: dict[tuple[str, str], ProviderReport] = field(default_factory=dict)
    outcomes: dict[str, Outcome] = field(default_factory=dict)
    working: dict[str, float] = field(default_factory=dict)
    marks: set[str] = field(default_factory=set)
    filter: Filter[Item] = field(default_factory=Filter)
    sort: str = SORTS[0]
    reverse: bool = False
    only_doubtful: bool = False
    taken: float | None = None

    def report(self, report: ProviderReport) -> None:
        """A provider has answered, or has been asked."""
        self.reports.pop((report.kind, ""), None)
        self.reports[report.kind, report.account] = report

    def take(self, items: Iterable[Item], reports: Iterable[ProviderReport], at: float) -> list[str]:
        """Show these instead; the marked keys that lost their mark, since they are no leftovers any more."""
        self.items = {item.key: item for item in items}
        self.reports = {(report.kind, report.account): report for report in reports}
        self.outcomes, self.taken = {}, at
        lost = [key for key in self.marks if not self.markable(key)]
        self.marks.difference_update(lost)
        return lost

    # -- what is shown

    def shown(self) -> list[Item]:
        """What the filter lets through, in order."""
        chosen = [
            item
            for item in self.items.values()
            if self.filter(item) and (not self.only_doubtful or doubtful(item))
        ]
        key = _KEYS[self.sort]
        return sorted(chosen, key=lambda i: (key(i), i.kind, i.key), reverse=self.reverse)

    @property
    def arranged(self) -> bool:
        """Something keeps the list from being everything."""
        return bool(self.filter) or self.only_doubtful

    def hidden(self, keys: Iterable[str]) -> int:
        """How many of `keys` are not shown."""
        shown = {item.key for item in self.shown()}
        return sum(1 for key in keys if key not in shown)

    def state_of(self, item: Item) -> str:
        """The word for an item now: what became of it, else what is known of it."""
        outcome = self.outcomes.get(item.key)
        if outcome is not None and outcome.state != "skipped":
            return outcome.state
        return State.STOPPING.word if item.key in self.working else word(item)

    # -- marks

    def markable(self, key: str) -> bool:
        """It is a proven leftover, and still to be cleaned up."""
        item = self.items.get(key)
        return item is not None and item.leftover and not self.settled(key) and key not in self.working

    def settled(self, key: str) -> bool:
        """It has been proven gone."""
        outcome = self.outcomes.get(key)
        return outcome is not None and outcome.state == State.GONE.word

    def why_not(self, item: Item) -> str:
        """Why an item can't be marked; "" when it can."""
        if item.key in self.working:
            return "it is being cleaned up"
        if self.settled(item.key):
            return "it is proven gone"
        return "" if item.leftover else self._why(item) or "it is not proven to be a leftover of ours"

    def why_no_claim(self, item: Item) -> str:
        """Why an item can't be claimed; "" when it can."""
        if item.key in self.working or self.settled(item.key):
            return self.why_not(item)
        if item.leftover:
            return "it is a proven leftover: mark it instead"
        return "" if item.claimable else self._why(item) or "it is not ours"

    def _why(self, item: Item) -> str:
        """Who lived then may be dead by now."""
        if item.owner == "live" and self.taken is not None:
            return f"{item.why} as of {timefmt.at(self.taken)}, r asks again"
        return item.why

    def toggle(self, key: str) -> None:
        """Mark what isn't, unmark what is; nothing for what can't be marked."""
        if key in self.marks:
            self.marks.discard(key)
        elif self.markable(key):
            self.marks.add(key)

    def mark_shown(self) -> int:
        """Mark every leftover that is shown; how many there are."""
        keys = [item.key for item in self.shown() if self.markable(item.key)]
        self.marks.update(keys)
        return len(keys)

    # -- cleaning up

    def begin(self, keys: Iterable[str], now: float) -> None:
        """These are being cleaned up."""
        for key in keys:
            self.working[key] = now
            self.outcomes.pop(key, None)
            self.marks.discard(key)

    def ended(self, outcome: Outcome) -> None:
        """What became of one."""
        self.working.pop(outcome.item.key, None)
        self.outcomes[outcome.item.key] = outcome

    def counts(self) -> dict[str, int]:
        """How many outcomes of each kind."""
        out: dict[str, int] = {}
        for outcome in self.outcomes.values():
            out[outcome.state] = out.get(outcome.state, 0) + 1
        return out

    @property
    def leftovers(self) -> list[Item]:
        """The proven leftovers that are not cleaned up yet."""
        return [item for item in self.items.values() if item.leftover and not self.settled(item.key)]


def in_order(reports: Iterable[ProviderReport]) -> Sequence[ProviderReport]:
    """Those that could not be asked first (what nobody misses last of them), then those still to answer."""
    return sorted(
        reports, key=lambda r: (r.ok is not False, r.ok is not None, not r.needed, r.kind, r.account)
    )
