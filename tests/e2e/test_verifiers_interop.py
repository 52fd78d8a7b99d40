"""Records go both ways between this project and the released verifiers 0.2.1.dev64, through its own models."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from doubles.peer_venv import peer_python
from doubles.traces import agent_loop, blank, failed_call, reply, result, task, tokens, turn, user
from vf_core.errors import HarnessError, ProviderError
from vf_core.harnesses.base import HarnessConfig
from vf_core.tasks.judging import record
from vf_core.trace.graph import prepare_turn
from vf_core.trace.record import Trace, new_trace
from vf_core.trace.types import SamplingConfig, Usage
from vf_core.trace.writer import encode

PEER = Path(__file__).parents[1] / "doubles" / "verifiers_peer.py"
RELEASE = "verifiers==0.2.1.dev64"


class Own(HarnessConfig):
    edit: bool = True
    nested: dict[str, Any] = {"a": None}


def ours() -> dict[str, Trace]:
    """Traces with everything that this project may record."""
    out = {f"loop-{turns}": agent_loop(turns) for turns in (0, 1, 4)}
    rich = new_trace(
        task_type="Task",
        data=task(
            name="r", system_prompt="s", timeout={"harness": 3}, resources={"gpu": "A100:2"}, image="i"
        ).data,
        model="m",
        sampling=SamplingConfig(temperature=0.5, top_k=9),
        harness=Own(id="org/own@1", env={"A": "b"}, forward_env=["C"], disabled_tools=["edit"]),
        run="run-1",
    )
    turn(rich, [user()], reply(None, ("c1", "bash", "{broken")), tokens(10, 5, cost=0.5))
    parts = [
        {"type": "text", "text": "t"},
        {"type": "image_url", "image_url": {"url": "data:x", "detail": "low"}},
    ]
    audio = {"type": "input_audio", "input_audio": {"data": "x"}}
    more = [
        user(),
        reply(None, ("c1", "bash", "{broken")),
        result("c1", "error: resend"),
        user([*parts, audio]),
    ]  # type: ignore[arg-type]
    turn(rich, more, reply("\ud800\u2028", reasoning_details=[{"text": "why", "n": None}]))
    turn(rich, [{"role": "developer", "content": "d"}, {"role": "function", "name": "f"}], reply(""))
    rich.calls[-1].finish_reason = "content_filter"
    failed_call(rich, tokens(7, 1))
    rich.capture_error(ProviderError("down", status_code=503))
    rich.capture_error(HarnessError("no"))
    rich.metrics["odd"] = float("inf")
    rich.info["any"] = {"thing": object()}
    rich.extra.update(
        attempt=2, exit_code=4, exit_meaning="declined (4)", lifecycle=[{"state": "gone", "proof": "p"}]
    )
    for text, parsed, error in (("yes", 1.0, ""), ("?", None, "no verdict")):
        used = Usage(prompt_tokens=3, completion_tokens=1, cost=0.25)
        record(rich, name="reference", model="j", text=text, parsed=parsed, usage=used, error=error)
    rich.stamp(note="x")
    rich.finish()
    out["rich"] = rich
    out["no-prompt"] = blank(prompt=None)
    out["message-prompt"] = blank(prompt=[{"role": "user", "content": [{"type": "text", "text": "x"}]}])
    runtimes: dict[str, dict[str, Any]] = {
        "subprocess": {"type": "subprocess", "id": "/tmp/x", "keep": True},
        "docker": {
            "type": "docker",
            "image": "i",
            "cpu": 1.5,
            "memory": 2,
            "network": "none",
            "labels": {"a": "b"},
        },
        "prime": {
            "type": "prime",
            "id": "p",
            "timeout": 86400,
            "idle_timeout": 3600,
            "labels": ["a"],
            "vm": True,
        },
        "modal": {"type": "modal", "creates_per_sec": 40.0, "timeout": 60, "gpu": "T4"},
        "unheard-of": {"type": "unheard-of", "id": "x"},
    }
    for name, runtime in runtimes.items():
        out[name] = blank()
        out[name].runtime = runtime
    return out


@pytest.mark.network
@pytest.mark.timeout(1200)
def test_records_go_both_ways() -> None:
    """One start of the release for all of it: its imports alone take seconds."""
    traces = ours()
    lines = b"".join(encode(trace.to_record()) for trace in traces.values())
    python = peer_python(RELEASE)
    done = subprocess.run(
        [str(python), str(PEER)], input=lines, capture_output=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr.decode()[-3000:]
    answer = json.loads(done.stdout)
    by_id = {entry["id"]: entry for entry in answer["read"]}
    read = {name: by_id[trace.id] for name, trace in traces.items()}
    check_read_alike(traces, read)
    check_known_to_the_release(read)
    check_written_by_the_release(answer["written"])


def check_read_alike(traces: dict[str, Trace], read: dict[str, dict[str, Any]]) -> None:
    for name, trace in traces.items():
        seen = read[name]
        assert seen["turns"] == trace.num_turns, name
        assert seen["branches"] == [[m.role for m in b.messages] for b in trace.branches], name
        assert (seen["reward"], seen["last_reply"]) == (trace.reward, trace.last_reply), name
        assert (seen["truncated"], seen["errors"]) == (trace.is_truncated, [e.type for e in trace.errors]), (
            name
        )
        assert seen["transcript"] == trace.transcript, name
        assert seen["generation"] == trace.timing.generation.duration, name
        if (
            seen["known"] is not None
        ):  # the release's builder can't hash lone surrogates, its models hold them
            assert seen["known"] == [len(b.nodes) for b in trace.branches], name
    for name in ("loop-0", "loop-1", "loop-4"):
        counted = [
            traces[name].num_input_tokens,
            traces[name].num_output_tokens,
            traces[name].num_total_tokens,
        ]
        assert [read[name][key] for key in ("input", "output", "total")] == counted


def check_known_to_the_release(read: dict[str, dict[str, Any]]) -> None:
    assert read["rich"]["harness"] == "org/own@1"
    assert (read["rich"]["judged"], read["rich"]["extra_cost"]) == (["yes", "?"], 0.5)
    assert read["rich"]["data"]["resources"]["gpu"] == "A100:2"
    assert read["rich"]["data"]["timeout"]["harness"] == 3
    assert read["no-prompt"]["data"]["prompt"] is None
    assert read["docker"]["runtime"]["cpu"] == 1.5
    assert read["prime"]["runtime"]["labels"] == ["a"]
    assert read["modal"]["runtime"]["gpu"] == "T4"
    assert read["subprocess"]["runtime"] == {"type": "subprocess", "id": "/tmp/x"}
    assert read["unheard-of"]["runtime"] is None


def test_our_records_are_whole_for_us() -> None:
    for name, trace in ours().items():
        again = Trace.from_record(json.loads(encode(trace.to_record())))
        assert again.runtime == trace.runtime, name
        assert again.task.data.answer == trace.task.data.answer, name
        assert again.to_record() == trace.to_record(), name


def check_written_by_the_release(written: list[dict[str, Any]]) -> None:
    rich, empty = (Trace.from_record(record) for record in written)
    assert (rich.task.type, rich.task.data.answer, rich.task.data.tests) == ("Mine", "42", [{"a": None}])
    assert (rich.reward, rich.metrics, rich.last_reply) == (0.5, {"turns": 2.0}, "42")
    assert (rich.num_turns, rich.num_branches) == (2, 1)
    assert (rich.num_total_tokens, rich.num_output_tokens) == (103, 3)
    assert rich.usage is not None
    assert rich.usage.cost == 0.25
    assert rich.info == {"mine": {"deep": [None, 1]}}
    dumped = rich.model_dump(mode="json", exclude_none=True)
    for key, value in written[0].items():
        if key != "agent":  # the release writes its harness's whole default config
            assert holds(dumped[key], value), key
    assert holds(dumped["agent"]["harness"], written[0]["agent"]["harness"])
    assert dumped["nodes"][2]["token_ids"]
    assert dumped["nodes"][2]["logprobs"] == [-0.5, -0.25]
    assert empty.last_reply == ""
    wire = [
        {"role": "system", "content": "s"},
        {"role": "user", "content": "t\u2028"},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": reply(None, ("c1", "bash", "{oops"))["tool_calls"],
        },
        result("c1", "out"),
        reply("42"),
        user("go on"),
    ]
    assert prepare_turn(rich, wire).known == 5


def holds(ours: Any, theirs: Any) -> bool:
    """Whether everything in `theirs` is in `ours`."""
    if isinstance(theirs, dict):
        return isinstance(ours, dict) and all(k in ours and holds(ours[k], v) for k, v in theirs.items())
    if isinstance(theirs, list):
        return isinstance(ours, list) and len(ours) == len(theirs) and all(map(holds, ours, theirs))
    return bool(ours == theirs)
