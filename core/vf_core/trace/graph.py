"""Recording conversations as a graph: each message once, a branch wherever a request leaves what is known.

This is on the hot path of every model call. The wire messages of a request are compared as dicts with those of
the latest conversations, which costs microseconds; typed messages are looked at only where that fails, as for
the model's own reply when the harness sends it back in its own form.
"""

from __future__ import annotations

import json
import time
from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING, Any

from vf_core.trace.nodes import MessageNode, parent_of
from vf_core.trace.types import (
    AssistantMessage,
    Message,
    MessageContent,
    TextContentPart,
    ToolCall,
    ToolMessage,
)
from vf_core.trace.wire import parse_assistant, parse_message, parse_tools

if TYPE_CHECKING:
    from vf_core.trace.record import Trace

HEADS_KEPT = 32
_UNSEEN = object()  # the wire form of a reply that was given typed: equal to nothing


class Head:
    """The latest state of one conversation: its nodes, and each message as it was last seen on the wire."""

    __slots__ = ("nodes", "wire")

    def __init__(self, nodes: list[int], wire: list[Any]) -> None:
        self.nodes = nodes
        self.wire = wire


class Match:
    """How much of a request is known: the nodes of its prefix, the head it was found on (None: in the index), and
    the positions where the wire form differs from the one remembered."""

    __slots__ = ("echoes", "head", "nodes", "size")

    def __init__(self, nodes: list[int], head: Head | None, echoes: Sequence[int], size: int) -> None:
        self.nodes = nodes
        self.head = head
        self.echoes = echoes
        self.size = size


class Graph:
    """Finds known prefixes in a trace's nodes. It holds nothing that can't be rebuilt from them."""

    __slots__ = ("_children", "_indexed", "_tools", "_twins", "heads", "inner", "nodes")

    def __init__(self, nodes: list[MessageNode]) -> None:
        self.nodes = nodes
        self.heads: list[Head] = []
        self.inner = {node.parent for node in nodes}
        """Nodes that something follows; None stands for the beginning of a conversation."""
        self._children: dict[int | None, dict[Hashable, list[int]]] = {}
        self._indexed = 0
        self._tools: Any = None
        self._twins = False

    def match(self, messages: Sequence[Any]) -> Match:
        """The longest known prefix of `messages`."""
        best = Match([], None, (), len(self.nodes))
        for head in self.heads:
            if len(head.wire) > len(best.nodes) and (echoes := self._goes_on(head, messages)) is not None:
                best = Match(head.nodes, head, echoes, best.size)
        # A reply among what is new is one that was not given on this branch: it may be known elsewhere.
        if best.head is not None and not any(map(_is_reply, messages[len(best.nodes) :])):
            return best
        for head in self.heads:
            length, echoes = self._along(head, messages)
            if length > len(best.nodes):
                best = Match(head.nodes[:length], head, echoes, best.size)
        return self._extend(best, messages)

    def _goes_on(self, head: Head, messages: Sequence[Any]) -> Sequence[int] | None:
        """Whether `messages` hold all of `head`: None, or the positions whose wire form is new."""
        known = len(head.wire)
        if len(messages) < known or head.wire[: known - 1] != messages[: known - 1]:
            return None
        # All but the model's own reply is as before: nearly always its next turn.
        if head.wire[-1] == messages[known - 1]:
            return ()
        last = self.nodes[head.nodes[-1]].message
        return (known - 1,) if same_message(parse_message(messages[known - 1]), last) else None

    def _along(self, head: Head, messages: Sequence[Any]) -> tuple[int, Sequence[int]]:
        """How many messages agree with `head`, and which of them only after reading them."""
        echoes: list[int] = []
        length = min(len(head.wire), len(messages))
        for i in range(length):
            if messages[i] != head.wire[i]:
                if not same_message(parse_message(messages[i]), self.nodes[head.nodes[i]].message):
                    return i, echoes
                echoes.append(i)
        return length, echoes

    def _extend(self, found: Match, messages: Sequence[Any]) -> Match:
        """Go on from `found` by the index: along a branch that no head remembers."""
        self._index()
        known = list(found.nodes)
        if self._twins:
            known = []  # the prefix may stand in the graph twice, and go on at the other place
        ends: list[int | None] = [known[-1] if known else None]
        length = len(known)
        for raw in messages[length:]:
            message = parse_message(raw)
            key = message_key(message)
            below = [n for end in ends for n in self._children.get(end, {}).get(key, ())]
            below = [n for n in below if same_message(message, self.nodes[n].message)]
            if not below:
                break
            ends = list(below)
            length += 1
        if length <= len(found.nodes):
            return found
        return Match(self._path(ends[-1]), None, (), found.size)

    def _path(self, node: int | None) -> list[int]:
        path: list[int] = []
        while node is not None:
            path.append(node)
            node = parent_of(self.nodes, node)
        return path[::-1]

    def _index(self) -> None:
        for i in range(self._indexed, len(self.nodes)):
            node = self.nodes[i]
            alike = self._children.setdefault(node.parent, {}).setdefault(message_key(node.message), [])
            alike.append(i)
            self._twins = self._twins or len(alike) > 1
        self._indexed = len(self.nodes)

    def add(self, messages: Sequence[Any], match: Match, reply: AssistantMessage, raw: Any) -> int:
        """Append what `messages` brings beyond `match`, and the model's `reply`; the reply's index."""
        now = time.time()
        known = len(match.nodes)
        parent = match.nodes[-1] if known else None
        added: list[int] = []
        for wire in messages[known:]:
            parent = self._append(parent, parse_message(wire), False, now)
            added.append(parent)
        parent = self._append(parent, reply, True, now)
        added.append(parent)
        self._remember(messages, match, added, raw)
        return parent

    def _append(self, parent: int | None, message: Message, sampled: bool, now: float) -> int:
        self.nodes.append(MessageNode(parent=parent, message=message, sampled=sampled, timestamp=now))
        self.inner.add(parent)
        return len(self.nodes) - 1

    def _remember(self, messages: Sequence[Any], match: Match, added: list[int], raw: Any) -> None:
        head, known = match.head, len(match.nodes)
        for i in match.echoes:
            head.wire[i] = messages[i]  # type: ignore[union-attr]
        if head is not None and known == len(head.nodes):
            head.nodes += added
            head.wire += messages[known:]
            head.wire.append(raw)
            if self.heads[0] is head:
                return
            self.heads.remove(head)
        else:
            # The remembered dicts, not the request's equal ones: a history is held once.
            wire = head.wire[:known] if head is not None else list(messages[:known])
            head = Head([*match.nodes, *added], [*wire, *messages[known:], raw])
        self.heads.insert(0, head)
        del self.heads[HEADS_KEPT:]

    def new_tools(self, tools: Any) -> bool:
        """Whether `tools` differ from the last ones asked about."""
        if tools == self._tools:
            return False
        self._tools = tools
        return True


class PendingTurn:
    """A request whose known prefix was found, waiting for the model's reply. Making it changed nothing."""

    __slots__ = ("_done", "_graph", "_match", "_trace", "messages")

    def __init__(self, trace: Trace, graph: Graph, messages: Sequence[Any]) -> None:
        self._trace = trace
        self._graph = graph
        self._match = graph.match(messages)
        self._done = False
        self.messages = messages

    @property
    def known(self) -> int:
        """How many of the request's messages are in the graph already."""
        return len(self._match.nodes)

    @property
    def tail(self) -> Sequence[Any]:
        """The request's messages that are new, as on the wire: tool results, usually."""
        return self.messages[self.known :]

    @property
    def parent(self) -> int | None:
        """Index of the last known message; None when the request opens a conversation."""
        return self._match.nodes[-1] if self._match.nodes else None

    @property
    def forks(self) -> bool:
        """The turn will stand beside another one: the graph branches here, or a second conversation opens."""
        return self.parent in self._graph.inner

    def commit(self, assistant: AssistantMessage | dict[str, Any], *, tools: Any = None) -> int:
        """Record the turn: the new messages of the request and the model's reply. Returns the reply's node index.

        `assistant` is typed, or the `message` of a completion; `tools` is the request's own list (None or empty:
        what was offered before stands). Once only. Raises RuntimeError on a second call.
        """
        if self._done:
            raise RuntimeError("this turn is recorded already")
        self._done = True
        graph = self._graph
        if len(graph.nodes) != self._match.size:
            # Another request of this rollout was answered meanwhile: it may have brought the same messages.
            self._match = graph.match(self.messages)
        if isinstance(assistant, AssistantMessage):
            reply, raw = assistant, _UNSEEN
        else:
            reply, raw = parse_assistant(assistant), assistant
        node = graph.add(self.messages, self._match, reply, raw)
        if tools and graph.new_tools(tools):
            self._trace.tools = parse_tools(tools) or self._trace.tools
        return node


def _is_reply(raw: Any) -> bool:
    return isinstance(raw, dict) and raw.get("role") == "assistant"


def prepare_turn(trace: Trace, messages: Sequence[Any]) -> PendingTurn:
    """Find what is known of a request's `messages` (wire dicts). The caller must not change them afterwards."""
    return PendingTurn(trace, trace.graph, messages if isinstance(messages, list) else list(messages))


def same_message(new: Message, known: Message) -> bool:
    """Whether a request's message `new` restates `known`: whether their keys are equal, and the rest agrees.

    Most harnesses send a reply back without the model's reasoning, so its absence is no difference.
    """
    if not isinstance(new, AssistantMessage) or not isinstance(known, AssistantMessage):
        return message_key(new) == message_key(known)
    if (new.content or "") != (known.content or ""):
        return False
    ours, theirs = new.tool_calls or (), known.tool_calls or ()
    if len(ours) != len(theirs) or not all(map(_same_call, ours, theirs)):
        return False
    if new.provider_state and new.provider_state != known.provider_state:
        return False
    return not new.reasoning_content or new.reasoning_content == known.reasoning_content


def _same_call(new: ToolCall, known: ToolCall) -> bool:
    if new.id != known.id or new.name != known.name:
        return False
    return new.arguments == known.arguments or _canonical(new.arguments) == _canonical(known.arguments)


def message_key(message: Message) -> Hashable:
    """What makes a message the same when it is sent again: role, content, tool calls, the call it answers.

    No content equals empty content, one text part equals its text, and arguments are compared as JSON.
    """
    if isinstance(message, AssistantMessage):
        calls = tuple((c.id, c.name, _canonical(c.arguments)) for c in message.tool_calls or ())
        return ("assistant", message.content or "", calls)
    if isinstance(message, ToolMessage):
        return ("tool", message.tool_call_id, _content_key(message.content))
    return (message.role, _content_key(message.content))


def _content_key(content: MessageContent) -> Hashable:
    if isinstance(content, str):
        return content
    parts = [part.text if isinstance(part, TextContentPart) else (part.image_url.url,) for part in content]
    return parts[0] if len(parts) == 1 else tuple(parts)


def _canonical(arguments: str) -> str:
    try:
        return json.dumps(json.loads(arguments), sort_keys=True)
    except (ValueError, RecursionError):
        return arguments
