"""What a Modal sandbox is asked to be."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, field_validator, model_validator

from vf_core.errors import ConfigError
from vf_core.runtimes.labels import MARK
from vf_core.runtimes.modal import sdk
from vf_core.runtimes.remote import MAX_LIFETIME, MIN_LIFETIME, ImageConfig, parse_gpu

# What a Modal sandbox has, in GB; its SDK has no way to ask for more.
DISK = 512.0
MAX_PORTS = 8

# The fields that the trace record's format knows of this kind.
_RECORDED = frozenset(
    (
        "type",
        "image",
        "workdir",
        "network_access",
        "region",
        "cpu",
        "memory",
        "gpu",
        "disk",
        "creates_per_sec",
    )
)


def _tag(text: str) -> str:
    if not sdk.TAG.fullmatch(text):
        raise ValueError(f"{text!r}: expected 1 to 63 letters, digits, dots, dashes or underscores")
    return text


def _ours(key: str) -> str:
    if key == MARK or key.startswith(f"{MARK}."):
        raise ValueError(f"{key!r}: labels that begin with {MARK} are vf-tui's own")
    return _tag(key)


Port = Annotated[int, Field(ge=1, le=65535)]


class ModalConfig(ImageConfig):
    """A sandbox at Modal. `timeout` is its hard lifetime, `idle_timeout` how long it may be without work, both in
    whole seconds; `expose_ports` are the ports that may be reached from outside, which Modal must be told when it
    makes the sandbox; `creates_per_sec` paces creation over all processes of this host (none: no pace). `disk` is
    what a task may wish for: every Modal sandbox has 512 GB."""

    type: Literal["modal"] = "modal"
    cpu: float | None = Field(1.0, gt=0)
    memory: float | None = Field(2.0, gt=0)
    timeout: int = Field(MAX_LIFETIME, ge=MIN_LIFETIME, le=MAX_LIFETIME)
    idle_timeout: int = Field(3600, ge=MIN_LIFETIME)
    region: str | None = Field(None, min_length=1)
    network_access: bool = True
    expose_ports: tuple[Port, ...] = Field((), max_length=MAX_PORTS)
    labels: dict[Annotated[str, AfterValidator(_ours)], Annotated[str, AfterValidator(_tag)]] = Field(
        default_factory=dict
    )
    creates_per_sec: float | None = Field(40.0, gt=0)

    @field_validator("gpu")
    @classmethod
    def _with_a_type(cls, value: str | None) -> str | None:
        kind, count = parse_gpu(value)
        if count and kind is None:
            raise ValueError(f"{value!r}: Modal has no GPU without a type, such as A10G:1 or H100:{count}")
        return value

    @field_validator("disk")
    @classmethod
    def _within(cls, value: float | None) -> float | None:
        if value is not None and value > DISK:
            raise ValueError(
                f"{value:g} GB: a Modal sandbox has {DISK:g} GB, and its SDK cannot ask for more"
            )
        return value

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.expose_ports and not self.network_access:
            raise ValueError("expose_ports: no port can be reached from outside with network_access = false")
        if "idle_timeout" not in self.model_fields_set:
            # A default does not stand in the way of a shorter life.
            object.__setattr__(self, "idle_timeout", min(self.idle_timeout, self.timeout))
        if self.idle_timeout > self.timeout:
            raise ValueError(f"idle_timeout {self.idle_timeout} is above timeout {self.timeout}")
        return self

    @property
    def lifetime(self) -> float:
        """See `RuntimeConfig.lifetime`."""
        return float(self.timeout)

    @property
    def memory_mib(self) -> int | None:
        """`memory` as Modal counts it."""
        return None if self.memory is None else max(1, round(self.memory * 1024))

    def recorded(self) -> dict[str, Any]:
        """What the trace record's format knows of it."""
        return {
            key: value
            for key, value in self.model_dump(mode="json", exclude_none=True).items()
            if key in _RECORDED
        }

    def validate_here(self) -> None:
        """See `RuntimeConfig.validate_here`: the SDK and credentials."""
        problem = sdk.problem()
        if problem is not None:
            raise ConfigError(problem.message, key="type", hint=problem.hint)
