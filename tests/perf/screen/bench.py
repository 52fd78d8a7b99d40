"""Cost of the screen: `python tests/perf/screen/bench.py [--seconds N] [--live 100,1000,5000] [--rate 1000]`.

Each case runs the app in a 120x40 pseudo-terminal that is read as fast as it writes, over a socket to an engine
in another process that tells stories at so many events a second. Printed: the screen's share of one core, bytes a
second to the terminal, peak memory. Then what an idle screen costs, and the time to first paint beside that of a
trivial Textual app. `--widgets` adds the run screen's widgets alone, over a feed in their own process.
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
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

HERE = Path(__file__).parent
COLUMNS, ROWS = 120, 40
TICKS = os.sysconf("SC_CLK_TCK")
SETTLE = 2.5
"""Seconds after the first paint that are not measured."""


class Terminal:
    """A command in a pseudo-terminal, read on a thread: all it has sent, with the time of each piece."""

    def __init__(self, command: list[str], **env: str) -> None:
        master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
        environ = {**os.environ, "TERM": "xterm-256color", "COLORTERM": "truecolor", **env}
        for name in ("NO_COLOR", "SSH_CONNECTION", "VF_TUI_ASCII"):
            environ.pop(name, None)
        self.begun = time.monotonic()
        self.process = subprocess.Popen(
            command, stdin=slave, stdout=slave, stderr=slave, env=environ, start_new_session=True
        )
        os.close(slave)
        self.fd = master
        self.pieces: list[tuple[float, bytes]] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        while True:
            try:
                data = os.read(self.fd, 1 << 16)
            except OSError:
                return
            if not data:
                return
            self.pieces.append((time.monotonic(), data))

    def wait_for(self, marker: bytes, seconds: float = 30) -> float:
        """The time at which a text was on its way to the screen."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            seen = b""
            for t, data in list(self.pieces):
                seen += data
                if marker in seen:
                    return t
            if self.process.poll() is not None:
                break
            select.select([], [], [], 0.01)
        raise SystemExit(
            f"{marker!r} never came; the end of what did:\n{seen[-2000:].decode(errors='replace')}"
        )

    def sent(self, start: float, end: float) -> int:
        return sum(len(data) for t, data in list(self.pieces) if start <= t < end)

    def cpu(self) -> float:
        """CPU seconds used so far."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / TICKS

    def peak(self) -> int:
        """Peak memory, bytes."""
        for line in Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
            if line.startswith("VmHWM"):
                return int(line.split()[1]) * 1024
        return 0

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(timeout=10)
        os.close(self.fd)


def measure(terminal: Terminal, seconds: float) -> dict[str, float]:
    """Watch a settled screen for so long."""
    time.sleep(SETTLE)
    start, cpu = time.monotonic(), terminal.cpu()
    time.sleep(seconds)
    end = time.monotonic()
    return {
        "core": (terminal.cpu() - cpu) / (end - start),
        "bytes_per_second": terminal.sent(start, end) / (end - start),
        "peak": terminal.peak(),
    }


@contextmanager
def engine(live: int, rate: float) -> Iterator[str]:
    """The path of a socket behind which so many rollouts are live."""
    with tempfile.TemporaryDirectory(prefix="vfb") as folder:
        command = [sys.executable, str(HERE / "engine.py"), folder, str(live), str(rate)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        try:
            assert process.stdout is not None
            yield process.stdout.readline().strip()
        finally:
            process.kill()
            process.wait()


def app_case(live: int, rate: float, seconds: float, *, slow: bool = False) -> dict[str, float]:
    with engine(live, rate) as path:
        env = {"SLOW": "1"} if slow else {}
        terminal = Terminal([sys.executable, str(HERE / "screen.py"), path], **env)
        terminal.wait_for(b"completed" if rate < 0 else b"running")
        out = measure(terminal, seconds)
        terminal.close()
    return out


def widgets_case(live: int, rate: float, seconds: float, **env: str) -> dict[str, float]:
    terminal = Terminal([sys.executable, str(HERE / "demo_app.py"), str(live), str(rate), "0"], **env)
    terminal.wait_for(b"running")
    out = measure(terminal, seconds)
    terminal.close()
    return out


TRIVIAL = """
from textual.app import App
from textual.widgets import Static
class Trivial(App):
    def compose(self):
        yield Static("READY-MARK")
Trivial().run()
"""


def first_paints(times: int = 5) -> tuple[float, float]:
    """Median seconds to first paint of a trivial app and of ours, taken in turns."""
    took: tuple[list[float], list[float]] = ([], [])
    with engine(100, 0) as path:
        commands = ([sys.executable, "-c", TRIVIAL], [sys.executable, str(HERE / "screen.py"), path])
        for _ in range(times):
            for command, marker, out in zip(commands, (b"READY-MARK", b"running"), took, strict=True):
                terminal = Terminal(command)
                out.append(terminal.wait_for(marker) - terminal.begun)
                terminal.close()
    return statistics.median(took[0]), statistics.median(took[1])


def row(label: str, got: dict[str, float]) -> None:
    print(
        f"{label:<38}{got['core']:>8.1%}{got['bytes_per_second'] / 1000:>9.1f}{got['peak'] / 1e6:>7.0f}",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--live", default="100,1000,5000")
    parser.add_argument("--rate", type=float, default=1000)
    parser.add_argument("--widgets", action="store_true")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    results: dict[str, dict[str, float]] = {}

    def take(label: str, got: dict[str, float]) -> None:
        results[label] = got
        row(label, got)

    print(f"{'screen, 120x40':<38}{'core':>8}{'kB/s':>9}{'MB':>7}")
    for live in (int(n) for n in args.live.split(",")):
        name = f"{live} live, {args.rate:.0f} events/s"
        take(name, app_case(live, args.rate, args.seconds))
        take(f"{name}, slow", app_case(live, args.rate, args.seconds, slow=True))
        if args.widgets:
            take(f"{name}, widgets only", widgets_case(live, args.rate, args.seconds))
    take("1000 live, nothing but time passes", app_case(1000, 0, args.seconds))
    take("1000 of a run that is over", app_case(1000, -1, args.seconds))
    trivial, ours = first_paints()
    results["first paint"] = {"trivial": trivial, "ours": ours}
    print(f"first paint: {ours:.2f} s, a trivial app's {trivial:.2f} s: x {ours / trivial:.1f}")
    if args.json:
        args.json.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
