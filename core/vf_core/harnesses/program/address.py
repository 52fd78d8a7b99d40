"""Which addresses are this machine's own."""

from __future__ import annotations

from urllib.parse import urlsplit


def is_loopback(url: str) -> bool:
    """Whether `url` stays on this machine: a proxy of the environment stands between a remote sandbox and the
    world, never before the loopback."""
    host = urlsplit(url).hostname or ""
    return host in ("localhost", "::1") or host.startswith("127.")
