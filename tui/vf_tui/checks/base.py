"""One finding of a check."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Status = Literal["ok", "warn", "missing", "broken"]


@dataclass(frozen=True, slots=True)
class Finding:
    """`missing` is something optional that is not there; `broken` something that was set up and does not work.

    `text` is what was found (never a secret), `todo` what to do about it; `code` is the exit code that a broken one
    asks for: 2 for something to be put right here, 5 for an engine that does not answer.
    """

    section: str
    name: str
    status: Status
    text: str
    todo: str = ""
    code: int = 2


def shown_error(error: BaseException) -> tuple[str, str]:
    """What an error says, and what it tells to do."""
    hint = getattr(error, "hint", None) or ""
    return getattr(error, "message", "") or str(error) or type(error).__name__, hint
