"""What an inventory says: its items, what each provider answered, and what became of one that was cleaned up."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from vf_core.runtimes.lifecycle import State
from vf_core.sandboxes.owners import Owner, Standing

NOT_OURS: Literal["not ours"] = "not ours"
_NOBODY = Owner("")
Result = Literal["GONE", "SURVIVED", "UNKNOWN", "skipped"]


@dataclass(frozen=True, slots=True)
class Item:
    """A sandbox, as the ledger and its provider's list tell of it. Times are Unix seconds, `price` is $/h.

    `owner` says whether the engine that asked for it lives, `owner_proof` how that is known. `seen`: by "ledger",
    "list", or both. `status` is the provider's own word. `leftover`: ours, and its owner is proven dead; `claimable`:
    ours by label, of an owner that cannot be judged from here, so only one by one; `why` says why it can or cannot be
    marked. `command` is the provider's own command line that deletes it (empty: there is none). `key` is unique, and
    the same in the next inventory. `origin` is the owner, `rows` the keys of its rows in the ledger.
    """

    kind: str
    account: str
    id: str
    name: str
    run: str
    rollout: str
    attempt: int
    host: str
    pid: int
    owner: Standing
    owner_proof: str
    seen: frozenset[str]
    state: State | Literal["not ours"]
    status: str
    created: float | None
    ends: float | None
    price: float | None
    leftover: bool
    claimable: bool
    why: str
    command: str
    key: str
    proof: str = ""
    detail: str = ""
    origin: Owner = _NOBODY
    rows: tuple[int, ...] = ()

    @property
    def word(self) -> str:
        """The state's word for the screen."""
        return self.state.word if isinstance(self.state, State) else self.state


@dataclass(frozen=True, slots=True)
class ProviderReport:
    """How one provider answered. `ok` is None while it is being asked; `seconds` it has taken; `answered` is the Unix
    time of its answer; `count` of sandboxes with our mark in its list. `needed`: something is unknown without its
    answer (the ledger has sandboxes of it, or it was asked for by name). The ledger itself reports as kind `ledger`.
    """

    kind: str
    account: str
    ok: bool | None
    seconds: float = 0.0
    answered: float | None = None
    error: str = ""
    count: int = 0
    needed: bool = True


@dataclass(frozen=True, slots=True)
class Inventory:
    """All that is known to exist, as of `taken` (Unix seconds); leftovers first, then the oldest first."""

    items: tuple[Item, ...] = ()
    reports: tuple[ProviderReport, ...] = ()
    taken: float = 0.0

    @property
    def leftovers(self) -> tuple[Item, ...]:
        """Those that may be cleaned up without a claim."""
        return tuple(item for item in self.items if item.leftover)

    @property
    def unknown(self) -> tuple[ProviderReport, ...]:
        """Those whose answer is missed: what they have is not known."""
        return tuple(report for report in self.reports if not report.ok and report.needed)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of an item. `proof` (who answered, what) stands with GONE only; `detail` says why it is not."""

    item: Item
    state: Result
    proof: str = ""
    detail: str = ""
    seconds: float = field(default=0.0, compare=False)
