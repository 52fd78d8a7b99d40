"""One sandbox from what the ledger and its provider's list say of it, and whether it may be marked."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from vf_core.runtimes.lifecycle import State
from vf_core.runtimes.provider import Listed
from vf_core.sandboxes.items import NOT_OURS, Item
from vf_core.sandboxes.owners import Owner, Verdict, label
from vf_core.sandboxes.rows import Row

# What a provider's list says against the ledger's last word.
_SEEN_ALIVE = {
    State.NEW: State.LIVE,
    State.STARTING: State.LIVE,
    State.FAILED: State.LIVE,
    State.UNKNOWN: State.LIVE,
    State.GONE: State.SURVIVED,
}


@dataclass(slots=True)
class Matched:
    """Rows with their listed sandboxes (None: not in the list), and the listed ones that no row tells of."""

    rows: list[tuple[Row, Listed | None]] = field(default_factory=list)
    unknown: list[Listed] = field(default_factory=list)


def match(rows: Sequence[Row], listed: Iterable[Listed]) -> Matched:
    """By id; where a row has none, by name and labels. `rows` are all of the account that was asked."""
    left = {entry.id: entry for entry in listed}
    out = Matched()
    nameless: list[Row] = []
    for row in rows:
        if row.id:
            out.rows.append((row, left.pop(row.id, None)))
        else:
            nameless.append(row)
    for row in nameless:
        found = next((entry for entry in left.values() if is_of(row, entry)), None)
        out.rows.append((row, left.pop(found.id) if found else None))
    out.unknown = list(left.values())
    return out


def is_of(row: Row, entry: Listed, *, named: bool = True) -> bool:
    """A listed sandbox is the one that a row without an id reserved a name for. `named` False: it was looked up by
    that name, which a provider may hold in a form of its own."""
    if named and entry.name != row.name:
        return False
    ours = {"run": label(row.owner.run), "rollout": row.rollout, "attempt": str(row.attempt)}
    said = {key: entry.labels[key] for key in ours if key in entry.labels}
    return "run" in said and all(label(said[key]) == label(ours[key]) for key in said)


@dataclass(frozen=True, slots=True)
class Facts:
    """What was found out about a row's sandbox: its provider's word for it, or why that is not known."""

    state: State
    status: str = ""
    proof: str = ""
    detail: str = ""
    why: str = ""


def of_row(
    row: Row,
    entry: Listed | None,
    verdict: Verdict,
    facts: Facts | None = None,
    *,
    account: str,
    command: Callable[[str], str],
) -> Item:
    """A sandbox that the ledger knows; `entry` is from the list, `facts` from asking for it alone, `account`
    where it can be asked for."""
    state, why = row.state, ""
    if entry is not None and verdict.owner != "live":
        state = _SEEN_ALIVE.get(row.state, row.state)
    detail, proof = row.detail, ""
    if facts is not None:
        state, detail, proof, why = facts.state, facts.detail or row.detail, facts.proof, facts.why
    id = entry.id if entry is not None else row.id
    gone = state is State.GONE
    return Item(
        kind=row.kind,
        account=account,
        id=id,
        name=row.name,
        run=row.owner.run,
        rollout=row.rollout,
        attempt=row.attempt,
        host=row.owner.host,
        pid=row.owner.pid,
        owner=verdict.owner,
        owner_proof=verdict.proof,
        seen=frozenset({"ledger"} if entry is None else {"ledger", "list"}),
        state=state,
        status=entry.status if entry is not None else facts.status if facts is not None else "",
        created=row.created,
        ends=_ends(entry),
        price=row.price,
        leftover=verdict.owner == "dead" and not gone,
        claimable=verdict.owner in ("elsewhere", "unknown") and not gone,
        why=f"proven gone: {proof}" if gone else why or _why(verdict),
        command=command(id) if id and not gone else "",
        key=_key(row.kind, account, id or f"{row.name}#{row.key}"),
        proof=proof,
        detail=detail,
        origin=row.owner,
        rows=(row.key,),
    )


def of_list(
    kind: str, account: str, entry: Listed, *, owner: Owner, verdict: Verdict, command: Callable[[str], str]
) -> Item:
    """A sandbox with our labels that the ledger does not know."""
    attempt = entry.labels.get("attempt", "")
    known = verdict.owner in ("live", "dead")
    return Item(
        kind=kind,
        account=account,
        id=entry.id,
        name=entry.name,
        run=owner.run,
        rollout=entry.labels.get("rollout", ""),
        attempt=int(attempt) if attempt.isascii() and attempt.isdigit() and len(attempt) < 10 else 0,
        host=owner.host,
        pid=owner.pid,
        owner=verdict.owner,
        owner_proof=verdict.proof,
        seen=frozenset({"list"}),
        state=State.LIVE if known else NOT_OURS,
        status=entry.status,
        created=entry.created,
        ends=_ends(entry),
        price=None,
        leftover=verdict.owner == "dead",
        claimable=not known,
        why=_why(verdict),
        command=command(entry.id),
        key=_key(kind, account, entry.id),
        origin=owner,
    )


def _key(kind: str, account: str, id: str) -> str:
    return f"{kind}|{account}|{id}"


def _why(verdict: Verdict) -> str:
    if verdict.owner == "dead":
        return f"left over: {verdict.proof}"
    if verdict.owner == "live":
        return f"in use: {verdict.proof}"
    return f"only if you claim it: {verdict.proof}"


def _ends(entry: Listed | None) -> float | None:
    """When its provider ends it by itself: as that says, or as long after its creation as its label says."""
    if entry is None or entry.ends is not None or entry.created is None:
        return None if entry is None else entry.ends
    lifetime = entry.labels.get("lifetime", "")
    return entry.created + int(lifetime) if lifetime.isascii() and lifetime.isdigit() else None
