"""What a screen knows of tool servers: which an attempt has, whose call it was, and whose sandbox."""

from __future__ import annotations

import json

from vf_core.events import types as ev
from vf_core.events.fold import apply
from vf_core.events.snapshot import dump, load
from vf_core.events.state import SERVED_KEPT, SERVERS_KEPT, RunState, ServedView


def told(*events: ev.Event) -> RunState:
    state = RunState()
    for seq, event in enumerate(events, 1):
        apply(state, ev.stamp(event, seq=seq, t=1_000.0 + seq))
    return state


BEGUN = ev.AttemptStarted(rollout="r", attempt=1, trace="t")


def test_the_servers_of_an_attempt_and_their_tools() -> None:
    state = told(
        BEGUN,
        ev.ToolsServed(rollout="r", attempt=1, server="calc", place="sandbox"),
        ev.ToolsServed(rollout="r", attempt=1, server="calc", tools=("add",), place="sandbox"),
        ev.ToolsServed(rollout="r", attempt=1, server="", tools=("look",), place="external", shared=True),
        ev.ToolsServed(rollout="r", attempt=1, server="calc", place="host"),
    )
    known = {"calc": ServedView("host", False, ("add",), 1), "": ServedView("external", True, ("look",), 1)}
    assert state.rollouts["r"].served == known
    assert load(json.loads(json.dumps(dump(state)))).rollouts["r"].served == known
    apply(state, ev.AttemptStarted(rollout="r", attempt=2, trace="t2", seq=9, t=2_000.0))
    assert state.rollouts["r"].served == {}


def test_what_servers_tell_is_bounded() -> None:
    many = [ev.ToolsServed(rollout="r", attempt=1, server=f"s{n}") for n in range(100)]
    wide = ev.ToolsServed(rollout="r", attempt=1, server="s0", tools=tuple("x" * 999 for _ in range(5_000)))
    served = told(BEGUN, *many, wide).rollouts["r"].served
    assert len(served) == SERVERS_KEPT
    assert (len(served["s0"].tools), served["s0"].count) == (SERVED_KEPT, 5_000)
    assert len(served["s0"].tools[0]) == ev.NAME_LIMIT


def test_a_call_s_server_and_seconds_are_exact_once_it_has_returned() -> None:
    state = told(
        BEGUN,
        ev.ToolCalled(rollout="r", attempt=1, call=0, id="c0", name="calc_add"),
        ev.ToolReturned(rollout="r", attempt=1, id="c0", result="3", seconds=0.25, server="calc"),
    )
    (tool,) = state.rollouts["r"].tools
    assert (tool.server, tool.seconds, tool.ended) == ("calc", 0.25, 1_003.0)


def test_a_tool_server_s_sandbox_is_not_the_agent_s() -> None:
    state = told(
        BEGUN,
        ev.RuntimeChanged(rollout="r", attempt=1, sandbox="a", kind="docker", state="live"),
        ev.RuntimeChanged(rollout="r", attempt=1, sandbox="k", kind="docker", state="live", serves="calc"),
        ev.RuntimeChanged(rollout="", sandbox="s", kind="subprocess", state="sent", serves="db"),
    )
    r = state.rollouts["r"]
    assert r.sandbox is state.sandboxes["a"]
    assert (r.sandboxes, list(state.rollouts)) == (["a", "k"], ["r"])
    assert {name: (box.serves, box.rollout) for name, box in state.sandboxes.items()} == {
        "a": ("", "r"), "k": ("calc", "r"), "s": ("db", ""),
    }  # fmt: skip
    assert state.unconfirmed == {"s"}
