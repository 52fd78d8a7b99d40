"""The `modal` runtime: a sandbox at Modal, driven through its SDK.

What may be lost on the way is found again: a sandbox carries a reserved name and our tags from its first moment, so
that one whose creation was never answered is looked up by them and ended.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from vf_core.errors import SandboxError
from vf_core.runtimes.base import Answer, Box
from vf_core.runtimes.lifecycle import Observer, State
from vf_core.runtimes.limiter import CreationLimiter
from vf_core.runtimes.modal import account as at_modal
from vf_core.runtimes.modal import sdk
from vf_core.runtimes.modal.account import Account
from vf_core.runtimes.modal.command import Command
from vf_core.runtimes.modal.config import ModalConfig
from vf_core.runtimes.modal.files import Files
from vf_core.runtimes.modal.sdk import Fault, bounded

log = logging.getLogger(__name__)

SLOW_BOOT = 2.0  # seconds after which a boot is worth a remark
ADMIT = "modal"  # the limiter's name: creations at Modal by all processes of this host


@dataclass(eq=False, slots=True)
class Handle:
    """What is known of one sandbox at Modal. `refused`: why it was certainly not made; `doubt`: until when, by the
    loop's clock, one that was not found may still appear; `gone`: Modal said that it does not know it."""

    name: str = ""
    tags: dict[str, str] = field(default_factory=dict)
    account: Account | None = None
    image: Any = None
    sandbox: Any = None
    creating: asyncio.Task[Any] | None = None
    refused: str = ""
    doubt: float = 0.0
    gone: str = ""
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    programs: set[Command] = field(default_factory=set)


class ModalRuntime(Files):
    """A sandbox at Modal. The deadlines are in seconds."""

    kind: ClassVar[str] = "modal"
    config: ModalConfig
    # For the answer to a create call; of a GPU's, Modal waits for capacity.
    create_deadline: ClassVar[float] = 180.0
    gpu_create_deadline: ClassVar[float] = 1380.0
    # For the first command in it: until it was scheduled and has booted.
    boot_deadline: ClassVar[float] = 900.0
    # How long a stop waits for the answer to a create call under way.
    late_deadline: ClassVar[float] = 10.0
    # How long one whose creation was not answered may still appear at Modal.
    doubt_period: ClassVar[float] = 10.0
    exit_deadline: ClassVar[float] = 20.0
    probe_delays: ClassVar[tuple[float, ...]] = (0.1, 0.2, 0.5, 1.0, 2.0)

    def __init__(
        self,
        config: ModalConfig,
        *,
        name: str,
        labels: Mapping[str, str] | None = None,
        observer: Observer | None = None,
    ) -> None:
        super().__init__(config, name=name, labels=labels, observer=observer)

    def info(self) -> dict[str, Any]:
        """See `Runtime.info`: what the record's format knows of this kind."""
        out = self.config.recorded()
        if self.sandbox_id:
            out["id"] = self.sandbox_id
        return out

    @property
    def account(self) -> str:
        """See `Runtime.account`; empty where Modal cannot be used, which the start then says."""
        try:
            return at_modal.account().label
        except SandboxError:
            return ""

    # ------------------------------------------------------------------ creation

    def _new_handle(self) -> Handle:
        return Handle()

    async def _admit(self, box: Box[Handle]) -> None:
        handle = box.handle
        await sdk.loaded()
        handle.account = at_modal.account()
        handle.name = at_modal.sandbox_name(box.name)
        handle.tags = {**self.config.labels, **at_modal.tags_of(box.name, self.labels)}
        if not handle.account.has_image(self.config.image):
            box.life.remark(f"image {self.config.image} is made ready")
        handle.image = await handle.account.image(self.config.image)
        if self.config.creates_per_sec is not None:
            await CreationLimiter(ADMIT, self.config.creates_per_sec).admit()

    async def _create(self, box: Box[Handle]) -> None:
        handle = box.handle
        handle.creating = self._spawn(self._ask_for_it(handle), "create at Modal for")
        handle.sandbox = await self._answer_to_creation(box)
        box.identify(handle.sandbox.object_id)
        await self._boot(box)

    async def _ask_for_it(self, handle: Handle) -> Any:
        modal, config = await sdk.loaded(), self.config
        assert handle.account is not None  # noqa: S101 - admitted
        return await modal.Sandbox.create.aio(
            # Outlives its lifetime; any image has it.
            "sleep",
            str(config.timeout + 3600),
            app=await handle.account.app(create=True),
            image=handle.image,
            name=handle.name,
            tags=handle.tags,
            timeout=config.timeout,
            idle_timeout=config.idle_timeout,
            cpu=config.cpu,
            memory=config.memory_mib,
            gpu=config.gpu,
            region=config.region,
            block_network=not config.network_access,
            encrypted_ports=list(config.expose_ports),
        )

    async def _answer_to_creation(self, box: Box[Handle]) -> Any:
        """The new sandbox. Raises `SandboxError`, having noted whether it may exist all the same."""
        handle, now = box.handle, asyncio.get_running_loop().time
        call = handle.creating
        assert call is not None and handle.account is not None  # noqa: S101, PT018 - just made
        deadline = now() + (self.gpu_create_deadline if self.config.gpu else self.create_deadline)
        stopping = False
        while not call.done() and now() < deadline:
            if not stopping and box.state is not State.STARTING:
                stopping, deadline = True, min(deadline, now() + self.late_deadline)
            await asyncio.wait({call}, timeout=min(0.25, max(0.0, deadline - now())))
        if not call.done():
            call.cancel()
            handle.doubt = now() + self.doubt_period
            raise SandboxError(f"Modal did not say in time whether it made sandbox {box.name}")
        try:
            return call.result()
        except Exception as e:
            fault = sdk.fault_of(e)
            if fault is Fault.TAKEN:
                # Our own, made by a call whose answer was lost and which the SDK then repeated?
                found = await handle.account.named(handle.name, handle.tags)
                if found is not None:
                    return found
            if fault is Fault.GONE:
                handle.account.forget_app()
            if fault in (Fault.REFUSED, Fault.TAKEN):
                handle.refused = sdk.say(e)
            else:
                handle.doubt = now() + self.doubt_period
            raise sdk.trouble(f"Modal did not make sandbox {box.name}", e) from e

    async def _boot(self, box: Box[Handle]) -> None:
        """Wait until it takes commands; its working directory exists then."""
        slow = asyncio.get_running_loop().time() + SLOW_BOOT
        boot = self._spawn(self._make_workdir(box, self.boot_deadline), "boot")
        try:
            while not boot.done():
                if box.state is not State.STARTING:
                    raise SandboxError(f"sandbox {box.name} was stopped while it booted")
                if asyncio.get_running_loop().time() > slow:
                    box.life.remark("booting")
                await asyncio.wait({boot}, timeout=0.25)
        finally:
            boot.cancel()
        boot.result()

    # ------------------------------------------------------------------ its end

    async def _terminate(self, box: Box[Handle]) -> None:
        handle = box.handle
        if handle.sandbox is None:
            handle.sandbox = await self._unanswered(handle)
            if handle.sandbox is None:
                return
            box.identify(handle.sandbox.object_id)
        await self._ask_programs_to_end(box)
        if not await at_modal.terminate(handle.sandbox):
            handle.gone = at_modal.not_found(handle.sandbox.object_id)
        handle.ended.set()

    async def _unanswered(self, handle: Handle) -> Any:
        """What a create call made whose answer never came; None when Modal knows of nothing."""
        call = handle.creating
        if call is not None and not call.done():
            call.cancel()
            handle.doubt = asyncio.get_running_loop().time() + self.doubt_period
        elif call is not None and not call.cancelled() and call.exception() is None:
            return call.result()
        try:
            return await self._find(handle)
        except SandboxError:
            # Who may not create may not look either; a refusal says enough.
            if handle.refused:
                return None
            raise

    async def _find(self, handle: Handle) -> Any:
        """The sandbox whose id never became known; None when Modal knows of none with its tags or name."""
        if handle.account is None:
            return None
        found = await handle.account.listed(handle.tags)
        for other in found[1:]:
            await at_modal.terminate(other)
        return found[0] if found else await handle.account.named(handle.name, handle.tags)

    async def _probe(self, box: Box[Handle]) -> Answer:
        handle = box.handle
        if handle.sandbox is None:
            if handle.refused:
                return Answer(True, f"Modal refused to make it: {handle.refused}")
            return await self._probe_by_name(box)
        if handle.gone:
            return Answer(True, handle.gone)
        return await at_modal.probe(handle.sandbox)

    async def _probe_by_name(self, box: Box[Handle]) -> Answer:
        handle = box.handle
        found = await self._find(handle)
        if found is not None:
            handle.sandbox = found
            box.identify(found.object_id)
            if await at_modal.terminate(found):
                return await at_modal.probe(found)
            return Answer(True, at_modal.not_found(found.object_id))
        if asyncio.get_running_loop().time() < handle.doubt:
            return Answer(False, "Modal may still be making it: its answer was lost")
        return Answer(True, f"Modal: there is no sandbox named {handle.name}, and none with its tags")

    def _release(self, box: Box[Handle]) -> None:
        handle = box.handle
        handle.ended.set()
        for command in handle.programs:
            command.close()
        if handle.sandbox is not None:
            self._spawn(_detach(handle.sandbox), "let go of")

    def _cleanup(self, box: Box[Handle]) -> Answer:
        """In a thread of its own, since the loop of this runtime is gone; the SDK's own still runs."""
        return asyncio.run(bounded(self._end_at_exit(box), self.exit_deadline))

    async def _end_at_exit(self, box: Box[Handle]) -> Answer:
        handle = box.handle
        if handle.refused:
            return Answer(True, f"Modal refused to make it: {handle.refused}")
        sandbox = handle.sandbox if handle.sandbox is not None else await self._find(handle)
        if sandbox is None:
            raise SandboxError("its creation was not answered, and Modal knows of none with its name yet")
        if not await at_modal.terminate(sandbox):
            return Answer(True, at_modal.not_found(sandbox.object_id))
        answer = await at_modal.probe(sandbox)
        while not answer.gone:
            await asyncio.sleep(0.5)
            answer = await at_modal.probe(sandbox)
        return answer

    # ------------------------------------------------------------------ network

    async def expose(self, port: int) -> str:
        """See `Runtime.expose`: for the ports that the config names, since Modal must know them beforehand."""
        handle = self._work_here()
        if port not in self.config.expose_ports:
            raise SandboxError(
                f"port {port} of sandbox {self.name} cannot be reached from outside: Modal was not told of it when "
                f"the sandbox was made",
                hint=f"add {port} to expose_ports of the runtime",
            )
        try:
            tunnels = await bounded(handle.sandbox.tunnels.aio(timeout=50), 60.0)
            return str(tunnels[port].url)
        except Exception as e:
            raise sdk.trouble(f"port {port} of sandbox {self.name} cannot be reached from outside", e) from e

    def host_url(self, url: str) -> str:
        """See `Runtime.host_url`: only what is not on this host's loopback can be reached."""
        from urllib.parse import urlsplit

        host = urlsplit(url).hostname or ""
        if host in ("localhost", "::1", "0.0.0.0", "::") or host.startswith("127."):  # noqa: S104 - compared
            raise SandboxError(
                f"a Modal sandbox cannot reach {url}, which is on this host",
                hint="a tunnel is needed: see [env.interception]",
            )
        return url


async def _detach(sandbox: Any) -> None:
    try:
        await bounded(sandbox.detach.aio(), 5.0)
    except Exception as e:
        log.info("connections of %s were not closed: %s", sandbox.object_id, sdk.say(e))
