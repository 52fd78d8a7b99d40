"""What a run may say about its containers."""

from __future__ import annotations

import re
from importlib.util import find_spec
from typing import Literal, Self

from pydantic import Field, model_validator

from vf_core.errors import ConfigError, SandboxError
from vf_core.runtimes.docker import endpoint
from vf_core.runtimes.remote import MAX_LIFETIME, MIN_LIFETIME, ImageConfig

_REFERENCE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@+-]*")
EXTRA_HINT = "pip install 'vf-tui[docker]'"


class DockerConfig(ImageConfig):
    """A container. `pull`: "missing" gets an image that the engine lacks, "always" looks for a newer one, "never"
    does neither. `timeout`: seconds after which a container ends by itself, whatever happens to vf-tui. `labels`:
    more labels for it. `disk` is a wish that engines do not enforce. An engine gives GPUs by their count: a type that
    the container then turns out not to have is an error."""

    type: Literal["docker"] = "docker"
    pull: Literal["missing", "always", "never"] = "missing"
    timeout: int | None = Field(None, ge=MIN_LIFETIME, le=MAX_LIFETIME)
    labels: dict[str, str] = Field(default_factory=dict)

    @property
    def lifetime(self) -> float | None:
        """See `RuntimeConfig.lifetime`."""
        return None if self.timeout is None else float(self.timeout)

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if not _REFERENCE.fullmatch(self.image) or ".." in self.image:
            raise ValueError(f"image: {self.image!r} is no image reference, such as python:3.11-slim")
        for name in self.labels:
            if not name or name == "vf-tui" or name.startswith("vf-tui."):
                raise ValueError(f"labels: {name!r} is a label of vf-tui's own, or none")
        return self

    def validate_here(self) -> None:
        """See `RuntimeConfig.validate_here`: the extra, and an engine that does not refuse connections."""
        if find_spec("aiodocker") is None:
            raise ConfigError(
                "the docker runtime needs the package aiodocker, which is not installed",
                key="type",
                hint=EXTRA_HINT,
            )
        try:
            found = endpoint.resolve()
            found.tls()
        except SandboxError as e:
            raise ConfigError(e.message, hint=e.hint) from e
        problem = endpoint.connect_problem(found)
        if problem is not None:
            raise ConfigError(
                f"docker engine {found.account} ({found.source}) cannot be reached: "
                f"{problem.strerror or problem}",
                hint=endpoint.advice(problem),
            )
