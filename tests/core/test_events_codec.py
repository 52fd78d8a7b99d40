"""Events as lines of JSON."""

from __future__ import annotations

import json
import math
from dataclasses import fields, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from doubles.event_streams import any_event
from vf_core.events import types as ev
from vf_core.events.codec import decode, encode, from_record, to_record


def without_infinities(event: ev.Event) -> ev.Event:
    """`event` as it must come back: what JSON can't say is at its default."""

    def kept(value: Any, default: Any) -> Any:
        if isinstance(value, float) and not math.isfinite(value):
            return default
        if isinstance(value, dict):
            return {k: v for k, v in value.items() if not isinstance(v, float) or math.isfinite(v)}
        return value

    return replace(event, **{f.name: kept(getattr(event, f.name), f.default) for f in fields(event)})


@given(any_event())
@settings(max_examples=300)
def test_every_event_comes_back_as_it_was(event: ev.Event) -> None:
    line = encode(event)
    assert line.isascii()
    assert "\n" not in line
    assert decode(line) == without_infinities(event)
    assert decode(line.encode()) == decode(line)


@pytest.mark.parametrize("text", ["\u0085", "\u2028", "\u2029", "\f", "\r", "\n", "\x1c", "\ud800", "\0"])
def test_x02_what_some_take_for_a_line_break_stays_in_its_line(text: str) -> None:
    event = ev.Log(level="info", message=f"a{text}b")
    assert len(encode(event).encode().split(b"\n")) == 1
    assert decode(encode(event)) == event


def test_defaults_are_left_out() -> None:
    event = ev.PhaseChanged(rollout="r", phase="boot")
    assert to_record(event) == {"type": "rollout.phase", "rollout": "r", "phase": "boot"}


def test_a_newer_producers_events_and_fields_are_passed_over() -> None:
    assert from_record({"type": "something.new", "x": 1}) is None
    assert from_record({"type": "log", "level": "info", "message": "m", "colour": "red"}) == ev.Log(
        level="info", message="m"
    )


@pytest.mark.parametrize(
    "line",
    [
        "",
        "{",
        "[]",
        "3",
        '{"type":"log"}',
        '{"type":"log","level":1,"message":"m"}',
        '{"type":"log","level":"info","message":"m","seq":"7"}',
        '{"type":"log","level":"info","message":"m","seq":true}',
        '{"type":"log","level":"info","message":"m","t":NaN}',
        '{"type":"rollout.phase","rollout":"r","phase":null}',
        '{"type":"live.now","rollout":"r","tools":[{"index":"x"}]}',
        "[" * 100_000,
        '{"type":"log","level":"info","message":"m","t":' + "[" * 100_000,
    ],
)
def test_what_is_no_event_is_a_value_error(line: str) -> None:
    with pytest.raises(ValueError):
        decode(line)


@given(
    st.dictionaries(
        st.sampled_from(["type", "seq", "t", "rollout", "targets", "rewards"]), st.none() | st.text()
    )
)
@settings(max_examples=50)
def test_no_record_raises_anything_else(record: dict[str, Any]) -> None:
    record["type"] = "rollout.scored"
    try:
        decode(json.dumps(record))
    except ValueError:
        pass
