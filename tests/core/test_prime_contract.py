"""The Prime runtime keeps what every runtime promises."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from doubles.prime import kit
from doubles.prime.server import PrimeDouble
from doubles.runtime_contract import RuntimeContract
from vf_core.runtimes.base import Runtime


class TestPrime(RuntimeContract):
    @pytest.fixture(autouse=True)
    def double(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[PrimeDouble]:
        for double in kit.serving(monkeypatch, tmp_path):
            self.platform = double
            yield double

    def make(self, name: str = "contract", **options: Any) -> Runtime:
        return kit.runtime(name, **options)

    def exists(self, id: str) -> bool:
        return id in {sandbox["id"] for sandbox in self.platform.live()}
