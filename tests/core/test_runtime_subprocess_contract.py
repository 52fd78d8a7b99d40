"""The local runtime, held to the contract of all runtimes."""

from __future__ import annotations

from typing import Any

import pytest

pytest.register_assert_rewrite("doubles.runtime_contract")

from doubles.local_boxes import processes_with  # noqa: E402
from doubles.runtime_contract import RuntimeContract  # noqa: E402
from vf_core.runtimes import make_runtime, records, runtime_config_class  # noqa: E402
from vf_core.runtimes.base import Runtime  # noqa: E402


class TestSubprocess(RuntimeContract):
    def make(self, name: str = "contract", **options: Any) -> Runtime:
        config = runtime_config_class("subprocess")(type="subprocess", **{"grace": 0.3, **options})
        return make_runtime(config, name=name, labels={"run": "test"})

    def exists(self, id: str) -> bool:
        return bool(processes_with(id)) or any(record.id == id for record in records.read_records())
