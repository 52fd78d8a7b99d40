"""Small plugin modules, written where the interpreter finds them and forgotten afterwards."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

TASKSET = """
from collections.abc import Iterable
from pathlib import Path

from pydantic import Field, SecretStr

from vf_core.config.base import StrictModel
from vf_core.tasks import Task, Taskset, TasksetConfig


class Inner(StrictModel):
    depth: int = 2


class MineConfig(TasksetConfig):
    path: Path = Path("rows.jsonl")
    level: int = Field(3, ge=0)
    inner: Inner = Inner()
    extra: dict[str, object] = {}
    password: SecretStr = SecretStr("")
    names: list[str] = ["a"]
    flag: bool = True


class Mine(Taskset[Task, MineConfig]):
    def load(self) -> Iterable[Task]:
        return []


__all__ = ["Mine"]
"""

HARNESS = """
from vf_core.harnesses.base import Harness, HarnessConfig


class OwnConfig(HarnessConfig):
    effort: int = 1


class Own(Harness[OwnConfig]):
    async def launch(self, *args, **kwargs):
        raise AssertionError("not launched here")


__all__ = ["Own"]
"""


@contextmanager
def plugins(directory: Path, **sources: str) -> Iterator[None]:
    """Modules of these names and sources can be imported inside."""
    for name, source in sources.items():
        (directory / f"{name}.py").write_text(source, encoding="utf-8")
    sys.path.insert(0, str(directory))
    importlib.invalidate_caches()
    try:
        yield
    finally:
        sys.path.remove(str(directory))
        for name, module in list(sys.modules.items()):
            if str(getattr(module, "__file__", None) or "").startswith(f"{directory}/"):
                del sys.modules[name]
        importlib.invalidate_caches()
