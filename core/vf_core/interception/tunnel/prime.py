"""A tunnel of Prime's tunnel service, by the package `prime-tunnel`: opened, kept open, and closed by the engine."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
from typing import Any, ClassVar

from vf_core.config.interception import PrimeTunnelConfig
from vf_core.errors import ConfigError, SandboxError, TunnelError
from vf_core.interception.tunnel.base import PACE, Pace, Say, Tunnel
from vf_core.interception.tunnel.prime_helper import Helper, Message
from vf_core.interception.tunnel.probe import Door
from vf_core.runtimes import labels, watchdog
from vf_core.runtimes.environment import ENGINE_VAR
from vf_core.runtimes.identity import engine
from vf_core.sandboxes.owners import Owner

log = logging.getLogger(__name__)

EXTRA_HINT = "pip install 'vf-tui[tunnel]', or use a custom tunnel"
LOGIN_HINT = "set PRIME_API_KEY, or run `prime login`"
CONNECT_SECONDS = 30.0
ATTEMPTS = 3
CLOSE_SECONDS = 4.5
_START_SECONDS = 30.0
_FETCH_SECONDS = 150.0
# What the SDK's own request for a registration may take, its retries included.
_SLACK = 100.0
_LONGEST_PAUSE = 30.0

_ADVICE = {
    "program": (
        "frpc 0.66.0 is fetched once from github.com into ~/.prime/bin: allow that, or copy that directory from a "
        "machine where it is; or use a custom tunnel"
    ),
    "login": LOGIN_HINT,
    "limit": "`prime tunnel list` shows them: end those that are not needed",
    "connect": "check that this machine may open connections to the tunnel service; or use a custom tunnel",
    "gone": "start the run again; `prime tunnel list` shows what became of it",
    "service": "check the network and the service's status; or use a custom tunnel",
}


def check_here() -> None:
    """Refuse what is missing here: the package, a login. Raises `ConfigError`."""
    try:
        from prime_tunnel.core.config import Config
    except ImportError as e:
        missing = isinstance(e, ModuleNotFoundError) and e.name == "prime_tunnel"
        what = "which is not installed" if missing else f"which cannot be imported: {e}"
        raise ConfigError(
            f"a prime tunnel needs the package prime-tunnel, {what}",
            key="env.interception.tunnel.type",
            hint=EXTRA_HINT,
        ) from e
    try:
        key = Config().api_key
    except (ValueError, OSError) as e:
        raise ConfigError(
            f"Prime's settings: {e}", key="env.interception.tunnel.type", hint=LOGIN_HINT
        ) from e
    if not key:
        raise ConfigError(
            "a prime tunnel needs a Prime login", key="env.interception.tunnel.type", hint=LOGIN_HINT
        )


class PrimeTunnel(Tunnel):
    """A helper process holds the tunnel. When the tunnel program ends, it is started anew at the same URL; when that
    does not help, another tunnel is opened, with another URL, for new rollouts."""

    kind: ClassVar[str] = "prime"

    def __init__(
        self, config: PrimeTunnelConfig, *, run: str, say: Say | None = None, pace: Pace = PACE
    ) -> None:
        super().__init__(config, say=say, pace=pace)
        self._run = run
        self._helper: Helper | None = None
        self._minding: asyncio.Task[None] | None = None
        self._endings: set[asyncio.Task[None]] = set()

    async def _open(self, door: Door) -> str:
        try:
            await asyncio.to_thread(watchdog.ensure)
        except SandboxError as e:
            raise TunnelError(e.message, hint=e.hint) from e
        self._say("info", "opening a prime tunnel")
        url = await self._hold(door)
        self._minding = asyncio.create_task(self._mind(door), name="prime tunnel's helper")
        return url

    async def _close(self) -> None:
        task, self._minding = self._minding, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        await self._let_go()
        await asyncio.gather(*self._endings, return_exceptions=True)

    def _advice(self, *, cut: bool) -> str:
        if cut:
            return "it is being brought back; rollouts that failed of it can be retried"
        return (
            "see env.interception.tunnel; set its check = false if this host cannot reach the address itself, or use "
            "a custom tunnel"
        )

    # ------------------------------------------------------------------ one helper

    async def _hold(self, door: Door) -> str:
        """Start a helper and wait for its tunnel. Raises `TunnelError`; nothing is left then."""
        helper = self._helper = Helper(self._settings(door))
        try:
            seconds = _START_SECONDS
            while True:
                try:
                    async with asyncio.timeout(seconds):
                        message = await helper.message()
                except TimeoutError:
                    raise TunnelError(
                        f"the prime tunnel did not open within {seconds:.0f} s", hint=_ADVICE["connect"]
                    ) from None
                match message:
                    case {"is": "step", "text": str(text), "seconds": float() | int() as limit}:
                        log.info("prime tunnel: %s", text)
                        seconds = float(limit)
                    case {"is": "up", "url": str(url)}:
                        return url.rstrip("/")
                    case {"is": "down"}:
                        pass
                    case _:
                        raise _failed(message, helper)
        except BaseException:
            await self._let_go()
            raise

    async def _let_go(self) -> None:
        """Close the helper, to its end whoever is cancelled meanwhile."""
        helper, self._helper = self._helper, None
        if helper is None:
            return
        ending = asyncio.create_task(self._end(helper))
        self._endings.add(ending)
        ending.add_done_callback(self._endings.discard)
        await asyncio.shield(ending)

    async def _end(self, helper: Helper) -> None:
        last = await helper.close(CLOSE_SECONDS + 1)
        left = (last or {}).get("left")
        if last is None or left:
            which = f" {', '.join(map(str, left))}" if left else ""
            why = f": {last['text']}" if last and last.get("text") else ""
            self._say(
                "warning",
                f"the registration{which} of the prime tunnel may be left{why}; `vf-tui cleanup` ends it once this "
                "engine has ended, and it expires by itself",
            )

    def _settings(self, door: Door) -> dict[str, Any]:
        token, outer = engine().token, os.environ.get(ENGINE_VAR)
        whose = {**Owner.this_process(self._run).labels(), "tunnel": secrets.token_hex(8)}
        return {
            "port": door.port,
            "name": f"vf-tui-{self._run[:32]}",
            # The last one is this tunnel's own.
            "labels": labels.encode_list(whose),
            "fetch_seconds": _FETCH_SECONDS,
            "connect_seconds": CONNECT_SECONDS,
            "step_seconds": CONNECT_SECONDS + _SLACK,
            "close_seconds": CLOSE_SECONDS,
            "attempts": ATTEMPTS,
            "mark": {ENGINE_VAR: f"{outer}:{token}" if outer else token},
        }

    # ------------------------------------------------------------------ keeping it open

    async def _mind(self, door: Door) -> None:
        """Follow what the helper says, and have another tunnel when it can't keep this one."""
        while True:
            helper = self._helper
            message = None if helper is None else await helper.message()
            match message:
                case {"is": "down", "why": str(why)}:
                    self._cut(why)
                case {"is": "up"}:
                    if await self._leads_here():
                        self._restored(self._url)
                    else:
                        self._cut("it was started anew, and still does not answer")
                        await self._replace(door)
                case {"is": "step"}:
                    pass
                case _:
                    self._cut(_failed(message, helper).message)
                    await self._replace(door)

    def _mend(self) -> None:
        if self._helper is not None:
            self._helper.order("restart")

    async def _replace(self, door: Door) -> None:
        """Open another tunnel, however often that takes."""
        pause, told = 1.0, ""
        while True:
            await self._let_go()
            try:
                url = await self._hold(door)
                if await self._leads_here(url):
                    self._restored(url)
                    return
                problem = f"{url} does not lead here"
            except TunnelError as e:
                problem = str(e)
            if problem != told:
                told = problem
                self._say("warning", f"no new prime tunnel yet: {problem}; trying on")
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)


def _failed(message: Message | None, helper: Helper | None) -> TunnelError:
    if message is None:
        said = helper.last_words if helper is not None else ""
        return TunnelError(f"the process that holds the prime tunnel ended: {said}", hint=_ADVICE["gone"])
    kind, text = str(message.get("kind", "service")), str(message.get("text", ""))
    return TunnelError(f"prime tunnel: {text}", hint=_ADVICE.get(kind, _ADVICE["service"]))
