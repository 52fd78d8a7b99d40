"""Where a process writes while another one holds the ledger's lock and does not let go: a process that was suspended
in the middle of a transaction must not keep everybody else from working.

A file of JSON lines beside the ledger, one for each writer, locked by it while it lives. What it says is part of the
ledger; the writer moves it there when it can, or whoever finds it once the writer is dead.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import secrets
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from vf_core.runtimes.lifecycle import State
from vf_core.sandboxes.owners import Owner
from vf_core.sandboxes.rows import Change, Row, fold

_SUFFIX = ".spill"
_STILLBORN = 60.0


class Spill:
    """One writer's file beside the ledger at `path`; made when it is first needed."""

    def __init__(self, path: Path) -> None:
        self._ledger = path
        self._path: Path | None = None
        self._fd = -1

    @property
    def used(self) -> bool:
        """Something stands in it that is not in the ledger yet."""
        return self._fd >= 0

    def append(self, new: Sequence[Row], changes: Collection[Change], *, durable: bool) -> None:
        """On disk before this returns. Raises OSError."""
        if self._fd < 0:
            self._path = self._ledger.with_name(f"{self._ledger.name}.{secrets.token_hex(8)}{_SUFFIX}")
            self._fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o600)
            os.fchmod(self._fd, 0o600)
            fcntl.flock(self._fd, fcntl.LOCK_EX)
        lines = [{"row": asdict(row)} for row in new] + [{"change": asdict(change)} for change in changes]
        data = "".join(f"\n{json.dumps(line)}\n" for line in lines).encode()
        while data:
            data = data[os.write(self._fd, data) :]
        if durable:
            os.fsync(self._fd)

    def clear(self) -> None:
        """All of it is in the ledger now."""
        if self._path is not None:
            self._path.unlink(missing_ok=True)
        self.close()

    def close(self) -> None:
        """Leave the file to whoever finds it."""
        if self._fd >= 0:
            os.close(self._fd)
        self._fd, self._path = -1, None


def spills(ledger: Path) -> list[Path]:
    """The files beside the ledger, of writers dead and alive."""
    try:
        names = os.listdir(ledger.parent)
    except OSError:
        return []
    return [
        ledger.parent / name
        for name in sorted(names)
        if name.startswith(f"{ledger.name}.") and name.endswith(_SUFFIX)
    ]


@contextmanager
def abandoned(path: Path) -> Iterator[bool]:
    """Whether the writer of the file is dead; if so, nobody else takes the file meanwhile."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_NOFOLLOW)
    except OSError:
        yield False
        return
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        yield False
    else:
        info = os.fstat(fd)
        # An empty one is just being made, before its writer has locked it.
        yield path.exists() and (info.st_size > 0 or time.time() - info.st_mtime > _STILLBORN)
    finally:
        os.close(fd)


def load(path: Path) -> tuple[list[Row], list[Change]]:
    """What a file says, in order. A torn line, or one that nobody of this version wrote, is passed over."""
    rows: list[Row] = []
    changes: list[Change] = []
    try:
        lines = path.read_bytes().splitlines()
    except OSError:
        return rows, changes
    for line in lines:
        with contextlib.suppress(ValueError, TypeError, KeyError):
            if line:
                data = json.loads(line)
                if "row" in data:
                    rows.append(_row(data["row"]))
                else:
                    changes.append(_change(data["change"]))
    return rows, changes


def _row(data: dict[str, Any]) -> Row:
    return Row(**{**data, "owner": Owner(**data["owner"]), "state": State(data["state"])})


def _change(data: dict[str, Any]) -> Change:
    return Change(**{**data, "state": State(data["state"])})


def overlay(rows: Iterable[Row], paths: Iterable[Path]) -> list[Row]:
    """The ledger's rows with what the files add to them, oldest first."""
    found = {row.key: row for row in rows}
    for path in paths:
        new, changes = load(path)
        for row in new:
            found.setdefault(row.key, row)
        for change in changes:
            if change.key in found:
                found[change.key] = fold(found[change.key], change)
    return sorted(found.values(), key=lambda row: (row.created, row.key))
