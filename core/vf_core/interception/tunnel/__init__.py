"""Tunnels: ways from remote sandboxes to the interception server on this host."""

from __future__ import annotations

from vf_core.config.interception import CustomTunnelConfig, PrimeTunnelConfig, TunnelConfig
from vf_core.errors import ConfigError
from vf_core.interception.tunnel.base import PACE, Pace, Say, Tunnel

__all__ = ["PACE", "Pace", "Say", "Tunnel", "check_here", "make_tunnel"]


def make_tunnel(config: TunnelConfig, *, run: str, say: Say | None = None, pace: Pace = PACE) -> Tunnel:
    """The tunnel that `config` describes, not open. `run` is part of its name at a provider."""
    if isinstance(config, CustomTunnelConfig):
        from vf_core.interception.tunnel.custom import CustomTunnel

        return CustomTunnel(config, say=say, pace=pace)
    if isinstance(config, PrimeTunnelConfig):
        from vf_core.interception.tunnel.prime import PrimeTunnel

        return PrimeTunnel(config, run=run, say=say, pace=pace)
    raise ConfigError(f"there is no tunnel {config.type!r}", key="env.interception.tunnel.type")


def check_here(config: TunnelConfig) -> None:
    """Refuse, without a network, a tunnel that this machine cannot open. Raises `ConfigError`."""
    if isinstance(config, PrimeTunnelConfig):
        from vf_core.interception.tunnel.prime import check_here as check

        check()
