"""The HTTP server the harness talks to: it forwards model calls to the provider and records them, and carries tool
calls to their servers.

Chosen by measuring (`tests/perf/interception`): both sides are thin asyncio protocols over `httptools` (llhttp). With
every turn recorded they cost about what aiohttp's server and client cost alone, and a first chunk passes far sooner.
"""

from __future__ import annotations

from vf_core.interception.server import InterceptionServer
from vf_core.interception.session import Limits, Session, Stop
from vf_core.interception.upstream import ClientSettings, Upstream

__all__ = ["ClientSettings", "InterceptionServer", "Limits", "Session", "Stop", "Upstream"]
