"""Where the list of runs comes from, and how one of them is opened."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from vf_core.link.base import Link
from vf_core.runs.find import RunSummary, find_runs
from vf_tui.proofs import settle_runs


class RunsSource:
    """This user's runs: those in the index and those below `roots`."""

    def __init__(self, roots: Sequence[Path] = (Path("outputs"),)) -> None:
        self._roots = list(roots)

    def list(self) -> list[RunSummary]:
        """All runs, live ones first. Reads directories: not to be called on an event loop."""
        return settle_runs(find_runs(self._roots))

    def open(self, run: RunSummary) -> Link:
        """The way to `run`: its engine while that can be reached, else its files."""
        from vf_core.link.open import open_link

        return open_link(run)
