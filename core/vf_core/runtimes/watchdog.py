"""A small helper process that ends this engine's local sandboxes when the engine dies without a word (`kill -9`)."""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import subprocess
import sys
import threading
import time
from dataclasses import dataclass

from vf_core.errors import SandboxError
from vf_core.runtimes import watchdog_main
from vf_core.runtimes.environment import ENGINE_VAR
from vf_core.runtimes.identity import LINUX, engine

log = logging.getLogger(__name__)

# What a Python interpreter may need to start at all; nothing else of the environment is anybody's business.
_NEEDED = ("PATH", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "DYLD_FALLBACK_LIBRARY_PATH")


@dataclass(eq=False, slots=True)
class _Watchdog:
    popen: subprocess.Popen[bytes]
    pipe: int
    owner: int


_current: _Watchdog | None = None
_lock = threading.Lock()
_groups: set[int] = set()
_SHORT_LIFE = 1.0
"""Seconds: one that ended sooner is not replaced faster than this."""


def ensure() -> int:
    """Have a watchdog run for this process; returns its pid. Started once, and again as soon as somebody kills it.

    Raises `SandboxError` when it cannot be started: without it, a killed engine would leave its programs behind.
    """
    global _current  # noqa: PLW0603 - one watchdog a process
    with _lock:
        me = engine()
        if _current is not None and _current.owner == me.pid:
            if _current.popen.poll() is None:
                return _current.popen.pid
            log.warning("the watchdog ended by itself (exit %s); starting another", _current.popen.returncode)
            os.close(_current.pipe)
        _current = _start()
        return _current.popen.pid


def _start() -> _Watchdog:
    me = engine()
    read_end, write_end = os.pipe()
    try:
        popen = subprocess.Popen(
            [
                sys.executable,
                *("-I", "-S", watchdog_main.__file__),
                *(str(me.pid), str(me.start), me.token, ENGINE_VAR),
            ],
            stdin=read_end,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={name: os.environ[name] for name in _NEEDED if name in os.environ},
            cwd="/",
            start_new_session=True,
        )
    except OSError as e:
        os.close(write_end)
        raise SandboxError(
            f"the watchdog of local sandboxes cannot be started: {e.strerror or e}",
            hint="raise the limit of open files (`ulimit -n`) or of processes (`ulimit -u`)",
        ) from e
    finally:
        os.close(read_end)
    os.set_blocking(write_end, False)
    dog = _Watchdog(popen, write_end, me.pid)
    for group in _groups:
        _tell(dog, b"+%d\n" % group)
    threading.Thread(target=_mind, args=(dog,), name="watchdog", daemon=True).start()
    return dog


def _mind(dog: _Watchdog) -> None:
    """Replace it when it ends: sandboxes that are at work would be in nobody's care."""
    began = time.monotonic()
    dog.popen.wait()
    time.sleep(max(0.0, began + _SHORT_LIFE - time.monotonic()))
    if _current is dog and dog.owner == os.getpid():
        try:
            ensure()
        except SandboxError:
            log.exception("no watchdog: if this engine is killed, its programs go on")


def note_group(pid: int, *, over: bool = False) -> None:
    """Tell the watchdog of a process group, where it cannot find processes by their environment."""
    if LINUX:
        return
    (_groups.discard if over else _groups.add)(pid)
    if _current is not None:
        _tell(_current, b"%s%d\n" % (b"-" if over else b"+", pid))


def _tell(dog: _Watchdog, line: bytes) -> None:
    with contextlib.suppress(OSError):
        os.write(dog.pipe, line)


def _dismiss() -> None:
    """At exit, after sandboxes were ended: let it look once more, and go."""
    global _current
    dog, _current = _current, None
    if dog is None or dog.owner != os.getpid():
        return
    with contextlib.suppress(OSError):
        os.close(dog.pipe)
    with contextlib.suppress(subprocess.TimeoutExpired):
        dog.popen.wait(timeout=3)


# Exit hooks run in reverse order: registered on import, this one comes after the end of the sandboxes.
atexit.register(_dismiss)
