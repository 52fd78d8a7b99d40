"""The Output tab: a rollout's two log files, followed into one pane."""

from __future__ import annotations

from pathlib import Path

from vf_core.events.state import RolloutView
from vf_core.runs.layout import RunDir
from vf_core.runs.output import OutputReader
from vf_tui.widgets.log_pane import LogPane

TAIL = 400_000
"""Bytes of a file that are read when it is opened; what came before is only counted."""
HELPING = 200_000
"""Bytes read of one file in one go, so that a flood of output leaves room for keys."""


class OutputFollower:
    """Puts what was added to the logs of the current attempt at the end of a pane.

    The two streams are files of their own: what is there already is shown one after the other, what comes
    later in the order in which it came. When a line came is known of the latter only.
    """

    def __init__(self) -> None:
        self._of: tuple[str, int] | None = None
        self._readers: list[tuple[str, OutputReader]] = []
        self._begun: set[str] = set()
        self._before: dict[str, int] = {}

    def forget(self) -> None:
        """Begin anew at the next call."""
        self._of = None

    def follow(self, pane: LogPane, r: RolloutView, run_dir: Path | None, now: float) -> bool:
        """Bring `pane` up to date; whether more is waiting to be read."""
        if run_dir is None:
            pane.empty_text = "this run has no log files"
            return False
        if self._of != (r.id, r.attempt):
            self._of = (r.id, r.attempt)
            pane.clear()
            self._begun.clear()
            logs = RunDir(run_dir).output_logs(r.id, max(1, r.attempt))
            self._before = {name: _size(path) for name, path in logs.items()}
            self._readers = [(name, OutputReader.at_tail(path, TAIL)) for name, path in logs.items()]
        more = False
        for name, reader in self._readers:
            first = reader.offset if name not in self._begun else 0
            unseen = reader.offset < self._before[name]
            try:
                text = reader.read(HELPING)
            except OSError as e:
                pane.empty_text = f"{reader.path}: {e.strerror or e}"
                continue
            if text:
                self._introduce(pane, name, first, reader)
                pane.append(text, 0.0 if unseen else now)
                more = more or len(text) >= HELPING // 4
        return more

    def _introduce(self, pane: LogPane, name: str, skipped: int, reader: OutputReader) -> None:
        if name in self._begun:
            return
        self._begun.add(name)
        if name == "stderr":
            pane.append_lines([((f"-- {name} --", "stderr"),)])
        if skipped:
            pane.append_lines([((f"… {skipped:,} bytes before this: {reader.path}", "faint"),)])


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
