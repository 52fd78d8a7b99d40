"""What a user has arranged: order, grouping, filter and marks of the list, and who sits where in the grid.

Plain data with `now` passed in, no widget and no clock. Work is in proportion to what changed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from vf_core.events.state import RolloutView, RunState
from vf_tui.attention import STALL_SECONDS, attention, only_asked, rank
from vf_tui.filter import Filter

SORTS = ("attention", "task", "status", "age", "turns", "tokens", "reward")
GROUPS = ("none", "task", "status", "provider", "error")

_STATUS_ORDER = {"active": 0, "error": 1, "declined": 2, "stopped": 3, "queued": 4, "completed": 5}
STALL_CHECK_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class GroupLine:
    """A line of the list that heads a group."""

    text: str


Row = str | GroupLine
"""A line of the list: a rollout's id, or the head of a group."""


@dataclass(slots=True)
class _Entry:
    """What the order of one rollout rests on."""

    key: tuple[object, ...]
    group: tuple[object, str]
    shown: bool


@dataclass(slots=True)
class Marks:
    """Marked rollouts by id. A mark belongs to what was marked: it goes when that rollout has ended since."""

    _marks: dict[str, bool] = field(default_factory=dict)

    def __contains__(self, id: object) -> bool:
        return id in self._marks

    def __len__(self) -> int:
        return len(self._marks)

    def __iter__(self) -> Iterator[str]:
        return iter(self._marks)

    @property
    def ids(self) -> frozenset[str]:
        """The marked ids."""
        return frozenset(self._marks)

    def set(self, rollout: RolloutView, marked: bool = True) -> None:
        """Mark or unmark one rollout."""
        if marked:
            self._marks[rollout.id] = rollout.ended_status
        else:
            self._marks.pop(rollout.id, None)

    def toggle(self, rollout: RolloutView) -> None:
        """Mark what isn't, unmark what is."""
        self.set(rollout, rollout.id not in self._marks)

    def clear(self) -> None:
        """Unmark everything."""
        self._marks.clear()

    def drop_ended(self, state: RunState, changed: Iterable[str]) -> list[str]:
        """Unmark those of `changed` that have ended since they were marked; their ids."""
        if not self._marks:
            return []
        gone = []
        for id in changed:
            if self._marks.get(id) is False and ((r := state.rollouts.get(id)) is None or r.ended_status):
                gone.append(id)
                del self._marks[id]
        return gone


@dataclass(slots=True)
class ListView:
    """The arrangement of the rollout list. Call `refresh` after every change of state or of a setting."""

    filter: Filter[RolloutView] = field(default_factory=Filter)
    sort: str = "attention"
    reverse: bool = False
    group: str = "none"
    attention_only: bool = False
    stall_seconds: float = STALL_SECONDS
    marks: Marks = field(default_factory=Marks)
    rows: list[Row] = field(default_factory=list)
    ids: list[str] = field(default_factory=list)
    _entries: dict[str, _Entry] = field(default_factory=dict)
    _arranged: tuple[object, ...] = ()
    _stall_check: float = 0.0
    _stalled: set[str] = field(default_factory=set)

    def refresh(self, state: RunState, changed: Collection[str], now: float) -> bool:
        """Bring `rows` (with group lines) and `ids` (without) up to date; whether they changed.

        `changed`: ids touched since the last call; a changed setting makes everything be looked at again.
        """
        arranged = (self.filter, self.sort, self.reverse, self.group, self.attention_only, self.stall_seconds)
        everything = arranged != self._arranged or len(self._entries) > len(state.rollouts)
        if everything:
            self._arranged = arranged
            self._entries.clear()
            changed = state.rollouts.keys()
        dirty = everything
        for id in {*changed, *self._newly_stalled(state, now)}:
            rollout = state.rollouts.get(id)
            if rollout is None:
                dirty = self._entries.pop(id, None) is not None or dirty
                continue
            entry = self._entry(rollout, now)
            if self._entries.get(id) != entry:
                self._entries[id] = entry
                dirty = True
        if dirty:
            return self._arrange()
        return False

    def hidden(self, ids: Iterable[str]) -> int:
        """How many of `ids` the filter keeps from sight."""
        return sum(1 for id in ids if not (e := self._entries.get(id)) or not e.shown)

    def next_to(
        self, id: str | None, step: int, wanted: Callable[[str], bool] = lambda _: True
    ) -> str | None:
        """The next shown rollout after (`step` 1) or before (-1) `id` that is `wanted`, round the end."""
        if not self.ids:
            return None
        try:
            start = self.ids.index(id) if id is not None else -1
        except ValueError:
            start = -1 if step > 0 else 0
        for offset in range(1, len(self.ids) + 1):
            candidate = self.ids[(start + step * offset) % len(self.ids)]
            if wanted(candidate):
                return candidate
        return None

    def _newly_stalled(self, state: RunState, now: float) -> set[str]:
        """Rollouts that began or ceased to need attention without an event, looked for every two seconds: stalled
        ones, and those whose sandbox was only asked to go."""
        if abs(now - self._stall_check) < STALL_CHECK_SECONDS:
            return set()
        self._stall_check = now
        limit = now - self.stall_seconds if self.stall_seconds else float("-inf")
        stalled = {
            r.id
            for r in state.rollouts.values()
            if (r.status == "active" and r.last_progress <= limit)
            or (r.sandbox is not None and only_asked(r.sandbox, now))
        }
        before, self._stalled = self._stalled, stalled
        return stalled ^ before

    def _entry(self, r: RolloutView, now: float) -> _Entry:
        shown = self.filter(r) and not (self.attention_only and not attention(r, now, self.stall_seconds))
        return _Entry((*self._key(r, now), r.task, r.sample, r.id), self._group(r), shown)

    def _key(self, r: RolloutView, now: float) -> tuple[object, ...]:
        if self.sort == "attention":
            return (rank(r, now, self.stall_seconds),)
        if self.sort == "status":
            return (_STATUS_ORDER.get(r.status, 9),)
        read = _KEYS.get(self.sort)
        return (read(r),) if read else ()

    def _group(self, r: RolloutView) -> tuple[object, str]:
        if self.group == "task":
            return (r.task, r.name or f"task {r.task}")
        if self.group == "status":
            return (_STATUS_ORDER.get(r.status, 9), r.status)
        if self.group == "provider":
            kind = r.sandbox.kind if r.sandbox else ""
            return (not kind, kind or "no sandbox yet")
        if self.group == "error":
            return (not r.error_type, r.error_type or "no error")
        return (0, "")

    def _arrange(self) -> bool:
        entries = self._entries
        ids = sorted(
            (id for id, e in entries.items() if e.shown), key=lambda i: entries[i].key, reverse=self.reverse
        )
        rows: list[Row] = list(ids)
        if self.group != "none":
            # A stable sort keeps the order within each group.
            ids.sort(key=lambda i: (entries[i].group[0], entries[i].group[1]))
            rows = _grouped(ids, entries)
        changed = rows != self.rows
        self.rows, self.ids = rows, ids
        return changed


_KEYS: Mapping[str, Callable[[RolloutView], float]] = {
    # Largest first: what a user sorts by is what they want to see.
    "age": lambda r: r.started if r.started is not None else float("inf"),
    "turns": lambda r: -r.turns,
    "tokens": lambda r: -(r.prompt_tokens + r.completion_tokens),
    "reward": lambda r: -r.reward if r.reward is not None else float("inf"),
}


def _grouped(ids: Sequence[str], entries: Mapping[str, _Entry]) -> list[Row]:
    """`ids`, sorted by group, with a line before each group that names and counts it."""
    counts: dict[tuple[object, str], int] = {}
    for id in ids:
        counts[entries[id].group] = counts.get(entries[id].group, 0) + 1
    rows: list[Row] = []
    last: tuple[object, str] | None = None
    for id in ids:
        group = entries[id].group
        if group != last:
            rows.append(GroupLine(f"{group[1]} · {counts[group]}"))
            last = group
        rows.append(id)
    return rows


def assign_slots(
    slots: Sequence[str | None],
    capacity: int,
    wanted: Sequence[str],
    ended: Callable[[str], bool],
    known: Callable[[str], bool] = lambda _: True,
) -> list[str | None]:
    """Who sits in which of `capacity` slots of the pane grid.

    A slot keeps its rollout until that has ended *and* another of `wanted` needs the place, so that panes do
    not move under the eye. `wanted` are the rollouts that should be seen, most urgent first. When the
    grid shrinks, those beyond its end move into free places or are dropped.
    """
    out: list[str | None] = [id if id is not None and known(id) else None for id in slots[:capacity]]
    out += [None] * (capacity - len(out))
    seated = {id for id in out if id is not None}
    displaced = [id for id in slots[capacity:] if id is not None and known(id) and not ended(id)]
    waiting = [id for id in dict.fromkeys((*displaced, *wanted)) if id not in seated]
    free = [i for i, id in enumerate(out) if id is None]
    free += [i for i, id in enumerate(out) if id is not None and ended(id)]
    for index in free:
        if not waiting:
            break
        candidate = next((id for id in waiting if out[index] is None or not ended(id)), None)
        if candidate is None:
            break
        out[index] = candidate
        waiting.remove(candidate)
    return out


@dataclass(slots=True)
class Slots:
    """Who sits where in the pane grid: `ids` holds a rollout or None for each slot.

    There are as many slots as the run has rollouts at work at once, so that everyone at work has a place.
    """

    ids: list[str | None] = field(default_factory=list)
    _shown: tuple[object, ...] = ()

    def arrange(self, state: RunState, view: ListView, changed: Collection[str] | None) -> bool:
        """Give free places to those who need one; whether anything moved. `changed` None: look at everyone."""
        shown = (view.filter, view.attention_only)
        if shown != self._shown:
            self._shown, self.ids, changed = shown, [], None
        seats = self._seats(state, view)
        if changed is not None and seats == len(self.ids) and not self._concerns(state, changed):
            return False
        rollouts = state.rollouts
        wanted = [id for id in view.ids if id in rollouts and rollouts[id].status != "queued"]
        wanted.sort(key=lambda id: _place(rollouts[id]))
        ids = assign_slots(
            self.ids,
            seats,
            wanted[: 2 * seats],
            ended=lambda id: over(rollouts[id]),
            known=rollouts.__contains__,
        )
        moved = ids != self.ids
        self.ids = ids
        return moved

    def _concerns(self, state: RunState, changed: Collection[str]) -> bool:
        """Someone without a place has begun something."""
        seated = set(self.ids)
        return any(
            id not in seated and (r := state.rollouts.get(id)) is not None and r.status == "active"
            for id in changed
        )

    @staticmethod
    def _seats(state: RunState, view: ListView) -> int:
        at_once = max(state.concurrency, state.totals.active, 1)
        return max(1, min(at_once, len(view.ids)))


def over(r: RolloutView) -> bool:
    """Nothing of `r` is going on: its result stands and its sandbox is settled, or it never had one."""
    return r.ended_status and (r.sandbox is None or r.sandbox.state.settled)


def _place(r: RolloutView) -> int:
    """Who is seated first: at work, then ending, then over. Ties keep the list's order."""
    if r.status == "active":
        return 0
    return 2 if over(r) else 1
