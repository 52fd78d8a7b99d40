"""Model calls: chat completions over httpx, retried by the rules of OpenAI's own SDK."""

from __future__ import annotations

import json
import random
import sys
import time
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from vf_core.harnesses.program.address import is_loopback
from vf_core.harnesses.program.stream import Assembly, Broken, event_data

if TYPE_CHECKING:
    import httpx

READ_TIMEOUT = 600.0
CONNECT_TIMEOUT = 5.0
MAX_RETRIES = 2
FIRST_DELAY = 0.5
LONGEST_DELAY = 8.0
LONGEST_RETRY_AFTER = 120.0
_ERROR_LIMIT = 64 * 1024


class ModelCallError(Exception):
    """A model call failed. `status` is None when no answer came; `delay` is what the server asked to wait."""

    def __init__(self, message: str, *, status: int | None, retry: bool, delay: float | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.retry = retry
        self.delay = delay


class ChatClient:
    """Asks the model at `base_url`; one connection, kept. `stream` asks for the answer in pieces."""

    def __init__(self, base_url: str, api_key: str, model: str, *, stream: bool = True) -> None:
        self.url = base_url.rstrip("/") + "/chat/completions"
        self.model = model
        self.stream = stream
        self._headers = {"authorization": f"Bearer {api_key}", "content-type": "application/json"}
        self._client = _http_client(self.url)

    def complete(self, messages: list[dict[str, Any]], tools: list[dict[str, Any]]) -> dict[str, Any]:
        """The model's next message. Raises `ModelCallError` when it can't be had."""
        import tenacity

        body: dict[str, Any] = {"model": self.model, "messages": messages}
        if tools:
            body["tools"] = tools
        if self.stream:
            body |= {"stream": True, "stream_options": {"include_usage": True}}
        # Escaped, so that a lone surrogate in a message passes through as it came.
        payload = json.dumps(body, separators=(",", ":")).encode()
        for attempt in tenacity.Retrying(
            stop=tenacity.stop_after_attempt(1 + MAX_RETRIES),
            retry=tenacity.retry_if_exception(lambda e: isinstance(e, ModelCallError) and e.retry),
            wait=_delay,
            before_sleep=_say_retry,
            reraise=True,
        ):
            with attempt:
                return self._ask(payload, attempt.retry_state.attempt_number - 1)
        raise AssertionError("tenacity re-raises the last error")

    def _ask(self, payload: bytes, retries: int) -> dict[str, Any]:
        import httpx

        headers = {**self._headers, "x-stainless-retry-count": str(retries)}
        try:
            with self._client.stream("POST", self.url, content=payload, headers=headers) as response:
                if response.status_code >= 400:
                    raise _status_error(response)
                kind = response.headers.get("content-type", "")
                if kind.startswith("text/event-stream"):
                    return _assembled(response.iter_bytes())
                return _plain_answer(response.read())
        except Broken as e:
            raise ModelCallError(str(e), status=None, retry=e.retry) from None
        except httpx.TransportError as e:
            raise ModelCallError(f"{type(e).__name__}: {e}", status=None, retry=True) from e


def _http_client(url: str) -> httpx.Client:
    """A client whose start-up costs as little as httpx allows."""
    # httpx imports its own command line (click, rich, pygments) wherever those happen to be installed, which
    # doubles its start-up; the asynchronous half of httpcore is of no use here.
    unwanted = [name for name in ("httpx._main", "anyio", "trio") if name not in sys.modules]
    sys.modules.update(dict.fromkeys(unwanted))  # type: ignore[arg-type]
    import httpx

    client = httpx.Client(
        verify=url.startswith("https:"),
        trust_env=not is_loopback(url),
        headers={"user-agent": "vf-tui", "accept-encoding": "identity"},
        timeout=httpx.Timeout(READ_TIMEOUT, connect=CONNECT_TIMEOUT),
    )
    for name in unwanted:
        sys.modules.pop(name, None)
    return client


def _assembled(chunks: Iterable[bytes]) -> dict[str, Any]:
    assembly = Assembly()
    for data in event_data(chunks):
        assembly.add(data)
    return assembly.message()


def _plain_answer(raw: bytes) -> dict[str, Any]:
    """The message of an answer that was not streamed."""
    try:
        answer = json.loads(raw)
        message = answer["choices"][0]["message"]
    except (ValueError, LookupError, TypeError):
        shown = raw[:200].decode(errors="replace")
        raise Broken(f"the answer is not a chat completion: {shown!r}") from None
    if not isinstance(message, dict):
        raise Broken("the answer's message is not an object")
    return {"role": "assistant", **{key: value for key, value in message.items() if value is not None}}


def _status_error(response: httpx.Response) -> ModelCallError:
    """The error of an answer with status 400 or above, and whether its server is worth asking again."""
    raw = b"".join(_first(response.iter_bytes(), _ERROR_LIMIT))
    status, headers = response.status_code, response.headers
    delay = _retry_after(headers)
    said = headers.get("x-should-retry")
    if delay is not None and delay > LONGEST_RETRY_AFTER:
        retry = False
    elif said in ("true", "false"):
        retry = said == "true"
    else:
        retry = status in (408, 409, 429) or status >= 500
    return ModelCallError(f"HTTP {status}: {_error_text(raw)}", status=status, retry=retry, delay=delay)


def _first(chunks: Iterable[bytes], limit: int) -> Iterator[bytes]:
    for chunk in chunks:
        yield chunk[:limit]
        limit -= len(chunk)
        if limit <= 0:
            return


def _error_text(raw: bytes) -> str:
    text = raw.decode(errors="replace").strip()
    try:
        error = json.loads(text)["error"]
    except (ValueError, LookupError, TypeError):
        return text[:2000] or "no body"
    return str(error.get("message") or error) if isinstance(error, dict) else str(error)


def _retry_after(headers: httpx.Headers) -> float | None:
    """Seconds that the server asks to wait, from `retry-after-ms` or `retry-after` (seconds or a date)."""
    for name, divisor in (("retry-after-ms", 1000.0), ("retry-after", 1.0)):
        try:
            return float(headers[name]) / divisor
        except (KeyError, ValueError):
            continue
    when = headers.get("retry-after")
    if not when:
        return None
    from email.utils import parsedate_to_datetime

    try:
        return parsedate_to_datetime(when).timestamp() - time.time()
    except (ValueError, OverflowError):
        return None


def _delay(state: Any) -> float:
    """Seconds before the next try: what the server asked for, else twice as long each time, with jitter."""
    error = state.outcome.exception()
    asked = error.delay if isinstance(error, ModelCallError) else None
    if asked is not None and 0 < asked <= LONGEST_RETRY_AFTER:
        return float(asked)
    backoff = min(FIRST_DELAY * 2.0 ** (state.attempt_number - 1), LONGEST_DELAY)
    return float(backoff * (1 - 0.25 * random.random()))  # noqa: S311


def _say_retry(state: Any) -> None:
    error = state.outcome.exception()
    sys.stderr.write(f"model call failed, asking again in {state.upcoming_sleep:.1f} s: {error}\n")
    sys.stderr.flush()
