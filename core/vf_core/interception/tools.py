"""Which tool calls are open: asked for by the model, their results not yet back."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from vf_core.events import types as ev
from vf_core.text import bound
from vf_core.trace.types import ToolCall


class ToolWatch:
    """Pairs a rollout's tool calls with their results, for the events that tell of them.

    Providers may leave ids out or use them twice; an event's `id` is unique within the attempt all the same.
    """

    def __init__(self) -> None:
        self._open: dict[str, list[tuple[str, float]]] = {}
        self._used: set[str] = set()

    def called(
        self, rollout: str, attempt: int, call: int, tools: Sequence[ToolCall]
    ) -> Iterator[ev.ToolCalled]:
        """The events for the tool calls of call number `call`'s reply."""
        now = time.monotonic()
        for i, tool in enumerate(tools):
            ident = tool.id if tool.id and tool.id not in self._used else f"{tool.id or 'call'}#{call}.{i}"
            self._used.add(ident)
            self._open.setdefault(tool.id, []).append((ident, now))
            yield ev.ToolCalled(
                rollout=rollout,
                attempt=attempt,
                call=call,
                id=ident,
                name=bound(tool.name, 200),
                arguments=bound(tool.arguments, ev.ARGUMENTS_LIMIT),
            )

    def returned(
        self, rollout: str, attempt: int, messages: Sequence[Mapping[str, Any]]
    ) -> Iterator[ev.ToolReturned]:
        """The events for the results at the end of a request's `messages`, in their order."""
        if not self._open:
            return
        start = len(messages)
        while start and messages[start - 1].get("role") != "assistant":
            start -= 1
        now = time.monotonic()
        for message in messages[start:]:
            if message.get("role") not in ("tool", "function"):
                continue
            wire = message.get("tool_call_id")
            known = self._open.get(wire if isinstance(wire, str) else "")
            if not known:
                continue
            ident, since = known.pop(0)
            if not known:
                del self._open[wire if isinstance(wire, str) else ""]
            text = _text(message.get("content"))
            yield ev.ToolReturned(
                rollout=rollout,
                attempt=attempt,
                id=ident,
                result=bound(text, ev.RESULT_LIMIT),
                seconds=now - since,
                failed=text.startswith("error:"),
            )


def _text(content: Any) -> str:
    """A result's text; its images are named only."""
    if isinstance(content, str):
        return content
    texts: list[str] = []
    for part in content if isinstance(content, list) else ():
        if isinstance(part, dict):
            text = part.get("text")
            texts.append(text if isinstance(text, str) else f"[{str(part.get('type'))[:40]}]")
    return "\n".join(texts)
