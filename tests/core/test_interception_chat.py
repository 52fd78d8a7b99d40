"""The chat dialect by itself: requests changed as little as can be, answers read as far as they can be."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from doubles import upstream as up
from vf_core.errors import OverlongPromptError
from vf_core.interception.dialect_chat import (
    Unusable,
    dumps,
    impose,
    loads,
    parse_request,
    provider_error,
    status_error,
)
from vf_core.interception.stream_chat import ChatStream, Events, event_data

json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=8,
)
names = st.sampled_from(
    ["model", "temperature", "max_tokens", "max_completion_tokens", "seed", "stop", "stream"]
)


@settings(max_examples=150)
@given(
    st.dictionaries(names | st.text(max_size=6), json_values, max_size=6),
    st.dictionaries(names, json_values, max_size=3),
)
def test_what_the_run_owns_is_put_over_the_request_and_nothing_else_changes(
    sent: dict[str, Any], owned: dict[str, Any]
) -> None:
    sent["messages"] = [{"role": "user", "content": "\ud800 ü"}]
    owned.pop("max_completion_tokens", None)
    request = parse_request(json.dumps(sent).encode())
    body, stripped = impose(request, owned)
    assert not stripped
    expected = {**sent, **owned}
    if "max_tokens" in owned and "max_completion_tokens" in sent:
        expected["max_completion_tokens"] = expected.pop("max_tokens")
    got = json.loads(body)
    assert got == expected == request.body


@given(json_values)
def test_json_survives_a_round_trip(value: Any) -> None:
    assert loads(dumps(value)) == value
    assert loads(json.dumps({"a": "\udc00", "b": value}).encode()) == {"a": "\udc00", "b": value}


@pytest.mark.parametrize("data", [b"", b"{", b"[" * 100_000, b"\xff\xfe{", b"nul", b'{"a": 1}}'])
def test_what_is_no_json_raises_one_error(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        loads(data)


@settings(max_examples=100)
@given(
    st.lists(
        st.sampled_from(
            [b"data: {}", b": ping", b"event: x\ndata: 1", b"data: a\ndata: b", b"data:", b"id: 1"]
        ),
        max_size=6,
    ),
    st.sampled_from([b"\n", b"\r\n", b"\r"]),
    st.lists(st.integers(1, 9), min_size=1, max_size=40),
)
def test_events_are_the_same_however_the_bytes_are_cut(
    blocks: list[bytes], end: bytes, sizes: list[int]
) -> None:
    whole = b"".join(block.replace(b"\n", end) + end + end for block in blocks)
    events = Events()
    found: list[bytes] = []
    at = 0
    for i in range(len(whole)):
        size = sizes[i % len(sizes)]
        found += events.feed(whole[at : at + size])
        at += size
    rest = events.rest()
    assert b"".join(found) + rest == whole
    assert [data for event in (*found, rest) if (data := event_data(event))] == [
        data for block in blocks if (data := event_data(block + b"\n\n"))
    ]


def read(events: list[Any]) -> ChatStream:
    """A stream that has read `events`."""
    stream = ChatStream()
    stream.live = True
    for event in events:
        stream.feed(event if isinstance(event, bytes) else json.dumps(event).encode())
    return stream


def test_a_streams_parts_add_up() -> None:
    details = (
        [{"type": "reasoning.text", "text": "so "}],
        [{"type": "reasoning.text", "text": "it", "signature": "s"}],
    )
    stream = read(
        [
            up.delta("", role="assistant"), up.delta(reasoning="think", reasoning_details=details[0]),
            up.delta(reasoning=" hard", reasoning_details=details[1]), up.delta("an"), up.delta("swer"),
            up.delta(tool_calls=[{"index": 1, "id": "b", "function": {"name": "g", "arguments": ""}}]),
            up.delta(tool_calls=[{"index": 0, "id": "a", "function": {"name": "f", "arguments": '{"x"'}}]),
            up.delta(
                tool_calls=[
                    {"index": 0, "function": {"arguments": ": 1}"}},
                    {"index": 1, "function": {"arguments": "{}"}},
                ]
            ),
            up.delta(finish="tool_calls"), up.usage_chunk(), b"[DONE]",
        ]
    )  # fmt: skip
    found = stream.completion()
    assert found.finish_reason == "tool_calls"
    assert found.usage is not None
    assert found.message["content"] == "answer"
    assert found.message["reasoning"] == "think hard"
    assert found.message["reasoning_details"] == [
        {"type": "reasoning.text", "text": "so it", "signature": "s", "format": None}
    ]
    calls = {call["id"]: call["function"] for call in found.message["tool_calls"]}
    assert calls == {"a": {"name": "f", "arguments": '{"x": 1}'}, "b": {"name": "g", "arguments": "{}"}}
    texts, tools = stream.deltas()
    assert texts == [(True, "think hard"), (False, "answer")]
    assert sorted(tools) == [(0, "b", "g", "{}"), (1, "a", "f", '{"x": 1}')]
    assert stream.deltas() == ([], [])


def test_tool_calls_without_an_index_are_told_apart_by_their_ids() -> None:
    parts = [
        {"id": "a", "function": {"name": "f", "arguments": "1"}}, {"function": {"arguments": "2"}},
        {"id": "b", "function": {"name": "g", "arguments": {"k": 1}}},
    ]  # fmt: skip
    found = read([*(up.delta(tool_calls=[part]) for part in parts), b"[DONE]"]).completion()
    assert [(c["id"], c["function"]["arguments"]) for c in found.message["tool_calls"]] == [
        ("a", "12"),
        ("b", '{"k": 1}'),
    ]


@pytest.mark.parametrize("finish", ["stop", "length", "content_filter"])
def test_an_empty_answer_with_a_reason_is_an_answer(finish: str) -> None:
    found = read([up.delta(finish=finish), b"[DONE]"]).completion()
    assert (found.message["content"], found.finish_reason) == (None, finish)


def test_only_the_first_choice_is_recorded() -> None:
    other = {"choices": [{"index": 1, "delta": {"content": "other"}, "finish_reason": None}]}
    assert (
        read([up.delta("one"), other, up.delta(finish="stop"), b"[DONE]"]).completion().message["content"]
        == "one"
    )


@pytest.mark.parametrize(
    "chunk",
    [
        {"choices": None}, {"choices": [None]}, {"choices": [{"delta": None}]},
        {"choices": [{"delta": {"content": 3}}]}, {"usage": 7}, {"object": "x"},
        {"choices": [{"delta": {"tool_calls": [None, {"index": [1], "function": None}, {"function": {"name": 3}}]}}]},
        {"choices": [{"delta": {"reasoning_details": [None, {"type": 1, "text": 2}]}}]},
    ],
)  # fmt: skip
def test_odd_chunks_are_let_through(chunk: dict[str, Any]) -> None:
    assert read([chunk, up.delta("ok"), b"[DONE]"]).completion().message["content"] == "ok"


@pytest.mark.parametrize(
    "data", [b"{", b"7", b"[]", b'{"error": "out of memory"}', b'{"choices": [{"error": {"code": 1}}]}']
)
def test_a_chunk_that_tells_of_failure_ends_the_stream(data: bytes) -> None:
    with pytest.raises(Unusable):
        read([up.delta("x"), data])


def test_errors_keep_what_the_provider_said() -> None:
    assert provider_error({"message": "no", "code": 429}).status_code == 429
    assert provider_error({"message": "no", "code": "invalid_key"}).message == "no (invalid_key)"
    assert provider_error("just text").status_code == 502
    assert provider_error({"code": 7}).status_code == 502
    found = status_error(503, b"<html>busy</html>")
    assert (found.status_code, found.message) == (503, "upstream 503: <html>busy</html>")
    assert status_error(404, b'{"detail": "Not Found"}').message == "upstream 404: Not Found"
    assert len(status_error(500, b"x" * 100_000).message) < 3000
    assert isinstance(
        status_error(400, b'{"error": {"code": "context_length_exceeded"}}'), OverlongPromptError
    )
    assert not isinstance(status_error(429, b'{"error": {"message": "context window"}}'), OverlongPromptError)
