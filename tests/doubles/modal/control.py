"""The double's control plane: the calls of `modal.client.ModalClient` that our runtime makes the SDK make."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import time
from typing import Any

from google.protobuf.empty_pb2 import Empty
from grpclib import GRPCError, Status
from modal_proto import api_pb2

from doubles.faults import Faults
from doubles.modal.state import Result, Sandbox, World


def jwt(lifetime: float = 3600) -> str:
    """A token that says when it expires, which is all that the SDK reads of it."""

    def part(data: dict[str, Any]) -> str:
        return base64.urlsafe_b64encode(json.dumps(data).encode()).rstrip(b"=").decode()

    return f"{part({})}.{part({'exp': time.time() + lifetime})}.x"


class ControlPlane:
    """Handlers by the names of the calls; those of the second generation end in V2 and share the first's."""

    world: World
    faults: Faults
    page: int
    url: str

    # ------------------------------------------------------------------ session, apps, images

    async def ClientHello(self, stream: Any) -> None:
        await stream.recv_message()
        await stream.send_message(api_pb2.ClientHelloResponse())

    async def AuthTokenGet(self, stream: Any) -> None:
        await stream.recv_message()
        await stream.send_message(api_pb2.AuthTokenGetResponse(token=jwt()))

    async def AppGetOrCreate(self, stream: Any) -> None:
        query = await stream.recv_message()
        create = query.object_creation_type == api_pb2.OBJECT_CREATION_TYPE_CREATE_IF_MISSING
        id = self.world.app(query.app_name, create=create)
        await stream.send_message(api_pb2.AppGetOrCreateResponse(app_id=id))

    async def EnvironmentGetOrCreate(self, stream: Any) -> None:
        await stream.recv_message()
        settings = api_pb2.EnvironmentSettings(image_builder_version="2025.06")
        metadata = api_pb2.EnvironmentMetadata(name="main", settings=settings)
        await stream.send_message(
            api_pb2.EnvironmentGetOrCreateResponse(environment_id="en-1", metadata=metadata)
        )

    async def ImageGetOrCreate(self, stream: Any) -> None:
        query = await stream.recv_message()
        images = self.world.images
        id = images.setdefault(query.image.SerializeToString(), f"im-{len(images) + 1:022d}")
        bad = any("no-such-image" in command for command in query.image.dockerfile_commands)
        result = Result(status=Result.GENERIC_STATUS_FAILURE if bad else Result.GENERIC_STATUS_SUCCESS)
        result.exception = "no such image in the registry" if bad else ""
        await stream.send_message(
            api_pb2.ImageGetOrCreateResponse(
                image_id=id,
                result=result,
                metadata=api_pb2.ImageMetadata(image_builder_version=query.builder_version),
            )
        )

    async def SecretGetOrCreate(self, stream: Any) -> None:
        """Of the first generation only: variables travel as a secret without a name."""
        query = await stream.recv_message()
        id = f"st-{len(self.world.secrets) + 1:022d}"
        self.world.secrets[id] = dict(query.env_dict)
        await stream.send_message(api_pb2.SecretGetOrCreateResponse(secret_id=id))

    # ------------------------------------------------------------------ sandboxes

    async def SandboxCreate(self, stream: Any) -> None:
        v2 = "V2" in stream._method_name
        query = await stream.recv_message()
        env: dict[str, str] = {}
        for id in query.definition.secret_ids:
            env |= self.world.secrets.get(id, {})
        for source in getattr(query, "secret_sources", ()):
            env |= dict(source.env.contents)
        sandbox = await self.world.make(
            query.definition,
            query.app_id,
            query.tags,
            env,
            v2=v2,
            key=stream.metadata.get("x-idempotency-key"),
        )
        metadata = api_pb2.SandboxHandleMetadata(app_id=sandbox.app)
        if not v2:
            await stream.send_message(api_pb2.SandboxCreateResponse(sandbox_id=sandbox.id, metadata=metadata))
            return
        await stream.send_message(
            api_pb2.SandboxCreateV2Response(
                sandbox_id=sandbox.id,
                task_id=sandbox.task,
                metadata=metadata,
                tunnels=_tunnels(sandbox),
                command_router_access=api_pb2.CommandRouterAccess(url=self.url, jwt=jwt()),
            )
        )

    async def SandboxWait(self, stream: Any) -> None:
        query = await stream.recv_message()
        sandbox = self.world.sandbox(query.sandbox_id)
        if query.timeout:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(sandbox.ended.wait(), query.timeout)
        metadata = api_pb2.SandboxHandleMetadata(app_id=sandbox.app, result=sandbox.result)
        await stream.send_message(api_pb2.SandboxWaitResponse(result=sandbox.result, metadata=metadata))

    async def SandboxTerminate(self, stream: Any) -> None:
        query = await stream.recv_message()
        sandbox = self.world.sandbox(query.sandbox_id)
        before, sandbox.terminated = sandbox.result, sandbox.terminated + 1
        linger = self.faults.take(f"linger {sandbox.id} {sandbox.name}", ("linger",))
        if linger:
            asyncio.get_running_loop().call_later(
                linger.seconds, self.world.finish, sandbox, Result.GENERIC_STATUS_TERMINATED
            )
        else:
            self.world.finish(sandbox, Result.GENERIC_STATUS_TERMINATED)
        await stream.send_message(api_pb2.SandboxTerminateResponse(existing_result=before))

    async def SandboxList(self, stream: Any) -> None:
        query = await stream.recv_message()
        await stream.send_message(
            api_pb2.SandboxListResponse(
                sandboxes=[
                    api_pb2.SandboxInfo(
                        id=sandbox.id,
                        created_at=sandbox.created,
                        app_id=sandbox.app,
                        task_info=api_pb2.TaskInfo(id=sandbox.task, result=sandbox.result),
                        metadata=api_pb2.SandboxHandleMetadata(app_id=sandbox.app),
                    )
                    for sandbox in self.world.page(query, self.page)
                ]
            )
        )

    async def SandboxTagsGet(self, stream: Any) -> None:
        sandbox = self.world.sandbox((await stream.recv_message()).sandbox_id)
        tags = [api_pb2.SandboxTag(tag_name=key, tag_value=value) for key, value in sandbox.tags.items()]
        await stream.send_message(api_pb2.SandboxTagsGetResponse(tags=tags))

    async def SandboxTagsSet(self, stream: Any) -> None:
        query = await stream.recv_message()
        sandbox = self.world.sandbox(query.sandbox_id)
        sandbox.tags = {tag.tag_name: tag.tag_value for tag in query.tags}
        await stream.send_message(Empty())

    async def SandboxGetTaskId(self, stream: Any) -> None:
        sandbox = self.world.sandbox((await stream.recv_message()).sandbox_id)
        if sandbox.result is not None:
            answer = api_pb2.SandboxGetTaskIdResponse(task_result=sandbox.result)
        elif sandbox.booted.is_set():
            answer = api_pb2.SandboxGetTaskIdResponse(task_id=sandbox.task)
        else:
            answer = api_pb2.SandboxGetTaskIdResponse()
        await stream.send_message(answer)

    async def SandboxGetTunnels(self, stream: Any) -> None:
        sandbox = self.world.sandbox((await stream.recv_message()).sandbox_id)
        await stream.send_message(
            api_pb2.SandboxGetTunnelsResponse(
                result=Result(status=Result.GENERIC_STATUS_SUCCESS), tunnels=_tunnels(sandbox)
            )
        )

    async def SandboxGetCommandRouterAccess(self, stream: Any) -> None:
        await stream.recv_message()
        await stream.send_message(api_pb2.SandboxGetCommandRouterAccessResponse(url=self.url, jwt=jwt()))

    async def TaskGetCommandRouterAccess(self, stream: Any) -> None:
        await stream.recv_message()
        await stream.send_message(api_pb2.TaskGetCommandRouterAccessResponse(url=self.url, jwt=jwt()))

    async def SandboxGetFromName(self, stream: Any) -> None:
        query = await stream.recv_message()
        app = self.world.app(query.app_name, create=False)
        sandbox = self.world.named(app, query.sandbox_name)
        v2 = "V2" in stream._method_name
        # Each generation finds its own.
        if sandbox is None or sandbox.task.endswith("V") != v2:
            raise GRPCError(Status.NOT_FOUND, f"Sandbox {query.sandbox_name} not found")
        metadata = api_pb2.SandboxHandleMetadata(app_id=sandbox.app)
        await stream.send_message(
            api_pb2.SandboxGetFromNameResponse(sandbox_id=sandbox.id, metadata=metadata)
        )


def _tunnels(sandbox: Sandbox) -> list[Any]:
    out = []
    for spec in sandbox.definition.open_ports.ports:
        plain = {"unencrypted_host": "127.0.0.1", "unencrypted_port": spec.port} if spec.unencrypted else {}
        out.append(api_pb2.TunnelData(host="127.0.0.1", port=spec.port, container_port=spec.port, **plain))
    return out
