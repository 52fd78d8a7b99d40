"""What an earlier sitting of a run left that stands, and what is still owed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from vf_core.errors import ConfigError
from vf_core.events.state import RolloutView, RunState
from vf_core.rollout import RolloutSpec
from vf_core.runs.stands import Stand, Stands
from vf_core.tasks.decorators import hooks
from vf_core.tasks.scoring import group_rewards

_SAME = 1e-9


@dataclass(slots=True)
class Saved:
    """A run as it was left: the fold of its journal, the rollouts that are `kept` by the trace that says so, and
    those that are `owed`, in the run's order, with their `reasons`. `untold` are kept ones of which the journal does
    not tell (all of) that. `numbers` holds the highest attempt that each rollout has had. `notes` say what was
    mended. `inherited` are sandboxes that earlier engines left; local ones don't count, whose programs end with
    their engine.
    """

    state: RunState
    kept: dict[str, Stand]
    owed: tuple[str, ...]
    untold: tuple[str, ...]
    numbers: dict[str, int]
    reasons: dict[str, str]
    notes: list[str] = field(default_factory=list)
    inherited: tuple[str, ...] = ()

    def left(self) -> list[str]:
        """Those of the `inherited` sandboxes that are not proven gone by now."""
        return [name for name in self.inherited if not self.state.sandboxes[name].state.settled]

    def why(self) -> dict[str, int]:
        """How many are owed for which reason: error, stopped, missing, unscored, or only with their group."""
        return dict(Counter(self.reasons[id] for id in self.owed))


def settle(
    specs: Sequence[RolloutSpec], stands: Stands, state: RunState, asked: Mapping[str, int] | None = None
) -> Saved:
    """Decide what of `specs` stands. `asked`: the highest attempt of each rollout for which a sandbox was asked.

    Kept is a rollout whose last attempt came to an end of its own and is scored; a task with group rewards is kept
    or owed as a whole. Raises `ConfigError` when the tasks are others than those that were run.
    """
    _check_same_number(specs, stands, state)
    found = _placed(specs, stands)
    numbers = dict(asked or {})
    for spec in specs:
        view, stand = state.rollouts.get(spec.id), found.get(spec.id)
        began = max(view.attempt if view else 0, stand.attempt if stand else 0)
        if began:
            numbers[spec.id] = max(numbers.get(spec.id, 0), began)
    reasons: dict[str, str] = {}
    for spec in specs:
        reason = _wanting(spec, found.get(spec.id), state.rollouts.get(spec.id))
        if reason:
            reasons[spec.id] = reason
    broken = {spec.position for spec in specs if spec.id in reasons and group_rewards(spec.task)}
    for spec in specs:
        if spec.position in broken:
            reasons.setdefault(spec.id, "again with their group")
    kept = {spec.id: found[spec.id] for spec in specs if spec.id not in reasons}
    _check_same_tasks(
        spec
        for spec in specs
        if _other(spec, kept.get(spec.id)) or _renamed(spec, state.rollouts.get(spec.id))
    )
    owed = tuple(spec.id for spec in specs if spec.id not in kept)
    untold = tuple(id for id, stand in kept.items() if not _told(state.rollouts.get(id), stand))
    return Saved(state, kept, owed, untold, numbers, reasons)


def _placed(specs: Sequence[RolloutSpec], stands: Stands) -> dict[str, Stand]:
    """The last trace of each rollout. Good ones that name no rollout count for the samples of their task that have
    none."""
    found = {spec.id: stand for spec in specs if (stand := stands.by_rollout.get(spec.id)) is not None}
    if stands.unnamed:
        rest = {index: iter([s for s in several if s.good]) for index, several in stands.unnamed.items()}
        for spec in specs:
            if spec.id not in found and (several := rest.get(spec.task.data.idx)) is not None:
                stand = next(several, None)
                if stand is not None:
                    found[spec.id] = stand
    return found


def _wanting(spec: RolloutSpec, stand: Stand | None, view: RolloutView | None) -> str:
    """Why the rollout needs another attempt; empty where it does not."""
    if stand is None or (view is not None and view.attempt > stand.attempt):
        return "missing"
    if not stand.good:
        return stand.outcome if stand.outcome in ("error", "stopped") else "missing"
    shared = [hook.name for hook in group_rewards(spec.task)]
    scored = bool(stand.rewards) or not hooks(spec.task, "reward")
    return "" if scored and all(name in stand.rewards for name in shared) else "unscored"


def _told(view: RolloutView | None, stand: Stand) -> bool:
    """Whether the journal says of the rollout what its trace says."""
    if view is None or view.attempt != stand.attempt or view.status != stand.outcome:
        return False
    if view.reward is None or stand.reward is None:
        return view.reward is stand.reward
    return abs(view.reward - stand.reward) <= _SAME * (1 + abs(stand.reward))


def _other(spec: RolloutSpec, stand: Stand | None) -> bool:
    """Whether the trace is of another task than the one that stands at its place now."""
    data = spec.task.data
    if stand is None:
        return False
    if stand.index is not None and stand.index != data.idx:
        return True
    return bool(stand.name and data.name) and stand.name != data.name


def _renamed(spec: RolloutSpec, view: RolloutView | None) -> bool:
    """Whether the journal knows the rollout's task by another name."""
    name = spec.task.data.name
    return view is not None and bool(name and view.name) and view.name not in (name, spec.name)


def _check_same_number(specs: Sequence[RolloutSpec], stands: Stands, state: RunState) -> None:
    """Refuse fewer tasks than were run and, where an engine of ours has told how many there were, more."""
    ids = {spec.id for spec in specs}
    lost = [id for id in (*state.rollouts, *stands.by_rollout) if id not in ids]
    if lost or (state.host and len(ids) > state.total):
        what = f"there is no task of rollout {lost[0]}" if lost else f"the run had {state.total} rollouts"
        raise _others(f"{what}, and there are {len(ids)} rollouts now")


def _check_same_tasks(others: Iterable[RolloutSpec]) -> None:
    changed = list(others)
    if changed:
        first = changed[0]
        raise _others(
            f"rollout {first.id} was of another task than {first.name!r}, and {len(changed)} in all"
        )


def _others(how: str) -> ConfigError:
    return ConfigError(
        f"the tasks are not those of this run any more: {how}",
        key="env.taskset",
        hint="resume with the data that the run was started with, or start a new run",
    )
