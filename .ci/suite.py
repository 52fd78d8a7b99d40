"""The suite as CI runs it: `suite.py OPTIONS OF PYTEST`.

A test that fails beside others is run again by itself. When it passes there it is *flaky*: it is told as such, and
the suite passes. Nothing else is forgiven: not a test that fails twice, not more than `MOST` failures, not a
time-out or a worker that died (both would hide what happened), not an error in collection, and no other end of
pytest. The arguments are options only; exit codes are pytest's.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pytest

MOST = 10


class Record:
    """What did not pass, and what did: a plugin of the process that hands out the tests."""

    def __init__(self) -> None:
        self.passed: set[str] = set()
        self.failed: dict[str, str] = {}
        self.fatal: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.failed.setdefault(report.nodeid, _reason(report))
            # A worker's death is told in a report that belongs to none of a test's phases.
            if (
                report.when not in ("setup", "call", "teardown")
                or "from pytest-timeout" in report.longreprtext
            ):
                self.fatal.append(f"{report.nodeid}: {_reason(report)}")
        elif report.passed and report.when == "call":
            self.passed.add(report.nodeid)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.fatal.append(f"{report.nodeid}: not collected")

    def write(self, file: Path) -> None:
        data = {"passed": sorted(self.passed - set(self.failed)), "failed": self.failed, "fatal": self.fatal}
        file.write_text(json.dumps(data), encoding="utf-8")


def _reason(report: pytest.TestReport) -> str:
    """One line that says why."""
    crash = getattr(report.longrepr, "reprcrash", None)
    lines = crash.message.splitlines()[:1] if crash else report.longreprtext.splitlines()[-1:]
    return "".join(lines).strip()[:200] or "no reason given"


def run(arguments: list[str]) -> tuple[int, dict[str, Any]]:
    """Run pytest in a process of its own: its exit code and the record."""
    with tempfile.TemporaryDirectory() as place:
        file = Path(place) / "record"
        code = subprocess.call([sys.executable, __file__, "--once", str(file), *arguments])
        return code, json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}


def main(arguments: list[str]) -> int:
    if arguments[:1] == ["--once"]:
        import pytest

        record = Record()
        code = int(pytest.main(arguments[2:], plugins=[record]))
        record.write(Path(arguments[1]))
        return code
    code, first = run(arguments)
    if code != 1 or not first:
        return code
    failed, fatal = first["failed"], first["fatal"]
    if fatal:
        return told(code, "Not run again, since not only tests failed:", fatal)
    if len(failed) > MOST:
        return told(code, f"Not run again: {len(failed)} tests failed, more than {MOST}.", [])
    told(code, "Run again, one at a time:", list(failed))
    again, second = run([*arguments, "-n", "0", *failed])
    twice = [id for id in failed if id not in second.get("passed", ())]
    if twice or again:
        return told(again or code, "Failed again:", twice)
    return told(
        0,
        f"FLAKY: {len(failed)} failed beside others and passed alone. To be mended:",
        [f"{id}: {reason}" for id, reason in failed.items()],
    )


def told(code: int, headline: str, lines: list[str]) -> int:
    """Print, and hand `code` on."""
    print(f"\n== {headline}", *lines, sep="\n   ", flush=True)
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
