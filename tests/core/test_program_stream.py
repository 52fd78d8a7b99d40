"""Reading a streamed answer: events cut anywhere, deltas of every kind, and pieces that make no sense."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vf_core.harnesses.program.stream import Assembly, Broken, event_data

texts = st.text(max_size=20)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)


def _chunk(delta: dict[str, Any], finish: str | None = None) -> bytes:
    return json.dumps({"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}).encode()


def _message(*chunks: bytes) -> dict[str, Any]:
    assembly = Assembly()
    for chunk in chunks:
        assembly.add(chunk)
    return assembly.message()


@settings(max_examples=60)
@given(
    st.lists(
        st.text(st.characters(exclude_characters="\r\n", exclude_categories=["Cs"]), min_size=1), max_size=5
    ),
    st.lists(st.integers(1, 9), min_size=1, max_size=20),
    st.sampled_from(["\n", "\r\n"]),
    st.booleans(),
)
def test_events_are_the_same_however_the_bytes_are_cut(
    payloads: list[str], cuts: list[int], end: str, comments: bool
) -> None:
    noise = f": keep-alive{end}{end}event: message{end}" if comments else ""
    raw = "".join(f"{noise}data: {text}{end}{end}" for text in payloads).encode()
    pieces, at = [], 0
    while at < len(raw):
        size = cuts[len(pieces) % len(cuts)]
        pieces.append(raw[at : at + size])
        at += size
    assert [data.decode() for data in event_data(pieces)] == payloads


def test_data_without_a_space_and_over_several_lines() -> None:
    assert list(event_data([b"data:a\ndata: b\n\n", b"id: 1\nretry: 5\n\ndata:  c"])) == [b"a\nb", b" c"]


def test_pieces_make_the_message() -> None:
    message = _message(
        _chunk({"role": "assistant", "content": ""}),
        _chunk({"reasoning_content": "let "}),
        _chunk({"reasoning_content": "me"}),
        _chunk({"content": "On "}),
        _chunk({"content": "it"}),
        _chunk(
            {
                "tool_calls": [
                    {"index": 0, "id": "a", "type": "function", "function": {"name": "bash", "arguments": ""}}
                ]
            }
        ),
        _chunk({"tool_calls": [{"index": 0, "function": {"arguments": '{"x":'}}]}),
        _chunk({"tool_calls": [{"index": 1, "id": "b", "function": {"name": "edit", "arguments": "{}"}}]}),
        _chunk({"tool_calls": [{"index": 0, "function": {"arguments": "1}"}}]}),
        _chunk({"reasoning_details": [{"type": "x"}]}),
        _chunk({}, "tool_calls"),
        b'{"choices": [], "usage": {"prompt_tokens": 1}}',
        b"[DONE]",
    )
    assert message == {
        "role": "assistant",
        "content": "On it",
        "reasoning_content": "let me",
        "reasoning_details": [{"type": "x"}],
        "tool_calls": [
            {"id": "a", "type": "function", "function": {"name": "bash", "arguments": '{"x":1}'}},
            {"id": "b", "type": "function", "function": {"name": "edit", "arguments": "{}"}},
        ],
    }


def test_a_providers_state_beside_a_call_is_kept() -> None:
    state = {"google": {"thought_signature": "zz"}}
    call = {"index": 0, "id": "a", "function": {"name": "f", "arguments": {"x": 1}}, "extra_content": state}
    (made,) = _message(_chunk({"tool_calls": [call]}, "tool_calls"))["tool_calls"]
    assert made["extra_content"] == state
    assert json.loads(made["function"]["arguments"]) == {"x": 1}


def test_parallel_calls_that_share_an_index_are_told_apart_by_their_ids() -> None:
    calls = [{"index": 0, "id": ident, "function": {"name": "f", "arguments": "{}"}} for ident in ("a", "b")]
    message = _message(*(_chunk({"tool_calls": [call]}) for call in calls), b"[DONE]")
    assert [call["id"] for call in message["tool_calls"]] == ["a", "b"]


@pytest.mark.parametrize(
    "chunks",
    [
        [],
        [b"[DONE]"],
        [_chunk({"content": "half an ans"})],
        [b'{"choices": []}', b"[DONE]"],
    ],
    ids=["nothing", "an end alone", "no end", "no choice"],
)
def test_an_answer_that_is_not_whole_is_broken(chunks: list[bytes]) -> None:
    with pytest.raises(Broken):
        _message(*chunks)


@pytest.mark.parametrize(
    ("code", "retry"), [(503, True), (429, True), (None, True), ("x", True), (400, False)]
)
def test_an_error_in_the_stream_is_an_error(code: object, retry: bool) -> None:
    error = json.dumps({"error": {"message": "overloaded", "code": code}}).encode()
    with pytest.raises(Broken, match="overloaded") as caught:
        _message(_chunk({"content": "x"}), error)
    assert caught.value.retry is retry


@settings(max_examples=150)
@given(st.lists(json_values | st.fixed_dictionaries({"choices": json_values}), max_size=4))
def test_no_chunk_whatever_it_holds_does_more_than_break_the_answer(chunks: list[object]) -> None:
    try:
        message = _message(*(json.dumps(chunk).encode() for chunk in chunks))
    except Broken:
        return
    assert message["role"] == "assistant"


@settings(max_examples=150)
@given(
    st.lists(
        st.fixed_dictionaries(
            {},
            optional={
                "content": json_values,
                "tool_calls": st.lists(
                    st.dictionaries(st.sampled_from(["index", "id", "function", "x"]), json_values)
                ),
                "reasoning": json_values,
            },
        ),
        min_size=1,
        max_size=4,
    )
)
def test_no_delta_whatever_it_holds_does_more_than_break_the_answer(deltas: list[dict[str, Any]]) -> None:
    try:
        message = _message(*(_chunk(delta) for delta in deltas), b"[DONE]")
    except Broken:
        return
    json.dumps(message)
