"""Where the ledger is kept."""

from __future__ import annotations

import os
import socket
from pathlib import Path

from vf_core.config.paths import state_dir
from vf_core.text import slug

NAME = "sandboxes"
# Several hosts may mount these at once, which SQLite's write-ahead log does not bear.
_SHARED = frozenset(
    "nfs nfs4 cifs smb3 smbfs lustre ceph glusterfs beegfs gpfs afs 9p virtiofs fuse.sshfs fuse.glusterfs".split()  # noqa: SIM905
)


def default_path() -> Path:
    """`sandboxes.db` in the state directory; one for each host where hosts share that directory."""
    folder = state_dir()
    if filesystem(folder) in _SHARED:
        return folder / f"{NAME}-{slug(socket.gethostname())}.db"
    return folder / f"{NAME}.db"


def filesystem(path: Path, mounts: str = "/proc/self/mountinfo") -> str:
    """The type of the filesystem that `path` is, or would be, on; empty where the system does not say."""
    place = os.path.realpath(path)
    try:
        lines = Path(mounts).read_text("utf-8", errors="surrogateescape").splitlines()
    except OSError:
        return ""
    best, found = -1, ""
    for line in lines:
        before, _, after = line.partition(" - ")
        fields = before.split()
        if len(fields) < 5 or not after:
            continue
        # Spaces and such are written as octal numbers.
        at = fields[4].encode("utf-8", "surrogateescape").decode("unicode_escape").rstrip("/")
        if (place == at or place.startswith(f"{at}/")) and len(at) >= best:
            best, found = len(at), after.split()[0]
    return found
