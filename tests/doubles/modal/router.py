"""The double's task command router: commands in sandboxes, their streams from any offset, their ends."""

from __future__ import annotations

from typing import Any

from grpclib import GRPCError, Status
from modal_proto import task_command_router_pb2 as router_pb2

from doubles.modal.guest import Exec
from doubles.modal.state import Sandbox, World


class CommandRouter:
    """Handlers by the names of the calls."""

    world: World

    def _sandbox(self, task: str) -> Sandbox:
        sandbox = self.world.tasks.get(task)
        if sandbox is None or sandbox.result is not None:
            raise GRPCError(Status.NOT_FOUND, f"task {task} not found")
        return sandbox

    def _exec(self, query: Any) -> Exec:
        self._sandbox(query.task_id)
        if query.exec_id not in self.world.execs:
            raise GRPCError(Status.NOT_FOUND, f"exec {query.exec_id} not found")
        return self.world.execs[query.exec_id]

    async def TaskExecStart(self, stream: Any) -> None:
        query = await stream.recv_message()
        sandbox = self._sandbox(query.task_id)
        await sandbox.booted.wait()
        if query.exec_id not in self.world.execs:  # it is the idempotency key
            env: dict[str, str] = {}
            for source in query.secret_sources:
                env |= dict(source.env.contents)
            command = await self.world.start(
                sandbox, list(query.command_args), query.workdir, env, query.timeout_secs
            )
            self.world.execs[query.exec_id] = command
            sandbox.execs.append(command)
            if sandbox.result is not None:
                command.kill()
        await stream.send_message(router_pb2.TaskExecStartResponse())

    async def TaskExecStdioRead(self, stream: Any) -> None:
        query = await stream.recv_message()
        async for data in self._exec(query).output.read(_fd(query), query.offset):
            await stream.send_message(router_pb2.TaskExecStdioReadResponse(data=data))

    async def SandboxStdioRead(self, stream: Any) -> None:
        query = await stream.recv_message()
        main, offset = self.world.tasks[query.task_id].main, query.offset
        async for data in main.output.read(_fd(query), offset):
            await stream.send_message(
                router_pb2.SandboxStdioReadV2Response(data=data, starting_offset=offset)
            )
            offset += len(data)

    async def TaskExecStdinWrite(self, stream: Any) -> None:
        query = await stream.recv_message()
        await self._exec(query).write(query.offset, query.data, query.eof)
        await stream.send_message(router_pb2.TaskExecStdinWriteResponse())

    async def TaskExecStdinWriteStream(self, stream: Any) -> None:
        start = (await stream.recv_message()).start
        command = self._exec(start)
        async for message in stream:
            if message.WhichOneof("payload") == "end":
                await command.write(command.written, b"", True)
                break
            await command.write(command.written, message.data, False)
        await stream.send_message(router_pb2.TaskExecStdinWriteStreamResponse())

    async def TaskExecStdinStatus(self, stream: Any) -> None:
        command = self._exec(await stream.recv_message())
        await stream.send_message(
            router_pb2.TaskExecStdinStatusResponse(num_bytes_written=command.written, closed=command.closed)
        )

    async def TaskExecPoll(self, stream: Any) -> None:
        command = self._exec(await stream.recv_message())
        await stream.send_message(router_pb2.TaskExecPollResponse(**command.status))

    async def TaskExecWait(self, stream: Any) -> None:
        query = await stream.recv_message()
        command = self._exec(query)
        await command.over.wait()
        self._sandbox(query.task_id)
        await stream.send_message(router_pb2.TaskExecWaitResponse(**command.status))


def _fd(query: Any) -> int:
    kind = query.DESCRIPTOR.fields_by_name["file_descriptor"].enum_type
    return 1 if kind.values_by_number[query.file_descriptor].name.endswith("STDOUT") else 2
