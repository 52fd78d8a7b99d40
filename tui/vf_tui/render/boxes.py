"""A sandbox of the inventory as a line of a list and as facts, and what its providers answered."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import TYPE_CHECKING

from vf_core.runtimes.lifecycle import State
from vf_tui import glyphs
from vf_tui.inventory_view import NOT_OURS, InventoryView, seen_by
from vf_tui.render import timefmt
from vf_tui.render.facts import Section
from vf_tui.render.line import Line, Segment, clip, fit, plain, width
from vf_tui.render.status import SANDBOX_STYLES
from vf_tui.safe_text import cell

if TYPE_CHECKING:
    from vf_core.sandboxes.items import Item, ProviderReport

WORD_STYLES = {state.word: style for state, style in SANDBOX_STYLES.items()} | {
    NOT_OURS: "faint", "skipped": "warn",
}  # fmt: skip
OWNER_STYLES = {"dead": "warn", "live": "ok", "elsewhere": "dim", "unknown": "dim"}
SEEN = {
    "both": "the ledger and its provider's list",
    "list": "its provider's list only",
    "ledger": "the ledger only",
    "": "nobody",
}
DOCKER_ID = 12
"""Characters of a container's id that Docker itself shows."""

# Column: width. In the order of the line.
_WIDTHS = {
    "state": 9, "where": 10, "id": 12, "owner": 9, "run": 8, "seen": 6, "age": 9, "ends": 9, "price": 7,
}  # fmt: skip
_RANK = ("state", "owner", "id", "where", "age", "run", "ends", "seen", "price")
_RIGHT = frozenset({"age", "ends", "price"})
_TITLES = {"ends": "ends in", "seen": "seen", "price": "$/h"}
WHY_AT_LEAST = 18


WIDE, WIDE_ID = 105, 18


def _width(name: str, cells: int) -> int:
    return WIDE_ID if name == "id" and cells >= WIDE else _WIDTHS[name]


@lru_cache(maxsize=64)
def _shown(cells: int) -> tuple[str, ...]:
    """The columns that `cells` have room for, in the order of the line."""
    room = cells
    chosen = []
    for name in _RANK:
        room -= _width(name, cells) + 1
        if room < 0:
            break
        chosen.append(name)
    return tuple(name for name in _WIDTHS if name in chosen)


def _spare(cells: int) -> int:
    """Cells behind the columns."""
    return cells - sum(_width(name, cells) + 1 for name in _shown(cells))


def titles(cells: int) -> Line:
    """The line over the list; cursor, mark and a blank go before the columns."""
    out: list[Segment] = [("   ", "head")]
    for name in _shown(cells - 3):
        title = fit(_TITLES.get(name, name), _width(name, cells - 3), right=name in _RIGHT)
        out += [(title, "head"), (" ", "head")]
    if _spare(cells - 3) >= WHY_AT_LEAST:
        out.append(("what is known", "head"))
    return clip(out, cells, "head")


def row(item: Item, view: InventoryView, cells: int, now: float) -> Line:
    """`item` as a line of at most `cells` cells; the first tells whether it is marked."""
    marked = item.key in view.marks
    out: list[Segment] = [(glyphs.current().mark if marked else " ", "mark"), (" ", "")]
    columns = _shown(cells - 2)
    for name in columns:
        text, style = _cell(item, name, view, now)
        size = _width(name, cells - 2)
        text = middle(text, size) if name == "id" else text
        out += [(fit(text, size, right=name in _RIGHT), style), (" ", "")]
    if _spare(cells - 2) >= WHY_AT_LEAST:
        text, style = remark(item, view)
        out.append((cell(text, 300), style))
    return clip(out, cells)


def _cell(item: Item, name: str, view: InventoryView, now: float) -> tuple[str, str]:
    match name:
        case "state":
            word = view.state_of(item)
            return word, WORD_STYLES.get(word, "text")
        case "where":
            return cell(item.kind, 20), "dim"
        case "id":
            return short_id(item), "text"
        case "owner":
            return cell(item.owner, 20), OWNER_STYLES.get(item.owner, "dim")
        case "run":
            return cell(item.run, 8), "faint"
        case "seen":
            return seen_by(item), "dim"
        case "age":
            return age(item, now), "dim"
        case "ends":
            return ends_in(item, now), "dim"
    return timefmt.money(item.price), "dim"


def short_id(item: Item) -> str:
    """The provider's id, or the name while there is none; a container's as Docker writes it."""
    text = cell(item.id or item.name, 80)
    long = len(text) == 64 and all(c in "0123456789abcdef" for c in text)
    return text[:DOCKER_ID] if long else text


def middle(text: str, cells: int) -> str:
    """`text` in at most `cells` cells, cut in the middle: what tells ids apart is their end."""
    mark = glyphs.current().ellipsis
    tail = cells - 3 - len(mark)
    if width(text) <= cells or tail < 1 or not plain(text):
        return text
    return f"{text[:3]}{mark}{text[-tail:]}"


def age(item: Item, now: float) -> str:
    """How long it has existed, as far as that is known."""
    return "" if item.created is None else timefmt.span(max(0.0, now - item.created))


def ends_in(item: Item, now: float) -> str:
    """In how long its provider ends it by itself; blank when it does not."""
    if item.ends is None:
        return ""
    return timefmt.span(item.ends - now) if item.ends > now else "overdue"


def remark(item: Item, view: InventoryView) -> tuple[str, str]:
    """What matters most about an item now: proof, trouble, or why it is (no) leftover; and the style."""
    outcome = view.outcomes.get(item.key)
    if outcome is not None:
        return outcome.proof or outcome.detail, "gone" if outcome.proof else "warn"
    if item.leftover:
        return item.owner_proof or item.why, "warn"
    return item.why or item.owner_proof, "dim"


def owner_text(item: Item) -> str:
    """Whose an item is: run, rollout, host and pid, as far as that is known."""
    who = f"run {item.run}" if item.run else "no run is known"
    if item.rollout:
        who += f", rollout {item.rollout}" + (f" attempt {item.attempt}" if item.attempt else "")
    if item.host:
        who += f", host {item.host}"
    return who + (f", pid {item.pid}" if item.pid else "")


def sections(item: Item, view: InventoryView, now: float) -> list[Section]:
    """Everything that is known of an item."""
    word = view.state_of(item)
    state: Line = ((word, WORD_STYLES.get(word, "text")), (f"  {cell(item.status, 40)}", "dim"))
    owner: Line = ((item.owner, OWNER_STYLES.get(item.owner, "dim")),)
    rows: list[tuple[str, str | Line]] = [
        ("state", state),
        ("where", f"{item.kind} {item.account}".strip()),
        ("id", item.id or "not known"),
    ]
    if item.name and item.name != item.id:
        rows.append(("name", item.name))
    rows += [("owner", owner_text(item)), ("owner is", owner)]
    if item.owner_proof:
        rows.append(("proof", item.owner_proof))
    outcome = view.outcomes.get(item.key)
    if outcome is not None:
        rows.append(("cleanup", outcome.proof or outcome.detail or outcome.state))
    elif not item.leftover:
        rows.append(("not marked", view.why_not(item)))
    rows += [
        ("seen by", SEEN[seen_by(item)]),
        ("created", _when(item.created, age(item, now), "ago") or "not known"),
        ("ends", _when(item.ends, ends_in(item, now), "from now") or "not by itself, as far as is known"),
    ]
    if item.price is not None:
        rows.append(("price", f"{timefmt.money(item.price)} an hour"))
    if item.command:
        rows.append(("command", item.command))
    return [Section(cell(item.name or item.id, 60) or item.kind, rows)]


def _when(t: float | None, how_long: str, which: str) -> str:
    if t is None:
        return ""
    import time

    return f"{time.strftime('%d %b %H:%M:%S', time.localtime(t))}, {how_long} {which}"


def report_text(report: ProviderReport, waited: float, *, short: bool = False) -> str:
    """`docker: 12 in 0.4 s`, `prime: asking… 3 s`, `modal: could not be asked: no token`; `short`: no account."""
    where = report.kind + (f" ({report.account})" if report.account and not short else "")
    if report.ok is None:
        dots = "..." if glyphs.current().ascii else "…"
        return f"{where}: asking{dots} {timefmt.span(waited)}"
    if not report.ok:
        return f"{where}: could not be asked: {report.error or 'no reason was given'}"
    return f"{where}: {report.count} in {timefmt.took(report.seconds)}"


def report_lines(reports: Iterable[ProviderReport], waited: float, limit: int) -> list[Line]:
    """All answers in at most `limit` lines: trouble and what is to come have a line each, the others share one."""
    told: list[Segment] = []
    good = []
    for report in reports:
        text = report_text(report, waited, short=True)
        if report.ok:
            good.append(text)
        else:
            missed = "warn" if report.needed else "dim"
            told.append((text, "accent" if report.ok is None else missed))
    if good:
        told.append((glyphs.between().join(good), "dim"))
    if len(told) > limit:
        rest = glyphs.between().join(text for text, _ in told[limit - 1 :])
        told[limit - 1 :] = [(rest, told[limit - 1][1])]
    return [((cell(text, 600), style),) for text, style in told]


_SETTLED = State.GONE.word


def outcome_counts(counts: dict[str, int]) -> str:
    """`9 GONE, 1 SURVIVED, 2 UNKNOWN`."""
    order = (_SETTLED, State.SURVIVED.word, State.UNKNOWN.word, "skipped")
    return ", ".join(f"{counts[word]} {word}" for word in order if counts.get(word))
