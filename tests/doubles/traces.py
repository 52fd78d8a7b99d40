"""Traces as an agent loop makes them, built through the recorder's own door."""

from __future__ import annotations

import json
from typing import Any

from vf_core.tasks import Task, TaskData
from vf_core.trace.graph import prepare_turn
from vf_core.trace.nodes import Error, ModelCall
from vf_core.trace.record import Trace, new_trace
from vf_core.trace.timing import TimeSpan
from vf_core.trace.types import SamplingConfig, Usage

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "bash",
            "description": "Run a command",
            "parameters": {"type": "object", "properties": {"command": {"type": ["string", "null"]}}},
        },
    }
]


class Row(TaskData):
    answer: str = ""


def task(**fields: Any) -> Task[Any, Any]:
    """A plain task."""
    return Task(Row(**{"idx": 0, "prompt": "Say hi", "answer": "hi", **fields}))


def blank(**fields: Any) -> Trace:
    """A trace that nothing is recorded on."""
    return new_trace(task_type="Task", data=task(**fields).data)


def over_the_wire(value: Any) -> Any:
    """As another program would send it again: equal, and nothing shared."""
    return json.loads(json.dumps(value))


def system(text: str = "You are an agent.") -> dict[str, Any]:
    return {"role": "system", "content": text}


def user(text: str = "Say hi") -> dict[str, Any]:
    return {"role": "user", "content": text}


def reply(content: str | None = None, *calls: tuple[str, str, Any], **extra: Any) -> dict[str, Any]:
    """A model's message; each call is (id, name, arguments)."""
    out: dict[str, Any] = {"role": "assistant", "content": content, **extra}
    if calls:
        out["tool_calls"] = [
            {
                "id": ident,
                "type": "function",
                "function": {"name": name, "arguments": args if isinstance(args, str) else json.dumps(args)},
            }
            for ident, name, args in calls
        ]
    return out


def result(ident: str, text: str = "done") -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": ident, "content": text}


def turn(
    trace: Trace,
    messages: list[dict[str, Any]],
    answer: dict[str, Any],
    usage: dict[str, Any] | None = None,
    **call: Any,
) -> int:
    """Record one model call; the index of its reply."""
    node = prepare_turn(trace, over_the_wire(messages)).commit(
        over_the_wire(answer), tools=over_the_wire(TOOLS)
    )
    trace.record_call(
        ModelCall(
            node=node,
            model="m",
            sampling=SamplingConfig(temperature=0.5),
            endpoint="/chat/completions",
            finish_reason="tool_calls" if answer.get("tool_calls") else "stop",
            usage=Usage.from_wire(usage),
            time=TimeSpan(start=10.0, end=11.5),
            **call,
        )
    )
    return node


def failed_call(trace: Trace, usage: dict[str, Any] | None = None) -> None:
    """Record a call that the provider answered with something unusable."""
    error = Error(type="ProviderError", message="no message in it", status_code=502)
    trace.record_call(ModelCall(model="m", usage=Usage.from_wire(usage), error=error))


def tokens(prompt: int, completion: int, cached: int | None = None, **extra: Any) -> dict[str, Any]:
    """A provider's usage object."""
    out: dict[str, Any] = {"prompt_tokens": prompt, "completion_tokens": completion, **extra}
    if cached is not None:
        out["prompt_tokens_details"] = {"cached_tokens": cached}
    return out


def agent_loop(turns: int = 2, **fields: Any) -> Trace:
    """A finished rollout: `turns` tool calls and a closing reply."""
    trace = blank(**fields)
    messages = [system(), user()]
    for i in range(turns):
        answer = reply("Let me see.", (f"c{i}", "bash", {"command": f"echo {i}"}), reasoning_content="hm")
        turn(trace, messages, answer, tokens(100 + 50 * i, 20, 80))
        messages += [{k: v for k, v in answer.items() if k != "reasoning_content"}, result(f"c{i}", f"{i}\n")]
    turn(trace, messages, reply("hi"), tokens(100 + 50 * turns, 5, 100))
    trace.stop("agent_completed")
    trace.record_reward("match", 1.0)
    trace.record_metric("turns", turns + 1)
    trace.timing.generation.start, trace.timing.generation.end = 10.0, 20.0
    trace.finish()
    return trace
