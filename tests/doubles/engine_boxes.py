"""Containers for the tests, and what is left of them."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from doubles.engine_host import call, containers
from doubles.engine_images import busybox_image
from vf_core.runtimes.docker.config import DockerConfig
from vf_core.runtimes.docker.runtime import DockerRuntime


def new_run() -> str:
    """A run of its own, so that tests which share an engine do not see each other's containers."""
    return f"test-{secrets.token_hex(6)}"


def docker_box(run: str = "", name: str = "box", **options: Any) -> DockerRuntime:
    """A small container, not started."""
    config = DockerConfig.model_validate({"image": busybox_image(), "pull": "never", **options})
    return DockerRuntime(
        config, name=name, labels={"run": run or new_run(), "rollout": "r-0", "attempt": "1"}
    )


@asynccontextmanager
async def live(box: DockerRuntime) -> AsyncIterator[DockerRuntime]:
    """It, started; its end is proven afterwards."""
    await box.start()
    try:
        yield box
    finally:
        await box.stop_confirmed()


def left(run: str) -> list[str]:
    """Names of the containers that the engine has of a run."""
    return [str(row["Names"][0]) for row in containers(f"vf-tui.run={run}")]


def remove_by_hand(id: str) -> None:
    """As `docker rm -f` in another terminal does."""
    assert call("DELETE", f"/v1.41/containers/{id}?force=true&v=true")[0] in (200, 204)
