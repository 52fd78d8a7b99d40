"""The index of this user's runs, so that they are found in whatever directory they are: one small file a run."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

from vf_core.config.paths import private_dir, state_dir
from vf_core.errors import ConfigError
from vf_core.runs.layout import path_name, write_private

FORGET = 30 * 86_400
"""Seconds after which an entry whose directory is gone is dropped. (It may be on a disk that is away.)"""


def remember(run_dir: Path, run_id: str) -> bool:
    """Enter a run; whether that could be done. A home that can't be written must not keep a run from starting."""
    entry = json.dumps({"dir": str(run_dir.absolute()), "run": run_id, "t": time.time()})
    try:
        folder = private_dir(state_dir() / "runs")
        write_private(folder / f"{path_name(run_id)}.json", entry.encode())
    except (ConfigError, OSError):
        return False
    return True


def known() -> Iterator[Path]:
    """The directories of all runs entered that are still there."""
    folder = state_dir() / "runs"
    try:
        entries = list(folder.glob("*.json"))
    except OSError:
        return
    for entry in entries:
        try:
            path = Path(json.loads(entry.read_bytes())["dir"])
            if path.is_dir():
                yield path
            elif time.time() - entry.stat().st_mtime > FORGET:
                entry.unlink(missing_ok=True)
        except (OSError, ValueError, KeyError, TypeError):
            continue
