"""What was proven of a run's sandboxes after its engine had gone: the ledger knows more than the run's journal."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING

from vf_core.errors import VfError
from vf_core.runtimes.lifecycle import State

if TYPE_CHECKING:
    from vf_core.events.state import RunState
    from vf_core.runs.find import RunSummary
    from vf_core.sandboxes.rows import Row

log = logging.getLogger(__name__)

PATIENCE = 2.0


def proofs_of(run: str) -> dict[str, Row]:
    """The sandboxes of `run` that the ledger has a proof of, by name; none when it can't be read. Blocks."""
    from vf_core.sandboxes.ledger import Ledger

    if not run:
        return {}
    try:
        with closing(Ledger.open(patience=PATIENCE)) as ledger:
            return {row.name: row for row in ledger.rows(run=run) if row.state is State.GONE}
    except VfError:
        log.exception("the ledger could not be read")
        return {}


def settle(state: RunState, proofs: Mapping[str, Row]) -> set[str]:
    """Put the ledger's proofs into `state`, whose engine has gone; the rollouts whose sandboxes they are of."""
    touched = set()
    for name, row in proofs.items():
        box = state.sandboxes.get(name)
        if box is None or box.state is State.GONE:
            continue
        box.state, box.proof, box.since = State.GONE, row.proof, row.changed
        box.history.append((State.GONE, row.changed, row.proof))
        state.unconfirmed.discard(name)
        touched.add(box.rollout)
    return touched


def settle_runs(runs: Iterable[RunSummary]) -> list[RunSummary]:
    """The same runs; of those that no engine runs any more, what was proven since does not count as unconfirmed.

    Blocks. A ledger that can't be read changes nothing.
    """
    from vf_core.sandboxes.ledger import Ledger

    runs = list(runs)
    if not any(_in_doubt(run) for run in runs):
        return runs
    try:
        with closing(Ledger.open(patience=PATIENCE)) as ledger:
            return [_settled(run, ledger.rows(run=run.id)) if _in_doubt(run) else run for run in runs]
    except VfError:
        log.exception("the ledger could not be read")
        return runs


def _in_doubt(run: RunSummary) -> bool:
    return not run.live and run.unconfirmed > 0


def _settled(run: RunSummary, rows: list[Row]) -> RunSummary:
    if not rows:
        return run  # another machine's run, or older than the ledger
    left, at = sum(1 for row in rows if not row.state.settled), run.standing
    return replace(run, standing=replace(at, left=min(at.left, left), unconfirmed=min(at.unconfirmed, left)))
