"""Modules that may be plugins, found without importing any.

A module is looked at when it comes with us, or when it is a top-level module of an installed distribution that

* names it under the entry point group `vf_tui.plugins`, or
* requires `vf-tui` (or `verifiers`), or has the keyword `vf-tui-plugin`, and the module's file has an `__all__` or
  names one of our base classes;

and, since an id may mean it too, when it lies in a directory on PYTHONPATH and its file does both: mention `vf_core`
and have an `__all__`.
"""

from __future__ import annotations

import importlib.metadata
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from vf_core.config.installing import editable_root
from vf_core.plugins import Kind, builtins, kinds, namespace

GROUP = "vf_tui.plugins"
_KEYWORD = "vf-tui-plugin"
_NEEDED = re.compile(r"^\s*(vf[-_.]tui|verifiers)\s*($|[\[(;<>=!~,@ ])", re.I)
_BASES = re.compile(r"\b(Taskset|Harness|Judge)\b")
_ALL = re.compile(r"^\s*__all__\b", re.M)
_SOURCE_LIMIT = 1 << 20
MODULES_LIMIT = 2_000
"""Files of one directory of PYTHONPATH that are looked at."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A module that may be a plugin. `kind` is known for ours; `declared`: its distribution says that it is one."""

    module: str
    distribution: str = ""
    version: str = ""
    file: str = ""
    kind: Kind | None = None
    declared: bool = False


def candidates() -> list[Candidate]:
    """All of them: ours, then others' by name. A distribution that can't be read is left out."""
    ours = [
        Candidate(f"{namespace(kind)}.{name}", "vf-tui", _version("vf-tui"), kind=kind, declared=True)
        for kind in kinds()
        for name in builtins(kind)
    ]
    found: dict[str, Candidate] = {}
    for distribution in importlib.metadata.distributions():
        try:
            here = list(_of(distribution))
        except Exception:  # noqa: S112  (what lies in site-packages may be anything)
            continue
        for candidate in here:
            found.setdefault(candidate.module, candidate)
    for candidate in _on_path():
        found.setdefault(candidate.module, candidate)
    return ours + sorted(found.values(), key=lambda candidate: candidate.module)


def _version(distribution: str) -> str:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _of(distribution: importlib.metadata.Distribution) -> Iterator[Candidate]:
    metadata = distribution.metadata
    name = str(metadata["Name"] or "")
    if name.lower().replace("_", "-") in ("vf-tui", "verifiers", ""):
        return
    declared = {
        entry.value.partition(":")[0].strip() for entry in distribution.entry_points if entry.group == GROUP
    }
    wanted = any(_NEEDED.match(line) for line in distribution.requires or ())
    wanted = wanted or _KEYWORD in re.split(r"[,\s]+", str(metadata["Keywords"] or ""))
    if not declared and not wanted:
        return
    files = dict(_modules(distribution))
    for module in sorted(declared | (files.keys() if wanted else set())):
        file = files.get(module.partition(".")[0])
        if module in declared or (file is not None and _looks_like_one(file)):
            yield Candidate(module, name, distribution.version, str(file or ""), declared=module in declared)


def _modules(distribution: importlib.metadata.Distribution) -> Iterator[tuple[str, Path]]:
    """The top-level modules of a distribution and their files, also of one that is installed in place."""
    for path in distribution.files or ():
        parts = path.parts
        if len(parts) == 2 and parts[1] == "__init__.py" and parts[0].isidentifier():
            yield parts[0], Path(str(path.locate()))
        elif len(parts) == 1 and path.suffix == ".py" and path.stem.isidentifier():
            yield path.stem, Path(str(path.locate()))
    if (root := editable_root(distribution)) is not None:
        for place in (root, root / "src"):
            yield from _in(place)


def _in(directory: Path) -> Iterator[tuple[str, Path]]:
    """The modules that lie in a directory, as far as `MODULES_LIMIT` goes."""
    try:
        entries = sorted(os.scandir(directory), key=lambda entry: entry.name)[:MODULES_LIMIT]
    except OSError:
        return
    for entry in entries:
        path = Path(entry.path)
        if path.stem.isidentifier() and path.stem not in ("setup", "conftest", "noxfile", "tasks", "tests"):
            if path.suffix == ".py":
                yield path.stem, path
            elif (path / "__init__.py").is_file():
                yield path.name, path / "__init__.py"


def _on_path() -> Iterable[Candidate]:
    for directory in filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep)):
        for module, file in _in(Path(directory)):
            source = _source(file)
            if _ALL.search(source) and "vf_core" in source and module not in ("vf_core", "vf_tui"):
                yield Candidate(module, file=str(file))


def _looks_like_one(file: Path) -> bool:
    source = _source(file)
    return bool(_ALL.search(source) or _BASES.search(source))


def _source(file: Path) -> str:
    try:
        with file.open("rb") as opened:
            return opened.read(_SOURCE_LIMIT).decode("utf-8", errors="replace")
    except OSError:
        return ""
