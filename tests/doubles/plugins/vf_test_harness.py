"""A harness whose program is a shell script: the task's prompt. It makes no model calls unless the script does."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vf_core.harnesses.base import Harness, HarnessConfig, ModelContext
from vf_core.runtimes.base import OutputSink, ProgramResult, Runtime
from vf_core.trace.record import Trace

__all__ = ["ShellHarness"]


class ShellHarness(Harness[HarnessConfig]):
    """Runs the prompt with bash; `$URL` and `$SECRET` reach the interception server. Exit code 4: declined."""

    EXIT_DECLINED = 4

    async def launch(
        self,
        ctx: ModelContext,
        trace: Trace[Any, Any],
        runtime: Runtime,
        endpoint: str,
        secret: str,
        mcp_urls: Mapping[str, str],
        on_output: OutputSink,
    ) -> ProgramResult:
        return await runtime.run_program(
            ["bash", "-c", trace.task.data.prompt_text],
            {**self.config.resolved_env, "URL": endpoint, "SECRET": secret},
            on_output=on_output,
        )
