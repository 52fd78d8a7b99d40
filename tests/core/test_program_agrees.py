"""What a program sends back of a streamed answer is what the interception recorded of it: the next request then
goes on with the same branch."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from vf_core.harnesses.program.stream import Assembly
from vf_core.interception.stream_chat import ChatStream
from vf_core.trace.wire import parse_assistant

texts = st.text(max_size=8)
details = st.fixed_dictionaries(
    {"type": st.sampled_from(["reasoning.text", "reasoning.encrypted"])},
    optional={"text": texts, "signature": st.none() | texts, "data": texts, "format": texts},
)


@st.composite
def deltas(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Deltas as providers send them: texts in pieces, and tool calls that begin with id and name."""
    names = st.sampled_from(["content", "reasoning_content", "reasoning", "refusal"])
    out: list[dict[str, Any]] = [{"role": "assistant", "content": draw(st.none() | st.just(""))}]
    out += [{name: draw(st.none() | texts)} for name in draw(st.lists(names, max_size=6))]
    out += [{"reasoning_details": [piece]} for piece in draw(st.lists(details, max_size=5))]
    count = draw(st.integers(0, 3))
    shared = draw(st.booleans())
    for number in range(count):
        index = 0 if shared else number
        head = {
            "index": index,
            "id": f"c{number}",
            "type": "function",
            "function": {"name": "f", "arguments": ""},
        }
        out.append({"tool_calls": [head]})
    order = draw(st.lists(st.integers(0, 0 if shared else count - 1), max_size=6)) if count else []
    out += [{"tool_calls": [{"index": index, "function": {"arguments": draw(texts)}}]} for index in order]
    return out


@settings(max_examples=200)
@given(deltas())
def test_both_read_a_stream_alike(pieces: list[dict[str, Any]]) -> None:
    program, recorded = Assembly(), ChatStream()
    chunks = [{"choices": [{"index": 0, "delta": piece, "finish_reason": None}]} for piece in pieces]
    chunks.append({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
    for data in (*(json.dumps(chunk).encode() for chunk in chunks), b"[DONE]"):
        program.add(data)
        recorded.feed(data)
    assert parse_assistant(program.message()) == parse_assistant(recorded.completion().message)
