"""Which connections the server has, and for how long they may be nobody's."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vf_core.interception.wire import ServerConnection

STRANGER_SECONDS = 30.0
"""How long a connection may go on before its first request that is admitted for somebody."""
_STRANGERS = 1024


class Registry:
    """All connections of a server. Those of strangers, on which nobody was admitted yet, are few and short: whoever
    can reach the port can open them."""

    def __init__(self) -> None:
        self.all: set[ServerConnection] = set()
        self._strangers: dict[ServerConnection, asyncio.TimerHandle] = {}

    def opened(self, connection: ServerConnection) -> None:
        """A new one; the oldest stranger goes when there are too many."""
        self.all.add(connection)
        if len(self._strangers) >= _STRANGERS:
            oldest = next(iter(self._strangers))
            self.known(oldest)
            oldest.abort()
        loop = asyncio.get_running_loop()
        self._strangers[connection] = loop.call_later(STRANGER_SECONDS, connection.abort)

    def known(self, connection: ServerConnection) -> None:
        """It is no stranger's."""
        timer = self._strangers.pop(connection, None)
        if timer is not None:
            timer.cancel()

    def closed(self, connection: ServerConnection) -> None:
        """It is over."""
        self.all.discard(connection)
        self.known(connection)
