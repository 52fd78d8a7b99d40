"""Virtual environments for other people's releases, made once and kept under the project's `.cache/`."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

CACHE = Path(__file__).resolve().parents[2] / ".cache" / "venvs"
INSTALL_SECONDS = 900


def peer_python(requirement: str) -> Path:
    """The interpreter of an environment that has `requirement` (`name==version`) installed.

    Tests that run at the same time wait for the one that makes it. Where the package registry can't be reached
    the calling test is skipped, but never in CI.
    """
    home = (
        CACHE / f"{re.sub(r'[^A-Za-z0-9.]+', '-', requirement)}-py{sys.version_info[0]}.{sys.version_info[1]}"
    )
    python, ready = home / "bin" / "python", home / "ready"
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / f"{home.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not ready.exists():
            shutil.rmtree(home, ignore_errors=True)
            said = _make(home, python, requirement)
            if said is not None:
                if not os.environ.get("CI") and not _registry_answers(python):
                    pytest.skip(f"the package registry can't be reached, and {requirement} is not cached")
                pytest.fail(f"{requirement} could not be installed:\n{said}")
            ready.touch()
    return python


def _make(home: Path, python: Path, requirement: str) -> str | None:
    """Make the environment with uv if it is there, else with venv and pip; None, or what went wrong."""
    uv = shutil.which("uv")
    if uv is not None:
        made = _run(uv, "venv", "--quiet", "--python", sys.executable, str(home))
        made = made or _run(
            uv, "pip", "install", "--quiet", "--python", str(python), "--prerelease", "allow", requirement
        )
        if made is None:
            return None
        shutil.rmtree(home, ignore_errors=True)
    made = _run(sys.executable, "-m", "venv", str(home))
    # What a test imports is compiled then: compiling all of a big release takes longer than all the rest.
    return made or _run(str(python), "-m", "pip", "install", "--quiet", "--no-compile", "--pre", requirement)


def _registry_answers(python: Path) -> bool:
    with tempfile.TemporaryDirectory() as empty:
        return _run(str(python), "-m", "pip", "download", "--quiet", "--no-deps", "-d", empty, "six") is None


def _run(*argv: str) -> str | None:
    """None when it went well, else the end of what it said."""
    env = {k: v for k, v in os.environ.items() if k not in ("VIRTUAL_ENV", "PYTHONPATH")}
    try:
        done = subprocess.run(
            argv, capture_output=True, text=True, env=env, timeout=INSTALL_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as e:
        return str(e)
    return None if done.returncode == 0 else f"{' '.join(argv)}\n{(done.stdout + done.stderr)[-3000:]}"
