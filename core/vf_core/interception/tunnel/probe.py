"""Whether a URL leads to this very server: it is asked something that only this server can answer."""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
import ssl
from typing import Protocol
from urllib.parse import urlsplit

HEALTH = "/health"
HEADER = "x-vf-tui-probe"
NO_ANSWER = "no answer"
_BODY_LIMIT = 4096


class Door(Protocol):
    """The server, as a tunnel sees it."""

    @property
    def port(self) -> int:
        """The port on this host that it listens on."""

    def expect(self, question: str) -> str:
        """Await one request that carries `question`; returns the text that it is answered with."""

    def forget(self, question: str) -> None:
        """It will not come."""


async def try_url(url: str, door: Door, seconds: float) -> str:
    """Ask the server at `url` once, within `seconds`; returns "", or why it does not lead to `door`.

    The proxies of the environment are used, as for everything that is asked of other hosts.
    """
    question = secrets.token_urlsafe(24)
    answer = door.expect(question)
    try:
        async with asyncio.timeout(seconds):
            return await _ask(f"{url}{HEALTH}", question, answer)
    except TimeoutError:
        return f"{NO_ANSWER} within {seconds:.1g} s"
    finally:
        door.forget(question)


async def _ask(url: str, question: str, answer: str) -> str:
    import httpx

    try:
        # The loopback is never reached through a proxy.
        near = urlsplit(url).hostname in ("localhost", "127.0.0.1", "::1")
        async with (
            # The caller's deadline counts, for all of it.
            httpx.AsyncClient(follow_redirects=False, timeout=None, trust_env=not near) as client,  # noqa: S113
            client.stream("GET", url, headers={HEADER: question, "accept": "application/json"}) as response,
        ):
            body = b""
            async for chunk in response.aiter_bytes():
                body += chunk
                if len(body) > _BODY_LIMIT:
                    break
    except (httpx.HTTPError, OSError, ssl.SSLError) as e:
        return _reason(e)
    except (httpx.InvalidURL, UnicodeError, ValueError) as e:
        return f"not an address that can be asked: {e}"
    if response.status_code == 200 and answer.encode() in body:
        return ""
    if response.is_redirect:
        return f"it redirects to {response.headers.get('location', '?')[:200]}: use that address as the url"
    if response.status_code == 200:
        return "something else answers there (status 200)"
    return f"it answers with status {response.status_code}"


def _reason(error: BaseException) -> str:
    """What happened, in words: the system's own, where it is behind httpx's."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ssl.SSLCertVerificationError):
            return f"its certificate is not trusted: {cause.verify_message}"
        if isinstance(cause, socket.gaierror):
            return f"its name is not known here: {cause.strerror}"
        if isinstance(cause, OSError) and cause.errno:
            return os.strerror(cause.errno).lower()
        cause = cause.__cause__ or cause.__context__
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
