"""Containers, held to the contract of all runtimes."""

from __future__ import annotations

from typing import Any

import pytest

pytest.register_assert_rewrite("doubles.runtime_contract")

from doubles.engine_host import call, need_engine  # noqa: E402
from doubles.engine_images import python_image  # noqa: E402
from doubles.runtime_contract import RuntimeContract  # noqa: E402
from vf_core.runtimes.base import Runtime  # noqa: E402
from vf_core.runtimes.docker.config import DockerConfig  # noqa: E402
from vf_core.runtimes.docker.runtime import DockerRuntime  # noqa: E402


class TestDocker(RuntimeContract):
    # Each takes an engine most of a second of one core.
    many = 10

    @pytest.fixture(autouse=True)
    def _engine(self, monkeypatch):
        monkeypatch.setenv("DOCKER_HOST", need_engine())

    def make(self, name: str = "contract", **options: Any) -> Runtime:
        config = DockerConfig(image=python_image(), pull="never", **options)
        return DockerRuntime(config, name=name, labels={"run": "test"})

    def exists(self, id: str) -> bool:
        return call("GET", f"/v1.41/containers/{id}/json")[0] == 200
