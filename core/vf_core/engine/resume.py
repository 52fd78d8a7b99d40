"""Taking up a run that an engine left: its files mended, what its journal lacks told, and what is owed known.

All of it blocks on the disk. `look` changes nothing; `take_over` is for the one engine that holds the directory.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from vf_core.engine.plan import Plan
from vf_core.engine.saved import Saved, settle
from vf_core.errors import RunDirError, SandboxError
from vf_core.events import lines
from vf_core.events import types as ev
from vf_core.events.codec import encode
from vf_core.events.fold import apply, fold
from vf_core.events.journal import read_journal
from vf_core.events.state import RunState
from vf_core.runs.foreign import Teller
from vf_core.runs.layout import RunDir
from vf_core.runs.outline import outline
from vf_core.runs.stands import Stand, read_record, read_stands
from vf_core.runtimes.lifecycle import State
from vf_core.sandboxes.ledger import Ledger
from vf_core.sandboxes.owners import LOCAL
from vf_core.sandboxes.rows import Row
from vf_core.trace import reader

SLOWEST = 4 << 20
"""Bytes a second at which a run's files are read on a slow machine."""


@dataclass(frozen=True, slots=True)
class Left:
    """What the ledger knows of the run's sandboxes: `gone` with proof, and (`rest`) those that are not."""

    gone: tuple[Row, ...] = ()
    rest: tuple[Row, ...] = ()

    def asked(self) -> dict[str, int]:
        """The highest attempt of each rollout for which a sandbox was asked."""
        out: dict[str, int] = {}
        for row in (*self.gone, *self.rest):
            out[row.rollout] = max(out.get(row.rollout, 0), row.attempt)
        return out


def check_files(run_dir: RunDir) -> None:
    """Raise `RunDirError` where one of the run's files is none: a FIFO would be waited for, a device never ends."""
    for path in (run_dir.config, run_dir.events, run_dir.traces):
        try:
            mode = path.stat().st_mode
        except OSError:
            continue
        if not stat.S_ISREG(mode):
            raise RunDirError(f"{path} is not a regular file", hint="the run can't be taken up with it")


def left_by(ledger: Ledger, run: str) -> Left:
    """What the ledger holds of run `run`; nothing where it can't be read."""
    try:
        rows = ledger.rows(run=run)
    except SandboxError:
        return Left()
    gone = tuple(row for row in rows if row.state is State.GONE)
    return Left(gone, tuple(row for row in rows if row.state is not State.GONE))


def reading_seconds(run_dir: RunDir) -> float:
    """How long reading the run's files may take."""
    return sum(path.stat().st_size for path in (run_dir.events, run_dir.traces) if path.exists()) / SLOWEST


def look(run_dir: RunDir, plan: Plan, left: Left) -> Saved:
    """The run as it was left, and its state as it will be taken up.

    Raises `RunDirError` when its files can't be read, `ConfigError` for other tasks.
    """
    saved = _settled(run_dir, plan, left)
    try:
        _tell(_Journal(None, saved.state), run_dir, plan, saved, left)
    except OSError as e:
        raise RunDirError(f"cannot read {run_dir.traces}: {e.strerror or e}") from e
    return saved


def _settled(run_dir: RunDir, plan: Plan, left: Left) -> Saved:
    return settle(plan.specs, read_stands(run_dir.traces), _folded(run_dir.events), left.asked())


def take_over(run_dir: RunDir, plan: Plan, left: Left) -> Saved:
    """As `look`, with the journal made to tell what the traces and the ledger say: its fold is the run's state.

    Raises `RunDirError` also when the files can't be written.
    """
    notes = []
    try:
        for path, mend in ((run_dir.events, lines.repair), (run_dir.traces, _mend_traces)):
            if (aside := mend(path)) is not None:
                notes.append(f"{path.name} ended in the middle of a line: that part is in {aside.name}")
        saved = _settled(run_dir, plan, left)
        saved.notes += notes
        with run_dir.events.open("ab") as file:
            told = _Journal(file, saved.state)
            _tell(told, run_dir, plan, saved, left)
    except OSError as e:
        raise RunDirError(f"cannot take up {run_dir.path}: {e.strerror or e}") from e
    return saved


def _mend_traces(path: Path) -> Path | None:
    done = reader.repair(path) if path.exists() else None
    return done.aside if done is not None else None


def _folded(events: Path) -> RunState:
    return fold(read_journal(events)) if events.exists() else RunState()


class _Journal:
    """Appends events to a journal (None: nowhere) as they happened, and folds them."""

    def __init__(self, file: BinaryIO | None, state: RunState) -> None:
        self._file = file
        self._state = state

    def say(self, event: ev.Event) -> None:
        ev.stamp(event, seq=self._state.seq + 1, t=event.t)
        if self._file is not None:
            self._file.write(encode(event).encode() + b"\n")
        apply(self._state, event)

    def sync(self) -> None:
        if self._file is not None:
            self._file.flush()
            os.fsync(self._file.fileno())


def _tell(journal: _Journal, run_dir: RunDir, plan: Plan, saved: Saved, left: Left) -> None:
    """Have the journal say what it does not say yet of what stands, and of sandboxes that are gone."""
    state = saved.state
    teller = Teller()
    if state.started is None and saved.kept:
        config = run_dir.config
        t = config.stat().st_mtime if config.exists() else 0.0
        for event in teller.begin(outline(run_dir.path), run_dir.run_id, t):
            journal.say(event)
    specs = {spec.id: spec for spec in plan.specs} if saved.untold else {}
    for id in saved.untold:
        record = read_record(run_dir.traces, saved.kept[id])
        if record is not None:
            for event in teller.tell(
                _named(record, id, specs[id].position, specs[id].sample, saved.kept[id])
            ):
                journal.say(event)
    for event in _proofs(state, left.gone):
        journal.say(event)
    saved.inherited = tuple(box.name for box in state.left_over() if box.kind != LOCAL)
    if saved.untold:
        saved.notes.append(f"the journal lacked what {len(saved.untold)} traces tell: it was added")
    journal.sync()


def _named(record: dict[str, Any], id: str, position: int, sample: int, stand: Stand) -> dict[str, Any]:
    """`record` saying which rollout of the run it is."""
    info = record.get("info")
    info = dict(info) if isinstance(info, dict) else {}
    own = info.get("vf_tui")
    own = own if isinstance(own, dict) else {}
    place = {"rollout": id, "position": position, "sample": sample, "attempt": stand.attempt}
    info["vf_tui"] = {**own, **place, "outcome": stand.outcome}
    return {**record, "info": info}


def _proofs(state: RunState, gone: Sequence[Row]) -> Iterator[ev.Event]:
    """The ends of sandboxes that were proven when no engine was there to say so."""
    for row in gone:
        box = state.sandboxes.get(row.name)
        if box is not None and not box.state.settled and (not box.id or not row.id or box.id == row.id):
            event = ev.RuntimeChanged(
                rollout=box.rollout,
                attempt=box.attempt,
                sandbox=box.name,
                kind=box.kind,
                state=State.GONE.value,
                id=row.id,
                proof=row.proof,
            )
            yield ev.stamp(event, t=row.changed)
