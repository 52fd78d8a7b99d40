"""Trying candidates, each in a process of its own: one that hangs, prints or ends its process spoils nothing."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from threading import Event
from typing import Any

from vf_core.discovery.candidates import Candidate, candidates
from vf_core.plugins import Kind
from vf_core.text import one_line

SECONDS = 30.0
"""How long a module may take to be imported."""
AT_ONCE = 4
_LOOK_SECONDS = 0.5
_ANSWER_LIMIT = 1 << 20
_OUTPUT_LIMIT = 4_000
_REASON_LIMIT = 600


@dataclass(frozen=True, slots=True)
class Option:
    """One of a plugin's own options: its type and default as text (`default` None: it must be given)."""

    name: str
    type: str
    default: str | None


@dataclass(frozen=True, slots=True)
class Found:
    """A plugin that loads: `kind` and `id` are what a config says, `cls` its class, `about` its docstring's line."""

    kind: Kind
    id: str
    candidate: Candidate
    cls: str
    about: str
    options: tuple[Option, ...] = ()


@dataclass(frozen=True, slots=True)
class Broken:
    """A module that should be a plugin and is none that loads, and why; `output` is the end of what it printed."""

    candidate: Candidate
    reason: str
    output: str = ""


def discover(wanted: Sequence[Candidate] | None = None, *, seconds: float = SECONDS) -> list[Found | Broken]:
    """Try `wanted` (None: all candidates), some at once; in their order. Each may take `seconds`."""
    listed = candidates() if wanted is None else list(wanted)
    ours = [candidate for candidate in listed if candidate.kind is not None]
    groups = [[candidate] for candidate in listed if candidate.kind is None]
    over = Event()
    with ThreadPoolExecutor(AT_ONCE) as pool:
        # Ours are known to behave: one process does for all.
        tried = pool.map(lambda group: _try(group, seconds, over), [*filter(None, [ours]), *groups])
        try:
            return [result for results in tried for result in results]
        finally:
            over.set()  # an interrupt waits for nobody's import
            pool.shutdown(cancel_futures=True)


def _try(group: Sequence[Candidate], seconds: float, over: Event) -> list[Found | Broken]:
    """Import the modules of `group` in one process. Where that does not end, nobody can say whose fault it is: one
    that stands alone is broken, several are tried one by one."""
    with tempfile.TemporaryFile() as answer, tempfile.TemporaryFile() as output:
        # -P: as for an engine, what lies in the current directory is no module of anybody's.
        argv = [sys.executable, "-P", "-m", "vf_core.discovery.probe", str(answer.fileno())]
        process = subprocess.Popen(
            [*argv, *(word for candidate in group for word in (candidate.module, candidate.kind or ""))],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            pass_fds=(answer.fileno(),),
            start_new_session=True,
        )
        code = _end_of(process, seconds, over)
        printed = _tail(output)
        told = _answer(answer, len(group))
    if told is not None:
        return [
            r for candidate, one in zip(group, told, strict=True) for r in _results(candidate, one, printed)
        ]
    if len(group) > 1:
        return [result for candidate in group for result in _try([candidate], seconds, over)]
    if code is None:
        return [Broken(group[0], f"importing it took more than {seconds:g} s", printed)]
    return [Broken(group[0], f"importing it ended the process ({_how(code)})", printed)]


def _results(candidate: Candidate, told: dict[str, Any], printed: str) -> Iterator[Found | Broken]:
    for plugin in told["found"]:
        cls, about = one_line(plugin["cls"]), one_line(plugin["about"])
        options = tuple(Option(*option) for option in plugin["options"])
        yield Found(plugin["kind"], plugin["id"], candidate, cls, about, options)
    if told["reason"] and (candidate.declared or told["found"] or not told["exports_nothing"]):
        yield Broken(candidate, one_line(told["reason"], limit=_REASON_LIMIT), printed)


def _end_of(process: subprocess.Popen[bytes], seconds: float, over: Event) -> int | None:
    """Its exit code; None when it had to be ended. Nothing that it started is left in its session's group."""
    deadline, code = time.monotonic() + seconds, None
    while code is None and not over.is_set() and time.monotonic() < deadline:
        with suppress(subprocess.TimeoutExpired):
            code = process.wait(_LOOK_SECONDS)
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    return code


def _how(code: int) -> str:
    from vf_core.harnesses.base import describe_exit

    return describe_exit(code)


def _answer(file: Any, count: int) -> list[dict[str, Any]] | None:
    """What the process said of `count` modules; None when it came to no end."""
    file.seek(0)
    try:
        told = json.loads(file.read(_ANSWER_LIMIT))
    except ValueError:
        return None
    return told if isinstance(told, list) and len(told) == count else None


def _tail(file: Any) -> str:
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - _OUTPUT_LIMIT))
    text: str = file.read().decode(errors="replace").strip()
    return text
