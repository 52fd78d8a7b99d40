"""Cost of the screen: `python bench.py [--seconds N] [--live 100,1000,5000] [--rate 1000]`.

Each case runs the run screen's widgets over a synthetic feed in a 120x40 pseudo-terminal that is read as fast
as it writes. Printed: share of one core, bytes a second to the terminal, peak memory. Then what an idle
screen sends, and the time to first paint beside that of a trivial Textual app.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import pty
import select
import statistics
import struct
import subprocess
import sys
import tempfile
import termios
import time
from pathlib import Path

HERE = Path(__file__).parent
COLUMNS, ROWS = 120, 40


class Terminal:
    """A command in a pseudo-terminal, and what it has sent with the time of each piece."""

    def __init__(self, command: list[str], env: dict[str, str] | None = None) -> None:
        master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
        environ = {**os.environ, "TERM": "xterm-256color", "COLORTERM": "truecolor", **(env or {})}
        environ.pop("NO_COLOR", None)
        self.begun = time.monotonic()
        self.process = subprocess.Popen(
            command, stdin=slave, stdout=slave, stderr=slave, env=environ, start_new_session=True
        )
        os.close(slave)
        self.fd = master
        self.pieces: list[tuple[float, bytes]] = []

    def read(self, until: float | None = None, marker: bytes | None = None) -> bool:
        """Collect until `until` (monotonic), the marker, or the end; True when the marker came."""
        seen = b""
        while until is None or time.monotonic() < until:
            ready, _, _ = select.select([self.fd], [], [], 0.05)
            if not ready:
                if self.process.poll() is not None:
                    return False
                continue
            try:
                data = os.read(self.fd, 1 << 16)
            except OSError:
                return False
            if not data:
                return False
            self.pieces.append((time.monotonic(), data))
            if marker is not None:
                seen = (seen + data)[-100_000:]
                if marker in seen:
                    return True
        return False

    def sent(self, start: float, end: float) -> int:
        return sum(len(data) for t, data in self.pieces if start <= t < end)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.terminate()
        self.process.wait(timeout=10)
        os.close(self.fd)


def case(live: int, rate: float, seconds: float, ticks: float, **env: str) -> dict[str, float]:
    """One measured run."""
    with tempfile.TemporaryDirectory() as scratch:
        report = Path(scratch) / "report.json"
        command = [sys.executable, str(HERE / "demo_app.py"), str(live), str(rate), str(seconds)]
        terminal = Terminal(command, {"REPORT": str(report), "TICKS": str(ticks), **env})
        terminal.read()
        terminal.close()
        out: dict[str, float] = json.loads(report.read_text())
    end = terminal.pieces[-1][0]
    # The first and last seconds hold the first paint and the leaving.
    start, stop = end - out["seconds"] + 1.0, end - 0.5
    out["bytes_per_second"] = terminal.sent(start, stop) / (stop - start)
    return out


def first_paint(command: list[str], marker: bytes, times: int = 5, **env: str) -> float:
    """Median seconds from start to a text on the screen."""
    took: list[float] = []
    for _ in range(times):
        terminal = Terminal(command, env)
        if not terminal.read(terminal.begun + 20, marker):
            raise SystemExit(f"{command}: {marker!r} never came")
        took.append(terminal.pieces[-1][0] - terminal.begun)
        terminal.process.kill()
        terminal.close()
    return statistics.median(took)


TRIVIAL = """
from textual.app import App
from textual.widgets import Static
class Trivial(App):
    def compose(self):
        yield Static("READY-MARK")
Trivial().run()
"""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=12)
    parser.add_argument("--live", default="100,1000,5000")
    parser.add_argument("--rate", type=float, default=1000)
    parser.add_argument("--stock", action="store_true", help="also with Textual's own frames")
    args = parser.parse_args()
    print(f"{'case':<34}{'core':>8}{'kB/s':>9}{'MB':>7}")
    variants: list[tuple[str, float, dict[str, str]]] = [("", 10, {}), (" slow", 4, {})]
    if args.stock:
        variants.append((" stock frames", 10, {"TIGHT": "0"}))
    for live in (int(n) for n in args.live.split(",")):
        for name, ticks, env in variants:
            got = case(live, args.rate, args.seconds, ticks, **env)
            label = f"{live} live, {args.rate:.0f} events/s{name}"
            print(
                f"{label:<34}{got['cpu_share']:>8.1%}{got['bytes_per_second'] / 1000:>9.1f}{got['rss'] / 1e6:>7.0f}",
                flush=True,
            )
    got = case(1000, 0, 6, 10)
    print(f"{'1000 live, idle':<34}{got['cpu_share']:>8.1%}{got['bytes_per_second'] / 1000:>9.1f}")
    trivial = first_paint([sys.executable, "-c", TRIVIAL], b"READY-MARK")
    ours = first_paint([sys.executable, str(HERE / "demo_app.py"), "100", "0"], b"fix-off")
    print(f"first paint: {ours:.2f} s, trivial app {trivial:.2f} s, ratio {ours / trivial:.1f}")


if __name__ == "__main__":
    main()
