"""What goes over the socket: one JSON object a line, ASCII, so that a line ends at `\\n` and nowhere else.

The first frame each side sends is `hello`; its fields `frame`, `protocol`, `version` never change meaning, so that
any two versions can at least tell each other apart.

    viewer → engine   hello(protocol, version, read_only, by), watch(rollouts), command(id, name, targets, args),
                      trace(id, rollout, attempt), resync, ping, bye
    engine → viewer   hello(protocol, version, host, pid, run, name, dir, read_only) or refused(protocol, version,
                      reason, dir), part(data, first, last), events(events), reply(id, …), trace(id, text, more,
                      found), pong, bye(reason)
"""

from __future__ import annotations

import json
import os
import socket
import stat
import struct
import sys
from pathlib import Path
from typing import Any

from vf_core.errors import LinkError

PROTOCOL = 1
COMMAND_LIMIT = 1 << 20
"""Bytes of one frame from a viewer."""
FRAME_LIMIT = 64 << 20
"""Bytes of one frame from an engine."""

_dumps = json.JSONEncoder(separators=(",", ":"), check_circular=False).encode


def frame(kind: str, **fields: Any) -> bytes:
    """One frame, ready to be sent."""
    return b"%s\n" % _dumps({"frame": kind, **fields}).encode()


def events_frame(lines: list[str]) -> bytes:
    """A frame of events that are JSON already."""
    return b'{"frame":"events","events":[%s]}\n' % ",".join(lines).encode()


def parse(line: bytes) -> dict[str, Any]:
    """The frame on `line`. Raises `LinkError` when it is none."""
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as e:
        raise LinkError(f"not a frame: {e}") from e
    if not isinstance(value, dict) or not isinstance(value.get("frame"), str):
        raise LinkError("not a frame: no object with a name")
    return value


def peer_uid(sock: socket.socket) -> int | None:
    """The user at the other end of a unix socket; None where the system does not tell."""
    try:
        if hasattr(socket, "SO_PEERCRED"):
            size = struct.calcsize("3i")
            _, uid, _ = struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size))
            return int(uid)
        if sys.platform == "darwin":
            # struct xucred: version, uid, number of groups, groups (SOL_LOCAL, LOCAL_PEERCRED).
            return int(struct.unpack_from("II", sock.getsockopt(0, 1, 76))[1])
    except OSError:
        return None
    return None


def check_peer(sock: socket.socket | None) -> None:
    """Raises `LinkError` unless the other end is this user."""
    uid = peer_uid(sock) if sock is not None else None
    if uid != os.geteuid():
        who = "somebody who can't be told" if uid is None else f"user {uid}"
        raise LinkError(f"the other end of the socket is {who}, not user {os.geteuid()}")


def check_path(path: Path) -> None:
    """Raises `LinkError` unless `path` is a socket of ours in a directory that only we can enter."""
    try:
        info, folder = path.lstat(), path.parent.stat()
    except FileNotFoundError as e:
        raise LinkError(f"there is no socket {path}") from e
    except OSError as e:
        raise LinkError(f"{path}: {e.strerror or e}") from e
    me = os.geteuid()
    if not stat.S_ISSOCK(info.st_mode):
        raise LinkError(f"{path} is not a socket", hint="somebody put something else there; remove it")
    if info.st_uid != me or folder.st_uid != me or folder.st_mode & 0o077:
        raise LinkError(f"{path} is not private to user {me}", hint="its directory must be yours, mode 0700")
