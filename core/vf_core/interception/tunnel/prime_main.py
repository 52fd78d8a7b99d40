"""The program that holds one Prime tunnel open: `python -P prime_main.py`, told what to do on standard input.

A process of its own, because the SDK blocks, and because it outlives its engine for a moment: when that is gone (its
end of the pipe closes, also by `kill -9`), the tunnel program is ended and the registration deleted. It needs the SDK
and the standard library only.

In: one JSON line of settings; then a line `restart` each time the tunnel program is to be started anew; end of input:
close. Out: JSON lines, `is` = step, up, down, failed or closed.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import sys
import threading
from contextlib import suppress
from typing import Any

_LOOK = 0.25
_REVIVALS = 3
_ASK_SECONDS = 4.0
_OVER = ("expired", "terminated")
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_LOG = re.compile(r"[-0-9]+ [:.0-9]+ \[([A-Z])\] (?:\[[^\]]*\] ?)*(.*)")


def say(what: str, **more: Any) -> None:
    """Tell the engine; when it is gone nobody needs to know."""
    with suppress(OSError, ValueError):
        sys.stdout.write(json.dumps({"is": what, **more}) + "\n")
        sys.stdout.flush()


class Orders:
    """What the engine says, read by a thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.over = asyncio.Event()
        self.restart = asyncio.Event()
        self._loop = loop
        threading.Thread(target=self._read, name="orders", daemon=True).start()

    def _read(self) -> None:
        with suppress(OSError, ValueError, RuntimeError):
            for line in sys.stdin:
                if line.strip() == "restart":
                    self._loop.call_soon_threadsafe(self.restart.set)
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self.over.set)


class Holder:
    """One tunnel, from its registration until that is deleted."""

    def __init__(self, settings: dict[str, Any], orders: Orders) -> None:
        from prime_tunnel import Config, Tunnel

        self._settings = settings
        self._orders = orders
        self._key = Config().api_key
        self.label = str(settings["labels"][-1])
        self.tunnel = Tunnel(
            int(settings["port"]),
            name=settings["name"],
            labels=list(settings["labels"]),
            connection_timeout=float(settings["connect_seconds"]),
        )
        self._id = ""
        self._asked = False

    async def run(self) -> None:
        """Open it, keep it until the engine says that it is over, close it; the end is bounded."""
        work = asyncio.create_task(self._work())
        over = asyncio.create_task(self._orders.over.wait())
        await asyncio.wait({work, over}, return_when=asyncio.FIRST_COMPLETED)
        bound_end(float(self._settings["close_seconds"]))
        work.cancel()
        (problem,) = await asyncio.gather(work, return_exceptions=True)
        if isinstance(problem, Exception):
            say("failed", **describe(problem))
        await self._close()

    async def _work(self) -> None:
        from prime_tunnel.binary import get_frpc_path

        say("step", text="fetching frpc, the tunnel program", seconds=float(self._settings["fetch_seconds"]))
        await asyncio.to_thread(get_frpc_path)
        await self._open()
        while True:
            if self._orders.restart.is_set() or self.tunnel.is_gone or not self.tunnel.is_running:
                self._orders.restart.clear()
                await self._revive()
            await asyncio.sleep(_LOOK)

    async def _open(self) -> None:
        from prime_tunnel import TunnelConnectionError, TunnelError, TunnelTimeoutError

        seconds, attempts = float(self._settings["step_seconds"]), int(self._settings["attempts"])
        for attempt in range(attempts):
            say("step", text="registering the tunnel", seconds=seconds)
            # From here on there may be a registration whose id never became known.
            self._asked = True
            try:
                self._up(await self.tunnel.start())
                return
            except TunnelError as e:
                # The plain type is the service's trouble; the others say what asking again does not change.
                passing = type(e) is TunnelError or isinstance(e, TunnelTimeoutError | TunnelConnectionError)
                if attempt + 1 == attempts or not passing:
                    raise
                say("step", text=f"trying again: {e}", seconds=seconds)
                await asyncio.sleep(min(2**attempt, 4))

    def _up(self, url: str) -> None:
        self._id = self.tunnel.tunnel_id or ""
        say("up", url=str(url), id=self._id)

    async def _revive(self) -> None:
        """Start the tunnel program anew, at the same URL. Raises when the tunnel can't be brought back."""
        from prime_tunnel import TunnelError, TunnelGoneError

        say("down", why=self._why())
        for attempt in range(_REVIVALS):
            if self.tunnel.is_gone:
                break
            try:
                self._up(await self.tunnel.restart())
                return
            except TunnelGoneError:
                break
            except TunnelError:
                if attempt + 1 == _REVIVALS:
                    raise
                await asyncio.sleep(min(2**attempt, 4))
        raise TunnelGoneError("the service ended the tunnel")

    def _why(self) -> str:
        said = complaint(self.tunnel.recent_output)
        if self.tunnel.is_gone:
            return f"the service ended it: {said}"
        return "it does not answer" if self.tunnel.is_running else f"the tunnel program ended: {said}"

    async def _close(self) -> None:
        """End the tunnel program, delete the registration, and ask whether that was done."""
        with suppress(Exception):
            await self.tunnel.stop()
        left, text = [self._id] if self._id else [], ""
        try:
            async with asyncio.timeout(_ASK_SECONDS):
                left = await self._left() if self._asked else []
        except Exception as e:
            text = f"{type(e).__name__}: {e}"
        say("closed", left=left, text=text)

    async def _left(self) -> list[str]:
        """Registrations of this tunnel that are there after all that was done to delete them."""
        from prime_tunnel import TunnelClient

        async with TunnelClient(api_key=self._key, timeout=_ASK_SECONDS) as client:
            found = await self._found(client)
            for id in found:
                await client.delete_tunnel(id)
            return await self._found(client) if found else []

    async def _found(self, client: Any) -> list[str]:
        """By its label, as an id may have been lost; and by the id that is known."""
        page, found = 1, set()
        while True:
            listed = await client.list_tunnels_page(labels=[self.label], page=page)
            found |= {t.tunnel_id for t in listed.tunnels if self.label in t.labels and alive(t)}
            page += 1
            if not listed.has_next or not listed.tunnels:
                break
        if self._id and self._id not in found:
            known = await client.get_tunnel(self._id)
            found |= {self._id} if known is not None and alive(known) else set()
        return sorted(found)


def complaint(lines: list[str]) -> str:
    """The last thing of frpc's log that is not just news: without colours, time and place."""
    found = (_LOG.fullmatch(_COLOUR.sub("", line)) for line in reversed(lines))
    return next((line[2] for line in found if line is not None and line[1] in "EW"), "it said nothing of why")


def alive(registration: Any) -> bool:
    """Whether it still counts."""
    return (registration.status or "").lower() not in _OVER


def describe(error: BaseException) -> dict[str, str]:
    """What went wrong, by kind: the engine knows what to advise."""
    import prime_tunnel as sdk

    kinds = (
        (OSError, "program"),
        (sdk.BinaryDownloadError, "program"),
        (sdk.TunnelAuthError, "login"),
        (sdk.TunnelLimitReachedError, "limit"),
        (sdk.TunnelGoneError, "gone"),
        (sdk.TunnelTimeoutError, "connect"),
        (sdk.TunnelConnectionError, "connect"),
    )
    kind = next((name for cls, name in kinds if isinstance(error, cls)), "service")
    return {"kind": kind, "text": " ".join(str(error).split())[:1000] or type(error).__name__}


def bound_end(seconds: float) -> None:
    """Whatever hangs: after `seconds` this process and the tunnel program are killed."""

    def kill() -> None:
        if os.getpgrp() == os.getpid():
            os.killpg(0, signal.SIGKILL)
        os._exit(1)

    end = threading.Timer(seconds, kill)
    end.daemon = True
    end.start()


async def main() -> None:
    """See the module."""
    settings = json.loads(sys.stdin.readline())
    # The tunnel program is found by this mark, and killed, should both the engine and this process be killed.
    os.environ.update(settings["mark"])
    try:
        holder = Holder(settings, Orders(asyncio.get_running_loop()))
    except Exception as e:
        say("failed", **describe(e))
        return
    # It has a token of its own, for this tunnel only.
    os.environ.pop("PRIME_API_KEY", None)
    await holder.run()


if __name__ == "__main__":
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        # Handlers, not SIG_IGN: the tunnel program would inherit that.
        signal.signal(number, lambda *_: None)
    asyncio.run(main())
    # A download that goes on in a thread is not waited for.
    os._exit(0)
