"""A way in that the user provides: a tunnel program, a reverse proxy, or this host's own address."""

from __future__ import annotations

from typing import ClassVar

from vf_core.config.interception import CustomTunnelConfig
from vf_core.interception.tunnel.base import PACE, Pace, Say, Tunnel
from vf_core.interception.tunnel.probe import Door


class CustomTunnel(Tunnel):
    """Nothing is opened here: the server listens where the config says, and the URL is taken at its word, once it
    was seen to lead here."""

    kind: ClassVar[str] = "custom"

    def __init__(self, config: CustomTunnelConfig, *, say: Say | None = None, pace: Pace = PACE) -> None:
        super().__init__(config, say=say, pace=pace)
        self._own = config

    @property
    def bind(self) -> tuple[str, int]:
        """See `Tunnel.bind`."""
        return self._own.host, self._own.port

    async def _open(self, door: Door) -> str:
        return self._own.url

    def _advice(self, *, cut: bool) -> str:
        if cut:
            return f"see whether your tunnel still runs and forwards to port {self._own.port} of this host"
        return (
            f"have it forward to port {self._own.port} of this host, or set "
            "env.interception.tunnel.check = false if this host cannot reach the address itself"
        )
