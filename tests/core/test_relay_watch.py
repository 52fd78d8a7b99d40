"""What is told of tool calls: which server, how long, and which of the model's calls it was."""

from __future__ import annotations

import random
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from doubles import upstream as up
from doubles.intercepted import HELLO, rig
from doubles.tool_servers import Asked, Door, call, tool_double
from vf_core.events import types as ev
from vf_core.interception import mcp_messages, relay, tools
from vf_core.interception.mcp_messages import EventCutter, Message, error, read
from vf_core.interception.tools import ToolWatch
from vf_core.trace.types import ToolCall


class Clock:
    """Time that only a test moves."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        for module in (relay, tools):
            monkeypatch.setattr(module, "time", self)

    def monotonic(self) -> float:
        return self.now


def asked(watch: ToolWatch, *calls: tuple[str, str, str], number: int = 0) -> list[ev.ToolCalled]:
    """The model asks for tools: (id, name, arguments) each."""
    return list(watch.called("r", 1, number, [ToolCall(id=i, name=n, arguments=a) for i, n, a in calls]))


def returned(watch: ToolWatch, *results: tuple[str, str]) -> list[ev.ToolReturned]:
    """The program's next request brings results: (id, text) each."""
    messages = [{"role": "tool", "tool_call_id": i, "content": text} for i, text in results]
    return list(watch.returned("r", 1, [{"role": "assistant"}, *messages]))


def test_calls_are_told_apart_by_arguments_then_by_order(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    watch = ToolWatch()
    watch.served("calc", ["add"])
    events = asked(
        watch,
        ("a", "calc_add", '{"a": 1}'),
        ("b", "calc_add", '{"a":2}'),
        ("c", "calc_add", "{}"),
        ("d", "bash", "{}"),
    )
    assert [e.server for e in events] == ["calc", "calc", "calc", ""]
    # In parallel, the last one first.
    for arguments, seconds in (({"a": 2}, 2.0), ({"other": 0}, 1.0), (None, 3.0)):
        found = watch.began("calc", "add", arguments)
        assert found is not None
        found.ended(seconds, failed=arguments is None)
    assert watch.began("calc", "mul", {}) is None
    clock.now += 50
    told = returned(watch, ("a", "1"), ("b", "2"), ("c", "3"), ("d", "error: no"))
    assert [(e.server, e.seconds, e.failed) for e in told] == [
        ("calc", 1.0, False),
        ("calc", 2.0, False),
        ("calc", 3.0, True),
        ("", 50.0, True),
    ]


def test_a_call_that_is_asked_again_is_one_call(monkeypatch: pytest.MonkeyPatch) -> None:
    Clock(monkeypatch)
    watch = ToolWatch()
    asked(watch, ("a", "add", "{}"), ("b", "add", "{}"))
    first = watch.began("", "add", {})
    assert first is not None
    first.lost(4.0)
    again = watch.began("", "add", {})
    assert again is first
    again.ended(0.5, failed=False)
    other = watch.began("", "add", {})
    assert other is not None
    assert other is not first
    other.lost(7.0)
    told = returned(watch, ("a", "ok"), ("b", "error: no"))
    # One was answered in the end, one never: what was waited for it.
    assert [(e.seconds, e.failed) for e in told] == [(0.5, False), (7.0, True)]


def test_names_that_other_programs_give_are_found_and_learnt() -> None:
    watch = ToolWatch()
    (first,) = asked(watch, ("a", "mcp__calc__add", "{}"))
    assert first.server == ""
    assert watch.began("calc", "add", {}) is not None
    assert watch.began("other", "add", {}) is None
    (told,) = returned(watch, ("a", "ok"))
    assert told.server == "calc"
    (second,) = asked(watch, ("b", "mcp__calc__add", "{}"), number=1)
    assert second.server == "calc"


async def test_events_tell_a_calls_server_and_what_it_took(monkeypatch: pytest.MonkeyPatch) -> None:
    """Through the whole way: listed, asked for by the model, carried out, answered, brought back."""
    async with tool_double() as d, rig() as r:
        session = r.session()
        calc, bare = (
            Door(r, session, d.server()),
            Door(r, session, d.server("", place="external", shared=True, own=False)),
        )

        def listing(asked: Asked) -> None:
            tools = [{"name": n} for n in (("add", "mul") if asked.message.get("params") else ("add",))]
            asked.whole({"jsonrpc": "2.0", "id": asked.message["id"], "result": {"tools": tools}})

        d.answer = listing
        for door in (calc, bare):
            await door.ask({"jsonrpc": "2.0", "id": 1, "method": "tools/list"})
            await door.ask({"jsonrpc": "2.0", "id": 1, "method": "tools/list"})
        await bare.ask({"jsonrpc": "2.0", "id": 2, "method": "tools/list", "params": {"cursor": "p2"}})
        served = [(e.server, e.tools, e.place, e.shared) for e in r.told(ev.ToolsServed)]
        assert served == [
            ("calc", (), "host", False),
            ("", (), "external", True),
            ("calc", ("add",), "host", False),
            ("", ("add",), "external", True),
            ("", ("add", "mul"), "external", True),
        ]
        assert [s["tools"] for s in session.trace.extra["tool_servers"]] == [["add"], ["add", "mul"]]

        reply = up.completion(None, [up.tool("t1", "calc_add", '{"a":1}'), up.tool("t2", "mul", "{}")])
        r.provider.plan(up.answer(reply))
        await r.ask(session)
        assert [e.server for e in r.told(ev.ToolCalled)] == ["calc", ""]
        clock = Clock(monkeypatch)

        def work(asked: Asked) -> None:
            failed = asked.message["params"]["name"] == "mul"
            clock.now += 9 if failed else 3
            asked.stream()
            asked.event({"jsonrpc": "2.0", "method": "notifications/progress", "params": {}})
            asked.event(asked.result("said", isError=failed))
            asked.end()

        d.answer = work
        await calc.ask(call("add", a=1))
        await bare.ask(call("mul"))
        clock.now += 100
        results = [{"role": "tool", "tool_call_id": i, "content": "said"} for i in ("t1", "t2")]
        await r.ask(session, {"messages": [*HELLO, reply["choices"][0]["message"], *results]})
        told = [(e.server, e.seconds, e.failed) for e in r.told(ev.ToolReturned)]
        assert told == [("calc", 3.0, False), ("", 9.0, True)]


async def test_a_server_of_ever_new_tools_fills_neither_journal_nor_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with tool_double() as d, rig() as r:
        door = Door(r, r.session(), d.server())
        count = 0

        def listing(asked: Asked) -> None:
            nonlocal count
            count += 1
            tools = [{"name": f"t{count}-{n}" + "x" * 500} for n in range(1000)]
            asked.whole({"jsonrpc": "2.0", "id": 1, "result": {"tools": tools}})

        d.answer = listing
        async with door.client() as client:
            for _ in range(50):
                await client.ask({"jsonrpc": "2.0", "id": 1, "method": "tools/list"}, path=door.path)
            served = r.told(ev.ToolsServed)
            assert len(served) < 25
            assert all(len(e.tools) <= 200 and max(map(len, e.tools), default=0) <= 200 for e in served)
            d.answer = lambda asked: asked.whole(b"", status="302 Found")
            for _ in range(50):
                await client.ask(call(), path=door.path)
        assert len(caplog.records) < 25


# Reading messages


def test_messages_are_read_as_far_as_needed() -> None:
    assert read(
        b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"t","arguments":{"a":1}}}'
    ) == [Message(1, "tools/call", "t", {"a": 1})]
    assert read(b'[{"id":"1","result":{"isError":true}},{"id":1,"error":{"code":1}},7]') == [
        Message("1", failed=True),
        Message(1, failed=True),
    ]
    assert Message("1").key != Message(1).key
    for odd in (
        b"",
        b"\xff",
        b"7",
        b"null",
        b"{" * 50,
        b'{"id":{},"method":7,"params":[]}',
        b'{"result":{"tools":[7,{}]}}',
    ):
        assert all(not m.method and not m.tools for m in read(odd))


@pytest.mark.parametrize("last", [False, True], ids=["id first", "id last"])
def test_of_a_large_message_the_ends_are_read(last: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mcp_messages, "WHOLE", 1000)
    pad = '"x":"' + '\\"method\\": \\"no\\"' * 1000 + '"'
    ident = ("", ',"id":"q"') if last else ('"id":"q",', "")
    first, end = ident
    params = '"params":{"name":"t","arguments":{' + pad + "}}"
    asks = "{" + first + '"method":"tools/call",' + params + end + "}"
    answers = "{" + first + '"result":{"isError":true,"method":"no",' + pad + "}" + end + "}"
    (asked,) = read(asks.encode())
    (answer,) = read(answers.encode())
    assert (asked.id, asked.method, asked.name) == ("q", "tools/call", "t")
    assert (answer.id, answer.method, answer.failed) == ("q", "", True)


def test_errors_are_json_rpc() -> None:
    assert read(error(-1, 'said "so"', [3])) == [Message(3, failed=True)]
    assert read(error(-1, "x", [3, "4"], batch=True)) == [Message(3, failed=True), Message("4", failed=True)]
    assert read(error(-1, "x")) == [Message(None, failed=True)]


@given(
    st.lists(st.sampled_from([b"a", b"data: b", b"\n", b"\r\n", b"\r", b"\n\n", b"\r\n\r\n"]), max_size=40),
    st.randoms(),
)
def test_events_are_cut_the_same_however_they_come(pieces: list[bytes], rnd: random.Random) -> None:
    whole = b"".join(pieces)
    cutter, found, at = EventCutter(), [], 0
    while at < len(whole):
        step = rnd.randint(1, 6)
        found += cutter.feed(whole[at : at + step])
        at += step
    rest = cutter.rest()
    assert b"".join([*found, rest]) == whole
    assert all(re.search(rb"(?:\r\n|\r|\n)(?:\r\n|\r|\n)\Z", event) for event in found)
    # A line end may come in two pieces; but for those, an event ends at its first blank line.
    assert all(
        re.search(rb"(?>\r\n|\r|\n){2}", event.lstrip(b"\n")[:-3]) is None for event in found if event.strip()
    )
    assert re.search(rb"\n\n|\r\r|\n\r", rest) is None
