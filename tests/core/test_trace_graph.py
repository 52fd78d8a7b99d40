"""Conversations as a graph: what extends a known prefix goes on, what doesn't forks."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from doubles.traces import TOOLS, blank, over_the_wire, reply, result, system, turn, user
from vf_core.trace.graph import HEADS_KEPT, Graph, message_key, prepare_turn
from vf_core.trace.record import Trace
from vf_core.trace.types import AssistantMessage
from vf_core.trace.wire import parse_message

CALL = ("c1", "bash", {"command": "ls", "timeout": 5})


def texts(trace: Trace, branch: int = -1) -> list[str]:
    return [str(message.content) for message in trace.branches[branch].messages]


def test_an_agent_loop_is_one_branch() -> None:
    trace = blank()
    messages = [system(), user()]
    for i in range(6):
        answer = reply(f"step {i}", (f"c{i}", "bash", {"command": "ls"}))
        node = turn(trace, messages, answer)
        assert trace.nodes[node].sampled
        messages += [answer, result(f"c{i}", f"out {i}")]
    assert trace.num_branches == 1
    assert len(trace.nodes) == 2 + 6 + 5
    assert trace.num_turns == 6
    assert [node.parent for node in trace.nodes] == [None, *range(12)]
    assert texts(trace)[:4] == ["You are an agent.", "Say hi", "step 0", "out 0"]


@pytest.mark.parametrize(
    "echo",
    [
        {"role": "assistant", "content": "x", "tool_calls": reply(None, CALL)["tool_calls"]},
        {**reply("x", CALL), "refusal": None, "annotations": []},
        {**reply("x", ("c1", "bash", '{"timeout":5,"command":"ls"}'))},
        {**reply("x", CALL), "reasoning_content": "hm"},
        {**reply("x", CALL), "reasoning": "hm"},
        {**reply("x", CALL), "content": [{"type": "text", "text": "x"}]},
    ],
    ids=["bare", "extra keys", "arguments written anew", "reasoning", "reasoning renamed", "parts"],
)
def test_a_reply_sent_back_in_the_harness_own_form_is_the_same_message(echo: dict[str, Any]) -> None:
    trace = blank()
    opening = [system(), user()]
    turn(trace, opening, reply("x", CALL, reasoning_content="hm"))
    pending = prepare_turn(trace, [*opening, echo, result("c1")])
    assert (pending.known, len(pending.tail), pending.forks) == (3, 1, False)
    pending.commit(reply("done"))
    assert trace.num_branches == 1
    again = prepare_turn(trace, over_the_wire([*opening, echo, result("c1"), reply("done"), user("more")]))
    assert (again.known, again.forks) == (5, False)


@pytest.mark.parametrize(
    "echo",
    [
        reply("y", CALL),
        reply("x", ("c2", "bash", CALL[2])),
        reply("x", ("c1", "edit", CALL[2])),
        reply("x", ("c1", "bash", {"command": "rm"})),
        reply("x"),
        reply("x", CALL, reasoning_content="other"),
        reply("x", CALL, reasoning_details=[{"text": "other"}]),
    ],
)
def test_a_changed_reply_forks(echo: dict[str, Any]) -> None:
    trace = blank()
    turn(trace, [user()], reply("x", CALL, reasoning_content="hm"))
    pending = prepare_turn(trace, [user(), echo, result("c1")])
    assert (pending.known, pending.forks) == (1, True)
    pending.commit(reply("done"))
    assert trace.num_branches == 2
    assert not trace.nodes[2].sampled


def test_compaction_opens_a_second_branch_and_goes_on_there() -> None:
    trace = blank()
    long = [system(), user(), reply("a"), user("b")]
    turn(trace, [system(), user()], reply("a"))
    turn(trace, long, reply("c"))
    short = [system(), user("summary so far")]
    turn(trace, short, reply("d"))
    turn(trace, [*short, reply("d"), user("e")], reply("f"))
    assert trace.num_branches == 2
    assert texts(trace, 0) == ["You are an agent.", "Say hi", "a", "b", "c"]
    assert texts(trace, 1) == ["You are an agent.", "summary so far", "d", "e", "f"]
    assert trace.messages == trace.branches[1].messages
    assert sum(str(node.message.content) == "You are an agent." for node in trace.nodes) == 1


def test_two_answers_to_one_request_stand_beside_each_other() -> None:
    trace = blank()
    first = turn(trace, [user()], reply("same"))
    second = turn(trace, [user()], reply("same"))
    assert first != second
    assert [node.parent for node in trace.nodes] == [None, 0, 0]
    third = turn(trace, [user(), reply("same"), user("go on")], reply("x"))
    assert trace.nodes[trace.nodes[third].parent or 0].parent == second


def test_requests_under_way_at_the_same_time_share_what_they_bring() -> None:
    trace = blank()
    turn(trace, [user()], reply("x", CALL))
    messages = [user(), reply("x", CALL), result("c1")]
    one, two = prepare_turn(trace, over_the_wire(messages)), prepare_turn(trace, over_the_wire(messages))
    one.commit(reply("a"))
    two.commit(reply("b"))
    assert [str(node.message.content) for node in trace.nodes] == ["Say hi", "x", "done", "a", "b"]
    assert [node.parent for node in trace.nodes] == [None, 0, 1, 2, 2]


def test_more_conversations_than_are_remembered() -> None:
    trace = blank()
    count = HEADS_KEPT + 5
    for i in range(count):
        turn(trace, [system(), user(f"sub {i}")], reply(f"a {i}"))
    for i in range(count):
        pending = prepare_turn(trace, [system(), user(f"sub {i}"), reply(f"a {i}"), user("go on")])
        assert (pending.known, pending.forks) == (3, False)
        pending.commit(reply(f"b {i}"))
    assert trace.num_branches == count
    assert len(trace.nodes) == 1 + 4 * count


def test_preparing_changes_nothing_and_a_turn_is_recorded_once() -> None:
    trace = blank()
    turn(trace, [user()], reply("x"))
    before = trace.to_record()
    pending = prepare_turn(trace, [user(), reply("x"), user("y")])
    assert trace.to_record() == before
    pending.commit(reply("z"))
    with pytest.raises(RuntimeError, match="recorded already"):
        pending.commit(reply("z"))


def test_a_typed_reply_is_taken_too() -> None:
    trace = blank()
    node = prepare_turn(trace, [user()]).commit(AssistantMessage(content="x"))
    assert trace.nodes[node].message == AssistantMessage(content="x")
    assert prepare_turn(trace, [user(), reply("x"), user()]).known == 2
    assert prepare_turn(trace, [user(), {}]).known == 1


def test_tools_of_the_last_recorded_turn_stand() -> None:
    trace = blank()
    prepare_turn(trace, [user()]).commit(reply("x"), tools=TOOLS)
    assert [tool.name for tool in trace.tools or []] == ["bash"]
    first = trace.tools
    prepare_turn(trace, [user("b")]).commit(reply("x"), tools=over_the_wire(TOOLS))
    assert trace.tools is first
    prepare_turn(trace, [user("c")]).commit(reply("x"), tools=[])
    assert trace.tools is first
    other = [{"type": "function", "function": {"name": "edit"}}]
    prepare_turn(trace, [user("d")]).commit(reply("x"), tools=other)
    assert [tool.name for tool in trace.tools or []] == ["edit"]


def test_the_graph_of_a_trace_that_was_read_goes_on() -> None:
    trace = blank()
    turn(trace, [user()], reply("x", CALL))
    read = Trace.from_record(trace.to_record())
    pending = prepare_turn(read, [user(), reply("x", CALL), result("c1")])
    assert (pending.known, pending.forks) == (2, False)


def test_hostile_arguments_do_no_harm() -> None:
    trace = blank()
    deep = "[" * 100_000
    turn(trace, [user()], reply("x", ("c1", "bash", deep)))
    assert prepare_turn(trace, [user(), reply("x", ("c1", "bash", deep + " ")), result("c1")]).known == 1
    huge = "9" * 10_000
    turn(trace, [user("n")], reply("x", ("c1", "bash", huge)))
    assert prepare_turn(trace, [user("n"), reply("x", ("c1", "bash", huge + " "))]).known == 1
    assert prepare_turn(trace, [user("n"), 7, None]).known == 1


# -- against a plain reading of the rule ----------------------------------------------------------------------------

choices = st.lists(
    st.tuples(st.integers(0, 30), st.integers(0, 3), st.sampled_from("abc")), min_size=1, max_size=14
)


@given(choices)
@settings(max_examples=80)
def test_every_request_is_found_again_as_it_was_sent(steps: list[tuple[int, int, str]]) -> None:
    """Any order of going on, going back and answering twice gives branches that hold what was sent, and no message
    stands twice below the same parent unless the model said it twice."""
    trace = blank()
    histories: list[list[dict[str, Any]]] = [[user("a")]]
    sent: list[list[dict[str, Any]]] = []
    for pick, cut, text in steps:
        history = histories[pick % len(histories)]
        history = [*history[: len(history) - cut or 1], user(text)]
        answer = reply(text)
        node = prepare_turn(trace, over_the_wire(history)).commit(over_the_wire(answer))
        sent.append([*history, answer])
        histories.append([*history, {**answer, "refusal": None}])
        path, at = [], node
        while at is not None:
            path.append(trace.nodes[at])
            at = trace.nodes[at].parent  # type: ignore[assignment]
        assert [message_key(n.message) for n in path[::-1]] == [
            message_key(parse_message(m)) for m in sent[-1]
        ]
    assert trace.num_turns == len(steps)
    brought = [(n.parent, message_key(n.message)) for n in trace.nodes if not n.sampled]
    assert len(brought) == len(set(brought))
    fresh = Graph(trace.nodes)
    for conversation in sent:
        assert len(fresh.match(conversation).nodes) == len(conversation)
        assert prepare_turn(trace, conversation).known == len(conversation)


@given(
    st.recursive(
        st.none() | st.booleans() | st.text(max_size=5),
        lambda s: st.lists(s) | st.dictionaries(st.text(max_size=5), s),
    )
)
@settings(max_examples=80)
def test_no_message_is_too_odd_to_record(raw: Any) -> None:
    trace = blank()
    prepare_turn(trace, [raw, {"role": "assistant", "content": raw, "tool_calls": raw}]).commit(
        {"content": raw, "tool_calls": [raw]}
    )
    json.dumps(trace.to_record())
