"""One client of the provider an event loop: the SDK's, with a deadline on every call and failures understood."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import math
import os
import tempfile
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit
from weakref import WeakKeyDictionary

from vf_core.runtimes import labels
from vf_core.runtimes.box import Answer
from vf_core.runtimes.prime import sdk
from vf_core.runtimes.prime.board import Board, Snapshot
from vf_core.runtimes.prime.last_resort import Access
from vf_core.runtimes.prime.pace import PACE, Pace
from vf_core.runtimes.prime.sdk import TERMINAL, CallError
from vf_core.runtimes.provider import Listed

log = logging.getLogger(__name__)

T = TypeVar("T")

PER_PAGE: Final = 100
_MAX_PAGES: Final = 1000
_PASSES: Final = 3
# The SDK keeps 100 connections: calls of one sort must not take those of the others.
_AT_ONCE: Final = {"create": 32, "read": 24, "delete": 32}
_CHECKED_FOR: Final = 60.0
_CLOSE_TIMEOUT: Final = 5.0


@dataclass(frozen=True, slots=True)
class Executed:
    """What a shell command in the sandbox printed, and its exit code."""

    stdout: str
    stderr: str
    exit_code: int


class Client:
    """The provider, with the credentials and the address that hold now. Every call raises `CallError`."""

    def __init__(self, pace: Pace = PACE) -> None:
        self.pace = pace
        self.users = 0
        self._sdk = sdk.load().AsyncSandboxClient()
        self._api = self._sdk.client
        sdk.keep_tokens_private(self._api.config.config_dir)
        self._gates = {name: asyncio.Semaphore(n) for name, n in _AT_ONCE.items()}
        self._board = Board(self._ask_many, self.snapshot)
        self._checked = -math.inf
        self._checking: asyncio.Task[dict[str, Any]] | None = None
        # A list that is being read, and one that will be after it.
        self._this_list: asyncio.Task[list[Listed]] | None = None
        self._next_list: asyncio.Task[list[Listed]] | None = None

    @property
    def account(self) -> str:
        """See `account_of`."""
        return account_of(self._api.config)

    @property
    def access(self) -> Access:
        """For a synchronous end at exit."""
        return Access(self._api.base_url, self._api.api_key, self._api.config.team_id)

    # ------------------------------------------------------------------ the control plane

    async def check(self) -> None:
        """The provider is there and lets us list, as after a create that goes wrong. Asked once a minute, and by
        one for all who come meanwhile."""
        if time.monotonic() - self._checked < _CHECKED_FOR:
            return
        if self._checking is None or self._checking.done():
            self._checking = asyncio.create_task(
                self._page(1, (labels.MARK,), per_page=1), name="check Prime"
            )
            self._checking.add_done_callback(self._seen)
        await asyncio.shield(self._checking)

    def _seen(self, checking: asyncio.Task[dict[str, Any]]) -> None:
        if not checking.cancelled() and checking.exception() is None:
            self._checked = time.monotonic()

    def doubt(self) -> None:
        """Something went wrong: `check` asks again."""
        self._checked = -math.inf

    async def create(self, request: Any, sent: Callable[[], None]) -> Any:
        """Make a sandbox; returns the SDK's `Sandbox`. After a failure that is no refusal, it may exist.

        `sent` is called right before the provider is asked: until then, the call may be cancelled at no risk.
        """
        async with self._gates["create"]:
            sent()
            return await _deadline(self._sdk.create(request), self.pace.create)

    async def listed(self, wanted: Sequence[str] = (labels.MARK,)) -> list[Listed]:
        """All live sandboxes that carry all of `wanted`, over all pages.

        Pages shift when sandboxes end between two of them: then the list is read again, and what was seen stays.
        """
        found: dict[str, Listed] = {}
        for _ in range(_PASSES):
            if await self._pass(wanted, found):
                break
        return list(found.values())

    async def _pass(self, wanted: Sequence[str], found: dict[str, Listed]) -> bool:
        """Read all pages; whether they fitted together."""
        seen: set[str] = set()
        totals: set[object] = set()
        for page in range(1, _MAX_PAGES):
            answer = await self._page(page, wanted)
            rows = answer.get("sandboxes")
            if not isinstance(rows, list):
                raise CallError("garbled", "an answer without sandboxes")
            totals.add(answer.get("total"))
            fresh = [row for row in rows if isinstance(row, dict) and str(row.get("id")) not in seen]
            seen.update(str(row.get("id")) for row in fresh)
            for row in fresh:
                listed = _listed(row)
                if listed.id and set(wanted) <= set(row.get("labels") or ()):
                    found[listed.id] = listed
            if not answer.get("hasNext") or not fresh:
                return page == 1 or totals == {len(seen)}
        return False

    async def find(self, name: str) -> list[Listed]:
        """Those of ours that have this name, by a list that was begun after this was asked. Many share one."""
        if self._next_list is None:
            before = self._this_list
            self._next_list = asyncio.create_task(self._list_after(before), name="list Prime's sandboxes")
            self._next_list.add_done_callback(_heard)
        return [row for row in await asyncio.shield(self._next_list) if row.name == name]

    async def _list_after(self, before: asyncio.Task[list[Listed]] | None) -> list[Listed]:
        if before is not None:
            await asyncio.wait({before})
        self._this_list, self._next_list = self._next_list, None
        return await self.listed()

    async def _page(self, page: int, wanted: Sequence[str], per_page: int = PER_PAGE) -> dict[str, Any]:
        params: dict[str, Any] = {
            "page": page,
            "per_page": per_page,
            "labels": list(wanted),
            "is_active": True,
        }
        if self._api.config.team_id:
            params["team_id"] = self._api.config.team_id
        return await self._request("read", "GET", "/sandbox", params=params)

    async def snapshot(self, id: str) -> Snapshot:
        """How a sandbox is. Raises `CallError` of kind `missing` when the provider says that there is none."""
        answer = await self._request("read", "GET", f"/sandbox/{id}")
        return Snapshot.of(answer)

    async def watch(self, id: str) -> Snapshot:
        """As `snapshot`, asked for many sandboxes at once."""
        return await self._board.look(id)

    async def probe(self, id: str) -> Answer:
        """Whether it is still there. Asked again after a passing failure, a few times."""
        for delay in (*self.pace.delete_delays[:2], None):
            try:
                now = await self.snapshot(id)
            except CallError as e:
                if e.kind == "missing":
                    return Answer(True, f"Prime answers 404: there is no sandbox {id}")
                if delay is None or not sdk.retryable(e):
                    raise
                await asyncio.sleep(delay)
                continue
            if now.status in TERMINAL:
                return Answer(True, f"Prime says that {id} is {now.status}")
            return Answer(False, f"Prime says that {id} is {now.status or 'of no known status'}")
        raise AssertionError

    async def delete(self, id: str) -> None:
        """Ask for its end; asked again after passing failures. One that is not there is no failure."""
        for delay in (*self.pace.delete_delays, None):
            try:
                await self._request("delete", "DELETE", f"/sandbox/{id}", timeout=self.pace.delete)
            except CallError as e:
                if e.kind == "missing":
                    return
                if delay is None or not sdk.retryable(e):
                    raise
                await asyncio.sleep(delay)
            else:
                return

    async def why(self, id: str) -> tuple[str, str]:
        """The provider's type of error and its message for a sandbox that ended by itself; empty when not known."""
        try:
            answer = await self._request("read", "GET", f"/sandbox/{id}/error-context", timeout=10)
        except CallError:
            return "", ""
        return str(answer.get("errorType") or ""), str(answer.get("errorMessage") or "")

    async def _ask_many(self, ids: Sequence[str]) -> dict[str, Any]:
        return await self._request(
            "read", "POST", "/sandbox/status:batchGet", json={"sandbox_ids": list(ids)}
        )

    async def _request(
        self,
        gate: str,
        method: str,
        endpoint: str,
        *,
        params: dict[str, Any] | None = None,
        json: dict[str, Any] | None = None,
        timeout: float | None = None,
    ) -> dict[str, Any]:
        # Raw requests: the SDK's own delete waits, without limit, for what else is asked about the sandbox, and
        # its models refuse a list for one row that they do not understand.
        async with self._gates[gate]:
            call = self._api.request(
                method, endpoint, params=params, json=json, idempotent_post=method == "POST"
            )
            answer = await _deadline(call, timeout or self.pace.call)
        if not isinstance(answer, dict):
            raise CallError("garbled", "the answer is no JSON object")
        return answer

    # ------------------------------------------------------------------ inside a sandbox

    async def execute(
        self, id: str, text: str, env: Mapping[str, str] | None = None, *, timeout: float
    ) -> Executed:
        """Run shell text in a sandbox. It is not ended when this fails."""
        call = self._sdk.execute_command(id, text, env=dict(env or {}), timeout=math.ceil(timeout + 5))
        result = await _deadline(call, timeout + self.pace.margin)
        return Executed(result.stdout, result.stderr, result.exit_code)

    async def upload(self, id: str, path: str, data: bytes) -> None:
        """Put a file at an absolute path whose directory exists."""
        allowed = _transfer_time(len(data))
        call = self._sdk.upload_bytes(id, path, data, os.path.basename(path), timeout=math.ceil(allowed))
        await _deadline(call, allowed + self.pace.margin)

    async def download(self, id: str, path: str, size: int) -> bytes:
        """A file of about `size` bytes."""
        allowed = _transfer_time(size)
        with tempfile.TemporaryDirectory(prefix="vf-tui-") as directory:
            target = Path(directory, "file")
            call = self._sdk.download_file(id, path, str(target), timeout=math.ceil(allowed))
            await _deadline(call, allowed + self.pace.margin)
            return await asyncio.to_thread(target.read_bytes)

    async def close(self) -> None:
        """Let go of connections; never longer than a few seconds."""
        with contextlib.suppress(Exception):
            async with asyncio.timeout(_CLOSE_TIMEOUT):
                await self._sdk.aclose()


def _heard(task: asyncio.Task[Any]) -> None:
    if not task.cancelled():
        task.exception()  # whoever waited has it; nobody may have


async def _deadline(call: Awaitable[T], seconds: float) -> T:
    task = asyncio.current_task()
    before = task.cancelling() if task else 0
    try:
        async with asyncio.timeout(seconds) as limit:
            return await call
    except asyncio.CancelledError:
        raise
    except Exception as e:
        if limit.expired():
            raise CallError("transient", f"no answer within {seconds:g} s") from e
        if task and task.cancelling() > before:
            # The SDK makes an error of its own of a cancelled command.
            raise asyncio.CancelledError from e
        raise sdk.understand(e) from e


def _transfer_time(size: int) -> float:
    return 60.0 + size / 1e6


# ---------------------------------------------------------------------- rows and accounts


def _listed(row: Mapping[str, Any]) -> Listed:
    status = str(row.get("status") or "")
    created = _time(row.get("createdAt"))
    minutes = row.get("timeoutMinutes")
    started = _time(row.get("startedAt")) or created
    ends = started + minutes * 60 if started and isinstance(minutes, int | float) and minutes > 0 else None
    texts = [text for text in row.get("labels") or () if isinstance(text, str)]
    return Listed(
        id=str(row.get("id") or ""),
        name=str(row.get("name") or ""),
        labels=labels.decode_list(texts),
        status=status,
        alive=status not in TERMINAL,
        created=created,
        ends=ends,
        image=str(row.get("dockerImage") or ""),
    )


def _time(value: object) -> float | None:
    try:
        return datetime.fromisoformat(str(value).replace("Z", "+00:00")).timestamp()
    except ValueError:
        return None


def account_of(config: Any) -> str:
    """Who asks, and where: a team, a user, or else a fingerprint of the key (another key may see other sandboxes)."""
    parts = urlsplit(config.base_url)
    place = parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
    if config.team_id:
        who = f"team {config.team_id}"
    elif config.user_id:
        who = f"user {config.user_id}"
    else:
        who = f"personal, key #{hashlib.sha256(config.api_key.encode()).hexdigest()[:8]}"
    return f"{who} at {place}"


# ---------------------------------------------------------------------- one a loop

_clients: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[tuple[str, ...], Client]] = WeakKeyDictionary()
_closing: set[asyncio.Task[None]] = set()


def acquire(pace: Pace = PACE) -> Client:
    """The running loop's client for the settings that hold now; `release` it. Raises `ConfigError` when the SDK is
    missing or there are no credentials."""
    sdk.check_credentials()
    config = sdk.load().Config()
    mine = _clients.setdefault(asyncio.get_running_loop(), {})
    key = (config.base_url, config.api_key, repr(pace))
    client = mine.get(key)
    if client is None:
        client = mine[key] = Client(pace)
    client.users += 1
    return client


def release(client: Client) -> None:
    """It is not needed any more; it is closed when nobody needs it. Must not raise."""
    client.users -= 1
    if client.users > 0:
        return
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        return  # at exit: its connections end with the process
    mine = _clients.get(loop, {})
    for key in [key for key, other in mine.items() if other is client]:
        del mine[key]
    task = loop.create_task(client.close(), name="close Prime client")
    _closing.add(task)
    task.add_done_callback(_closing.discard)
