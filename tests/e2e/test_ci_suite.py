"""What CI forgives (`.ci/suite.py`): a test that fails beside others and passes alone, by its name; nothing else."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SUITE = Path(__file__).parents[2] / ".ci/suite.py"
# What goes wrong the first time, by the worker or the phase that it happens in.
TESTS = """
import os, time, pathlib, pytest

def first(name):
    try:
        (pathlib.Path(__file__).parent / name).touch(exist_ok=False)
    except FileExistsError:
        return False
    return True

@pytest.fixture
def afterwards():
    yield
    assert not first("afterwards"), "not after"

@pytest.mark.parametrize("id", ["a::b [\\0"])
def test_flaky(id):
    assert not first("flaky"), "not now"

def test_flaky_after(afterwards):
    pass

if os.environ.get("FATAL"):
    def test_crash():
        os._exit(3)

    @pytest.mark.timeout(1)
    def test_hang():
        time.sleep(600)
"""


def suite(place: Path, *options: str, **env: str) -> subprocess.CompletedProcess[str]:
    """The end of a suite of `TESTS` in `place`."""
    (place / "test_one.py").write_text(TESTS, encoding="utf-8")
    (place / "pytest.ini").write_text("[pytest]\naddopts = -p xdist -p pytest_timeout --tb=no\n")
    # Without the plugins that are not needed here a run takes a third of the time.
    env = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", **env}
    argv = [sys.executable, str(SUITE), *options]
    return subprocess.run(argv, cwd=place, env=env, capture_output=True, text=True, timeout=110, check=False)


def test_what_passes_alone_is_told_as_flaky(tmp_path: Path) -> None:
    done = suite(tmp_path, "-n0")
    assert done.returncode == 0, done.stdout + done.stderr
    told = done.stdout.split("FLAKY: 2 failed", 1)[1]
    assert "test_flaky[a::b [\\x00]: AssertionError: not now" in told
    assert "test_flaky_after: AssertionError: not after" in told


def test_a_time_out_and_a_worker_that_died_are_not_forgiven(tmp_path: Path) -> None:
    done = suite(tmp_path, "-n1", FATAL="1")
    assert done.returncode == 1, done.stdout + done.stderr
    told = done.stdout.split("Not run again", 1)[1]
    assert "crashed while running" in told
    assert "from pytest-timeout" in told


def record(*failed: str, passed: tuple[str, ...] = (), fatal: tuple[str, ...] = ()) -> dict[str, Any]:
    return {"failed": dict.fromkeys(failed, "why"), "passed": passed, "fatal": fatal}


ELEVEN = [f"t{n}" for n in range(11)]


@pytest.mark.parametrize(
    ("runs", "code"),
    [
        ([(0, record(passed=("a",)))], 0),
        ([(1, record("a")), (0, record(passed=("a",)))], 0),
        ([(1, record(*ELEVEN[:10])), (0, record(passed=tuple(ELEVEN)))], 0),
        ([(1, record(*ELEVEN))], 1),
        ([(1, record("a", "b")), (1, record("a", passed=("b",)))], 1),
        # Skipped, lost or passed beside something that failed: not passed alone.
        ([(1, record("a")), (0, record())], 1),
        ([(1, record("a")), (0, record(passed=("b",)))], 1),
        ([(1, record("a")), (1, record(passed=("a",)))], 1),
        ([(1, record("a")), (-9, {})], -9),
        ([(1, record("a", fatal=("a crashed",)))], 1),
        ([(1, {})], 1),
        *[([(other, record("a"))], other) for other in (2, 3, 4, 5, -9)],
    ],
)
def test_only_that_is_forgiven(
    runs: list[tuple[int, dict[str, Any]]], code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = importlib.util.spec_from_file_location("ci_suite", SUITE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    asked: list[list[str]] = []

    def run(arguments: list[str]) -> tuple[int, dict[str, Any]]:
        asked.append(arguments)
        return runs.pop(0)

    monkeypatch.setattr(module, "run", run)
    failed = list(runs[0][1].get("failed", ()))
    assert module.main(["-n", "3"]) == code
    assert runs == []
    assert asked[1:] in ([], [["-n", "3", "-n", "0", *failed]])
