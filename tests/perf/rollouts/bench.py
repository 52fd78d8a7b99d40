"""Local rollouts a second, what each costs the engine, and memory: ours beside verifiers 0.2.1.dev64's.

    python -m tests.perf.rollouts --peer-python VENV/bin/python

Both run the same tasks against the same scripted model, `--rounds` times in turn; medians are printed. The programs
are the harnesses' own. What an engine costs is the difference between a long run and a short one, so that start-up
is left out; the programs' start-up is what a rollout costs. Compare figures of one run only.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
MODEL_SERVER = HERE.parent / "interception" / "model_server.py"
OURS, PEER = "vf-tui", "verifiers 0.2.1.dev64"
TURNS = 3
HOLD_SECONDS = 6


@contextmanager
def model_server() -> Iterator[str]:
    """The scripted model; its base URL."""
    process = subprocess.Popen(
        [sys.executable, str(MODEL_SERVER), "--turns", str(TURNS)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    try:
        yield json.loads(process.stdout.readline())["base_url"]
    finally:
        process.terminate()
        process.wait()


def tree_memory(root: int) -> float:
    """Megabytes of a process and all below it; pages that several share are divided among them."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            children.setdefault(int(fields[1]), []).append(int(entry.name))
    total, todo = 0, [root]
    while todo:
        pid = todo.pop()
        todo += children.get(pid, [])
        try:
            for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
                if line.startswith("Pss:"):
                    total += int(line.split()[1])
        except OSError:
            continue
    return total / 1024


def run(who: str, python: str, *args: str, sample: bool = False) -> dict[str, Any]:
    """One run of `who`; with `sample` also the largest memory of its process tree."""
    script = "run_ours.py" if who == OURS else "run_verifiers.py"
    env = {**os.environ, "PATH": f"{Path(python).parent}:{os.environ['PATH']}"}
    if who == PEER:
        # It installs uv into its user's home.
        home = HERE.parents[2] / ".cache" / "peer-home"
        home.mkdir(parents=True, exist_ok=True)
        env["HOME"] = str(home)
    process = subprocess.Popen(
        [python, str(HERE / script), *args],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=env,
    )
    peak, done = 0.0, threading.Event()

    def watch() -> None:
        nonlocal peak
        while not done.wait(0.25):
            peak = max(peak, tree_memory(process.pid))

    watcher = threading.Thread(target=watch)
    if sample:
        watcher.start()
    out, _ = process.communicate()
    done.set()
    if sample:
        watcher.join()
    try:
        result: dict[str, Any] = json.loads(out.strip().splitlines()[-1])
    except (IndexError, ValueError):
        raise SystemExit(f"{who} did not finish (exit code {process.returncode})") from None
    wanted = int(args[2])
    if result["good"] != wanted:
        raise SystemExit(f"{who}: {result['good']} of {wanted} rollouts were good")
    return {**result, "tree_mb": peak, "n": wanted}


def throughput(targets: dict[str, str], url: str, rounds: int, rollouts: int) -> None:
    print(f"\n{rollouts} local rollouts, 16 at once (the peer: fewer, it is slow), medians of {rounds}\n")
    print(f"| harness | {'who':22} | rollouts/s | engine ms CPU/rollout | program ms CPU/rollout |")
    print("|---|---|---:|---:|---:|")
    for harness, turns in (("null", 0), ("bash", TURNS)):
        model = f"scripted-t{turns}-k16"
        got: dict[str, list[tuple[float, float, float]]] = {who: [] for who in targets}
        for _ in range(rounds):
            for who, python in targets.items():
                n = rollouts if who == OURS else max(32, rollouts // 5)
                short = run(who, python, url, harness, "16", "16", model)
                long = run(who, python, url, harness, str(n), "16", model)
                more = n - 16
                got[who].append(
                    (
                        n / long["seconds"],
                        (long["engine_cpu"] - short["engine_cpu"]) / more * 1e3,
                        (long["children_cpu"] - short["children_cpu"]) / more * 1e3,
                    )
                )
        medians = {who: [statistics.median(c) for c in zip(*r, strict=True)] for who, r in got.items()}
        for who, (speed, engine, program) in medians.items():
            print(f"| {harness} | {who:22} | {speed:.1f} | {engine:.1f} | {program:.0f} |")
        if PEER in medians:
            faster = medians[OURS][0] / medians[PEER][0]
            share = medians[OURS][1] / medians[PEER][1]
            print(f"| {harness} | ours to the peer's | {faster:.1f}× | {share:.2f}× | |")


def memory(targets: dict[str, str], url: str) -> None:
    print(
        f"\nMemory (MB). 64 at once: bash, each held by the model for {HOLD_SECONDS} s; shared pages counted once\n"
    )
    print(f"| {'who':22} | engine, 16 rollouts | engine, 1,000 more | 64 at once, whole tree |")
    print("|---|---:|---:|---:|")
    for who, python in targets.items():
        hold = run(
            who, python, url, "bash", "64", "64", f"scripted-t0-k4-l{HOLD_SECONDS * 1000}", sample=True
        )
        small = run(who, python, url, "null", "16", "16", "scripted-t0-k16")
        more = "-"
        if who == OURS:
            large = run(who, python, url, "null", "500", "16", "scripted-t0-k16")
            more = f"{(large['peak_mb'] - small['peak_mb']) / 484 * 1000:.1f}"
        print(f"| {who:22} | {small['peak_mb']:.0f} | {more} | {hold['tree_mb']:.0f} |")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--peer-python", help="interpreter of an environment with verifiers 0.2.1.dev64 and uv"
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rollouts", type=int, default=200)
    args = parser.parse_args()
    targets = {OURS: sys.executable}
    if args.peer_python:
        targets[PEER] = args.peer_python
    with model_server() as url:
        for who, python in targets.items():
            for harness in ("null", "bash"):
                run(who, python, url, harness, "1", "1", "scripted-t0-k16")  # environments are made here
        begun = time.monotonic()
        throughput(targets, url, args.rounds, args.rollouts)
        memory(targets, url)
        print(f"\n({time.monotonic() - begun:.0f} s)")


if __name__ == "__main__":
    main()
