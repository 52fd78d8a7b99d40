"""Starting an engine as its own process, from a program that may end before it."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from vf_core.errors import ConfigError, LinkError
from vf_core.eval_config import EvalConfig
from vf_core.runs.layout import RunDir

START_TIMEOUT = 120.0
"""Seconds for plugins to load and data to be read before a start counts as failed."""

SLICE = 0.2
"""Seconds between two looks at whether the start is still wanted."""


@dataclass(frozen=True, slots=True)
class EngineHandle:
    """A started engine: its process, the socket it listens on, and the child handle to wait with."""

    pid: int
    socket: Path
    process: subprocess.Popen[bytes]


def start_engine(
    config: EvalConfig,
    run_dir: RunDir,
    *,
    timeout: float = START_TIMEOUT,
    abandoned: threading.Event | None = None,
    resume: bool = False,
) -> EngineHandle:
    """Start an engine for `config` in `run_dir` and wait until it listens, or until `abandoned` is set: then it is
    told to end, like any engine. `resume`: it takes up the run that is there.

    Raises `ConfigError` when it refuses the config, `LinkError` when it fails or does not answer in time.
    """
    reader, writer = os.pipe()
    try:
        process = subprocess.Popen(
            # -P: a file in the current directory must not stand in for a module of ours or of Python's.
            [sys.executable, "-P", "-m", "vf_core.engine", str(run_dir.path), str(writer)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=(writer,),
            start_new_session=True,
        )
    finally:
        os.close(writer)
    try:
        # The whole config goes by pipe: what the saved one masks must not pass through argv or a file.
        payload = json.dumps({"config": config.to_dict(), "resume": resume, "run": run_dir.run_id}).encode()
        assert process.stdin is not None  # noqa: S101
        try:
            process.stdin.write(payload)
            process.stdin.close()
        except BrokenPipeError:
            pass  # it ended already: what it said on the pipe tells why
        answer, ended = _read_answer(reader, timeout, lambda: _give_up(process, abandoned))
    finally:
        os.close(reader)
    if answer is None:
        if ended:
            what = f"ended before it was up{_exit_code(process)}"
        else:
            what = f"did not start within {timeout:g} s"
            process.terminate()
        raise LinkError(f"the engine {what}", hint=f"see {run_dir.engine_log}")
    if "error" in answer:
        process.wait(timeout=30)
        if answer.get("kind") == "internal":
            raise LinkError(f"the engine failed: {answer['error']}", hint=f"see {run_dir.engine_log}")
        raise ConfigError(str(answer["error"]))
    return EngineHandle(int(answer["pid"]), Path(answer["socket"]), process)


def _exit_code(process: subprocess.Popen[bytes]) -> str:
    try:
        return f", with exit code {process.wait(timeout=10)}"
    except subprocess.TimeoutExpired:
        process.terminate()
        return ""


def _give_up(process: subprocess.Popen[bytes], abandoned: threading.Event | None) -> None:
    if abandoned is not None and abandoned.is_set():
        process.terminate()


def _read_answer(
    fd: int, timeout: float, meanwhile: Callable[[], None]
) -> tuple[dict[str, str] | None, bool]:
    """The engine's one line (None when it ended or time is up before), and whether it closed its end. `meanwhile`
    is called now and then."""
    deadline, data = time.monotonic() + timeout, b""
    while not data.endswith(b"\n"):
        left = deadline - time.monotonic()
        if left <= 0:
            return None, False
        if not select.select([fd], [], [], min(left, SLICE))[0]:
            meanwhile()
            continue
        chunk = os.read(fd, 65536)
        if not chunk:
            return None, True
        data += chunk
    answer: dict[str, str] = json.loads(data)
    return answer, False
