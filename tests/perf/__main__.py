"""All benchmarks in one run, beside the machine's calibration and the peers' figures: `make bench`.

Takes about fifteen minutes. Peers are installed into environments of their own under `.cache/`.
"""

from __future__ import annotations

import os
import platform
import statistics
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PEER = "verifiers==0.2.1.dev64"


def median_time(argv: list[str], rounds: int = 7) -> float:
    """Milliseconds that a command takes, median."""
    times = []
    for _ in range(rounds):
        begun = time.perf_counter()
        subprocess.run(argv, check=True, stdout=subprocess.DEVNULL)
        times.append(time.perf_counter() - begun)
    return statistics.median(times) * 1e3


def peer() -> list[str]:
    """The option that names the peer's interpreter; none where it can't be installed."""
    sys.path.insert(0, str(ROOT / "tests"))
    from doubles.peer_venv import peer_python

    try:
        python = peer_python(PEER)
    except BaseException as e:  # pytest's skip and fail are no Exceptions
        print(f"(without the peer: {e})")
        return []
    return ["--peer-python", str(python)]


def main() -> None:
    print("# vf-tui benchmarks\n")
    python = platform.python_version()
    print(f"{platform.machine()}, {os.cpu_count()} cores, Python {python}, load {os.getloadavg()[0]:.1f}")
    vf_tui = str(Path(sys.executable).with_name("vf-tui"))
    for name, argv in (
        ("`python -c pass`", [sys.executable, "-c", "pass"]),
        ("`vf-tui --help`", [vf_tui, "--help"]),
        ("`vf-tui ls`", [vf_tui, "ls"]),
    ):
        print(f"{name}: {median_time(argv):.0f} ms")
    option = peer()
    for title, argv in (
        ("Interception", ["-m", "tests.perf.interception", *option]),
        ("Local rollouts", ["-m", "tests.perf.rollouts", *option]),
        ("Screen", ["tests/perf/screen/bench.py"]),
        ("Ledger", ["tests/perf/ledger/bench.py"]),
        ("500 remote sandboxes, stopped with proof", ["tests/perf/drain/bench.py"]),
    ):
        print(f"\n## {title}\n", flush=True)
        subprocess.run([sys.executable, *argv], cwd=ROOT, check=False)


if __name__ == "__main__":
    main()
