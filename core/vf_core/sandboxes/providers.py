"""The providers that can be asked from here, by kind."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from vf_core.runtimes import RUNTIMES, make_provider
from vf_core.runtimes.provider import Provider

Makers = Mapping[str, Callable[[], Provider]]
"""What makes the provider of a kind; raises `SandboxError` where it cannot be used."""


def makers() -> dict[str, Callable[[], Provider]]:
    """Those of all kinds of runtime."""
    return {kind: partial(make_provider, kind) for kind in RUNTIMES}
