"""What a model call costs in the interception server: ours, the peer's and bare relays, side by side in one run.

    python -m tests.perf.interception --peer-python VENV/bin/python

The peer is verifiers 0.2.1.dev64 in a virtual environment of its own (left out without the option). Each case is
run `--rounds` times, the targets taking turns, and medians are printed: CPU milliseconds of the server process per
request, requests a second, latency to the first event and to the end. Compare figures of one run only.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import os
import platform
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).parent


class Case(NamedTuple):
    """A kind of load. `delay_us` is the provider's pause between tokens."""

    name: str
    clients: int
    stream: bool = False
    delay_us: int = 0

    @property
    def model(self) -> str:
        """The scripted model's name: tool turns of 16 tokens, or streams of 68 chunks."""
        return f"scripted-t0-k65-d{self.delay_us}" if self.stream else "scripted-t999-k16"


CASES = (
    Case("1 client", 1),
    Case("64 clients", 64),
    Case("1 client, streaming", 1, True),
    Case("1 client, streaming, 1 ms a token", 1, True, 1000),
    Case("64 clients, streaming", 64, True),
)
PEER = "verifiers 0.2.1.dev64"
OURS = "vf-tui"
SERVERS = {
    OURS: ["serve_ours.py"],
    "vf-tui, collector relaxed": ["serve_ours.py", "--relaxed-gc"],
    PEER: ["serve_verifiers.py"],
    "aiohttp, nothing recorded": ["serve_aiohttp.py"],
    "bare relay": ["serve_raw.py"],
    "bare relay that parses": ["serve_raw.py", "--parse"],
}
DIRECT = "no proxy"


@contextmanager
def process(command: list[str]) -> Iterator[tuple[subprocess.Popen[str], dict[str, Any]]]:
    """A server and the line it says when it is ready; ended at the end."""
    child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert child.stdout is not None
        assert child.stderr is not None
        line = child.stdout.readline()
        if not line:
            raise SystemExit(f"{' '.join(command[:2])} did not start:\n{child.stderr.read()}")
        yield child, json.loads(line)
    finally:
        if child.poll() is None:
            child.kill()
        child.communicate()


def load(base_url: str, secrets: list[str], case: Case, seconds: float) -> dict[str, Any]:
    """Run the load generator against `base_url`."""
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(secrets, file)
        file.flush()
        command = [
            sys.executable, str(HERE / "loadgen.py"), "--base-url", base_url, "--clients", str(case.clients),
            "--seconds", str(seconds), "--model", case.model,
            *(["--secrets", file.name] if secrets else []), *(["--stream"] if case.stream else []),
        ]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"the load generator failed:\n{done.stderr}")
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def measure(target: str, python: str, case: Case, seconds: float) -> dict[str, Any]:
    """One round of one case against one target."""
    with process([sys.executable, str(HERE / "model_server.py")]) as (_, provider):
        if target == DIRECT:
            return load(provider["base_url"], [], case, seconds)
        sessions = 6000 if case.clients > 1 else 2500
        script, *flags = SERVERS[target]
        command = [python, str(HERE / script), provider["base_url"], str(sessions), case.model, *flags]
        with process(command) as (server, ready):
            result = load(ready["base_url"], ready["secrets"], case, seconds)
            server.send_signal(signal.SIGTERM)
            assert server.stdout is not None
            end = json.loads(server.stdout.readline())
    result["cpu_ms"] = (end["cpu_s"] - ready["cpu_s"]) * 1e3 / max(1, end["turns"])
    result["peak_mb"] = end["peak_mb"]
    return result


def calibration() -> str:
    """How fast this machine is now, in two numbers that mean something elsewhere too."""
    begun = time.perf_counter()
    sum(i * i for i in range(1_000_000))
    loop = time.perf_counter() - begun
    begun = time.perf_counter()
    hashlib.sha256(bytes(64 << 20)).digest()
    digest = time.perf_counter() - begun
    a, b = socket.socketpair()
    begun = time.perf_counter()
    for _ in range(20_000):
        a.send(b"x")
        b.recv(1)
    pair = (time.perf_counter() - begun) / 20_000
    a.close()
    b.close()
    return (
        f"Python {platform.python_version()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}; "
        f"a million turns of a loop {loop * 1e3:.0f} ms, SHA-256 of 64 MiB {digest * 1e3:.0f} ms, "
        f"a byte through a socket pair {pair * 1e6:.1f} µs"
    )


def median(rounds: list[dict[str, Any]], key: str) -> float:
    """The median of one figure over the rounds; NaN where it does not apply."""
    values = [r[key] for r in rounds if key in r]
    return statistics.median(values) if values else float("nan")


def print_case(case: Case, results: dict[str, list[dict[str, Any]]]) -> None:
    """One table."""
    columns = ("CPU ms/req", "vs peer", "req/s", "first ms", "added", "p50 ms", "p99 ms", "MB")
    print(f"\n{case.name}\n  {'':<28}{''.join(f'{column:>11}' for column in columns)}")
    peer = median(results.get(PEER, []), "cpu_ms")
    direct = median(results[DIRECT], "first_p50_ms")
    for target, rounds in results.items():
        cpu = median(rounds, "cpu_ms")
        first = median(rounds, "first_p50_ms") if case.stream else float("nan")
        cells = (
            shown(cpu, 3), shown(peer / cpu, 1, "1/"), shown(median(rounds, "per_second"), 0), shown(first, 2),
            shown(first - direct, 2), shown(median(rounds, "p50_ms"), 2), shown(median(rounds, "p99_ms"), 2),
            shown(median(rounds, "peak_mb"), 0),
        )  # fmt: skip
        short = "  (ran out of sessions)" if any(r["ran_out"] for r in rounds) else ""
        print(f"  {target:<28}{''.join(cells)}{short}", flush=True)


def shown(value: float, digits: int, before: str = "") -> str:
    """A figure in its column; nothing where there is none."""
    return f"{'' if math.isnan(value) else f'{before}{value:.{digits}f}':>11}"


def main(argv: list[str] | None = None) -> None:
    """Run the benchmark and print its tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--peer-python", default="", help="the Python of a venv with verifiers 0.2.1.dev64")
    parser.add_argument("--seconds", type=float, default=3.0, help="of each round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--only", default="", help="cases and targets whose names contain one of these (comma-separated)"
    )
    args = parser.parse_args(argv)
    wanted = [word for word in args.only.split(",") if word]
    targets = [DIRECT, *(name for name in SERVERS if name != PEER or args.peer_python)]
    print(calibration(), flush=True)
    for case in CASES:
        if wanted and not any(word in case.name for word in wanted):
            continue
        results: dict[str, list[dict[str, Any]]] = {target: [] for target in targets}
        for _ in range(args.rounds):
            for target in targets:
                python = args.peer_python if target == PEER else sys.executable
                results[target].append(measure(target, python, case, args.seconds))
        print_case(case, results)
    print("\n" + calibration())
