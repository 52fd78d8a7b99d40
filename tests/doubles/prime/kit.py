"""What tests of the Prime runtime share: the double on a thread or as a process, and runtimes that ask it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from doubles.prime.server import PrimeDouble
from vf_core.runtimes.lifecycle import Observer
from vf_core.runtimes.prime.config import PrimeConfig
from vf_core.runtimes.prime.pace import PACE, Pace
from vf_core.runtimes.prime.runtime import PrimeRuntime

LABELS = {
    "run": "run-1",
    "rollout": "r1",
    "attempt": "1",
    "host": "here",
    "pid": "42",
    "started": "1.5",
    "boot": "b",
}

# Patience for a loopback provider.
QUICK = replace(
    PACE,
    call=5.0,
    create=5.0,
    create_grace=0.5,
    settle=0.6,
    delete=1.0,
    delete_delays=(0.02, 0.05, 0.1),
    boot=5.0,
    build=5.0,
    boot_delays=(0.0, 0.05, 0.1),
    poll=3.0,
    margin=3.0,
    liveness=1.0,
    retry_delays=(0.02, 0.05, 0.1),
    gap=0.02,
    grace=0.6,
)

OPERATIONS = {
    "create": r"POST /api/v1/sandbox$",
    "delete": r"DELETE /api/v1/sandbox/",
    "get": r"GET /api/v1/sandbox/\w+$",
    "list": r"GET /api/v1/sandbox$",
    "look": r"status:batchGet",
    "exec": r"CommandSession/Start",
    "upload": r"/upload$",
    "download": r"/download$",
}


class QuickRuntime(PrimeRuntime):
    """As the real one, with less patience."""

    pace = QUICK
    probe_delays = (0.02, 0.05, 0.1)


def runtime(
    name: str = "box",
    *,
    labels: Mapping[str, str] = LABELS,
    observer: Observer | None = None,
    pace: Pace = QUICK,
    **options: Any,
) -> PrimeRuntime:
    """A runtime, not started."""
    box = QuickRuntime(PrimeConfig.model_validate(options), name=name, labels=labels, observer=observer)
    if pace is not QUICK:
        box.pace = pace  # type: ignore[misc]
    return box


def serving(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, **options: Any) -> Iterator[PrimeDouble]:
    """A double that the SDK of this process uses, for a fixture; the SDK's waits after 429 are short."""
    import prime_sandboxes.core.client as core

    monkeypatch.setattr(core._PLATFORM_RETRY_WAIT, "_rate_limit_delays", (0.02, 0.05))
    with PrimeDouble(**options) as double:
        for name, value in {**double.env, "HOME": str(tmp_path)}.items():
            monkeypatch.setenv(name, value)
        yield double


class PrimeProcess:
    """The double as a process of its own: it outlives whoever uses it. See `doubles.prime.__main__`."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.url = str(self._read()["url"])

    def ask(self, do: str, **request: Any) -> Any:
        """One request: live, created, bystander, expire, revoke, fault, calm, count."""
        assert self._process.stdin
        self._process.stdin.write(json.dumps({"do": do, **request}) + "\n")
        self._process.stdin.flush()
        return self._read()["answer"]

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout
        answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        return answer

    @property
    def env(self) -> dict[str, str]:
        """What makes the SDK use it."""
        double = PrimeDouble()
        double.url = self.url
        return double.env


@contextmanager
def process(**options: Any) -> Iterator[PrimeProcess]:
    """Start the double as a process; it ends, with all its sandboxes, at the end of the block."""
    tests = Path(__file__).parents[2]
    started = subprocess.Popen(
        [sys.executable, "-m", "doubles.prime", json.dumps(options)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(tests)},
        start_new_session=True,
    )
    try:
        yield PrimeProcess(started)
    finally:
        assert started.stdin
        started.stdin.close()
        try:
            started.wait(60)
        except subprocess.TimeoutExpired:
            started.kill()
            started.wait()
