"""Writing a config so that it can be run again and read by anybody: secrets are left out.

A value that was taken from a variable is written as `{ env = "VAR" }` again. A literal one that must not be shown is
written as `{ env = "VF_TUI_SECRET_…" }`: who runs the saved config without setting that variable is told which value
is missing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import date, time
from enum import Enum
from pathlib import Path
from typing import Any

from pydantic import SecretBytes, SecretStr

from vf_core.config.base import KeyPath
from vf_core.config.fit import LEFT_OUT
from vf_core.config.paths import text_of
from vf_core.config.secrets import is_secret

_UNSAFE = re.compile("[\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")


@dataclass(frozen=True, slots=True)
class Hidden:
    """A value that its model declares secret."""

    text: str


@dataclass
class LeftOut:
    """What a saved config does not hold: the value of each variable that it names instead."""

    values: dict[str, str] = field(default_factory=dict)

    def add(self, at: KeyPath, text: str) -> dict[str, str]:
        """A reference to stand for `text`, which stands at `at`."""
        words = [part for part in at if part not in ("env", "agent", "client")] or list(at)
        stem = LEFT_OUT + re.sub(r"[^A-Z0-9]+", "_", "_".join(words).upper()).strip("_")
        name, n = stem, 1
        while self.values.get(name, text) != text:
            n += 1
            name = f"{stem}_{n}"
        self.values[name] = text
        return {"env": name}


def plain(value: Any) -> Any:
    """A dumped model as TOML and JSON can hold it; tables lose what is None, as TOML has no null."""
    if isinstance(value, Mapping):
        return {str(key): plain(inner) for key, inner in value.items() if inner is not None}
    if isinstance(value, list | tuple):
        return [plain(inner) for inner in value if inner is not None]
    if isinstance(value, set | frozenset):
        return sorted((plain(inner) for inner in value), key=str)
    if isinstance(value, SecretStr | SecretBytes):
        secret = value.get_secret_value()
        return Hidden(secret if isinstance(secret, str) else secret.decode("utf-8", "replace"))
    if isinstance(value, Enum):
        value = value.value
    if isinstance(value, bool | int | float | str | Hidden):
        return value
    if isinstance(value, Path):
        return text_of(value)
    return value.isoformat() if isinstance(value, date | time) else str(value)


Judge = Callable[[KeyPath, str], bool | None]
"""Whether the text at a place is a secret; None: judge by its name and look."""


def leave_out(
    data: Any, refs: Mapping[KeyPath, str], judge: Judge | None, left: LeftOut, at: KeyPath = ()
) -> Any:
    """`plain` data with references for what came from variables and, if there is a `judge`, for what is secret.

    What is left out is added to `left`.
    """
    if at in refs:
        return {"env": refs[at]}
    if isinstance(data, Mapping):
        return {key: leave_out(value, refs, judge, left, (*at, key)) for key, value in data.items()}
    if isinstance(data, list):
        return [leave_out(value, refs, judge, left, (*at, str(i))) for i, value in enumerate(data)]
    if isinstance(data, Hidden):
        return left.add(at, data.text) if judge is not None and data.text else data.text
    if isinstance(data, str) and data and judge is not None:
        verdict = judge(at, data)
        name = next((part for part in reversed(at) if not part.isdigit()), "")
        if is_secret(name, data) if verdict is None else verdict:
            return left.add(at, data)
    return data


def render(data: Mapping[str, Any], left: LeftOut) -> str:
    """TOML of `data`, headed by the variables to set before it can be run again."""
    import tomli_w

    head = ""
    if left.values:
        head = "# Secrets are left out. To run this again, set: " + ", ".join(sorted(left.values)) + "\n"
    # A terminal acts on some characters that TOML leaves alone: written as escapes, they are the same text.
    return head + _UNSAFE.sub(lambda found: f"\\u{ord(found.group()):04x}", tomli_w.dumps(data))
