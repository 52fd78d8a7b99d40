"""The SDK: whether it can be used here, what its request can say, and what its failures mean."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, Literal

from vf_core.errors import ConfigError

EXTRA_HINT: Final = "pip install 'vf-tui[prime]'"
LOGIN_HINT: Final = "set PRIME_API_KEY, or run `prime login`"
_TOKENS: Final = "sandbox_auth_cache.json"

Kind = Literal["missing", "denied", "refused", "ended", "transient", "garbled"]
"""missing: the provider's own 404. denied: who asks may not (401, 402, 403). refused: another 4xx, asking again
changes nothing. ended: the sandbox does not run any more, says the gateway. transient: no answer, or one that may be
another the next time. garbled: an answer that is not understood; what was asked may have been done."""

TERMINAL: Final = frozenset({"TERMINATED", "TIMEOUT", "ERROR"})
_PASSING: Final = frozenset({408, 409, 425, 429})
# What the gateway's client says of a request that failed; who asked knows the address.
_URL: Final = re.compile(r"(Request failed: )?error sending request for url \(\S+\): ")
_DENIED_CODES: Final = frozenset({"unauthenticated", "permission_denied"})


class CallError(Exception):
    """One call of the provider failed. Never leaves this package: its callers make a `SandboxError` of it."""

    def __init__(self, kind: Kind, text: str, *, status: int | None = None, hint: str | None = None) -> None:
        super().__init__(text)
        self.kind = kind
        self.status = status
        self.hint = hint


@lru_cache(maxsize=1)
def load() -> Any:
    """The SDK's module. Raises `ConfigError` when it is not installed, or cannot be imported."""
    try:
        import prime_sandboxes
    except ImportError as e:
        if isinstance(e, ModuleNotFoundError) and e.name == "prime_sandboxes":
            raise ConfigError(
                "the prime runtime needs the package prime-sandboxes, which is not installed",
                key="type",
                hint=EXTRA_HINT,
            ) from e
        raise _broken(e) from e
    except Exception as e:
        raise _broken(e) from e
    return prime_sandboxes


def _broken(e: Exception) -> ConfigError:
    return ConfigError(
        f"prime-sandboxes is installed but cannot be imported: {type(e).__name__}: {e}",
        key="type",
        hint=f"reinstall it: {EXTRA_HINT}",
    )


def check_credentials() -> None:
    """Raises `ConfigError` when the SDK would find no API key, or its settings are unusable. Asks nobody."""
    sdk = load()
    try:
        found = sdk.Config().api_key
    except Exception as e:
        raise ConfigError(f"the settings of the prime command cannot be used: {e}", key="type") from e
    if not found:
        raise ConfigError("there are no credentials for Prime", key="type", hint=LOGIN_HINT)


def keep_tokens_private(directory: Path) -> None:
    """The SDK writes the tokens of sandboxes to a file in its settings' `directory`, for all to read unless the file
    says otherwise."""
    with contextlib.suppress(OSError):
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        file = os.open(directory / _TOKENS, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.fchmod(file, 0o600)
        finally:
            os.close(file)


def request_fields() -> frozenset[str]:
    """What the installed SDK's create request can say; all else it would drop without a word."""
    return frozenset(load().CreateSandboxRequest.model_fields)


def understand(e: BaseException) -> CallError:
    """What a failure of the SDK means, by types and status codes, never by its message."""
    if isinstance(e, CallError):
        return e
    text = _text(e)
    if isinstance(e, TimeoutError | asyncio.TimeoutError):
        return CallError("transient", text or "no answer in time")
    for judge in (_by_status, _by_code, _by_class):
        for error in _chain(e):
            kind, status = judge(error)
            if kind is not None:
                return CallError(kind, text, status=status, hint=_hint(kind, status))
    return CallError("garbled", text)


Judgement = tuple[Kind | None, int | None]


def _by_status(e: BaseException) -> Judgement:
    import httpx

    if not isinstance(e, httpx.HTTPStatusError):
        return None, None
    status = e.response.status_code
    if status in (401, 402, 403):
        return "denied", status
    if status == 404:
        # The provider says it in JSON; a proxy, or a server that is not the provider, in a page.
        return ("missing" if _is_object(e.response) else "garbled"), status
    if status in _PASSING or status >= 500:
        return "transient", status
    return "refused", status


def _is_object(response: Any) -> bool:
    try:
        return isinstance(response.json(), dict)
    except ValueError:
        return False


def _by_code(e: BaseException) -> Judgement:
    """Failures of the gateway's Connect calls."""
    from connectrpc.errors import ConnectError

    if not isinstance(e, ConnectError):
        return None, None
    return ("denied" if e.code.value in _DENIED_CODES else "transient"), None


def _by_class(e: BaseException) -> Judgement:
    import httpx

    sdk = load()
    kinds: tuple[tuple[Any, Kind], ...] = (
        (sdk.SandboxNotRunningError, "ended"),
        (sdk.UnauthorizedError, "denied"),
        (sdk.PaymentRequiredError, "denied"),
        (sdk.SandboxFileNotFoundError, "refused"),
        ((sdk.CommandTimeoutError, sdk.UploadTimeoutError, sdk.DownloadTimeoutError), "transient"),
        ((sdk.APITimeoutError, httpx.TransportError, OSError, TimeoutError), "transient"),
    )
    return next(((kind, None) for type_, kind in kinds if isinstance(e, type_)), (None, None))


def _chain(e: BaseException) -> Iterator[BaseException]:
    """The failure and its causes. A sandbox that ended is told by the outermost, whatever carried the news."""
    seen: set[int] = set()
    current: BaseException | None = e
    if isinstance(e, load().SandboxNotRunningError):
        yield e
        return
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        yield current
        current = current.__cause__ or current.__context__


def _hint(kind: Kind, status: int | None) -> str | None:
    if kind != "denied":
        return None
    if status == 402:
        return "check the account's balance"
    return "check PRIME_API_KEY and the team, or run `prime login`"


def _text(e: BaseException) -> str:
    import httpx

    for error in _chain(e):
        if isinstance(error, httpx.TransportError):
            made = not isinstance(error, httpx.ConnectError | httpx.ConnectTimeout)
            told = ("the connection{} broke" if made else "no connection{}").format(_place(error))
            return f"{told}: {error}"[:300] if str(error) else f"{told}: {type(error).__name__}"
    text = str(e).strip()
    named = f"{type(e).__name__}: {text}" if text else type(e).__name__
    plain = isinstance(e, (load().APIError, TimeoutError))
    return _URL.sub("", text if plain else named)[:500]


def _place(e: Any) -> str:
    try:
        url = e.request.url
    except RuntimeError:
        return ""
    return f" to {url.host}:{url.port}" if url.port else f" to {url.host}"


def retryable(e: CallError) -> bool:
    """Asking again may get another answer."""
    return e.kind in ("transient", "garbled")
