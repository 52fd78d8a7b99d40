"""The engine's end of `prime_main`: the process that holds one Prime tunnel, and its end, whatever happens."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import re
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from vf_core.errors import TunnelError
from vf_core.interception.tunnel import prime_main
from vf_core.runtimes.environment import inherited

log = logging.getLogger(__name__)

# What the SDK and its HTTP client go by, beside what any local program may see.
_NEEDED = re.compile(r"^(?:PRIME_\w+|PYTHONPATH|(?:https?|all|no)_proxy|SSL_CERT_\w+)$", re.IGNORECASE)
_LINE_LIMIT = 1 << 16
Message = dict[str, Any]


class Helper:
    """One helper process. `message` gives what it says, None once it ended."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self._loop = asyncio.get_running_loop()
        self._ended = asyncio.Event()
        self._errors: deque[str] = deque(maxlen=20)
        try:
            self._popen = subprocess.Popen(
                [sys.executable, "-P", prime_main.__file__],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env={k: v for k, v in os.environ.items() if inherited(k, v) or _NEEDED.match(k)},
                cwd="/",
                start_new_session=True,
            )
        except OSError as e:
            raise TunnelError(
                f"the process that holds the tunnel could not be started: {e.strerror or e}"
            ) from e
        self._messages: asyncio.Queue[Message | None] = asyncio.Queue()
        for work in (self._read, self._read_errors, self._wait):
            threading.Thread(target=work, name=f"tunnel {self._popen.pid}", daemon=True).start()
        self.order(json.dumps(dict(settings)))

    @property
    def pid(self) -> int:
        """The process."""
        return self._popen.pid

    @property
    def last_words(self) -> str:
        """The last line that it printed about itself."""
        return self._errors[-1] if self._errors else "it said nothing"

    def order(self, line: str) -> None:
        """Send it a line; one that has ended does not mind."""
        stdin = self._popen.stdin
        if stdin is not None and not stdin.closed:
            with suppress(OSError):
                stdin.write(line.encode() + b"\n")
                stdin.flush()

    async def message(self) -> Message | None:
        """The next thing that it says; None when it has ended."""
        return await self._messages.get()

    async def close(self, seconds: float) -> Message | None:
        """Tell it to close, and wait `seconds` for its end; then it is killed. Returns its last message, None when it
        did not get to say how the end went."""
        stdin = self._popen.stdin
        if stdin is not None:
            with suppress(OSError):
                stdin.close()
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._ended.wait()
        self.kill()
        await self._ended.wait()
        last: Message | None = None
        while not self._messages.empty():
            message = self._messages.get_nowait()
            last = message if message is not None and message.get("is") == "closed" else last
        return last

    def kill(self) -> None:
        """Kill it and what it started, now. It leads a group of its own, which has its number until it is reaped."""
        if not self._ended.is_set():
            with suppress(OSError):
                os.killpg(self._popen.pid, signal.SIGKILL)

    # ------------------------------------------------------------------ threads

    def _tell(self, message: Message | None) -> None:
        with suppress(RuntimeError):  # the loop is closed: nobody listens
            self._loop.call_soon_threadsafe(self._messages.put_nowait, message)

    def _read(self) -> None:
        stdout = self._popen.stdout
        while stdout is not None and (line := stdout.readline(_LINE_LIMIT)):
            with suppress(ValueError):
                message = json.loads(line)
                if isinstance(message, dict):
                    self._tell(message)
        self._tell(None)

    def _read_errors(self) -> None:
        stderr = self._popen.stderr
        while stderr is not None and (line := stderr.readline(_LINE_LIMIT)):
            text = line.decode(errors="replace").strip()
            if text:
                self._errors.append(text[:500])
                log.info("tunnel: %s", text[:500])

    def _wait(self) -> None:
        """Wait for its end; what it left of its group goes with it."""
        if hasattr(os, "waitid"):
            with suppress(ChildProcessError):
                os.waitid(os.P_PID, self._popen.pid, os.WEXITED | os.WNOWAIT)
            with suppress(OSError):
                os.killpg(self._popen.pid, signal.SIGKILL)
        self._popen.wait()
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._ended.set)
