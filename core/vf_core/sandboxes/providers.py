"""The providers that can be asked from here, by kind."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from importlib import import_module

from vf_core.runtimes import RUNTIMES, make_provider
from vf_core.runtimes.leftover_sockets import SocketProvider
from vf_core.runtimes.leftover_tunnels import TunnelProvider
from vf_core.runtimes.provider import Provider

Makers = Mapping[str, Callable[[], Provider]]
"""What makes the provider of a kind; raises `SandboxError` where it cannot be used."""


def makers() -> dict[str, Callable[[], Provider]]:
    """Those of all kinds of runtime, and what else engines leave behind."""
    return {
        **{kind: partial(make_provider, kind) for kind in RUNTIMES},
        TunnelProvider.kind: TunnelProvider,
        SocketProvider.kind: SocketProvider,
    }


def load(kind: str) -> None:
    """Import what a provider is made of: that may take long, so not on an event loop. What fails then fails again."""
    spec = RUNTIMES.get(kind)
    place = "prime_tunnel" if kind == TunnelProvider.kind else spec and spec.provider.partition(":")[0]
    if place:
        with suppress(Exception):
            import_module(place)
