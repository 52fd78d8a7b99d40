"""Environments as users have them, with vf-tui in them, to install plugins into: cheap, for they share packages.

Of another Python's packages only those with compiled parts are installed, once, below the project's `.cache`.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.metadata
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[2]
CACHE = ROOT / ".cache" / "venvs"
SECONDS = 600


@cache
def newest_python() -> Path | None:
    """The newest Python on this machine that vf-tui runs on; None when it is the one that runs this."""
    names = [f"python3.{minor}" for minor in (14, 13, 12)]
    homes = [Path(os.environ.get("PYENV_ROOT", "~/.pyenv")).expanduser() / "versions"]
    homes.append(Path("~/.local/share/uv/python").expanduser())
    found = [Path(place) for name in names if (place := shutil.which(name))]
    found += [python for home in homes for name in names for python in home.glob(f"*/bin/{name}")]
    best: tuple[tuple[int, ...], Path | None] = (sys.version_info[:2], None)
    for python in found:
        said = _run(python, "-c", "import ssl, sqlite3, sys, venv; print(*sys.version_info[:2])")
        version = tuple(map(int, said.stdout.split())) if said.returncode == 0 else (0, 0)
        if best[0] < version <= (3, 14):
            best = version, python
    return best[1]


def environment(where: Path, python: Path | None = None) -> Path:
    """The interpreter of a fresh environment at `where` with vf-tui in it, made by `python` (None: by this one)."""
    made = _run(python or Path(sys.executable), "-m", "venv", "--without-pip", str(where))
    assert made.returncode == 0, made.stderr
    (packages,) = where.glob("lib/python*/site-packages")
    paths = [*([] if python is None else [_compiled(python)]), ROOT / "core", ROOT / "tui"]
    paths.append(Path(sysconfig.get_paths()["purelib"]))
    (packages / "others.pth").write_text("".join(f"{path}\n" for path in paths))
    return where / "bin" / "python"


def install(python: Path, *wheels: Path) -> None:
    """As a user does with pip; nothing is fetched."""
    pip = ["-m", "pip", "--python", str(python), "install", "--quiet", "--no-index"]
    done = _run(Path(sys.executable), *pip, *map(str, wheels))
    assert done.returncode == 0, done.stdout + done.stderr


def _compiled(python: Path) -> Path:
    """The packages of `python` in place of those of ours that have compiled parts."""
    pins = sorted(
        f"{name}=={importlib.metadata.version(name)}" for name in set(_needed()) if _has_parts(name)
    )
    key = hashlib.sha256("\n".join([str(python), *pins]).encode()).hexdigest()[:12]
    place = CACHE / f"compiled-{python.name}-{key}"
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / f"{place.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not place.exists():
            new = place.with_suffix(".new")
            shutil.rmtree(new, ignore_errors=True)
            pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-deps"]
            done = _run(
                Path(pip[0]), *pip[1:], "--only-binary", ":all:", "--no-compile", "--target", str(new), *pins
            )
            if done.returncode != 0:
                if os.environ.get("CI"):
                    pytest.fail(f"packages for {python} could not be installed:\n{done.stderr[-3000:]}")
                pytest.skip(f"packages for {python} could not be installed: {done.stderr[-300:]}")
            new.rename(place)
    return place


def _needed() -> Iterator[str]:
    """Everything that vf-tui requires, without its extras."""
    todo, seen = [Requirement("vf-tui")], set[str]()
    while todo:
        requirement = todo.pop()
        key = str(requirement)
        if key in seen:
            continue
        seen.add(key)
        yield requirement.name
        for line in importlib.metadata.requires(requirement.name) or ():
            needed = Requirement(line)
            if needed.marker is None or any(
                needed.marker.evaluate({"extra": extra}) for extra in ("", *requirement.extras)
            ):
                todo.append(needed)


def _has_parts(name: str) -> bool:
    files = importlib.metadata.files(name) or ()
    return any(file.suffix in (".so", ".pyd") for file in files)


def _run(python: Path, *args: str) -> subprocess.CompletedProcess[str]:
    env = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    return subprocess.run(
        [str(python), *args], env=env, capture_output=True, text=True, timeout=SECONDS, check=False
    )
