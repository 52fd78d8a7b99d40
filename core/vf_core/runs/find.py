"""Finding runs, live and past, without reading what they are made of: listing must not cost more the longer a
run was, nor import anything heavy."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from vf_core.errors import RunDirError
from vf_core.runs import index
from vf_core.runs.engine_file import EngineInfo, Standing, read_engine_info
from vf_core.runs.liveness import Liveness
from vf_core.runs.outline import outline

DEPTH = 3
"""How many directories deep a root is searched: `outputs/<name>/<uuid>` is two."""
_MARKS = ("engine.json", "events.jsonl", "traces.jsonl")
Producer = Literal["vf-tui", "verifiers"]


@dataclass(frozen=True, slots=True)
class RunSummary:
    """A run as a list shows it. `standing` is as of the engine's last word; `known` is False when nobody wrote
    one down (the numbers are then 0). `changed` is when its files last changed, in Unix seconds."""

    dir: Path
    id: str
    name: str
    producer: Producer
    liveness: Liveness
    changed: float
    model: str = ""
    taskset: str = ""
    harness: str = ""
    runtime: str = ""
    host: str = ""
    pid: int = 0
    socket: str = ""
    version: str = ""
    known: bool = True
    standing: Standing = field(default_factory=Standing)

    @property
    def status(self) -> str:
        """starting, running, stopping, completed, stopped, failed; or `died`: its engine ended without a word;
        or `unknown`: another program's run, of which only the results are there."""
        if self.liveness == "dead" and self.standing.finished is None:
            return "died" if self.producer == "vf-tui" else "unknown"
        return self.standing.status

    @property
    def unconfirmed(self) -> int:
        """Sandboxes that are not proven gone and should be: when the engine died, those at work are among them."""
        at = self.standing
        return max(at.left, at.unconfirmed) if self.status == "died" else at.unconfirmed

    @property
    def live(self) -> bool:
        """Its engine runs on this machine."""
        return self.liveness == "live"


def find_runs(roots: Iterable[Path] = (), *, indexed: bool = True) -> list[RunSummary]:
    """Every run under `roots` and (`indexed`) in this user's index; live ones first, then the latest first."""
    found: dict[str, RunSummary] = {}
    for path in _candidates(roots, indexed):
        real = os.path.realpath(path)
        if real not in found and (summary := summarise(Path(path))) is not None:
            found[real] = summary
    return sorted(found.values(), key=lambda run: (not run.live, -(run.standing.started or run.changed)))


def summarise(path: Path) -> RunSummary | None:
    """The run in the directory `path`; None when there is none."""
    path = path.absolute()
    info = read_engine_info(path / "engine.json")
    changed = max((_changed(path / mark) for mark in _MARKS), default=0.0)
    if info is not None:
        return _ours(path, info, changed)
    if not changed:
        return None
    producer: Producer = "vf-tui" if (path / "events.jsonl").exists() else "verifiers"
    about = outline(path)
    return RunSummary(
        dir=path,
        id=path.name,
        name=about.name,
        producer=producer,
        liveness="dead",
        changed=changed,
        model=about.model,
        taskset=about.taskset,
        harness=about.harness,
        runtime=about.runtime,
        known=False,
        standing=Standing(t=changed, status="unknown", total=about.total),
    )


def _ours(path: Path, info: EngineInfo, changed: float) -> RunSummary:
    return RunSummary(
        dir=path,
        id=info.run or path.name,
        name=info.name or path.parent.name,
        producer="vf-tui",
        # A copy of a directory is not the run that its engine.json tells of.
        liveness=info.liveness() if _same_place(info.dir, path) else "ended",
        changed=changed,
        model=info.model,
        taskset=info.taskset,
        harness=info.harness,
        runtime=info.runtime,
        host=info.host,
        pid=info.pid,
        socket=info.socket,
        version=info.version,
        standing=info.standing,
    )


def _same_place(recorded: str, path: Path) -> bool:
    try:
        return not recorded or not os.path.exists(recorded) or os.path.samefile(recorded, path)
    except OSError:
        return True


def _changed(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def _candidates(roots: Iterable[Path], indexed: bool) -> Iterator[Path]:
    if indexed:
        yield from index.known()
    for root in roots:
        yield from _below(root, DEPTH)


def _below(folder: Path, depth: int) -> Iterator[Path]:
    try:
        with os.scandir(folder) as scan:
            entries = [e for e in scan if not e.name.startswith(".")]
    except OSError:
        return
    if any(e.name in _MARKS for e in entries):
        yield folder
    elif depth:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                yield from _below(Path(entry.path), depth - 1)


def resolve_run(text: str, roots: Iterable[Path] = (), *, live_only: bool = False) -> RunSummary:
    """The run that `text` means: a run's directory (or a file in it), its id or the beginning of one, or a name
    that only one run has.

    Raises `RunDirError` naming the runs that are near when there is no such run, or more than one.
    """
    path = Path(text).expanduser()
    here = summarise(path if path.is_dir() else path.parent) if path.exists() else None
    if here is not None and (os.sep in text or path.is_dir()):
        return here
    runs = [run for run in find_runs(roots) if run.live or not live_only]
    wanted = text.casefold()
    for test in (_has_id, _has_name, _begins_with_id, _begins_with_name):
        matches = [run for run in runs if test(run, wanted)]
        if len(matches) == 1:
            return matches[0]
        if matches:
            raise RunDirError(f"{text!r} means several runs: {_listed(matches)}", hint="give more of the id")
    kind = "live run" if live_only else "run"
    near = _near(wanted, runs)
    hint = f"did you mean {_listed(near)}?" if near else "`vf-tui ls` lists them"
    raise RunDirError(f"there is no {kind} {text!r}", hint=hint)


def _has_id(run: RunSummary, text: str) -> bool:
    return run.id.casefold() == text


def _has_name(run: RunSummary, text: str) -> bool:
    return run.name.casefold() == text


def _begins_with_id(run: RunSummary, text: str) -> bool:
    return bool(text) and run.id.casefold().startswith(text)


def _begins_with_name(run: RunSummary, text: str) -> bool:
    return bool(text) and run.name.casefold().startswith(text)


def _near(text: str, runs: list[RunSummary]) -> list[RunSummary]:
    import difflib

    by_word: dict[str, list[RunSummary]] = {}
    for run in runs:
        for word in (run.id.casefold()[: max(4, len(text))], run.name.casefold()):
            by_word.setdefault(word, []).append(run)
    words = difflib.get_close_matches(text, by_word, n=3, cutoff=0.5)
    return list({run.dir: run for word in words for run in by_word[word]}.values())


def _listed(runs: list[RunSummary]) -> str:
    shown = ", ".join(f"{run.id[:8]} ({run.name})" for run in runs[:5])
    return f"{shown} and {len(runs) - 5} more" if len(runs) > 5 else shown
