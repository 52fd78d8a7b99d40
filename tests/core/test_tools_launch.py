"""What is said of a tool server that does not start."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from vf_test_toolset import Notes

from vf_core.errors import SandboxFileNotFoundError, ToolsetError
from vf_core.tools import launch


class Silent:
    """A sandbox whose server says nothing of its start, and too much in its log."""

    kind = "subprocess"

    async def read_bounded(self, path: str, limit: int) -> bytes:
        raise SandboxFileNotFoundError(path)

    async def run(self, argv: list[str], timeout: float) -> Any:
        return SimpleNamespace(exit_code=0, stdout="the key is canary-9\n")


async def test_one_that_never_serves_gives_no_secret_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "START_SECONDS", 0.05)
    with pytest.raises(ToolsetError) as caught:
        await launch._listening(Notes(), Silent(), "ready", "log", ("canary-9",))  # type: ignore[arg-type]
    assert caught.value.message.endswith("within 0.05 s\nits log ends:\nthe key is [secret]")
