"""Modal's SDK as it is used here: imported late, kept quiet, each call with a deadline, its errors told apart.

The SDK runs an event loop in a thread of its own; `.aio` calls are awaited on ours.
"""

from __future__ import annotations

import asyncio
import atexit
import logging
import re
import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from vf_core.errors import SandboxError
from vf_core.runtimes import at_exit
from vf_core.text import bound, clean

T = TypeVar("T")

INSTALL = "pip install 'vf-tui[modal]'"
CREDENTIALS = "set MODAL_TOKEN_ID and MODAL_TOKEN_SECRET, or run `modal token new`"
TAG = re.compile(r"[A-Za-z0-9._-]{1,63}")
NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")

_LOGGERS = ("modal-client", "modal-utils", "grpclib", "grpclib.client", "grpclib.protocol", "hpack", "h2")
_lock = threading.Lock()
_sdk: Any = None


@dataclass(frozen=True, slots=True)
class Problem:
    """Why Modal cannot be used here, and what to do."""

    message: str
    hint: str


def problem() -> Problem | None:
    """What is missing on this machine; asks no network."""
    try:
        modal = load()
    except SandboxError as e:
        return Problem(e.message, e.hint or "")
    try:
        config = modal.config.config
        named = [config.get(key) for key in ("token_id", "token_secret", "oauth_refresh_token")]
        remote = modal.config._is_remote()
        modal.config._check_config()
    except AttributeError:
        return None  # another version keeps them elsewhere: the first call will say
    except Exception as e:
        return Problem(f"Modal's settings cannot be used: {say(e)}", CREDENTIALS)
    if remote or (named[0] and named[1]) or named[2]:
        return None
    half = "MODAL_TOKEN_SECRET" if named[0] else "MODAL_TOKEN_ID" if named[1] else ""
    return Problem(
        "there are no credentials for Modal" + (f": {half} is missing" if half else ""), CREDENTIALS
    )


def load() -> Any:
    """The module `modal`. Raises `SandboxError` when it is missing or cannot be imported. Takes up to a second."""
    global _sdk  # noqa: PLW0603 - one SDK a process
    with _lock:
        if _sdk is None:
            try:
                import modal
                import modal.config
                import modal.exception
            except ImportError as e:
                if isinstance(e, ModuleNotFoundError) and e.name == "modal":
                    raise SandboxError(
                        "the modal runtime needs the package modal, which is not installed", hint=INSTALL
                    ) from e
                raise SandboxError(f"Modal's SDK cannot be imported: {say(e)}", hint=INSTALL) from e
            except Exception as e:
                # Reading ~/.modal.toml is part of the import.
                raise SandboxError(
                    f"Modal's SDK cannot be used: {say(e)}",
                    hint=f"mend ~/.modal.toml, or install the SDK again: {INSTALL}",
                ) from e
            _quieten()
            _end_after_us()
            _sdk = modal
        return _sdk


async def loaded() -> Any:
    """As `load`, off the event loop."""
    return _sdk if _sdk is not None else await asyncio.to_thread(load)


def _quieten() -> None:
    """Its records go where all others go, not to standard error by handlers of its own."""
    for name in _LOGGERS:
        logger = logging.getLogger(name)
        logger.handlers[:] = [logging.NullHandler()]
        logger.propagate = True


def _end_after_us() -> None:
    """At interpreter exit the SDK's loop must outlive the backstop for sandboxes: last registered, first run."""
    atexit.unregister(at_exit.cleanup_all)
    atexit.register(at_exit.cleanup_all)


# ---------------------------------------------------------------------- errors


class Fault(Enum):
    """What an error of the SDK means for the call that got it."""

    GONE = "gone"  # there is no such thing, said by the provider's own typed error
    TAKEN = "taken"  # the name is in use
    REFUSED = "refused"  # it was not done and will not be
    DOUBT = "doubt"  # it may or may not have been done; asking again may help


_REFUSED = (
    "AuthError",
    "ClientClosed",
    "DeserializationError",
    "ImageBuildError",
    "InvalidError",
    "PermissionDeniedError",
    "RequestSizeError",
    "SerializationError",
    "UnimplementedError",
    "VersionError",
)


def fault_of(e: BaseException) -> Fault:
    """Told by the SDK's own classes, never by a message."""
    errors = load().exception
    if isinstance(e, errors.NotFoundError):
        return Fault.GONE
    if isinstance(e, errors.AlreadyExistsError):
        return Fault.TAKEN
    if isinstance(e, errors.ConflictError):
        return Fault.DOUBT
    refused = tuple(kind for name in _REFUSED if (kind := getattr(errors, name, None)) is not None)
    return Fault.REFUSED if isinstance(e, refused) else Fault.DOUBT


def say(e: BaseException, limit: int = 500) -> str:
    """An error as one line: its class and what it says."""
    text = e.message if isinstance(e, SandboxError) else f"{type(e).__name__}: {e}".rstrip(": ")
    return bound(" ".join(clean(text, limit=4 * limit).split()), limit)


def hint_for(e: BaseException) -> str | None:
    """What to do about an error, where that is known."""
    errors = load().exception
    if isinstance(e, errors.AuthError):
        return CREDENTIALS
    if isinstance(e, errors.PermissionDeniedError):
        return "this token may not do that in its workspace and environment"
    if isinstance(e, errors.ResourceExhaustedError):
        return "Modal limits or lacks capacity: lower max_concurrent or creates_per_sec, or try later"
    return None


def trouble(what: str, e: BaseException) -> SandboxError:
    """An error of the SDK as ours. `what`: what could not be done."""
    if isinstance(e, SandboxError):
        return SandboxError(f"{what}: {e.message}", hint=e.hint)
    return SandboxError(f"{what}: {say(e)}", hint=hint_for(e))


# ---------------------------------------------------------------------- calls

_SPACING = 0.0015  # seconds between the starts of two calls

_abandoned: set[asyncio.Future[Any]] = set()
_moments: WeakKeyDictionary[asyncio.AbstractEventLoop, float] = WeakKeyDictionary()


class NoAnswerError(SandboxError):
    """A call had no answer within its deadline: what it asked for may or may not be done."""


async def bounded(call: Awaitable[T], seconds: float) -> T:
    """`call`, or `NoAnswerError` after `seconds`, even when it does not let itself be cancelled."""
    task = asyncio.ensure_future(call)
    try:
        await asyncio.wait({task}, timeout=max(0.0, seconds))
    finally:
        if not task.done():
            _abandoned.add(task)
            task.add_done_callback(_dropped)
            task.cancel()
    if not task.done():
        raise NoAnswerError(f"Modal did not answer within {seconds:g} s")
    return task.result()


async def _own_moment() -> None:
    """Each call costs the loop about a millisecond: hundreds at one moment would hold it for as many."""
    loop = asyncio.get_running_loop()
    now = loop.time()
    moment = max(now, _moments.get(loop, 0.0) + _SPACING)
    _moments[loop] = moment
    if moment > now:
        await asyncio.sleep(moment - now)


def _dropped(task: asyncio.Future[Any]) -> None:
    _abandoned.discard(task)
    if not task.cancelled():
        task.exception()


async def ask(call: Callable[[], Awaitable[T]], *, each: float, tries: int = 1, pause: float = 0.2) -> T:
    """The answer to `call`, asked up to `tries` times while that may help, each time with a deadline of `each`
    seconds. Raises what the last try raised."""
    for turn in range(tries):
        await _own_moment()
        try:
            return await bounded(call(), each)
        except Exception as e:
            if turn + 1 == tries or fault_of(e) is not Fault.DOUBT:
                raise
        await asyncio.sleep(pause * 2**turn)
    raise AssertionError("tries is at least 1")
