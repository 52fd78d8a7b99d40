"""One place at Modal: a client, our app in it, and what runtimes and the inventory ask there alike."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Mapping
from typing import Any
from weakref import WeakKeyDictionary

from vf_core.errors import SandboxError
from vf_core.runtimes.box import Answer
from vf_core.runtimes.labels import encode
from vf_core.runtimes.modal import sdk
from vf_core.runtimes.modal.sdk import Fault, ask, bounded
from vf_core.text import slug

log = logging.getLogger(__name__)

APP = "vf-tui"
NAME_TAG = "name"

# Deadlines of single calls, in seconds.
CALL = 20.0
TERMINATE = 10.0
BUILD = 3000.0
TRIES = 4


def sandbox_name(name: str) -> str:
    """The name that a sandbox called `name` by us has at Modal."""
    return name if sdk.NAME.fullmatch(name) else _short(name, 64)


def tag_value(text: str) -> str:
    """A label's value as Modal takes it: itself where it fits, else a short form that still tells it from others."""
    return text if sdk.TAG.fullmatch(text) else _short(text, 63)


def _short(text: str, limit: int) -> str:
    digest = hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:10]
    return f"{slug(text, limit=limit - 11)}-{digest}"


def tags_of(name: str, labels: Mapping[str, str]) -> dict[str, str]:
    """All tags of the sandbox that we call `name`: together they are no other one's."""
    return {key: tag_value(value) for key, value in encode({**labels, NAME_TAG: sandbox_name(name)}).items()}


class Account:
    """A workspace and environment at Modal, as this user's settings name them. Get it from `account`."""

    def __init__(self, key: tuple[str, ...], label: str) -> None:
        self.key = key
        self.label = label
        self._client: Any = None
        self._app: Any = None
        self._locks: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = WeakKeyDictionary()
        self._images: dict[str, Any] = {}
        self._builds: dict[tuple[int, str], asyncio.Task[Any]] = {}

    # ------------------------------------------------------------------ the way in

    async def client(self) -> Any:
        """The SDK's client. Raises `SandboxError` when there are no credentials."""
        modal = await sdk.loaded()
        if self._client is None or self._client.is_closed():
            try:
                self._client = await bounded(modal.Client.from_env.aio(), CALL)
            except Exception as e:
                raise sdk.trouble("Modal cannot be used", e) from e
        return self._client

    async def app(self, *, create: bool) -> Any:
        """Our app; None when there is none and `create` is false."""
        modal, client = await sdk.loaded(), await self.client()
        lock = self._locks.setdefault(asyncio.get_running_loop(), asyncio.Lock())
        async with lock:
            if self._app is None:
                try:
                    self._app = await ask(
                        lambda: modal.App.lookup.aio(APP, client=client, create_if_missing=create),
                        each=CALL,
                        tries=TRIES,
                    )
                except Exception as e:
                    if not create and sdk.fault_of(e) is Fault.GONE:
                        return None
                    raise sdk.trouble(f"Modal's app {APP} cannot be reached", e) from e
            return self._app

    def forget_app(self) -> None:
        """Modal does not know what was known of our app: look it up again."""
        self._app = None
        self._images.clear()

    def has_image(self, reference: str) -> bool:
        """The image is ready: `image` returns at once."""
        return reference in self._images

    async def image(self, reference: str) -> Any:
        """An image ready for sandboxes, its entrypoint cleared; built once, however many ask. Cancelling one who
        waits does not end the build."""
        if reference in self._images:
            return self._images[reference]
        key = (id(asyncio.get_running_loop()), reference)
        build = self._builds.get(key)
        if build is None:
            build = self._builds[key] = asyncio.ensure_future(self._build(reference))
            build.add_done_callback(lambda task: self._built(key, task))
        return await asyncio.shield(build)

    def _built(self, key: tuple[int, str], task: asyncio.Task[Any]) -> None:
        self._builds.pop(key, None)
        if not task.cancelled():
            task.exception()

    async def _build(self, reference: str) -> Any:
        modal, app = await sdk.loaded(), await self.app(create=True)
        try:
            image = modal.Image.from_registry(reference).entrypoint([])
            await ask(lambda: image.build.aio(app), each=BUILD, tries=2)
        except Exception as e:
            raise sdk.trouble(f"image {reference} cannot be made ready at Modal", e) from e
        self._images[reference] = image
        return image

    # ------------------------------------------------------------------ what is there

    async def listed(self, tags: Mapping[str, str]) -> list[Any]:
        """The sandboxes of our app that are not known to have ended and have all of `tags`."""
        modal, client, app = await sdk.loaded(), await self.client(), await self.app(create=False)
        if app is None:
            return []

        async def all_pages() -> list[Any]:
            found = modal.Sandbox.list.aio(app_id=app.app_id, tags=dict(tags), client=client)
            return [sandbox async for sandbox in found]

        try:
            return await ask(all_pages, each=3 * CALL, tries=TRIES)
        except Exception as e:
            raise sdk.trouble("Modal's sandboxes cannot be listed", e) from e

    async def named(self, name: str, tags: Mapping[str, str]) -> Any:
        """The running sandbox of that name at Modal if its tags are `tags`, else None."""
        modal, client, app = await sdk.loaded(), await self.client(), await self.app(create=False)
        if app is None:
            return None
        try:
            found = await ask(
                lambda: modal.Sandbox.from_name.aio(APP, name, client=client), each=CALL, tries=TRIES
            )
            theirs = await self.tags(found)
        except Exception as e:
            if sdk.fault_of(e) is Fault.GONE:
                return None
            raise sdk.trouble(f"Modal cannot say whether there is a sandbox {name}", e) from e
        return found if tags.items() <= theirs.items() else None

    async def tags(self, sandbox: Any) -> dict[str, str]:
        """A sandbox's tags, as they are at Modal."""
        found: dict[str, str] = await ask(sandbox.get_tags.aio, each=CALL, tries=TRIES)
        return found

    async def by_id(self, id: str) -> Any:
        """A handle for a sandbox that may have ended; None when Modal says that there is none."""
        modal, client = await sdk.loaded(), await self.client()
        try:
            return await ask(lambda: modal.Sandbox.from_id.aio(id, client=client), each=CALL, tries=TRIES)
        except Exception as e:
            if sdk.fault_of(e) is Fault.GONE:
                return None
            raise sdk.trouble(f"Modal cannot be asked about sandbox {id}", e) from e


# ---------------------------------------------------------------------- one sandbox


async def terminate(sandbox: Any, *, patience: float = 4 * TERMINATE) -> bool:
    """Ask for a sandbox's end, again while that may help, for at most about `patience` seconds. False when Modal says
    that there is none. Raises `SandboxError` when it could not be asked."""
    try:
        await bounded(ask(sandbox.terminate.aio, each=TERMINATE, tries=TRIES), patience)
    except Exception as e:
        if sdk.fault_of(e) is Fault.GONE:
            return False
        raise sdk.trouble(f"Modal did not take the request to end sandbox {sandbox.object_id}", e) from e
    return True


async def probe(sandbox: Any) -> Answer:
    """Whether a sandbox has ended. Raises `SandboxError` when Modal could not be asked."""
    id = sandbox.object_id
    try:
        await ask(sandbox.poll.aio, each=TERMINATE, tries=TRIES)
    except Exception as e:
        if sdk.fault_of(e) is Fault.GONE:
            return Answer(True, not_found(id))
        raise sdk.trouble(f"Modal cannot be asked about sandbox {id}", e) from e
    how = ending(sandbox)
    return Answer(True, f"Modal: {id} ended ({how})") if how else Answer(False, f"Modal: {id} still runs")


def not_found(id: str) -> str:
    """What is said of a sandbox that Modal does not know."""
    return f"Modal: there is no sandbox {id}"


_STATUSES = {
    "SUCCESS": "its keep-alive program ended",
    "FAILURE": "its keep-alive program failed",
    "TERMINATED": "terminated",
    "TIMEOUT": "its lifetime was over",
    "INIT_FAILURE": "it could not be set up",
    "INTERNAL_FAILURE": "Modal failed",
    "IDLE_TIMEOUT": "it had been idle for too long",
    "MEMORY_MANAGER_EVICTION": "evicted for its memory use",
    "MEMORY_THRASHING_EVICTION": "evicted for its memory use",
    "KERNEL_OOM_KILL": "out of memory",
}


def ending(sandbox: Any) -> str:
    """How a sandbox ended, after it was asked about; empty while it may still run.

    A status that is not known here counts as running, whatever exit code comes with it.
    """
    code = sandbox.returncode
    status = _status(sandbox)
    if status is None:
        return "" if code is None else f"code {code}"
    said = _STATUSES.get(status, "")
    return f"{said}, code {code}" if said and code is not None else ""


def _status(sandbox: Any) -> str | None:
    """The result's status by name, "" for none or an unknown one; None where this SDK keeps it elsewhere."""
    try:
        from modal._utils.async_utils import synchronizer
        from modal_proto import api_pb2

        inner: Any = synchronizer._translate_in(sandbox)  # type: ignore[no-untyped-call]
        result = inner._impl.result
        statuses = api_pb2.GenericResult.GenericStatus
        if result is None or result.status not in statuses.values():
            return ""
        return str(statuses.Name(result.status)).removeprefix("GENERIC_STATUS_")
    except (ImportError, AttributeError):
        return None


# ---------------------------------------------------------------------- which account

_accounts: dict[tuple[str, ...], Account] = {}


def account() -> Account:
    """The place that this process's settings name now; the same object for the same place. Raises `SandboxError` when
    the SDK or credentials are missing."""
    found = sdk.problem()
    if found is not None:
        raise SandboxError(found.message, hint=found.hint)
    modal = sdk.load()
    config = modal.config.config
    server, token = str(config.get("server_url")), str(config.get("token_id") or "")
    environment = str(config.get("environment") or "")
    profile = str(getattr(modal.config, "_profile", "") or "default")
    key = (server, profile, environment, token)
    if key not in _accounts:
        label = f"{profile}/{environment or 'main'}"
        if token:
            # Its end tells one token from another.
            label += f" token {token[:3]}…{token[-4:] if len(token) > 12 else ''}"
        if not server.startswith("https://api.modal.com"):
            label += f" at {server}"
        _accounts[key] = Account(key, label)
    return _accounts[key]
