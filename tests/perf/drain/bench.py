"""How long many remote sandboxes take to be stopped with proof, and whether a screen stays alive meanwhile.

`python tests/perf/drain/bench.py [prime|modal] [COUNT]`: a run of COUNT rollouts on the provider's double, all live
at once, watched by a screen in a pseudo-terminal; then all are stopped and their end is confirmed.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from doubles.command_line import ARGV, Home, alive, wait_for
from doubles.leaks import Modal, Prime
from doubles.pty_driver import PtyProcess

KINDS = {"prime": Prime, "modal": Modal}
PATIENCE = 600.0


def measure(kind: str, count: int) -> dict[str, float]:
    """Seconds until all were live, until all were proven gone, and the longest time without a new frame meanwhile."""
    place = KINDS[kind]()
    with tempfile.TemporaryDirectory(prefix="vfd-") as directory:
        home = Home(Path(directory), place.env)
        try:
            return _measure(place, home, count)
        finally:
            home.stop_all()
            place.close()


def _measure(place: Prime | Modal, home: Home, count: int) -> dict[str, float]:
    file = home.config(["exec sleep 3600"] * count, head=f"max_concurrent = {count}")
    file.write_text(
        file.read_text()
        + place.runtime().replace(
            f'type = "{place.kind}"\n',
            f'type = "{place.kind}"\n' + ("creates_per_sec = 1000\n" if place.kind == "modal" else ""),
            1,
        )
    )
    began = time.monotonic()
    done = home("run", file, "--detach", "--json")
    assert done.returncode == 0, done.stderr
    path = Path(json.loads(done.stdout.splitlines()[-1])["dir"])
    facts = wait_for(lambda: _facts(path), "engine.json")
    with PtyProcess([*ARGV, "attach", facts["run"]], env=home.env, cwd=home.work, size=(120, 40)) as screen:
        wait_for(lambda: f"program {count}" in screen.text, f"{count} programs", PATIENCE)
        live = time.monotonic() - began
        gap = _Gap(screen)
        began = time.monotonic()
        stop = home.start("stop", facts["run"], "all", "--confirm")
        while stop.poll() is None:
            gap.look()
            time.sleep(0.02)
        drained = time.monotonic() - began
        assert stop.returncode == 0, home.err()
        assert place.ours() == set()
        frames = gap.longest
    wait_for(lambda: not alive(facts["pid"]), "the engine's end")
    return {"live_s": live, "drain_s": drained, "longest_still_s": frames}


class _Gap:
    """The longest time in which the screen sent nothing."""

    def __init__(self, screen: PtyProcess) -> None:
        self.screen, self.size, self.since, self.longest = screen, len(screen.raw), time.monotonic(), 0.0

    def look(self) -> None:
        now = time.monotonic()
        if len(self.screen.raw) != self.size:
            self.size, self.since = len(self.screen.raw), now
        self.longest = max(self.longest, now - self.since)


def _facts(path: Path) -> dict[str, object] | None:
    try:
        return dict(json.loads((path / "engine.json").read_text()))
    except (OSError, ValueError):
        return None


def main(argv: list[str]) -> None:
    kinds = [argv[0]] if argv else list(KINDS)
    count = int(argv[1]) if len(argv) > 1 else 500
    for kind in kinds:
        print(json.dumps({"kind": kind, "count": count, **measure(kind, count)}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
