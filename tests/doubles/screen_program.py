"""The real app on a real terminal over a `FakeEngine`: what the pty tests run as a child process.

    python screen_program.py [--rollouts N] [--rate R] [--mischief NAME] [--embedded] [--paused-after N]

`--mischief` names something bad that happens while the screen is up (see `MISCHIEF`).
"""

from __future__ import annotations

import argparse
import logging
import os
import subprocess
import sys
import threading
import time
import warnings
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from doubles.fake_engine import FakeEngine
from vf_tui.run_app import NoTerminalError, run_app

STRAY = "STRAY-"


def prints() -> None:
    """Everything that a library, a plugin or a child could write to the terminal."""
    print(f"{STRAY}print")
    print(f"{STRAY}stderr-print", file=sys.stderr)
    os.write(1, f"{STRAY}fd1\n".encode())
    os.write(2, f"{STRAY}fd2\n".encode())
    warnings.warn(f"{STRAY}warning", stacklevel=1)
    logging.getLogger("some.library").error("%slogged", STRAY)
    sys.__stdout__.write(f"{STRAY}dunder\n")
    sys.__stdout__.flush()
    for n in range(3):
        sys.stderr.write(f"\r{STRAY}progress {n * 30} %")
        sys.stderr.flush()
    subprocess.run(
        ["sh", "-c", f"echo {STRAY}child; echo {STRAY}child-err >&2; read x || echo {STRAY}eof"], check=False
    )
    thread = threading.Thread(target=lambda: 1 // 0, name=f"{STRAY}thread")
    thread.start()
    thread.join()
    sys.stderr.write(f"{STRAY}end\n")
    sys.stderr.flush()


def crash(app: object) -> None:
    """An exception in the middle of drawing."""
    raise RuntimeError("a fault of ours [/] \x1b[2J")


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rollouts", type=int, default=12)
    parser.add_argument("--rate", type=float, default=100.0)
    parser.add_argument("--mischief", default="")
    parser.add_argument("--embedded", action="store_true")
    parser.add_argument("--slow", action="store_true")
    parser.add_argument("--still", type=int, default=0, help="tell this many events, then nothing")
    parser.add_argument("--ready-file", default="")
    options = parser.parse_args()
    engine = FakeEngine(options.rollouts, options.rate, concurrency=6)
    if options.still:
        engine.step(options.still)
        engine.rate = 0.0
    engine.start_thread()
    _mischief(options.mischief)
    try:
        code = run_app(engine.link(), embedded=options.embedded, slow=options.slow or None)
    except NoTerminalError as e:
        print(f"no terminal: {e}", file=sys.stderr)
        return 2
    commands = [name for name, *_ in engine.received]
    print(
        f"left with {code}; run {'alive' if not engine.state.over else 'over'}; commands {commands}",
        flush=True,
    )
    return code


def _mischief(name: str) -> None:
    if name == "prints":
        threading.Thread(target=_soon(prints), daemon=True).start()
    elif name == "crash":
        from vf_tui.screens.run import RunScreen

        flush = RunScreen.flush

        def flush_or_crash(self: RunScreen, changed: object, now: float) -> None:
            flush(self, changed, now)  # type: ignore[arg-type]
            if self.tui.state.totals.model_calls > 3:
                crash(self)

        RunScreen.flush = flush_or_crash  # type: ignore[method-assign,assignment]
    elif name == "crash-early":
        from vf_tui.app import VfTuiApp

        VfTuiApp.on_mount = crash  # type: ignore[method-assign,assignment]
    elif name == "stuck-threads":
        _stuck_threads()


def _soon(act: object) -> object:
    def later() -> None:
        time.sleep(1.0)
        act()  # type: ignore[operator]

    return later


def _stuck_threads() -> None:
    """Blocking work on the screen's loop that never comes back."""
    from vf_tui.app import VfTuiApp

    mount = VfTuiApp.on_mount

    def mounted(self: VfTuiApp) -> None:
        import asyncio

        mount(self)
        for _ in range(3):
            self.run_worker(asyncio.to_thread(time.sleep, 3600), group="stuck")

    VfTuiApp.on_mount = mounted  # type: ignore[method-assign]


if __name__ == "__main__":
    sys.exit(main())
