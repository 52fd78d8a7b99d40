"""What is shipped runs without the repository: sdist, wheel from it, an environment of its own (D04)."""

from __future__ import annotations

import os
import shutil
import subprocess
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

from doubles.command_line import Home, records
from doubles.peer_venv import peer_python

ROOT = Path(__file__).resolve().parents[2]
BACKEND = "hatchling==1.27.0"


def build(source: Path, target: str, out: Path) -> Path:
    """The one file that building `source` gives."""
    done = subprocess.run(
        [str(peer_python(BACKEND)), "-m", "hatchling", "build", "-t", target, "-d", str(out)],
        cwd=source, capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (built,) = out.glob("*.whl" if target == "wheel" else "*.tar.gz")
    return built


def copy_of_the_sources(to: Path) -> Path:
    shipped = (
        "core",
        "tui",
        "themes",
        "docs",
        "tests",
        "pyproject.toml",
        "README.md",
        "LICENSE",
        "CHANGELOG.md",
        "Makefile",
    )
    to.mkdir()
    for name in shipped:
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy2
        kept = {"ignore": shutil.ignore_patterns("__pycache__")} if (ROOT / name).is_dir() else {}
        copy(ROOT / name, to / name, **kept)  # type: ignore[operator]
    return to


def environment_with(wheel: Path, where: Path) -> Path:
    """A fresh environment with the wheel in it, and this one's packages (but not the repository) for the rest."""
    venv.create(where, with_pip=False)
    (packages,) = where.glob("lib/python*/site-packages")
    with zipfile.ZipFile(wheel) as archive:
        assert (
            "vf-tui = vf_tui.cli:main"
            in archive.read(
                next(name for name in archive.namelist() if name.endswith("entry_points.txt"))
            ).decode()
        )
        archive.extractall(packages)
    (packages / "others.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    return where / "bin/python"


def data_files() -> set[str]:
    """Everything beside our modules, by its name in the wheel."""
    roots = {ROOT / "core": "", ROOT / "tui": "", ROOT / "themes": "vf_tui/themes/"}
    return {
        prefix + path.relative_to(root).as_posix()
        for root, prefix in roots.items()
        for path in root.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


@pytest.mark.network
@pytest.mark.timeout(600)
def test_d04_the_wheel_of_the_sdist_starts_anywhere(tmp_path: Path) -> None:
    sdist = build(copy_of_the_sources(tmp_path / "source"), "sdist", tmp_path / "sdist")
    # Not with `extractall(filter=…)`, which Debian's 3.11.2 has not got; it is our own archive.
    shutil.unpack_archive(sdist, tmp_path / "unpacked")
    (unpacked,) = (tmp_path / "unpacked").iterdir()
    wheel = build(unpacked, "wheel", tmp_path / "wheel")
    assert data_files() <= set(zipfile.ZipFile(wheel).namelist())
    python = environment_with(wheel, tmp_path / "venv")
    shutil.rmtree(unpacked)
    home = Home(tmp_path / "home")
    home.env["PYTHONPATH"] = ""

    def run(*args: str) -> subprocess.CompletedProcess[str]:
        command = [str(python), "-c", "from vf_tui.cli import main; main()", *args]
        return subprocess.run(
            command, cwd=home.work, env=home.env, stdin=subprocess.DEVNULL, capture_output=True, text=True,
            timeout=100, check=False,
        )  # fmt: skip

    where = subprocess.run(
        [str(python), "-c", "import vf_core, vf_tui; print(vf_core.__file__, vf_tui.__file__)"],
        cwd=home.work, env=home.env, capture_output=True, text=True, check=True,
    ).stdout.split()  # fmt: skip
    assert all(tmp_path / "venv" in Path(os.path.realpath(file)).parents for file in where), where
    themes = run("themes")
    assert themes.returncode == 0, themes.stderr
    assert "high-contrast" in themes.stdout
    told = run("demo", "-n", "1", "--env.agent.max-turns", "1", "--headless", "--json")
    assert told.returncode == 0, told.stderr
    _, rollout, last = records(told.stdout)
    assert (rollout["tool_calls"] > 0, last["counts"]["completed"]) == (True, 1), told.stdout
