"""Wire messages to typed ones, and a provider's usage to counts that are never wrong (X10, H07)."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from doubles.traces import reply, result, tokens
from vf_core.trace.types import (
    AssistantMessage,
    ImageUrlContentPart,
    SamplingConfig,
    SystemMessage,
    TextContentPart,
    ToolMessage,
    Usage,
    UserMessage,
    content_text,
)
from vf_core.trace.wire import message_to_wire, parse_assistant, parse_message, parse_tools


@pytest.mark.parametrize(
    ("raw", "content"),
    [
        ({"content": None}, None),
        ({"content": ""}, None),
        ({"content": "  \n"}, "  \n"),
        ({}, None),
        ({"content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}, "ab"),
        ({"content": None, "refusal": "I won't"}, "I won't"),
        ({"content": 7}, "7"),
    ],
)
def test_empty_and_odd_replies_are_messages(raw: dict[str, object], content: str | None) -> None:
    """H07."""
    assert parse_assistant({"role": "assistant", **raw}).content == content


def test_reply_with_tool_calls_only_or_reasoning_only() -> None:
    """H07."""
    calls = parse_assistant(reply(None, ("c1", "bash", "{not json")))
    assert calls.content is None
    assert [(c.id, c.name, c.arguments) for c in calls.tool_calls or ()] == [("c1", "bash", "{not json")]
    thought = parse_assistant({"role": "assistant", "content": None, "reasoning": "because"})
    assert (thought.content, thought.reasoning_content) == (None, "because")


def test_reasoning_details_are_kept_for_sending_back() -> None:
    details = [{"type": "reasoning.text", "text": "a", "signature": "s"}, {"summary": "b"}]
    message = parse_assistant({"role": "assistant", "content": "x", "reasoning_details": details})
    assert message.reasoning_content == "a\nb"
    assert message.provider_state == details
    assert message_to_wire(message)["reasoning_details"] == details


@pytest.mark.parametrize("arguments", [{"a": 1}, None, [1]])
def test_arguments_that_are_no_text(arguments: object) -> None:
    raw = {
        "role": "assistant",
        "tool_calls": [{"id": "c", "function": {"name": "f", "arguments": arguments}}],
    }
    call = (parse_assistant(raw).tool_calls or [])[0]
    assert call.arguments == ("" if arguments is None else json.dumps(arguments))


def test_other_kinds_of_calls() -> None:
    custom = {"id": "c", "type": "custom", "custom": {"name": "apply", "input": "patch"}}
    assert (parse_assistant({"tool_calls": [custom]}).tool_calls or [])[0].arguments == "patch"
    legacy = parse_assistant({"function_call": {"name": "f", "arguments": "{}"}})
    assert (legacy.tool_calls or [])[0].name == "f"
    assert parse_assistant({"tool_calls": "nonsense"}).tool_calls is None


def test_roles() -> None:
    assert isinstance(parse_message({"role": "developer", "content": "x"}), SystemMessage)
    assert isinstance(parse_message({"role": "user", "content": "x"}), UserMessage)
    assert isinstance(parse_message({"role": "somebody", "content": "x"}), UserMessage)
    assert isinstance(parse_message("nonsense"), UserMessage)
    tool = parse_message(result("c1", "out"))
    assert isinstance(tool, ToolMessage)
    assert tool.tool_call_id == "c1"
    legacy = parse_message({"role": "function", "name": "f", "content": "out"})
    assert isinstance(legacy, ToolMessage)
    assert (legacy.tool_call_id, legacy.name) == ("f", "f")


def test_content_parts() -> None:
    raw = {
        "role": "user",
        "content": [
            {"type": "text", "text": "look"},
            {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA", "detail": "low"}},
            {"type": "input_audio", "input_audio": {"data": "…"}},
            "loose",
        ],
    }
    parts = parse_message(raw).content
    assert isinstance(parts, list)
    assert [type(part) for part in parts] == [
        TextContentPart,
        ImageUrlContentPart,
        TextContentPart,
        TextContentPart,
    ]
    assert content_text(parts) == "look\n[a part of type input_audio]\nloose"


def test_message_to_wire_is_read_back_alike() -> None:
    raws = [
        {"role": "system", "content": "s"},
        {"role": "user", "content": [{"type": "text", "text": "t"}]},
        reply("x", ("c1", "bash", {"command": "ls"})),
        {**result("c1"), "name": "bash"},
    ]
    for raw in raws:
        message = parse_message(raw)
        assert parse_message(message_to_wire(message)) == message
        assert message_to_wire(message) == raw


def test_tools() -> None:
    raw = [
        {
            "type": "function",
            "function": {"name": "f", "description": None, "parameters": None, "strict": True},
        },
        {"type": "web_search"},
        "nonsense",
    ]
    tools = parse_tools(raw) or []
    assert [(t.name, t.description, t.parameters, t.strict) for t in tools] == [("f", "", {}, True)]
    assert parse_tools([]) is None
    assert parse_tools(None) is None


@pytest.mark.parametrize(
    ("wire", "prompt", "cached"),
    [
        (tokens(100, 5), 100, None),
        (tokens(100, 5, 60), 40, 60),
        (tokens(100, 5, 100), 0, 100),
        (tokens(10, 5, 100), 0, 100),  # above the prompt: never negative
        (tokens(10, 5, 100, total_tokens=115), 10, 100),  # the total shows that it was counted apart
        (tokens(10, 5, -3), 10, 0),
        (tokens(-4, 5), 0, None),
        ({"completion_tokens": 5, "total_tokens": 20}, 15, None),
    ],
)
def test_usage_excludes_cache_reads_and_is_never_negative(
    wire: dict[str, object], prompt: int, cached: int | None
) -> None:
    """X10."""
    usage = Usage.from_wire(wire)
    assert usage is not None
    assert (usage.prompt_tokens, usage.cached_input_tokens, usage.completion_tokens) == (prompt, cached, 5)


@pytest.mark.parametrize(
    "wire",
    [None, {}, [], "x", {"prompt_tokens": None, "completion_tokens": 3}, {"prompt_tokens": "12"}]
    + [tokens(count, 1) for count in (10**400, 1e300, math.inf, -math.inf, math.nan)],
)
def test_unknown_usage_stays_unknown(wire: object) -> None:
    """X10."""
    assert Usage.from_wire(wire) is None


@pytest.mark.parametrize(
    ("cost", "known"),
    [
        (0.5, 0.5),
        (2, 2.0),
        (0, 0.0),
        (-0.5, None),
        (10**400, None),
        (math.inf, None),
        (math.nan, None),
        ("1", None),
    ],
)
def test_a_cost_is_a_sum_of_money_or_unknown(cost: object, known: float | None) -> None:
    """X10."""
    usage = Usage.from_wire(tokens(10, 1, cost=cost))
    assert usage is not None
    assert usage.cost == known


def test_sum_keeps_unknown_apart_from_zero() -> None:
    """X10."""
    assert Usage.aggregate([None, None]) is None
    total = Usage.aggregate(
        [Usage.from_wire(tokens(10, 1)), None, Usage.from_wire(tokens(30, 2, 20, cost=0.5))]
    )
    assert total is not None
    assert total.model_dump() == {
        "prompt_tokens": 20,
        "completion_tokens": 3,
        "cached_input_tokens": 20,
        "reasoning_tokens": None,
        "cost": 0.5,
    }
    assert (total.input_tokens, total.total_tokens) == (40, 43)


numbers = st.one_of(st.none(), st.integers(-5, 10**9), st.floats(), st.booleans(), st.text(max_size=3))


@given(
    st.fixed_dictionaries(
        {},
        optional={
            "prompt_tokens": numbers,
            "completion_tokens": numbers,
            "total_tokens": numbers,
            "cost": numbers,
            "prompt_tokens_details": st.one_of(st.none(), st.dictionaries(st.just("cached_tokens"), numbers)),
        },
    )
)
@settings(max_examples=100)
def test_no_usage_object_gives_a_negative_count(wire: dict[str, object]) -> None:
    usage = Usage.from_wire(wire)
    if usage is not None:
        assert usage.prompt_tokens >= 0
        assert usage.completion_tokens >= 0
        assert usage.input_tokens >= (usage.cached_input_tokens or 0) >= 0


def test_sampling_passes_unknown_keys_and_knows_both_names_of_max_tokens() -> None:
    sampling = SamplingConfig.model_validate({"max_completion_tokens": 9, "top_k": 3})
    assert sampling.model_dump(exclude_none=True) == {"max_tokens": 9, "top_k": 3}


def test_assistant_reads_attributes_that_a_later_release_adds() -> None:
    message = AssistantMessage.model_validate({"role": "assistant", "content": "x", "channel": "final"})
    assert message.model_dump(exclude_none=True)["channel"] == "final"
