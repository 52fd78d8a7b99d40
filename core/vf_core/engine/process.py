"""The engine as a process of its own: `python -m vf_core.engine RUN_DIR`, config on standard input (and
whether it takes up a run that is there).

It leads its own session and ignores SIGHUP, so that it outlives the terminal that started it. It says on file
descriptor `--ready-fd` that it is up, or why not, as one JSON line. SIGINT and SIGTERM end the run gracefully;
repeating them cuts nothing short.
"""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import os
import resource
import signal
import sys
from pathlib import Path
from typing import Any

from vf_core.errors import RunDirError, VfError

log = logging.getLogger(__name__)

_DESCRIPTORS = 65_536


def main(argv: list[str]) -> int:
    """Entry point; returns the run's exit code."""
    from vf_core.link.loop import end_process_soon

    run_path, ready_fd = Path(argv[0]), int(argv[1])
    # A handler, not SIG_IGN: agent programs would inherit that one.
    signal.signal(signal.SIGHUP, lambda *_: None)
    payload = json.load(sys.stdin)
    code = _run(run_path, payload, _Ready(ready_fd))
    end_process_soon(code)
    return code


def _run(run_path: Path, payload: dict[str, Any], ready: _Ready) -> int:
    from vf_core.link.loop import run_loop

    try:
        return run_loop(_serve(run_path, payload, ready))
    except VfError as e:
        log.error("%s", e)
        ready.say({"error": str(e), "kind": type(e).__name__})
        return 2
    except (Exception, SystemExit) as e:
        log.exception("the engine failed")
        ready.say({"error": f"{type(e).__name__}: {e}", "kind": "internal"})
        return 1


class _Ready:
    """Says once, to whoever started this process, how the start went."""

    def __init__(self, fd: int) -> None:
        self._fd: int | None = fd

    def say(self, message: dict[str, Any]) -> None:
        if self._fd is None:
            return
        fd, self._fd = self._fd, None
        try:
            os.write(fd, json.dumps(message).encode() + b"\n")
        except OSError:
            log.info("whoever started this engine is gone")
        finally:
            os.close(fd)


async def _serve(run_path: Path, payload: dict[str, Any], ready: _Ready) -> int:
    from vf_core.engine.session import EngineSession
    from vf_core.eval_config import EvalConfig
    from vf_core.runs.layout import RunDir

    run_dir = RunDir(run_path, run_id=payload.get("run"))
    try:
        # Another program's run has no logs of ours yet.
        run_dir.logs.mkdir(mode=0o700, exist_ok=True)
        _log_to_file(run_dir.engine_log)
    except OSError as e:
        raise RunDirError(f"cannot write {run_dir.engine_log}: {e.strerror or e}") from e
    config = EvalConfig.from_dict(payload["config"], file=run_dir.config)
    async with EngineSession.open(config, run_dir, serve=True, resume=bool(payload.get("resume"))) as session:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, session.engine.interrupt, signal.Signals(number).name)
        tune()
        ready.say({"pid": os.getpid(), "socket": str(session.socket)})
        return await session.run()


def tune() -> None:
    """Settings of a process that is an engine and nothing else, once everything is loaded.

    What is there now stays for good: the collector need not look at it again. A live rollout takes a handful of
    descriptors, and the usual soft limit of 1024 is a limit on rollouts.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, _DESCRIPTORS)
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _log_to_file(path: Path) -> None:
    """All that is printed, logged or warned about goes to the log file; nothing reaches a terminal."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    sys.stdout.flush()
    sys.stderr.flush()
    for target in (1, 2):
        os.dup2(fd, target)
    os.close(fd)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    logging.basicConfig(
        level=logging.INFO,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
        stream=sys.stderr,
        force=True,
    )
    logging.captureWarnings(True)
    if os.environ.get("VF_TUI_VERBOSE"):
        logging.getLogger("vf_core").setLevel(logging.DEBUG)
