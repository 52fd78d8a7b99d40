"""Run by the interpreter of a verifiers release: loads our records with its own models, and writes some of its own.

stdin: our records, one a line. stdout: one JSON object with what its `Trace` read in each, and its records.
"""

from __future__ import annotations

import json
import sys

from verifiers.v1.graph import prepare_turn  # type: ignore[import-not-found]
from verifiers.v1.harness import HarnessConfig  # type: ignore[import-not-found]
from verifiers.v1.judge import JudgeResponse  # type: ignore[import-not-found]
from verifiers.v1.runtimes.docker import DockerRuntimeInfo  # type: ignore[import-not-found]
from verifiers.v1.task import TaskData  # type: ignore[import-not-found]
from verifiers.v1.trace import (  # type: ignore[import-not-found]
    AgentInfo,
    Error,
    EvalRunInfo,
    ModelCall,
    TimeSpan,
    Trace,
    TraceTask,
    VersionInfo,
    WireTrace,
)
from verifiers.v1.types import (  # type: ignore[import-not-found]
    AssistantMessage,
    Response,
    SamplingConfig,
    SystemMessage,
    TextContentPart,
    Tool,
    ToolCall,
    ToolMessage,
    TurnTokens,
    Usage,
    UserMessage,
)


def read(line: str) -> dict:
    record = json.loads(line)
    trace = Trace.model_validate(record)
    wire = WireTrace.model_validate(record)
    again = Trace.model_validate(json.loads(json.dumps(wire.to_record())))
    assert again.id == trace.id
    return {
        "id": trace.id,
        "data": trace.task.data.model_dump(mode="json"),
        "turns": trace.num_turns,
        "branches": [[m.role for m in b.messages] for b in trace.branches],
        "input": trace.num_input_tokens,
        "output": trace.num_output_tokens,
        "total": trace.num_total_tokens,
        "reward": trace.reward,
        "last_reply": trace.last_reply,
        "truncated": trace.is_truncated,
        "runtime": trace.runtime.model_dump(mode="json") if trace.runtime else None,
        "harness": trace.agent.harness.id if trace.agent and trace.agent.harness else None,
        "errors": [e.type for e in trace.errors],
        "judged": [JudgeResponse.model_validate(entry).text for entry in trace.info.get("judge", ())],
        "extra_cost": sum(usage.cost or 0.0 for usage in trace.extra_usage),
        "generation": trace.timing.generation.duration,
        "transcript": trace.transcript,
        "known": known(trace),
    }


def known(trace: Trace) -> list[int] | None:
    """How much of each branch its own graph builder finds again; it can't hash lone surrogates."""
    try:
        return [len(prepare_turn(trace, b.messages).prefix_node_ids) for b in trace.branches]
    except UnicodeEncodeError:
        return None


class Row(TaskData):
    answer: str
    tests: list[dict] = []


def written() -> list[Trace]:
    prompt = [SystemMessage(content="s"), UserMessage(content=[TextContentPart(text="t\u2028")])]
    data = Row(idx=4, name="row", prompt=prompt, answer="42", tests=[{"a": None}])
    trace = Trace(
        task=TraceTask(type="Mine", data=data),
        runtime=DockerRuntimeInfo(image="x", id="c1"),
        verifiers=VersionInfo(version="0.2.1.dev64", commit="abc"),
        run=EvalRunInfo(id="run", step=3),
        agent=AgentInfo(
            model="m", sampling=SamplingConfig(temperature=0.1, top_k=3), harness=HarnessConfig(id="bash")
        ),
    )
    call = AssistantMessage(
        reasoning_content="hm", tool_calls=[ToolCall(id="c1", name="bash", arguments="{oops")],
        provider_state=[{"type": "x", "data": None}],
    )  # fmt: skip
    usage = Usage(
        prompt_tokens=20, completion_tokens=3, cached_input_tokens=80, reasoning_tokens=1, cost=0.25
    )
    tokens = TurnTokens(prompt_ids=[1, 2, 3], completion_ids=[4, 5], completion_logprobs=[-0.5, -0.25])
    answer = Response(
        id="r", created=0, model="m", message=call, finish_reason="tool_calls", usage=usage, tokens=tokens
    )
    node = prepare_turn(trace, prompt).commit(
        answer, [Tool(name="bash", description="d", parameters={"x": None})]
    )
    trace.calls.append(
        ModelCall(node=node, model="m", endpoint="/chat/completions", finish_reason="tool_calls", usage=usage,
                  time=TimeSpan(start=1.0, end=2.5))
    )  # fmt: skip
    more = [*prompt, call, ToolMessage(tool_call_id="c1", content="out", name="bash")]
    final = Response(
        id="r", created=0, model="m", message=AssistantMessage(content="42"), finish_reason="stop"
    )
    prepare_turn(trace, more).commit(final)
    trace.calls.append(ModelCall(error=Error(type="ProviderError", message="m", status_code=503)))
    trace.record_reward("match", 1.0, 0.5)
    trace.record_metric("turns", 2)
    trace.info["mine"] = {"deep": [None, 1]}
    trace.extra_usage.append(Usage(prompt_tokens=1, completion_tokens=1))
    trace.stop("agent_completed")
    return [trace, Trace(task=TraceTask(type="Empty", data=TaskData(idx=0, prompt="")))]


json.dump(
    {
        "read": [read(line) for line in sys.stdin if line.strip()],
        "written": [trace.model_dump(mode="json", exclude_none=True) for trace in written()],
    },
    sys.stdout,
)
