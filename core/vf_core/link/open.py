"""The right link for a run: to its engine while that can be reached, else to its files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from vf_core.link.base import Link
from vf_core.runs.find import RunSummary

if TYPE_CHECKING:
    from vf_core.runs.open import Progress


def open_link(
    run: RunSummary, *, read_only: bool = False, by: str = "", progress: Progress | None = None
) -> Link:
    """A link to `run`, not yet connected."""
    if run.live and run.socket:
        from vf_core.link.socket import SocketLink

        return SocketLink(Path(run.socket), run=run.id, run_dir=run.dir, read_only=read_only, by=by)
    from vf_core.link.file import FileLink

    note = ""
    if run.liveness == "elsewhere":
        note = f"its engine runs on {run.host}: commands go there, here its files are shown"
    elif run.live:
        note = "its engine serves no socket: its files are shown"
    return FileLink(run.dir, progress=progress, note=note)
