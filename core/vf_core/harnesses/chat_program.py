"""What the harnesses with a program of our own share: `bash` and `null`."""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, TypeVar

from vf_core.errors import HarnessError
from vf_core.harnesses.base import Harness, HarnessConfig, ModelContext, check_names, wire_messages
from vf_core.harnesses.program.assemble import program_source

if TYPE_CHECKING:
    from vf_core.runtimes.base import OutputSink, ProgramResult, Runtime
    from vf_core.trace.record import Trace

_ARGUMENT_LIMIT = 100 * 1024
"""Bytes: Linux takes 128 KiB in one argument."""

# Nobody is there to turn a page, to fill in an editor, or to type a password.
NO_TERMINAL = {
    "PAGER": "cat",
    "GIT_PAGER": "cat",
    "GIT_EDITOR": ":",
    "GIT_TERMINAL_PROMPT": "0",
    "TERM": "dumb",
}


class ChatProgramConfig(HarnessConfig):
    """Options of the chat loop. `stream`: ask the model for its answer in pieces, so that it is seen growing."""

    stream: bool = True


ProgramConfigT = TypeVar("ProgramConfigT", bound=ChatProgramConfig)


class ChatProgramHarness(Harness[ProgramConfigT]):
    """Runs one of the shipped programs. Messages go to it by file, never on the command line."""

    SUPPORTS_MCP = True
    SUPPORTS_MESSAGE_PROMPT = True
    APPENDS_SYSTEM_PROMPT = True
    EXIT_DECLINED = 4
    PROGRAM: ClassVar[Path]
    """The program's main file."""

    @abstractmethod
    def own_tools(self) -> list[str]:
        """The tools that the program brings, by name."""

    def own_flags(self) -> list[str]:
        """Flags beyond those that all programs have."""
        return []

    def system_prompt(self, task: str | None) -> str | None:
        """The whole system prompt, given the task's."""
        return task

    def environment(self) -> dict[str, str]:
        """The program's extra variables; its tools' commands inherit them."""
        return {**NO_TERMINAL, **self.config.resolved_env}

    def validate(self) -> None:
        """See `Harness.validate`."""
        # An MCP tool's name (`<server>_<tool>`) is known only to its server.
        own = [name for name in self.config.disabled_tools if "_" not in name]
        check_names("tool", own, self.own_tools(), key="env.agent.harness.disabled_tools")

    async def setup(self, runtime: Runtime) -> None:
        """See `Harness.setup`: the program is put where it is run from."""
        await runtime.prepare_script(program_source(self.PROGRAM))

    async def launch(  # noqa: PLR0917
        self,
        ctx: ModelContext,
        trace: Trace,
        runtime: Runtime,
        endpoint: str,
        secret: str,
        mcp_urls: Mapping[str, str],
        on_output: OutputSink,
    ) -> ProgramResult:
        """See `Harness.launch`."""
        system, prompt = self.resolve_prompt(trace.task.data)
        file = f".vf-messages-{trace.id}.json"
        messages = wire_messages(self.system_prompt(system), prompt)
        await runtime.write(file, json.dumps(messages).encode())
        flags = [
            f"--base-url={endpoint}",
            f"--api-key={secret}",
            f"--model={ctx.model}",
            f"--initial-messages-file={file}",
            *self.own_flags(),
            *(f"--disable={name}" for name in self.config.disabled_tools),
        ]
        if not self.config.stream:
            flags.append("--no-stream")
        if mcp_urls:
            servers = {name: {"url": url} for name, url in mcp_urls.items()}
            flags.append("--mcp-config=" + json.dumps({"mcpServers": servers}))
        for flag in flags:
            if len(flag) > _ARGUMENT_LIMIT:
                raise HarnessError(
                    f"{flag.partition('=')[0]} is too long to be passed ({len(flag)} characters)"
                )
        program = await runtime.prepare_script(program_source(self.PROGRAM))
        return await runtime.run_program([*program, *flags], self.environment(), on_output=on_output)
