"""Where judges' model calls go, and the openai client that brings them there: only what is meant for that endpoint is
sent, and no more is taken in than a verdict can be."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vf_core.config.secrets import is_secret_header

if TYPE_CHECKING:
    import httpx2
    from openai import AsyncOpenAI

CONNECT_SECONDS = 15.0
_SHORTEST_SECRET = 4
_PLAIN_HEADERS = frozenset(
    ("host", "accept", "connection", "user-agent", "content-type", "content-length", "transfer-encoding")
)
_ANSWER_LIMIT = 8_000_000


class UnfitAnswerError(Exception):
    """An answer that is not taken in."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where calls go, the variable that holds the key (None: no key is sent), and headers. Never shown whole."""

    base_url: str
    api_key_var: str | None = None
    headers: tuple[tuple[str, str], ...] = ()

    def key(self) -> str:
        """The key, read from the environment now; empty when there is none."""
        return (os.environ.get(self.api_key_var) or "").strip() if self.api_key_var else ""

    def redact(self, text: str) -> str:
        """`text` without this endpoint's secrets: an endpoint may repeat them in an error."""
        secrets = [self.key(), *(value for name, value in self.headers if is_secret_header(name, value))]
        parts = {part for secret in secrets for part in (secret, secret.rpartition(" ")[2])}
        for part in sorted(parts, key=len, reverse=True):
            if len(part) >= _SHORTEST_SECRET:
                text = text.replace(part, "[redacted]")
        return text


def make_client(endpoint: Endpoint, key: str, retries: int) -> AsyncOpenAI:
    """A client that sends `key` (empty: none) and the endpoint's headers, and nothing else that tells who we are."""
    import httpx2
    import openai

    headers = {"accept-encoding": "identity"} | {name.lower(): value for name, value in endpoint.headers}
    if key:
        headers.setdefault("authorization", f"Bearer {key}")

    async def only_ours(request: httpx2.Request) -> None:
        # The client adds what it finds in OPENAI_* variables: another endpoint's business.
        for name in list(request.headers):
            if name not in headers and name not in _PLAIN_HEADERS and not name.startswith("x-stainless-"):
                del request.headers[name]
        request.headers.update(headers)

    async def bounded(response: httpx2.Response) -> None:
        if response.headers.get("content-encoding", "identity").lower() != "identity":
            raise UnfitAnswerError("a compressed answer, which was not asked for")
        response.stream = _bounded(response.stream)

    return openai.AsyncOpenAI(
        base_url=endpoint.base_url,
        api_key=key or "none",
        max_retries=retries,
        # A redirect would take the headers elsewhere.
        http_client=openai.DefaultAsyncHttpxClient(
            timeout=httpx2.Timeout(None, connect=CONNECT_SECONDS),
            follow_redirects=False,
            event_hooks={"request": [only_ours], "response": [bounded]},
        ),
    )


def _bounded(stream: Any) -> Any:
    """A response's stream of bytes, refused beyond a bound."""
    import httpx2

    class Bounded(httpx2.AsyncByteStream):
        async def __aiter__(self) -> AsyncIterator[bytes]:
            size = 0
            async for chunk in stream:
                size += len(chunk)
                if size > _ANSWER_LIMIT:
                    raise UnfitAnswerError(f"an answer of more than {_ANSWER_LIMIT} bytes")
                yield chunk

        async def aclose(self) -> None:
            await stream.aclose()

    return Bounded()
