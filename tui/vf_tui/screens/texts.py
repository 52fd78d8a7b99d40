"""What `y` copies, as plain text."""

from __future__ import annotations

from vf_core.events.state import RolloutView
from vf_tui.widgets.log_pane import LogPane


def pane_text(pane: LogPane) -> str:
    """All lines that `pane` holds."""
    buffer = pane.buffer
    return "\n".join(e.text for i in range(len(buffer)) if (e := buffer.entry(i)) is not None)


def copy_line(r: RolloutView) -> str:
    """`r` as one line of tab-separated facts."""
    box = f"{r.sandbox.id or r.sandbox.name} {r.sandbox.state.word}" if r.sandbox is not None else ""
    reward = "" if r.reward is None else f"{r.reward:g}"
    error = f"{r.error_type}: {r.error}" if r.error_type else ""
    return "\t".join((r.id, r.name, r.status, r.exit_word, box, reward, error)).rstrip()
