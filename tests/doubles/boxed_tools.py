"""Packages with tools, as if they had been installed: in a directory on the search path, with their metadata."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType

import pytest

SOURCE = '''
"""Tools that need an extra of their package."""
import annotated_types

from vf_core.tasks import Toolset, ToolsetConfig, tool


class Config(ToolsetConfig):
    greeting: str = "hello"


class Charts(Toolset[Config]):
    EXTRAS = {extras!r}

    async def setup(self):
        print("charts are ready")

    @tool
    def draw(self, what: str) -> str:
        """Draw."""
        return f"{{self.config.greeting}} {{what}} by {{annotated_types.__name__}}"
'''


def install(
    where: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    files: Mapping[str, str | bytes],
    requires: tuple[str, ...] = (),
) -> ModuleType:
    """Have version 1.2 of the package `name`, with these files, and import it."""
    info = f"{name}-1.2.dist-info"
    told = [f"Metadata-Version: 2.1\nName: {name.replace('_', '-')}\nVersion: 1.2"]
    told += [f"Requires-Dist: {text}" for text in requires]
    told += sorted({f"Provides-Extra: {text.partition('extra == ')[2].strip(chr(34))}" for text in requires})
    everything = {**files, f"{info}/METADATA": "\n".join(told) + "\n"}
    everything[f"{info}/RECORD"] = "".join(f"{file},,\n" for file in [*everything, f"{info}/RECORD"])
    for file, content in everything.items():
        path = where / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    monkeypatch.syspath_prepend(str(where))
    importlib.invalidate_caches()
    sys.modules.pop(name, None)
    return importlib.import_module(name)


def charts(
    where: Path, monkeypatch: pytest.MonkeyPatch, name: str, *, extras: tuple[str, ...] = ("chart",)
) -> ModuleType:
    """A package whose toolset `Charts` needs those extras; it has `chart`."""
    return install(
        where,
        monkeypatch,
        name,
        {f"{name}.py": SOURCE.format(extras=extras)},
        ('annotated-types; extra == "chart"',),
    )
