"""Who holds the ledger's lock, so that an error can name the process that is in the way."""

from __future__ import annotations

import os
from pathlib import Path

# SQLite's lock for writers in write-ahead mode: one byte of the shared-memory file.
_WRITER = "120"


def holder(path: Path) -> tuple[str, str]:
    """Who writes the database at `path` now, and what to do about it. Never opens the file: that would drop locks."""
    for pid in _pids(path):
        state = _state(pid)
        if state in ("T", "t"):
            return f"pid {pid}, which is suspended", f"let it go on (`kill -CONT {pid}`, or `fg`), or end it"
        if state:
            return f"pid {pid}", "wait for it, or end it"
    return "another process", "wait for it, or end it"


def _pids(path: Path) -> list[int]:
    found = []
    try:
        inodes = {str(os.stat(name).st_ino) for name in (path, f"{path}-shm") if os.path.exists(name)}
        lines = Path("/proc/locks").read_text("ascii", errors="replace").splitlines()
    except OSError:
        return []
    for line in lines:
        fields = line.split()
        if len(fields) < 8 or fields[1] != "POSIX" or fields[3] != "WRITE":
            continue
        inode = fields[5].rpartition(":")[2]
        if inode in inodes and fields[4].isdigit() and int(fields[4]) not in (0, os.getpid()):
            found.append((fields[6] != _WRITER, int(fields[4])))
    return [pid for _, pid in sorted(found)]


def _state(pid: int) -> str:
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return ""
    return text.rpartition(")")[2][:2].strip()
