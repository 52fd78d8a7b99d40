"""What is at Modal, whoever started it: for the inventory and for cleanup."""

from __future__ import annotations

import asyncio
import json
import shlex
from typing import Any, ClassVar

from vf_core.runtimes.box import Answer
from vf_core.runtimes.labels import MARK, PREFIX, decode
from vf_core.runtimes.modal import account as at_modal
from vf_core.runtimes.modal import sdk
from vf_core.runtimes.modal.sdk import Fault
from vf_core.runtimes.provider import Listed, Provider

_AT_ONCE = 32


class ModalProvider(Provider):
    """Our app at Modal, as this process's settings name it. Raises `SandboxError` when Modal cannot be used here."""

    kind: ClassVar[str] = "modal"

    def __init__(self) -> None:
        self._account = at_modal.account()

    @property
    def account(self) -> str:
        """See `Provider.account`: profile, environment, and the token without its secret."""
        return self._account.label

    async def listed(self) -> list[Listed]:
        """See `Provider.listed`."""
        return await self._listed({MARK: "1"})

    async def find(self, name: str) -> list[Listed]:
        """See `Provider.find`."""
        tag = at_modal.tag_value(at_modal.sandbox_name(name))
        return await self._listed({MARK: "1", f"{PREFIX}{at_modal.NAME_TAG}": tag})

    async def _listed(self, tags: dict[str, str]) -> list[Listed]:
        found = await self._account.listed(tags)
        turn = asyncio.Semaphore(_AT_ONCE)

        async def one(sandbox: Any) -> Listed | None:
            async with turn:
                return await self._describe(sandbox)

        described = await asyncio.gather(*(one(sandbox) for sandbox in found))
        return [listed for listed in described if listed is not None]

    async def _describe(self, sandbox: Any) -> Listed | None:
        ended = at_modal.ending(sandbox)
        try:
            tags = await self._account.tags(sandbox)
        except Exception as e:
            if sdk.fault_of(e) is Fault.GONE:
                return None  # it ended since the list was made
            # It is there and has our mark; whose it is cannot be said.
            return Listed(sandbox.object_id, status=f"running, tags unknown: {sdk.say(e)}", alive=not ended)
        labels = decode(tags)
        name = labels.pop(at_modal.NAME_TAG, "")
        return Listed(sandbox.object_id, name, labels, status=ended or "running", alive=not ended)

    async def delete(self, id: str) -> None:
        """See `Provider.delete`."""
        sandbox = await self._account.by_id(id)
        if sandbox is not None:
            await at_modal.terminate(sandbox)

    async def probe(self, id: str) -> Answer:
        """See `Provider.probe`."""
        sandbox = await self._account.by_id(id)
        return Answer(True, at_modal.not_found(id)) if sandbox is None else await at_modal.probe(sandbox)

    def delete_command(self, id: str) -> str:
        """See `Provider.delete_command`. Modal's command line stops containers, whose ids are others, so this is its
        SDK's call."""
        call = f"import modal; modal.Sandbox.from_id({json.dumps(id)}).terminate()"
        return f"python3 -c {shlex.quote(call)}"
