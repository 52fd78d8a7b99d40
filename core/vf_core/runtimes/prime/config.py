"""The config of Prime's sandboxes."""

from __future__ import annotations

import math
from typing import Annotated, Literal, Self

from pydantic import Field, StringConstraints, model_validator

from vf_core.errors import ConfigError
from vf_core.runtimes.prime import sdk
from vf_core.runtimes.remote import MAX_LIFETIME, MIN_LIFETIME, ImageConfig, parse_gpu

Label = Annotated[str, StringConstraints(min_length=1, max_length=200)]

# Seconds of inactivity that are allowed where nothing is said.
_IDLE = 3600.0
# Each sandbox has a dozen of ours besides.
_MAX_LABELS = 30


class PrimeConfig(ImageConfig):
    """A sandbox at Prime. `cpu` in cores, `memory` and `disk` in GB.

    `timeout`: its hard lifetime, in seconds, after which the provider ends it whatever happens; sent in whole
    minutes, rounded up. `idle_timeout`: seconds of inactivity after which it ends, sent in whole minutes, rounded
    up, and for containers only: the provider refuses it for VMs, and SDK 0.5.1 makes nothing but VMs. It must
    not be above `timeout`, and left alone never is.

    `vm`: a micro-VM instead of a container. `creates_per_min` paces creation, over all processes of this host.
    `labels` are added to ours. What the installed SDK cannot ask for is refused in `validate_here`.
    """

    type: Literal["prime"] = "prime"
    cpu: float = Field(1.0, gt=0)
    memory: float = Field(2.0, gt=0)
    disk: float = Field(5.0, gt=0)
    region: str | None = Field(None, min_length=1)
    network_access: bool = True
    vm: bool = True
    guaranteed: bool = False
    labels: tuple[Label, ...] = Field((), max_length=_MAX_LABELS)
    timeout: float = Field(MAX_LIFETIME, ge=MIN_LIFETIME, le=MAX_LIFETIME)
    idle_timeout: float = Field(
        default_factory=lambda others: min(_IDLE, others.get("timeout", _IDLE)), ge=MIN_LIFETIME
    )
    creates_per_min: float | None = Field(None, gt=0)

    @model_validator(mode="after")
    def _agree(self) -> Self:
        if self.idle_timeout > self.timeout:
            raise ValueError(
                f"idle_timeout = {self.idle_timeout:g} is above timeout = {self.timeout:g} (both in seconds)"
            )
        kind, count = parse_gpu(self.gpu)
        if count and kind is None:
            raise ValueError(f"gpu = {self.gpu!r}: Prime wants the GPU's type, such as H100_80GB:{count}")
        return self

    @property
    def lifetime(self) -> float:
        """See `RuntimeConfig.lifetime`."""
        return self.timeout

    @property
    def timeout_minutes(self) -> int:
        """The lifetime as it is sent."""
        return math.ceil(self.timeout / 60)

    @property
    def idle_minutes(self) -> int | None:
        """The idle timeout as it is sent; None: it is not."""
        return None if self.vm else math.ceil(self.idle_timeout / 60)

    def validate_here(self) -> None:
        """See `RuntimeConfig.validate_here`: the SDK, credentials, and options that the SDK would drop."""
        known = sdk.request_fields()
        version = getattr(sdk.load(), "__version__", "installed here")
        dropped = {
            "vm": (not self.vm, "it makes VMs only"),
            "guaranteed": (self.guaranteed, "it cannot ask for guaranteed capacity"),
            "network_access": (not self.network_access, "it cannot switch the network off"),
            "region": (self.region is not None, "it cannot choose a region"),
        }
        for key, (asked, why) in dropped.items():
            if asked and key not in known:
                value = str(getattr(self, key)).lower()
                raise ConfigError(
                    f"{key} = {value} would be ignored by prime-sandboxes {version}: {why}",
                    key=key,
                    hint=f"leave {key} out",
                )
        sdk.check_credentials()
