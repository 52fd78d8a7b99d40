"""A run told by its traces alone, as verifiers writes it (or ours whose journal is lost): each finished rollout's
record becomes the events that would have led to it, so that it is shown by the same fold.

Records are taken as they come: whatever is missing or of another shape is left out, never an error.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from vf_core.events import types as ev
from vf_core.runs.outline import Outline
from vf_core.runs.stands import as_number

_MOST = 1 << 53


class Teller:
    """Tells records as events, numbered from 1. Rollouts are named by task and sample where a record does not
    say."""

    def __init__(self) -> None:
        self._seq = 0
        self._samples: dict[object, int] = {}
        self._attempts: dict[str, int] = {}

    def begin(self, about: Outline, run: str, t: float) -> list[ev.Event]:
        """The start of the run."""
        started = ev.RunStarted(
            run=run,
            name=about.name,
            model=about.model,
            taskset=about.taskset,
            harness=about.harness,
            runtime=about.runtime,
            total=about.total,
        )
        return [self._numbered(started, t)]

    def end(self, status: str, message: str, t: float) -> list[ev.Event]:
        """The end of the run, as far as it can be told."""
        return [self._numbered(ev.RunFinished(status=status, message=message), t)]

    def tell(self, line: Mapping[str, Any]) -> list[ev.Event]:
        """The events of one line: a trace, or an episode of several."""
        traces = line.get("traces")
        records = traces if isinstance(traces, list) else [line]
        return [event for record in records if isinstance(record, Mapping) for event in self._record(record)]

    def _record(self, record: Mapping[str, Any]) -> Iterator[ev.Event]:
        told = _Record(record)
        own = _map(_map(record.get("info")).get("vf_tui"))
        task = told.task_index if told.task_index is not None else len(self._samples)
        position = own.get("position")
        task = position if isinstance(position, int) else task
        rollout = _text(own.get("rollout"))
        if rollout:
            sample = own.get("sample") if isinstance(own.get("sample"), int) else 0
        else:
            sample = self._samples.get(task, 0)
            self._samples[task] = sample + 1
            rollout = f"t{task}-s{sample}"
        attempt = own.get("attempt")
        if not isinstance(attempt, int):
            attempt = self._attempts.get(rollout, 0) + 1
        if rollout not in self._attempts:
            queued = ev.RolloutQueued(rollout=rollout, task=task, sample=sample or 0, name=told.name)
            yield self._numbered(queued, told.start)
        self._attempts[rollout] = attempt
        for t, event in told.events(rollout, attempt, own):
            yield self._numbered(event, t)

    def _numbered(self, event: ev.Event, t: float) -> ev.Event:
        self._seq += 1
        return ev.stamp(event, seq=self._seq, t=t)


Told = Iterator[tuple[float, ev.RolloutEvent]]


class _Record:
    """One trace record, read with care."""

    def __init__(self, record: Mapping[str, Any]) -> None:
        self.record = record
        self.timing = _map(record.get("timing"))
        self.start = _number(self.timing.get("start"))
        data = _map(_map(record.get("task")).get("data"))
        index = data.get("idx")
        self.task_index = index if isinstance(index, int) and not isinstance(index, bool) else None
        self.name = _text(data.get("name")) or _text(_map(record.get("task")).get("type"))
        self.nodes = [_map(node) for node in _list(record.get("nodes"))]
        self._last = self.start

    def events(self, rollout: str, attempt: int, own: Mapping[str, Any]) -> Told:
        """What happened in the attempt, in order, each with its time."""
        who: dict[str, Any] = {"rollout": rollout, "attempt": attempt}
        reason = _text(own.get("reason")) or "first"
        yield self.start, ev.AttemptStarted(**who, trace=_text(self.record.get("id")), reason=reason)
        yield from self._lifecycle(who, own, before=True)
        for phase in ("boot", "setup"):
            yield from self._phase(who, phase, phase)
        yield from self._phase(who, "generation", "running")
        yield from self._conversation(who)
        yield from self._exit(who, own)
        for phase in ("finalize", "scoring"):
            yield from self._phase(who, phase, phase)
        yield from self._result(who, own)
        yield from self._lifecycle(who, own, before=False)

    def _at(self, t: float) -> float:
        """`t`, or the latest time known where it is missing."""
        self._last = max(self._last, t)
        return t or self._last

    def _phase(self, who: dict[str, Any], key: str, name: str) -> Told:
        start = _number(_map(self.timing.get(key)).get("start"))
        if start:
            yield self._at(start), ev.PhaseChanged(**who, phase=name)

    def _conversation(self, who: dict[str, Any]) -> Told:
        done = 0
        for number, call in enumerate(map(_map, _list(self.record.get("calls")))):
            node = call.get("node")
            if isinstance(node, int) and done <= node < len(self.nodes):
                yield from self._results(who, done, node)
                done = node + 1
                yield from self._call(who, number, call, self.nodes[node])
            else:
                yield from self._call(who, number, call, {})
        yield from self._results(who, done, len(self.nodes))

    def _call(
        self, who: dict[str, Any], number: int, call: Mapping[str, Any], node: Mapping[str, Any]
    ) -> Told:
        span, usage, error = _map(call.get("time")), _map(call.get("usage")), _map(call.get("error"))
        start, end = _number(span.get("start")), _number(span.get("end"))
        message = _map(node.get("message"))
        yield self._at(start), ev.ModelCallStarted(**who, call=number)
        finished = ev.ModelCallFinished(
            **who,
            call=number,
            seconds=max(0.0, end - start),
            finish_reason=_text(call.get("finish_reason")),
            prompt_tokens=_count(usage.get("prompt_tokens")),
            cached_tokens=_count(usage.get("cached_input_tokens")),
            completion_tokens=_count(usage.get("completion_tokens")),
            cost=_number(usage.get("cost")) or None,
            text=_content(message.get("content"))[: ev.MESSAGE_LIMIT],
            error=(_text(error.get("message")) or _text(error.get("type")))[: ev.MESSAGE_LIMIT],
            status_code=_count(error.get("status_code")),
        )
        yield self._at(end), finished
        for tool in map(_map, _list(message.get("tool_calls"))):
            yield (
                self._last,
                ev.ToolCalled(
                    **who,
                    call=number,
                    id=_text(tool.get("id")),
                    name=_text(tool.get("name")),
                    arguments=_text(tool.get("arguments"))[: ev.ARGUMENTS_LIMIT],
                ),
            )

    def _results(self, who: dict[str, Any], start: int, end: int) -> Told:
        called = self._last
        for node in self.nodes[start:end]:
            message = _map(node.get("message"))
            if message.get("role") == "tool":
                t = self._at(_number(node.get("timestamp")))
                result = _content(message.get("content"))[: ev.RESULT_LIMIT]
                yield (
                    t,
                    ev.ToolReturned(
                        **who,
                        id=_text(message.get("tool_call_id")),
                        result=result,
                        seconds=max(0.0, t - called),
                        failed=result.startswith("error:"),
                    ),
                )

    def _exit(self, who: dict[str, Any], own: Mapping[str, Any]) -> Told:
        code = own.get("exit_code")
        if isinstance(code, int):
            meaning = _text(own.get("exit_meaning")) or f"exit {code}"
            kind = "ok" if code == 0 else "declined" if "declined" in meaning else "failed"
            span = _map(self.timing.get("generation"))
            start, end = _number(span.get("start")), _number(span.get("end"))
            seconds = max(0.0, end - start)
            yield (
                self._at(end),
                ev.ProgramExited(**who, code=code, meaning=meaning, kind=kind, seconds=seconds),
            )

    def _result(self, who: dict[str, Any], own: Mapping[str, Any]) -> Told:
        end = max(_number(_map(span).get("end")) for span in (*self.timing.values(), {}))
        rewards, metrics = _numbers(self.record.get("rewards")), _numbers(self.record.get("metrics"))
        reward = sum(rewards.values()) if rewards else None
        t = self._at(end)
        errors = [_map(error) for error in _list(self.record.get("errors"))]
        for error in errors:
            yield (
                t,
                ev.ErrorRaised(
                    **who,
                    kind=_text(error.get("type")) or "error",
                    message=_text(error.get("message"))[: ev.MESSAGE_LIMIT],
                    status_code=_count(error.get("status_code")),
                ),
            )
        judged = _judged(self.record)
        if rewards or metrics or judged:
            yield t, ev.Scored(**who, reward=reward, rewards=rewards, metrics=metrics, judged=judged)
        condition = _text(self.record.get("stop_condition"))
        outcome = _text(own.get("outcome")) or _outcome(condition, bool(errors))
        last = errors[-1] if errors and outcome == "error" else {}
        yield (
            t,
            ev.AttemptFinished(
                **who,
                outcome=outcome,
                stop_condition=condition,
                reward=reward,
                error_type=_text(last.get("type")),
                error=_text(last.get("message"))[: ev.MESSAGE_LIMIT],
            ),
        )

    def _lifecycle(self, who: dict[str, Any], own: Mapping[str, Any], *, before: bool) -> Told:
        """What our own records say of the sandbox; up to `live` first, the rest at the end."""
        kind = _text(_map(self.record.get("runtime")).get("type"))
        moves = [_map(move) for move in _list(own.get("lifecycle"))]
        for move in moves:
            state = _text(move.get("state"))
            if state and before == (state in ("starting", "live")):
                yield (
                    _number(move.get("t")) or self._last,
                    ev.RuntimeChanged(
                        **who,
                        sandbox=_text(own.get("sandbox")) or f"{who['rollout']}-{who['attempt']}",
                        kind=kind,
                        state=state,
                        id=_text(move.get("id")),
                        proof=_text(move.get("proof")),
                        detail=_text(move.get("detail")),
                    ),
                )


def _judged(record: Mapping[str, Any]) -> dict[str, float]:
    """What judges' calls used (see `tasks.judging.judged`); empty when there were none."""
    usages = [_map(usage) for usage in _list(record.get("extra_usage"))]
    calls = max(len(_list(_map(record.get("info")).get("judge"))), len(usages))
    if not calls:
        return {}
    out: dict[str, float] = {"calls": calls}
    for name, key in (
        ("prompt_tokens", "prompt_tokens"),
        ("completion_tokens", "completion_tokens"),
        ("cached_tokens", "cached_input_tokens"),
        ("cost", "cost"),
    ):
        known = [_number(usage[key]) for usage in usages if as_number(usage.get(key)) is not None]
        if known:
            out[name] = sum(known)
    return out


def _outcome(condition: str, failed: bool) -> str:
    if failed:
        return "error"
    return {"agent_declined": "declined", "user_stopped": "stopped"}.get(condition, "completed")


def _map(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _number(value: Any) -> float:
    return max(0.0, as_number(value) or 0.0)


def _numbers(value: Any) -> dict[str, float]:
    return {str(k): number for k, v in _map(value).items() if (number := as_number(v)) is not None}


def _count(value: Any) -> int | None:
    return value if type(value) is int and 0 <= value < _MOST else None


def _content(value: Any) -> str:
    if isinstance(value, str):
        return value
    return "\n".join(_text(_map(part).get("text")) for part in _list(value))
