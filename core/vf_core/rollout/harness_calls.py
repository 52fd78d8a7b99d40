"""Calling a harness: ours on the engine's loop, other people's where they can block only themselves."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from vf_core.errors import HarnessError, boundary
from vf_core.harnesses.base import ExitMeaning, ModelContext, describe_exit
from vf_core.runtimes.base import ProgramResult
from vf_core.tasks.calls import Sink, call, in_thread, is_ours
from vf_core.text import one_line

if TYPE_CHECKING:
    from vf_core.harnesses.base import Harness
    from vf_core.runtimes.base import OutputSink, Runtime
    from vf_core.trace.record import Trace

_KINDS = ("ok", "declined", "failed")
_TEXT_LIMIT = 200
_WORDS_LIMIT = 48
_MEANING_SECONDS = 10.0


def _what(harness: Harness[Any], method: str = "") -> str:
    return f"harness {harness.config.id!r} {method}".rstrip()


async def set_up(harness: Harness[Any], runtime: Runtime) -> None:
    """`Harness.setup`. Raises HarnessError for whatever it raises that is no RolloutError."""
    async with boundary(HarnessError, _what(harness, "setup")):
        if is_ours(harness):
            await harness.setup(runtime)
        else:
            await call(harness.setup, [runtime], runtime=runtime, what=_what(harness, "setup"))


async def launch(  # noqa: PLR0917
    harness: Harness[Any],
    ctx: ModelContext,
    trace: Trace[Any, Any],
    runtime: Runtime,
    endpoint: str,
    secret: str,
    mcp_urls: Mapping[str, str],
    on_output: OutputSink,
) -> ProgramResult:
    """`Harness.launch`. Raises HarnessError for whatever it raises that is no RolloutError, and for a result that is
    none."""
    async with boundary(HarnessError, _what(harness)):
        if is_ours(harness):
            return await harness.launch(ctx, trace, runtime, endpoint, secret, mcp_urls, on_output)
        sink = Sink(on_output)
        try:
            args = [ctx, trace, runtime, endpoint, secret, mcp_urls, sink]
            result = await call(harness.launch, args, runtime=runtime, what=_what(harness, "launch"))
        finally:
            sink.close()
    if not isinstance(result, ProgramResult):
        raise HarnessError(f"{_what(harness)}: launch gave a {type(result).__name__}, not a ProgramResult")
    return result


async def exit_meaning(harness: Harness[Any], code: int) -> ExitMeaning:
    """`Harness.exit_meaning`, its text with the code in it. Raises HarnessError for whatever it raises, and for an
    answer that is none."""
    if is_ours(harness):
        return harness.exit_meaning(code)
    what = _what(harness, "exit_meaning")
    async with boundary(HarnessError, what), asyncio.timeout(_MEANING_SECONDS):
        meaning = await in_thread(harness.exit_meaning, code)
    if (
        not isinstance(meaning, ExitMeaning)
        or meaning.kind not in _KINDS
        or not isinstance(meaning.text, str)
    ):
        raise HarnessError(f"{what} gave {repr(meaning)[:_TEXT_LIMIT]}, not an ExitMeaning")
    return replace(meaning, text=_with_code(meaning.text, code))


def _with_code(text: str, code: int) -> str:
    """What a program's end is called, on one line that a screen shows whole; the raw code is always seen."""
    text = one_line(text, limit=_WORDS_LIMIT)
    if re.search(rf"(?<!\d){abs(code)}(?!\d)", text):
        return text
    return f"{text} ({code})" if text else describe_exit(code)
