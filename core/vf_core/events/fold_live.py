"""How live events change a rollout: what is being generated or printed right now."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from vf_core.events import types as ev
from vf_core.events.fold_rollout import drop_partial
from vf_core.events.state import (
    OUTPUT_KEPT,
    OUTPUT_KEPT_ENDED,
    PARTIAL_KEPT,
    TEXT_KEPT,
    RolloutView,
    RunState,
    ToolView,
)


def _text(state: RunState, r: RolloutView, e: ev.TextDelta) -> None:
    # Of calls that overlap, the last one begun is shown.
    if e.call != r.model_call or r.model_since is None:
        return
    r.last_progress = e.t
    if e.reasoning:
        r.reasoning = (r.reasoning + e.text)[-TEXT_KEPT:]
    else:
        r.text = (r.text + e.text)[-TEXT_KEPT:]


def _tool_delta(state: RunState, r: RolloutView, e: ev.ToolDelta) -> None:
    if e.call != r.model_call or r.model_since is None:
        return
    r.last_progress = e.t
    partial = 0
    for tool in reversed(r.tools):
        if not tool.partial:
            break
        partial += 1
        if tool.index == e.index:
            tool.name = (tool.name + e.name)[: ev.NAME_LIMIT]
            tool.id = tool.id or e.id
            tool.arguments = (tool.arguments + e.arguments)[: ev.ARGUMENTS_LIMIT]
            return
    if partial < PARTIAL_KEPT:
        r.tools.append(_partial(e.index, e.id, e.name, e.arguments, e.t))


def _output(state: RunState, r: RolloutView, e: ev.OutputChunk) -> None:
    r.last_progress = e.t
    r.output = (r.output + e.text)[-(OUTPUT_KEPT_ENDED if r.ended_status else OUTPUT_KEPT) :]


def _live_now(state: RunState, r: RolloutView, e: ev.LiveNow) -> None:
    r.last_progress = max(r.last_progress, e.progress)
    r.text, r.reasoning = e.text[-TEXT_KEPT:], e.reasoning[-TEXT_KEPT:]
    r.output = e.output[-OUTPUT_KEPT:]
    drop_partial(r)
    r.tools.extend(_partial(**tool) for tool in e.tools[:PARTIAL_KEPT])


def _partial(index: int, id: str, name: str, arguments: str, started: float) -> ToolView:
    return ToolView(
        id=id,
        name=name[: ev.NAME_LIMIT],
        arguments=arguments[: ev.ARGUMENTS_LIMIT],
        started=started,
        partial=True,
        index=index,
    )


def live_now(r: RolloutView) -> ev.LiveNow:
    """All that live events have built up in `r`: folded into a view that lacks them it gives `r` again."""
    return ev.LiveNow(
        rollout=r.id,
        attempt=r.attempt,
        text=r.text,
        reasoning=r.reasoning,
        output=r.output,
        tools=tuple(
            {"index": t.index, "id": t.id, "name": t.name, "arguments": t.arguments, "started": t.started}
            for t in r.tools
            if t.partial
        ),
        progress=r.last_progress,
    )


HANDLERS: dict[type[ev.Event], Callable[[RunState, RolloutView, Any], None]] = {
    ev.TextDelta: _text,
    ev.ToolDelta: _tool_delta,
    ev.OutputChunk: _output,
    ev.LiveNow: _live_now,
}
