"""What the configs of sandboxes made from images have in common: resources, lifetime, and a task's own wishes."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, Self

from pydantic import AfterValidator, Field

from vf_core.runtimes.base import RuntimeConfig

if TYPE_CHECKING:
    from vf_core.trace.task import TaskData

DEFAULT_IMAGE = "python:3.11-slim"
DEFAULT_WORKDIR = "/app"
MIN_LIFETIME = 60
MAX_LIFETIME = 86_400


def parse_gpu(spec: str | None) -> tuple[str | None, int]:
    """`TYPE`, `TYPE:COUNT` or `COUNT` as (type or None, count); (None, 0) for none. Raises `ValueError`."""
    if spec is None:
        return None, 0
    kind, colon, count = spec.partition(":")
    if not colon and kind.isdigit():
        kind, count = "", kind
    number = int(count) if count.isdigit() else 1 if not colon else 0
    if number < 1 or (kind and not re.fullmatch(r"[A-Za-z][A-Za-z0-9._-]*", kind)) or (colon and not kind):
        raise ValueError(f"{spec!r} is no GPU: expected TYPE, TYPE:COUNT or COUNT, such as A100:2")
    return kind or None, number


def _gpu(spec: str) -> str:
    parse_gpu(spec)
    return spec


def _absolute(path: str) -> str:
    if not path.startswith("/") or "\0" in path:
        raise ValueError("expected an absolute path inside the sandbox")
    return path


def _image(image: str) -> str:
    if not image or image.startswith("-") or any(c.isspace() or ord(c) < 32 for c in image):
        raise ValueError("expected an image reference such as python:3.11-slim")
    return image


GpuSpec = Annotated[str, AfterValidator(_gpu)]


class ImageConfig(RuntimeConfig):
    """A sandbox made from an image. `cpu` in cores, `memory` and `disk` in GB, `gpu` as `TYPE`, `TYPE:COUNT` or
    `COUNT`. A task's own image and workdir go before the config's; its resources count where that names none."""

    image: Annotated[str, AfterValidator(_image)] = DEFAULT_IMAGE
    workdir: Annotated[str, AfterValidator(_absolute)] = DEFAULT_WORKDIR
    cpu: float | None = Field(None, gt=0)
    memory: float | None = Field(None, gt=0)
    disk: float | None = Field(None, gt=0)
    gpu: GpuSpec | None = None
    price: float | None = Field(None, ge=0)
    """What a sandbox costs, in $ an hour, for the lists of what exists."""

    def for_task(self, data: TaskData) -> Self:
        """See `RuntimeConfig.for_task`: image, workdir and resources."""
        fields = type(self).model_fields
        wishes = {
            name: value
            for name, value in data.resources.model_dump(exclude_none=True).items()
            if name in fields and name not in self.model_fields_set
        }
        wishes |= {name: value for name in ("image", "workdir") if (value := getattr(data, name)) is not None}
        return (
            type(self).model_validate({**self.model_dump(exclude_unset=True), **wishes}) if wishes else self
        )
