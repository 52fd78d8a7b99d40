"""The Modal runtime against what every runtime promises."""

from __future__ import annotations

from typing import Any

import pytest

from doubles.modal import kit
from doubles.runtime_contract import RuntimeContract
from vf_core.runtimes.base import Runtime


class TestModal(RuntimeContract):
    @pytest.fixture(autouse=True)
    def double(self, monkeypatch):
        for self.double in kit.serving(monkeypatch):
            yield self.double

    def make(self, name: str = "contract", **options: Any) -> Runtime:
        return kit.runtime(name, **options)

    def exists(self, id: str) -> bool:
        return id in {one["id"] for one in self.double.live()}

    async def test_what_the_record_says(self, box):
        """The fields of the record's format, and no others."""
        assert box.info() == {
            "type": "modal",
            "id": box.sandbox_id,
            "image": "python:3.11-slim",
            "workdir": "/app",
            "cpu": 1.0,
            "memory": 2.0,
            "network_access": True,
        }
