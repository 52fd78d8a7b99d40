"""What of this machine a tool server needs in a sandbox: this package, and the distribution that its class is in.

A distribution that is installed goes as a wheel made of its installed files, one that is worked on as its project's
directory. Nothing is asked of a package index by the bare name of somebody's own package.
"""

from __future__ import annotations

import base64
import hashlib
import io
import re
import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

from vf_core.config.installing import editable_root
from vf_core.errors import ToolsetError

SIZE_LIMIT = 64 * 1024 * 1024
OURS = "vf-tui"
# What only the screen and the command line need.
_NOT_THERE = ("textual", "click")
_PASSED_OVER = frozenset(
    ("__pycache__", ".venv", "venv", ".git", ".tox", ".nox", "node_modules", ".pytest_cache", ".mypy_cache")
)
_COMPILED = (".so", ".pyd", ".dylib", ".dll")


@dataclass(frozen=True, slots=True)
class Shipment:
    """A distribution to be installed in a sandbox. `data` is a wheel, or an archive with the project in the directory
    `name`; `of_extras` are the distributions that its extras ask for, by name."""

    name: str
    version: str
    file: str
    data: bytes
    extras: tuple[str, ...] = ()
    of_extras: tuple[str, ...] = ()

    @property
    def is_wheel(self) -> bool:
        """It is a wheel, as opposed to a project's directory."""
        return self.file.endswith(".whl")

    def requirement(self, directory: str) -> str:
        """What an installer is to be given when it lies in `directory`."""
        extras = f"[{','.join(self.extras)}]" if self.extras else ""
        place = self.file if self.is_wheel else self.name
        return f"{self.name}{extras} @ file://{directory}/{place}"


@cache
def own_wheel() -> Shipment:
    """This package, without its screen. Blocks."""
    import vf_core

    dist = metadata.distribution(OURS)
    root = Path(vf_core.__file__).parent
    told = _without(str(dist.read_text("METADATA") or ""), _NOT_THERE)
    return _wheel(OURS, dist.version, told, _tree(root, root.parent), ())


@cache
def shipment(module: str, extras: tuple[str, ...]) -> Shipment | None:
    """The distribution that `module` is in; None when that is ours. Blocks.

    Raises `ToolsetError`, with why, when it cannot be taken along or has no such extras.
    """
    top = module.partition(".")[0]
    if top in ("vf_core", "vf_tui"):
        return None
    loaded = sys.modules.get(top)
    origin = getattr(loaded, "__file__", None) or next(iter(getattr(loaded, "__path__", ())), "")
    names = metadata.packages_distributions().get(top, ())
    dist = metadata.distribution(names[0]) if names else None
    if dist is not None:
        project = editable_root(dist)
        if project is None:
            return _installed(dist, extras)
    else:
        project = _project_above(Path(origin)) if origin else None
    if project is None:
        raise ToolsetError(
            f"the module {module} ({origin or 'without a file'}) belongs to no installed package and no project "
            "with a pyproject.toml, so it cannot be installed in a sandbox",
            hint="make it a package and install that, or serve these tools on this host",
        )
    return _project(project, extras)


def _project_above(origin: Path) -> Path | None:
    return next((d for d in origin.resolve().parents if (d / "pyproject.toml").is_file()), None)


def _installed(dist: metadata.Distribution, extras: tuple[str, ...]) -> Shipment:
    name, told = dist.metadata["Name"], str(dist.read_text("METADATA") or "")
    _check_extras(name, extras, dist.metadata.get_all("Provides-Extra") or [])
    files = [file for file in dist.files or [] if ".." not in file.parts and "__pycache__" not in file.parts]
    if not files:
        raise ToolsetError(
            f"the package {name} does not say which files it has: it cannot be put in a sandbox"
        )
    compiled = next((str(file) for file in files if file.suffix in _COMPILED), None)
    if compiled is not None:
        raise ToolsetError(
            f"the package {name} has parts compiled for this machine ({compiled}): it cannot be put in a sandbox",
            hint=f"use an image that has {name}=={dist.version} and {OURS}, or serve these tools on this host",
        )
    wanted = ((str(f), Path(str(f.locate()))) for f in files if not f.parts[0].endswith(".dist-info"))
    return _wheel(name, dist.version, told, ((at, path) for at, path in wanted if path.is_file()), extras)


def _check_extras(name: str, extras: Iterable[str], known: Iterable[str]) -> None:
    have = {_normal(extra) for extra in known}
    for extra in extras:
        if _normal(extra) not in have:
            raise ToolsetError(
                f"its EXTRAS name {extra!r}, and {name} has no such extra",
                hint=f"it has: {', '.join(sorted(have)) or 'none'}",
            )


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _project(root: Path, extras: tuple[str, ...]) -> Shipment:
    try:
        told: dict[str, Any] = tomllib.loads((root / "pyproject.toml").read_text("utf-8")).get("project", {})
    except (OSError, ValueError) as e:
        raise ToolsetError(f"{root / 'pyproject.toml'} cannot be read: {e}") from e
    name = str(told.get("name", root.name))
    if _normal(name) == OURS:
        raise ToolsetError(
            f"it stands in the source tree of {OURS} ({root}), outside of its package: it cannot be installed in a "
            "sandbox",
            hint="give it a package of its own, or serve these tools on this host",
        )
    if "optional-dependencies" not in told.get("dynamic", []):
        _check_extras(name, extras, told.get("optional-dependencies", {}))
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        size = 0
        for at, path in _tree(root, root):
            size += path.stat().st_size
            _check_size(name, size)
            tar.add(path, f"{name}/{at}", recursive=False)
    return Shipment(name, str(told.get("version", "")), f"{name}.tar.gz", buffer.getvalue(), extras)


def _tree(root: Path, base: Path) -> Iterator[tuple[str, Path]]:
    """The files below `root`, with their paths from `base`."""
    for path in sorted(root.iterdir()):
        if path.name in _PASSED_OVER:
            continue
        if path.is_dir() and not path.is_symlink():
            yield from _tree(path, base)
        elif path.is_file():
            yield path.relative_to(base).as_posix(), path


def _check_size(name: str, size: int) -> None:
    if size > SIZE_LIMIT:
        raise ToolsetError(
            f"the package {name} is larger than {SIZE_LIMIT >> 20} MB: it is not copied into each sandbox",
            hint="use an image that has it, or serve these tools on this host",
        )


def _without(told: str, names: Iterable[str]) -> str:
    """Metadata without these requirements."""
    lines = told.split("\n")
    return "\n".join(
        line
        for line in lines
        if not any(re.match(rf"Requires-Dist: {name}\b", line, re.IGNORECASE) for name in names)
    )


def _wheel(
    name: str, version: str, told: str, files: Iterable[tuple[str, Path]], extras: tuple[str, ...]
) -> Shipment:
    stem = f"{_normal(name).replace('-', '_')}-{version}"
    buffer, record, size = io.BytesIO(), [], 0
    info = f"{stem}.dist-info"
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:

        def add(at: str, data: bytes) -> None:
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            record.append(f"{at},sha256={digest},{len(data)}\n")
            archive.writestr(zipfile.ZipInfo(at), data)

        for at, path in files:
            data = path.read_bytes()
            size += len(data)
            _check_size(name, size)
            add(at, data)
        add(f"{info}/METADATA", told.encode())
        add(
            f"{info}/WHEEL",
            b"Wheel-Version: 1.0\nGenerator: vf-tui\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        )
        archive.writestr(zipfile.ZipInfo(f"{info}/RECORD"), "".join(record) + f"{info}/RECORD,,\n")
    return Shipment(
        name, version, f"{stem}-py3-none-any.whl", buffer.getvalue(), extras, _of_extras(told, extras)
    )


def _of_extras(told: str, extras: tuple[str, ...]) -> tuple[str, ...]:
    """The names of what these extras ask for, as this machine's markers say."""
    from packaging.requirements import Requirement

    found = []
    for text in re.findall(r"(?m)^Requires-Dist: (.+?)\s*$", told) if extras else ():
        requirement = Requirement(text)
        marker = requirement.marker
        if (
            marker
            and not marker.evaluate({"extra": ""})
            and any(marker.evaluate({"extra": e}) for e in extras)
        ):
            found.append(requirement.name)
    return tuple(found)
