"""Which engine answers at an address. Another one there knows nothing of what the first one made, and its "no such
container" proves nothing."""

from __future__ import annotations

import hashlib
import os
import re
import threading
import time
from typing import Any

from vf_core.runtimes.docker import last_resort
from vf_core.runtimes.docker.endpoint import Endpoint

# How long an answer holds where nothing tells that somebody else may be listening by now.
_HOLDS = 5.0
_PLACE = re.compile(r"(?P<address>.*) \[(?P<identity>[0-9a-f]{8})\]")

_known: dict[tuple[object, ...], tuple[float, str]] = {}
_lock = threading.Lock()


def of(endpoint: Endpoint) -> str:
    """A short text that only this engine has; empty when it does not say. Blocks. Raises `OSError` or
    `http.client.HTTPException` when it cannot be asked."""
    with _lock:
        listener = _listener(endpoint)
        when, found = _known.get(listener, (0.0, ""))
        if not when or (len(listener) == 1 and time.monotonic() - when > _HOLDS):
            found = _digest(*last_resort.info(endpoint))
            _known[listener] = (time.monotonic(), found)
        return found


def place(address: str, identity: str) -> str:
    """An engine's address, and which engine that was, as the ledger holds it."""
    return f"{address} [{identity}]" if identity else address


def split(account: str) -> tuple[str, str]:
    """Address and identity of a `place`; the latter is empty where it was not known."""
    found = _PLACE.fullmatch(account)
    return (found["address"], found["identity"]) if found else (account, "")


def _listener(endpoint: Endpoint) -> tuple[object, ...]:
    """Who listens: a socket's file is another one when another process made it."""
    if not endpoint.path:
        return (endpoint.account,)
    at = os.stat(endpoint.path)
    return (endpoint.account, at.st_dev, at.st_ino, at.st_ctime_ns)


def _digest(info: dict[str, Any], podman: bool) -> str:
    # Podman's id is another one in each answer.
    what = [] if podman else [str(info.get("ID") or "")]
    if not any(what):
        what = [str(info.get(key) or "") for key in ("Name", "DockerRootDir")]
    return hashlib.sha256("\0".join(what).encode()).hexdigest()[:8] if any(what) else ""
