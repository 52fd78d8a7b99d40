"""Merging live events of one rollout until they are let go: bounded, and the fold comes out the same."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from vf_core.events import types as ev
from vf_core.events.state import OUTPUT_KEPT, TEXT_KEPT

_SLACK = 4


class _Held:
    """What is held of one kind: the last event, and the text parts since the first."""

    __slots__ = ("id", "last", "name", "parts", "size")

    def __init__(self) -> None:
        self.last: ev.RolloutEvent
        self.parts: list[str] = []
        self.size = 0
        self.name = ""
        self.id = ""


class LiveBuffer:
    """Live events of one rollout, merged by kind. Little more is held than the fold keeps."""

    __slots__ = ("_held",)

    def __init__(self) -> None:
        self._held: dict[tuple[Any, ...], _Held] = {}

    def add(self, event: ev.RolloutEvent) -> None:
        """Hold `event`."""
        if isinstance(event, ev.TextDelta):
            held = self._of(("text", event.attempt, event.call, event.reasoning))
            _keep_tail(held, event.text, TEXT_KEPT)
        elif isinstance(event, ev.ToolDelta):
            held = self._of(("tool", event.attempt, event.call, event.index))
            held.name = (held.name + event.name)[: ev.NAME_LIMIT]
            held.id = held.id or event.id
            if held.size < ev.ARGUMENTS_LIMIT:
                held.parts.append(event.arguments)
                held.size += len(event.arguments)
        elif isinstance(event, ev.OutputChunk):
            held = self._of(("output", event.attempt, event.stream))
            _keep_tail(held, event.text, OUTPUT_KEPT)
        else:
            held = self._of((event.type, event.attempt))
        held.last = event

    def _of(self, key: tuple[Any, ...]) -> _Held:
        held = self._held.get(key)
        if held is None:
            held = self._held[key] = _Held()
        return held

    def merged(self) -> list[ev.RolloutEvent]:
        """One event a kind, in the order in which the kinds first came, each with the time of its last part."""
        out: list[ev.RolloutEvent] = []
        for held in self._held.values():
            event = held.last
            if isinstance(event, ev.TextDelta | ev.OutputChunk):
                if len(held.parts) > 1 or held.parts[0] is not event.text:
                    event = replace(event, text="".join(held.parts))
            elif isinstance(event, ev.ToolDelta):
                arguments = "".join(held.parts)[: ev.ARGUMENTS_LIMIT]
                event = replace(event, id=held.id, name=held.name, arguments=arguments)
            out.append(event)
        return out


def _keep_tail(held: _Held, text: str, keep: int) -> None:
    held.parts.append(text)
    held.size += len(text)
    if held.size > _SLACK * keep:
        held.parts = ["".join(held.parts)[-keep:]]
        held.size = keep
