"""The providers' own commands that would delete sandboxes: a dry run's text, fit to be read and pasted."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from vf_tui.render.boxes import owner_text
from vf_tui.safe_text import cell, clean, visible

if TYPE_CHECKING:
    from vf_core.sandboxes.items import Item


def command_lines(items: Iterable[Item]) -> Iterator[str]:
    """Each command under a comment that says what it deletes. Nothing in it is hidden, and a line stays a line."""
    for item in items:
        what = f"{item.kind} {item.name or item.id}: {item.owner_proof or owner_text(item)}"
        yield f"# {cell(what)}"
        command = clean(visible(item.command.replace("\n", "^J").replace("\t", "^I")))
        yield command or f"# {cell(item.kind, 20)} has no command for it"
