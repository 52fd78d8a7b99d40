"""What the ledger holds of one sandbox, and how a move of its lifecycle changes that."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, replace

from vf_core.config.secrets import holds_credential
from vf_core.runtimes.lifecycle import State
from vf_core.sandboxes.owners import Owner
from vf_core.text import bound


@dataclass(frozen=True, slots=True)
class Row:
    """A sandbox that was asked for. `name` was reserved for it before, `id` is the provider's (empty: not known).

    Times are Unix seconds, `price` is $/h where one is configured. `proof` stands with `gone` only. `key` tells the
    row from all others, on every machine.
    """

    key: int
    kind: str
    account: str
    name: str
    id: str
    owner: Owner
    rollout: str
    attempt: int
    state: State
    created: float
    changed: float
    proof: str = ""
    detail: str = ""
    price: float | None = None


@dataclass(frozen=True, slots=True)
class Change:
    """What became of a row's sandbox at `t`. An empty `id` leaves the known one as it is."""

    key: int
    state: State
    t: float
    id: str = ""
    proof: str = ""
    detail: str = ""

    def after(self, earlier: Change | None) -> Change:
        """Both in one: this one, coming after `earlier`. Nothing follows a proven end."""
        if earlier is None:
            return self
        if earlier.state is State.GONE:
            return earlier
        return self if self.id or not earlier.id else replace(self, id=earlier.id)


def fold(row: Row, change: Change) -> Row:
    """`row` after `change`. A proven end stays: no provider gives an id twice."""
    if row.state is State.GONE:
        return row
    return replace(
        row,
        state=change.state,
        changed=change.t,
        id=change.id or row.id,
        proof=change.proof,
        detail=change.detail,
    )


def new_key() -> int:
    """A key that no other row has, whoever makes one at the same time."""
    return secrets.randbits(62)


_TEXT_LIMIT = 2_000


def plain(text: str) -> str:
    """As the ledger can hold it: bounded, and without halves of characters."""
    text = bound(text, _TEXT_LIMIT)
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()


def safe(text: str) -> str:
    """As `plain`, without the credentials that an error or an address may quote."""
    text = plain(text)
    if text and holds_credential(text):
        text = " ".join("[secret]" if holds_credential(word) else word for word in text.split(" "))
        text = "[left out: it held a credential]" if holds_credential(text) else text
    return text
