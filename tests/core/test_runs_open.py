"""Opening run directories, ours and verifiers', also while they grow."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from doubles.fake_engine import FakeEngine
from doubles.records import append, record, verifiers_run
from vf_core.errors import RunDirError
from vf_core.events import types as ev
from vf_core.events.codec import encode
from vf_core.events.journal import JournalWriter
from vf_core.events.state import RolloutView, RunState
from vf_core.runs import open as opening
from vf_core.runs.foreign import Teller
from vf_core.runs.open import JournalSource, load, offset_after, open_source


def opened(run_dir: Path) -> RunState:
    return load(open_source(run_dir), RunState())


def only(state: RunState) -> RolloutView:
    (rollout,) = state.rollouts.values()
    return rollout


def test_a_verifiers_record_is_shown_as_what_happened(tmp_path: Path) -> None:
    state = opened(verifiers_run(tmp_path / "name" / "u1", record(turns=2)))
    assert (state.name, state.model, state.taskset, state.total) == ("name", "org/model", "gsm8k", 6)
    r = only(state)
    assert (r.status, r.reward, r.stop_condition, r.name) == ("completed", 1.0, "agent_completed", "sum")
    assert (r.turns, r.calls, r.answer) == (3, 3, "42")
    assert (r.prompt_tokens, r.cached_tokens, r.completion_tokens) == (300, 15, 30)
    assert [(t.name, t.result) for t in r.tools] == [("bash", "out 0"), ("bash", "out 1")]
    assert r.metrics == {"num_turns": 2.0}
    assert [phase for phase, _ in r.phases] == ["boot", "running", "scoring"]
    assert r.ended is not None
    assert r.started is not None
    assert r.ended - r.started == 91
    assert r.attempts[0].trace == "trace0"


def test_samples_of_a_task_are_told_apart(tmp_path: Path) -> None:
    state = opened(verifiers_run(tmp_path / "u1", record(7), record(7), record(8)))
    assert [(r.id, r.task, r.sample) for r in state.rollouts.values()] == [
        ("t7-s0", 7, 0),
        ("t7-s1", 7, 1),
        ("t8-s0", 8, 0),
    ]


def test_failures_and_failed_calls_are_shown(tmp_path: Path) -> None:
    broken = record(
        errors=[{"type": "ProviderError", "message": "boom", "status_code": 500}],
        rewards={},
        stop_condition=None,
    )
    broken["calls"].append({"node": None, "error": {"type": "ProviderError", "message": "boom"}})
    state = opened(verifiers_run(tmp_path / "u1", broken, record(1, stop_condition="agent_declined")))
    first, second = state.rollouts.values()
    assert (first.status, first.error_type, first.error, first.reward) == (
        "error",
        "ProviderError",
        "boom",
        None,
    )
    assert (first.calls, first.turns) == (3, 2)
    assert second.status == "declined"


def test_episodes_of_several_traces_are_understood(tmp_path: Path) -> None:
    state = opened(verifiers_run(tmp_path / "u1", {"id": "e", "traces": [record(0), record(1), "junk"]}))
    assert len(state.rollouts) == 2


def test_our_own_record_says_more(tmp_path: Path) -> None:
    own = {
        "rollout": "t3-s1",
        "position": 3,
        "sample": 1,
        "attempt": 2,
        "outcome": "declined",
        "exit_code": 4,
        "exit_meaning": "declined (4)",
        "sandbox": "sb",
        "lifecycle": [
            {"state": "starting", "t": 1.0},
            {"state": "live", "t": 2.0},
            {"state": "gone", "proof": "p"},
        ],
    }
    r = only(opened(verifiers_run(tmp_path / "u1", record(info={"vf_tui": own}))))
    assert (r.id, r.task, r.sample, r.attempt, r.status) == ("t3-s1", 3, 1, 2, "declined")
    assert r.program is not None
    assert r.program.meaning == "declined (4)"
    assert r.sandbox is not None
    assert (r.sandbox.state, r.sandbox.proof) == ("gone", "p")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@given(st.data())
@settings(max_examples=60)
def test_a_record_of_any_shape_is_shown_as_far_as_it_goes(data: st.DataObject) -> None:
    broken = record(turns=1)
    for _ in range(data.draw(st.integers(1, 4))):
        place: Any = broken
        while isinstance(place, dict | list) and place:
            keys = list(place) if isinstance(place, dict) else list(range(len(place)))
            key = data.draw(st.sampled_from(keys))
            if not isinstance(place[key], dict | list) or not place[key] or data.draw(st.booleans()):
                place[key] = data.draw(JSON)
                break
            place = place[key]
    events = Teller().tell(broken)
    state = RunState()
    for event in events:
        opening.fold([event], state)
    assert events[-1].seq == len(events)


def test_a_line_of_no_sense_costs_only_itself(tmp_path: Path) -> None:
    run = verifiers_run(tmp_path / "u1", record(0))
    with (run / "traces.jsonl").open("ab") as file:
        file.write(b'\n{"torn": \n[1]\n\xff\xfe\n' + b"[" * 50_000 + b"\n")
    append(run, record(1, name="\u2028\u0085 x"))
    state = opened(run)
    assert [r.name for r in state.rollouts.values()] == ["sum", "\u2028\u0085 x"]


def test_a_run_that_grows_is_followed(tmp_path: Path) -> None:
    run = verifiers_run(tmp_path / "u1", record(0))
    source = open_source(run)
    state = load(source, RunState())
    assert not state.over
    with (run / "traces.jsonl").open("a") as file:
        file.write(json.dumps(record(1))[:50])
    load(source, state)
    assert len(state.rollouts) == 1
    with (run / "traces.jsonl").open("a") as file:
        file.write(json.dumps(record(1))[50:] + "\n")
    load(source, state)
    assert len(state.rollouts) == 2
    assert not source.replaced()


def test_a_run_with_all_it_was_to_have_is_over_and_an_old_one_too(tmp_path: Path) -> None:
    whole = verifiers_run(tmp_path / "u1", *(record(n) for n in range(6)))
    assert opened(whole).status == "completed"
    old = verifiers_run(tmp_path / "u2", record(0))
    os.utime(old / "traces.jsonl", (time.time() - 10_000,) * 2)
    source = open_source(old)
    state = load(source, RunState())
    assert (state.status, state.over) == ("stopped", True)
    append(old, record(1))
    load(source, state)
    assert (state.status, len(state.rollouts)) == ("running", 2)


def test_a_file_that_was_rewritten_is_noticed(tmp_path: Path) -> None:
    run = verifiers_run(tmp_path / "u1", record(0), record(1))
    source = open_source(run)
    load(source, RunState())
    (run / "traces.jsonl").unlink()
    assert not source.replaced()
    append(run, record(5))
    assert source.replaced()
    source = open_source(run)
    load(source, RunState())
    os.truncate(run / "traces.jsonl", 3)
    assert source.replaced()


def journal(path: Path, *events: ev.Event) -> None:
    writer = JournalWriter(path)
    for event in events:
        writer.append(event)
    writer.close()


def test_a_journal_gives_the_state_it_was_written_from(tmp_path: Path) -> None:
    engine = FakeEngine(rollouts=30)
    writer = JournalWriter(tmp_path / "events.jsonl")
    engine.bus.add_sink(writer.append)
    engine.play()
    writer.close()
    progress: list[tuple[int, int]] = []
    state = load(open_source(tmp_path), RunState(), progress=lambda done, of: progress.append((done, of)))
    assert state.totals == engine.state.totals
    size = (tmp_path / "events.jsonl").stat().st_size
    assert progress[-1] == (size, size)
    assert [done for done, _ in progress] == sorted(done for done, _ in progress)


def test_reading_can_be_given_up(tmp_path: Path) -> None:
    journal(
        tmp_path / "events.jsonl", *(ev.Log(level="info", message="m" * 900, seq=n) for n in range(1, 2_000))
    )
    state = load(open_source(tmp_path), RunState(), stop=lambda: True)
    assert state.seq == 0


@pytest.mark.parametrize("after", [0, 1, 2, 37, 499, 500, 501])
@pytest.mark.parametrize("step", [10, 300, 1 << 20])
def test_the_rest_of_a_journal_is_found_from_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: int, step: int
) -> None:
    monkeypatch.setattr(opening, "HELPING", step)
    path = tmp_path / "events.jsonl"
    journal(path, *(ev.Log(level="info", message=f"{n}", seq=n) for n in range(1, 501)))
    with path.open("a") as file:
        file.write('{"type":"log","seq":50')
    source = JournalSource(path, after=after)
    got: list[int] = []
    while events := source.read() or (not source.at_end and [ev.Log(level="", message="")]):
        got += [event.seq for event in events if event.seq]
    assert got == list(range(after + 1, 501))
    if step < 400 and 300 < after < 500:
        assert offset_after(path, after) > 0


def test_a_last_line_without_its_newline_is_read_once_its_writer_is_gone(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.write_text(
        encode(ev.Log(level="info", message="a", seq=1))
        + "\n"
        + encode(ev.Log(level="i", message="b", seq=2))
    )
    source = JournalSource(path)
    assert [event.seq for event in source.read()] == [1]
    assert [event.seq for event in source.last_words()] == [2]
    assert not source.last_words()


def test_a_run_whose_journal_is_lost_is_told_from_its_traces(tmp_path: Path) -> None:
    run = verifiers_run(tmp_path / "u1", record())
    (run / "events.jsonl").write_text("")
    assert len(opened(run).rollouts) == 1


def test_a_directory_without_a_run_is_said_to_be_so(tmp_path: Path) -> None:
    with pytest.raises(RunDirError, match=r"neither events\.jsonl nor traces\.jsonl"):
        open_source(tmp_path)
    with pytest.raises(RunDirError, match="not a directory"):
        open_source(tmp_path / "none")


def test_x07_memory_is_bounded_by_a_line_however_large_the_file(tmp_path: Path) -> None:
    import tracemalloc

    run = verifiers_run(tmp_path / "u1")
    line = json.dumps(record(turns=3, info={"blob": "x" * 200_000})) + "\n"
    with (run / "traces.jsonl").open("w") as file:
        for _ in range(60):
            file.write(line)
    tracemalloc.start()
    try:
        state = opened(run)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(state.rollouts) == 60
    assert peak < 8 << 20
