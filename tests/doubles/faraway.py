"""Sandboxes that count as remote, though they are local ones: only the tunnel leads from them to the engine."""

from __future__ import annotations

from typing import ClassVar, Literal

import pytest

from vf_core.runtimes import RUNTIMES, RuntimeSpec
from vf_core.runtimes.subprocess import SubprocessConfig, SubprocessRuntime


class FarawayConfig(SubprocessConfig):
    """As `subprocess`, with a switch that the providers' have."""

    type: Literal["faraway"] = "faraway"  # type: ignore[assignment]
    network_access: bool = True


class FarawayRuntime(SubprocessRuntime):
    """A local sandbox on another machine, so to speak."""

    kind: ClassVar[str] = "faraway"
    is_local: ClassVar[bool] = False


def install(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the runtime `faraway` in this test."""
    place = RuntimeSpec(
        config="doubles.faraway:FarawayConfig",
        runtime="doubles.faraway:FarawayRuntime",
        provider="vf_core.runtimes.leftovers:LocalProvider",
    )
    monkeypatch.setitem(RUNTIMES, "faraway", place)
