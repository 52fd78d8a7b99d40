"""The trace: what it counts, what it says, and how it goes to a record and back."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from pydantic import Field

from doubles.traces import (
    Row,
    agent_loop,
    blank,
    failed_call,
    reply,
    result,
    system,
    task,
    tokens,
    turn,
    user,
)
from vf_core.config.base import StrictModel
from vf_core.errors import HarnessError, ProviderError, SandboxError
from vf_core.trace.nodes import MessageNode
from vf_core.trace.record import Trace, new_trace
from vf_core.trace.types import AssistantMessage, SamplingConfig, UserMessage
from vf_core.trace.writer import encode


class Options(StrictModel):
    id: str = "bash"
    env: dict[str, str] = Field(default_factory=dict)
    disabled_tools: list[str] = Field(default_factory=list)
    edit: bool = True


# -- counts ------------------------------------------------------------------------------------------------------


def test_counts_of_a_plain_loop() -> None:
    trace = agent_loop(turns=3)
    assert trace.num_turns == 4
    assert trace.num_output_tokens == 3 * 20 + 5
    assert trace.num_total_tokens == 250 + 5  # the last prompt, and what it added
    assert trace.num_input_tokens == trace.num_total_tokens - trace.num_output_tokens
    usage = trace.usage
    assert usage is not None
    assert usage.input_tokens == 100 + 150 + 200 + 250  # what was billed
    assert (usage.prompt_tokens, usage.cached_input_tokens) == (700 - 340, 340)


def test_unknown_usage_is_none_not_zero() -> None:
    """X10."""
    trace = blank()
    turn(trace, [user()], reply("x"))
    assert trace.usage is None
    assert trace.branches[0].usage is None
    assert trace.num_total_tokens == 0
    turn(trace, [user(), reply("x"), user()], reply("y"), tokens(10, 2))
    assert trace.num_total_tokens == 12


def test_compaction_and_two_branches_never_count_backwards() -> None:
    """X10."""
    trace = blank()
    turn(trace, [system(), user()], reply("a"), tokens(1000, 100))
    turn(trace, [system(), user(), reply("a"), user("b")], reply("c"), tokens(1200, 100))
    turn(trace, [system(), user("short")], reply("d"), tokens(50, 10))
    turn(trace, [system(), user("short"), reply("d"), user("e")], reply("f"), tokens(90, 10))
    assert trace.num_output_tokens == 220
    assert trace.num_input_tokens == 1000 + 100 + 50 + 30
    assert sum(call.usage.total_tokens for call in trace.calls if call.usage) == 1100 + 1300 + 60 + 100
    assert all(branch.num_input_tokens >= 0 for branch in trace.branches)
    forked = blank()
    turn(forked, [user()], reply("a"), tokens(10, 5))
    turn(forked, [user(), reply("a"), user("1")], reply("b"), tokens(20, 5))
    turn(forked, [user(), reply("a"), user("2")], reply("c"), tokens(30, 5))
    assert (forked.num_input_tokens, forked.num_output_tokens) == (10 + 5 + 15, 15)


def test_a_dropped_reasoning_is_not_counted_backwards() -> None:
    """X10: the next prompt is shorter than the last one and its reply together."""
    trace = blank()
    turn(trace, [user()], reply("a"), tokens(100, 500))
    turn(trace, [user(), reply("a"), user("b")], reply("c"), tokens(130, 10))
    assert (trace.num_input_tokens, trace.num_output_tokens) == (100, 510)


def test_failed_calls_count() -> None:
    """H04."""
    trace = blank()
    for _ in range(5):
        failed_call(trace, tokens(900, 100))
    failed_call(trace)
    assert trace.num_total_tokens == 5000
    assert (trace.num_input_tokens, trace.num_output_tokens, trace.num_turns) == (4500, 500, 0)
    assert trace.usage is not None
    assert trace.usage.total_tokens == 5000


def test_calls_whose_prompt_does_not_grow_count_whole() -> None:
    """H04: a budget is reached although the provider says the same each time."""
    trace = blank()
    messages = [system(), user()]
    for i in range(5):
        answer = reply(None, (f"c{i}", "bash", "{broken"))
        turn(trace, messages, answer, tokens(900, 100))
        messages += [answer, result(f"c{i}", "error: not JSON, send it again")]
    assert trace.num_total_tokens == 5000


def test_counts_follow_what_is_added_and_taken_away() -> None:
    trace = blank()
    turn(trace, [user()], reply("a"), tokens(10, 5))
    assert (trace.num_turns, trace.num_total_tokens) == (1, 15)
    turn(trace, [user(), reply("a"), user()], reply("b"), tokens(20, 5))
    assert (trace.num_turns, trace.num_total_tokens) == (2, 25)
    del trace.nodes[2:], trace.calls[1:]
    assert (trace.num_turns, trace.num_total_tokens) == (1, 15)
    trace.nodes = []
    trace.calls = []
    assert (trace.num_turns, trace.num_total_tokens) == (0, 0)
    turn(trace, [user()], reply("a"), tokens(10, 5))
    assert trace.num_turns == 1


# -- what it says ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("content", [None, "", "   \n"])
def test_an_empty_reply_is_an_empty_answer(content: str | None) -> None:
    """H07."""
    trace = blank()
    turn(trace, [user()], reply(content))
    assert (trace.last_reply, trace.has_response, trace.num_turns) == ("", False, 1)
    assert Trace.from_record(trace.to_record()).last_reply == ""


def test_views() -> None:
    trace = agent_loop(turns=1)
    assert trace.last_reply == "hi"
    assert [type(m) for m in trace.assistant_messages] == [AssistantMessage, AssistantMessage]
    assert [m.content for m in trace.tool_messages] == ["0\n"]
    assert trace.transcript == (
        "[system]\nYou are an agent.\n\n[user]\nSay hi\n\n[assistant]\nLet me see.\n"
        '[tool_call bash({"command": "echo 0"})]\n\n[tool]\n0\n\n\n[assistant]\nhi'
    )
    assert (trace.reward, trace.score, trace.reward_values()) == (1.0, 1.0, {"match": 1.0})
    assert not trace.is_truncated
    trace.calls[-1].finish_reason = "length"
    assert trace.is_truncated


def test_an_unscored_rollout_has_no_score() -> None:
    assert (blank().reward, blank().score) == (0, None)


def test_the_first_stop_condition_stands() -> None:
    trace = blank()
    trace.stop("max_turns")
    trace.stop("agent_completed")
    assert (trace.is_completed, trace.stop_condition, trace.is_truncated) == (True, "max_turns", True)


def test_errors_are_recorded_once_under_their_boundary() -> None:
    trace = blank()
    provider = ProviderError("overloaded", status_code=529)
    try:
        raise HarnessError("no program") from OSError("disk")
    except HarnessError as e:
        harness = e
    for error in (provider, harness, provider, harness):
        trace.capture_error(error)
    first, second = trace.errors
    assert (first.type, first.message, first.status_code, first.traceback) == (
        "ProviderError",
        "overloaded",
        529,
        None,
    )
    assert second.type == "HarnessError"
    assert "OSError: disk" in (second.traceback or "")
    assert trace.error is second
    assert trace.stop_condition == "error"
    assert SandboxError("x") not in trace.errors


@pytest.mark.parametrize("value", [math.nan, math.inf, None, "1", b"1", [1], {}])
def test_what_is_no_finite_number_is_no_reward(value: Any) -> None:
    trace = blank()
    with pytest.raises(ValueError, match="reward 'r'"):
        trace.record_reward("r", value)
    with pytest.raises(ValueError, match="metric 'm'"):
        trace.record_metric("m", value)
    assert (trace.rewards, trace.metrics) == ({}, {})


def test_rewards_are_weighted_contributions() -> None:
    trace = blank()
    trace.record_reward("a", True, weight=0.5)
    trace.record_reward("b", 3)
    assert (trace.rewards, trace.reward) == ({"a": 0.5, "b": 3.0}, 3.5)
    with pytest.raises(ValueError, match="reward 'c' is inf"):
        trace.record_reward("c", 1e300, weight=1e300)


def test_generation_is_split_between_model_and_harness() -> None:
    trace = agent_loop(turns=1)
    span = trace.timing.generation
    assert (span.duration, span.model.duration, span.harness.duration) == (10.0, 3.0, 7.0)


def test_finish_closes_what_is_open() -> None:
    trace = blank()
    trace.timing.boot.start = trace.timing.start
    trace.finish()
    assert trace.timing.boot.end >= trace.timing.boot.start
    assert trace.timing.setup.end == 0
    assert trace.is_completed


def test_a_new_trace_has_its_own_row() -> None:
    """X11."""
    one = task(resources={"cpu": 1})
    trace = new_trace(task_type="Task", data=one.data, run="r1")
    assert trace.task.data == one.data
    assert trace.task.data is not one.data
    assert trace.run is not None
    assert (trace.run.type, trace.run.id) == ("eval", "r1")


def test_state_is_scratch_space_and_never_written() -> None:
    trace = blank()
    trace.state.seen = {"anything": object()}
    assert "state" not in trace.to_record()


# -- records -----------------------------------------------------------------------------------------------------


def test_a_record_read_back_is_the_same_trace() -> None:
    trace = agent_loop()
    trace.runtime = {"type": "docker", "id": "abc", "image": "debian", "timeout": 60, "nested": {"a": [1]}}
    record = json.loads(encode(trace.to_record()))
    again = Trace.from_record(record)
    assert again.to_record() == record
    assert again.task.data.answer == "hi"
    assert again.runtime == trace.runtime
    assert again.branches[0].messages == trace.branches[0].messages
    assert (again.num_turns, again.num_total_tokens, again.usage) == (
        trace.num_turns,
        trace.num_total_tokens,
        trace.usage,
    )


def test_what_the_release_does_not_know_stands_under_info() -> None:
    trace = agent_loop()
    trace.agent = None
    trace.runtime = {"type": "docker", "id": "abc", "cpu": 2, "labels": {"a": "b"}}
    trace.calls[0].finish_reason = "content_filter"
    trace.extra["attempt"] = 2
    record = trace.to_record()
    assert record["task"]["data"].keys() <= {"idx", "prompt", "timeout", "resources"}
    assert record["runtime"] == {"type": "docker", "id": "abc", "cpu": 2}
    assert "finish_reason" not in record["calls"][0]
    assert record["info"]["vf_tui"]["attempt"] == 2
    assert record["info"]["vf_tui"]["record"] == {
        "task": {"data": {"answer": "hi"}},
        "runtime": {"labels": {"a": "b"}},
        "calls": {"0": {"finish_reason": "content_filter"}},
    }


def test_a_runtime_that_the_release_does_not_know() -> None:
    trace = blank()
    trace.runtime = {"type": "firecracker", "id": "x"}
    record = trace.to_record()
    assert "runtime" not in record
    assert Trace.from_record(record).runtime == {"type": "firecracker", "id": "x"}


def test_the_harness_config_is_told_without_secrets() -> None:
    """S01: a trace is shared."""
    options = Options(env={"MODE": "fast", "MY_SECRET": "canary-1", "X": "canary9QpZ83kfLw0aaB71"})
    trace = new_trace(
        task_type="T", data=task().data, model="m", sampling=SamplingConfig(temperature=1), harness=options
    )
    record = trace.to_record()
    assert record["agent"]["model"] == "m"
    assert record["agent"]["harness"] == {
        "id": "bash",
        "env": {"MODE": "fast", "MY_SECRET": "***", "X": "***"},
        "forward_env": [],
        "disabled_tools": [],
    }
    assert record["info"]["vf_tui"]["record"]["agent"] == {"harness": {"edit": True}}
    assert "canary" not in json.dumps(record)


def test_nulls_are_left_out_but_not_inside_open_values() -> None:
    trace = blank(prompt=None)
    trace.info["open"] = {"a": None}
    turn(trace, [user()], reply("x"))
    record = trace.to_record()
    assert record["info"]["open"] == {"a": None}
    assert record["tools"][0]["parameters"]["properties"]["command"] == {"type": ["string", "null"]}
    assert record["task"]["data"]["prompt"] is None  # the release requires it
    assert "parent" not in record["nodes"][0]


def test_whatever_hooks_leave_in_info_is_written() -> None:
    class Odd:
        def __repr__(self) -> str:
            raise RuntimeError

    trace = agent_loop(turns=1)
    loop: dict[str, Any] = {"set": {1}, "bytes": b"\xff\x00", "path": Path("a/b"), 3: math.nan, "odd": Odd()}
    loop["self"] = loop
    trace.info["x"] = loop
    trace.metrics["m"] = math.inf
    line = encode(trace.to_record())
    record = json.loads(line, parse_constant=pytest.fail)
    assert record["info"]["x"]["set"] == [1]
    assert record["info"]["x"]["3"] == "NaN"
    assert record["metrics"]["m"] == "Infinity"
    assert Trace.from_record(record).metrics["m"] == math.inf
    assert "x" in trace.info  # the trace itself is as it was
    assert trace.info["x"] is loop


@pytest.mark.parametrize(
    "text", ["\ud800 alone", "a\u2028b\u0085c\u2029d\x0ce\rf\x00", "日本語 🙂", "\udfff\ud800"]
)
def test_every_text_survives(text: str) -> None:
    """X02, R12."""
    trace = blank(answer=text)
    turn(trace, [user(text)], reply(text, ("c", "bash", text)))
    line = encode(trace.to_record())
    assert line.isascii()
    assert line.count(b"\n") == 1
    again = Trace.from_record(json.loads(line))
    assert again.task.data.answer == text
    assert [node.message.content for node in again.nodes] == [text, text]
    assert again.assistant_messages[0].tool_calls is not None
    assert again.assistant_messages[0].tool_calls[0].arguments == text


def test_unknown_fields_of_another_producer_are_kept() -> None:
    record = agent_loop(turns=1).to_record()
    record["later"] = {"a": None}
    record["nodes"][0] |= {"token_ids": [1, 2], "novel": 3}
    record["nodes"][0]["message"]["channel"] = "x"
    record["calls"][0]["usage"]["audio_tokens"] = 4
    record["timing"]["warmup"] = {"start": 1.0, "end": 2.0}
    trace = Trace.from_record(record)
    again = Trace.from_record(json.loads(encode(trace.to_record())))
    for read in (trace, again):
        dumped = read.model_dump()
        assert dumped["later"] == {"a": None}
        assert dumped["nodes"][0]["token_ids"] == [1, 2]
        assert dumped["nodes"][0]["novel"] == 3
        assert dumped["nodes"][0]["message"]["channel"] == "x"
        assert dumped["calls"][0]["usage"]["audio_tokens"] == 4
        assert dumped["timing"]["warmup"]["end"] == 2.0


def test_a_typed_trace_reads_its_own_row() -> None:
    record = agent_loop(turns=1).to_record()
    assert type(Trace[Row].from_record(record).task.data) is Row
    plain = Trace.from_record(record).task.data
    assert (plain.answer, plain.prompt_text) == ("hi", "Say hi")


@pytest.mark.parametrize("damage", [{"task": None}, {"nodes": [{"message": {"role": "?"}}]}, {"calls": 3}])
def test_what_is_no_trace_is_refused(damage: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="validation error"):
        Trace.from_record({**agent_loop(turns=1).to_record(), **damage})


def test_damaged_links_do_not_hang() -> None:
    trace = blank()
    for parent in (5, 1, 0, -1):
        trace.nodes.append(MessageNode(parent=parent, message=UserMessage(content="x")))
    assert len(trace.branches) >= 1
    assert trace.num_total_tokens == 0
    turn(trace, [user("x")], reply("y"), tokens(1, 1))
    assert trace.num_total_tokens == 2
