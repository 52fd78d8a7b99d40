"""Hypothesis strategies: event streams as an engine could publish them, and some that none would."""

from __future__ import annotations

import copy
import json
from dataclasses import fields
from typing import Any

from hypothesis import strategies as st

from vf_core.events import types as ev
from vf_core.events.bus import Bus
from vf_core.events.state import RunState
from vf_core.runtimes.lifecycle import State

ROLLOUTS = ("t0-s0", "t1-s0", "t1-s1")
TEXT = st.text(alphabet=st.characters(exclude_categories=()), max_size=12)
NUMBER = st.floats(allow_nan=True, allow_infinity=True)
_BY_ANNOTATION: dict[str, st.SearchStrategy[Any]] = {
    "str": TEXT,
    "int": st.integers(-3, 2**40),
    "bool": st.booleans(),
    "float": NUMBER,
    "int | None": st.none() | st.integers(0, 9),
    "float | None": st.none() | NUMBER,
    "tuple[str, ...]": st.lists(TEXT, max_size=3).map(tuple),
    "Mapping[str, float]": st.dictionaries(TEXT, NUMBER, max_size=3),
    "tuple[Mapping[str, Any], ...]": st.lists(
        st.fixed_dictionaries(
            {
                "index": st.integers(0, 3),
                "id": TEXT,
                "name": TEXT,
                "arguments": TEXT,
                "started": st.floats(0, 9),
            }
        ),
        max_size=2,
    ).map(tuple),
}


def of_type(cls: type[ev.Event], **given: st.SearchStrategy[Any]) -> st.SearchStrategy[ev.Event]:
    """Events of one type with any content."""
    parts = {f.name: given.get(f.name, _BY_ANNOTATION[str(f.type)]) for f in fields(cls)}
    return st.builds(cls, **parts)


def any_event(**given: st.SearchStrategy[Any]) -> st.SearchStrategy[ev.Event]:
    """Any event with any content, sense or no sense."""
    return st.one_of(
        *(
            of_type(cls, **{k: v for k, v in given.items() if k in {f.name for f in fields(cls)}})
            for cls in ev.TYPES.values()
        )
    )


_STATES = [state.value for state in State]
_OUTCOMES = ["completed", "declined", "stopped", "error"]
_STEPS = st.lists(
    st.tuples(
        st.integers(0, 20),  # what happens
        st.integers(0, len(ROLLOUTS) - 1),  # to which rollout
        st.integers(0, 11),  # which of several
        st.sampled_from(["", "a", "text", "\ud800", "\u2028", "é" * 40, "x" * 3_000]),
        st.sampled_from([None, 0.0, 1.0, 0.25, float("nan"), float("inf"), -3.5]),
    ),
    max_size=50,
)


def plausible() -> st.SearchStrategy[list[ev.Event]]:
    """Events in an order in which an engine could publish them, live ones included, not yet numbered."""
    return _STEPS.map(_stream)


def _stream(steps: list[tuple[int, int, int, str, float | None]]) -> list[ev.Event]:
    out: list[ev.Event] = [ev.RunStarted(run="r", name="n", total=len(ROLLOUTS), pid=1, host="h")]
    out += [ev.RolloutQueued(rollout=r, task=i, name=f"task {i}") for i, r in enumerate(ROLLOUTS)]
    attempts = dict.fromkeys(ROLLOUTS, 0)
    calls = dict.fromkeys(ROLLOUTS, 0)
    for what, whose, which, text, number in steps:
        rollout = ROLLOUTS[whose]
        if not attempts[rollout] or what == 0:
            attempts[rollout] += 1
            calls[rollout] = 0
            trace = f"{rollout}-{attempts[rollout]}"
            out.append(ev.AttemptStarted(rollout=rollout, attempt=attempts[rollout], trace=trace))
        calls[rollout] += what == 1
        out += _happens(what, rollout, attempts[rollout], calls[rollout], which, text, number)
    return out


def _happens(
    what: int, rollout: str, attempt: int, call: int, which: int, text: str, number: float | None
) -> list[ev.Event]:
    who: dict[str, Any] = {"rollout": rollout, "attempt": attempt}
    tool = f"c{which % 4}"
    late = {"rollout": rollout, "attempt": max(1, attempt - which % 2)}
    targets = (rollout,)
    events: dict[int, ev.Event] = {
        1: ev.ModelCallStarted(**who, call=call),
        2: ev.TextDelta(**who, call=call, text=text, reasoning=which % 2 == 0),
        3: ev.ToolDelta(**who, call=call, index=which % 3, id=tool, name=text[:9], arguments=text),
        4: ev.OutputChunk(**who, stream="stdout", text=text),
        5: ev.ModelCallFinished(
            **who,
            call=call - which % 2,
            prompt_tokens=which if which % 3 else None,
            completion_tokens=which,
            cost=number,
            text=text,
            error="boom" if which % 5 == 0 else "",
        ),
        6: ev.ToolCalled(**who, call=call, id=tool, name="bash", arguments=text),
        7: ev.ToolReturned(**who, id=tool, result=text, failed=which % 2 == 0),
        8: ev.PhaseChanged(**who, phase=("boot", "running", "scoring")[which % 3]),
        9: ev.ProgramStarted(**who, program="bash"),
        10: ev.ProgramExited(**who, code=which, meaning=text, kind="ok"),
        11: ev.Scored(**who, reward=number, metrics={"m": number} if number is not None else {}),
        12: ev.AttemptFinished(
            **late, outcome=_OUTCOMES[which % 4], reward=number, final=which % 3 > 0, error=text
        ),
        13: ev.ErrorRaised(**who, kind="TaskError", message=text),
        14: ev.CommandAccepted(command=tool, name="stop", targets=targets),
        15: ev.CommandDone(command=tool, name="stop", changed=targets),
        16: ev.CommandFailed(command=tool, name="stop", message=text),
        17: ev.Log(level="info", message=text),
        18: ev.RunFinished(status="completed"),
        19: ev.RunStarted(run="r", name="n", total=3, pid=which % 2, host="h"),
        20: ev.RunLaunching(paused=which % 2 == 0, concurrency=which),
    }
    if what == 0:
        name = f"sb-{rollout}-{late['attempt']}"
        state = _STATES[which % len(_STATES)]
        return [ev.RuntimeChanged(**late, sandbox=name, kind="subprocess", state=state, proof=text[:9])]
    return [events[what]]


def published(events: list[ev.Event]) -> tuple[Bus, list[ev.Event]]:
    """Publish copies of `events` on a bus whose clock ticks a second an event; the bus, and its durable events."""
    ticks = iter(range(1, 10**9))
    bus = Bus(clock=lambda: float(next(ticks)))
    journal: list[ev.Event] = []
    bus.add_sink(journal.append)
    for event in events:
        bus.publish(copy.copy(event))
    return bus, journal


def without_live(state: RunState) -> RunState:
    """A copy of `state` without all that only live events tell."""
    state = copy.deepcopy(state)
    state.revision, state.now = 0, 0.0
    for rollout in state.rollouts.values():
        rollout.text = rollout.reasoning = rollout.output = ""
        rollout.last_progress, rollout.revision = 0.0, 0
        while rollout.tools and rollout.tools[-1].partial:
            rollout.tools.pop()
    return state


def through_json(value: Any) -> Any:
    """What becomes of `value` on the wire."""
    return json.loads(json.dumps(value, allow_nan=False))
