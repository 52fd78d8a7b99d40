"""A run's facts as JSON-able records: what `--json` prints. Names here are promises to scripts."""

from __future__ import annotations

import math
from typing import Any

from vf_core.events.state import AttemptView, RolloutView, RunState, SandboxView, ToolView, Totals
from vf_tui.render.status import errors, unscored


def _number(value: float | None) -> float | None:
    """`value`, or None where JSON has no such number."""
    return value if value is None or math.isfinite(value) else None


def run_facts(state: RunState) -> dict[str, Any]:
    """Status, counts, reward, tokens, and the sandboxes that are not proven gone."""
    totals = state.totals
    return {
        "run": state.run,
        "name": state.name,
        "status": state.status,
        "model": state.model,
        "taskset": state.taskset,
        "harness": state.harness,
        "runtime": state.runtime,
        "host": state.host,
        "pid": state.pid,
        "total": max(state.total, len(state.rollouts)),
        "counts": {
            name: getattr(totals, name)
            for name in ("queued", "active", "completed", "declined", "error", "stopped")
        },
        "scored": totals.scored,
        "reward": _number(state.reward_mean),
        "reward_error": _number(state.reward_error),
        "tokens": {
            "prompt": totals.prompt_tokens,
            "cached": totals.cached_tokens,
            "completion": totals.completion_tokens,
        },
        "cost": _number(totals.cost),
        "judged": judged_facts(totals),
        "kept": state.kept,
        "redone": {name: _number(n) for name, n in totals.redone.items()},
        "model_calls": totals.model_calls,
        "tool_calls": totals.tool_calls,
        "paused": state.paused,
        "concurrency": state.concurrency,
        "started": _number(state.started),
        "finished": _number(state.finished),
        "unconfirmed": sorted(state.unconfirmed),
        "exit_code": state.exit_code,
        "message": state.message,
    }


def rollout_details(view: RolloutView, state: RunState) -> dict[str, Any]:
    """One rollout with its phases, tool servers and calls, errors, attempts and sandboxes. Of a rollout that is over
    the latest calls only, and of long texts the beginning: its trace has all."""
    boxes = [box for box in state.sandboxes.values() if box.rollout == view.id]
    return {
        **rollout_facts(view),
        "phases": [{"phase": name, "started": _number(t)} for name, t in view.phases],
        "tools": [_tool_facts(tool) for tool in view.tools if not tool.partial],
        "servers": [
            {"server": name, "place": s.place, "shared": s.shared, "tools": list(s.tools), "count": s.count}
            for name, s in view.served.items()
        ],
        "errors": [{"t": _number(t), "type": kind, "message": text} for t, kind, text in errors(view)],
        "attempts": [_attempt_facts(attempt) for attempt in view.attempts],
        "sandboxes": [
            {
                **sandbox_facts(box),
                "attempt": box.attempt,
                "serves": box.serves,
                "image": box.image,
                "detail": box.detail,
                "ends": _number(box.ends),
                "history": [
                    {"state": moved.value, "t": _number(t), "remark": remark}
                    for moved, t, remark in box.history
                ],
            }
            for box in boxes
        ],
    }


def _tool_facts(tool: ToolView) -> dict[str, Any]:
    return {
        "id": tool.id,
        "server": tool.server,
        "name": tool.name,
        "arguments": tool.arguments,
        "result": tool.result,
        "seconds": _number(tool.seconds),
        "failed": tool.failed,
        "running": tool.ended is None,
    }


def _attempt_facts(attempt: AttemptView) -> dict[str, Any]:
    return {
        "attempt": attempt.number,
        "trace": attempt.trace,
        "reason": attempt.reason,
        "outcome": attempt.outcome,
        "stop_condition": attempt.stop_condition,
        "reward": _number(attempt.reward),
        "exit_meaning": attempt.exit_meaning,
        "error": attempt.error,
        "sandbox": attempt.sandbox,
        "started": _number(attempt.started),
        "ended": _number(attempt.ended),
    }


def sandbox_facts(box: SandboxView) -> dict[str, Any]:
    """What a sandbox is, and what it is in."""
    return {
        "name": box.name,
        "id": box.id,
        "kind": box.kind,
        "state": box.state.value,
        "proof": box.proof,
    }


def judged_facts(of: RolloutView | Totals) -> dict[str, Any]:
    """What judges' model calls used, apart from the agent's."""
    return {
        "calls": of.judge_calls,
        "prompt": of.judge_prompt_tokens,
        "cached": of.judge_cached_tokens,
        "completion": of.judge_completion_tokens,
        "cost": _number(of.judge_cost),
    }


def rollout_facts(view: RolloutView) -> dict[str, Any]:
    """One rollout, as of its current attempt."""
    box, program = view.sandbox, view.program
    return {
        "id": view.id,
        "task": view.task,
        "sample": view.sample,
        "name": view.name,
        "status": view.status,
        "phase": view.phase,
        "attempt": view.attempt,
        "reward": _number(view.reward),
        "rewards": {name: _number(value) for name, value in view.rewards.items()},
        "metrics": {name: _number(value) for name, value in view.metrics.items()},
        "turns": view.turns,
        "tool_calls": view.tool_count,
        "tokens": {
            "prompt": view.prompt_tokens,
            "cached": view.cached_tokens,
            "completion": view.completion_tokens,
            "known": view.tokens_known,
        },
        "cost": _number(view.cost),
        "judged": judged_facts(view),
        "unscored": unscored(view),
        "exit_code": program.code if program else None,
        "exit_meaning": program.meaning if program else "",
        "stop_condition": view.stop_condition,
        "error_type": view.error_type,
        "error": view.error,
        "sandbox": sandbox_facts(box) if box else None,
        "started": _number(view.started),
        "ended": _number(view.ended),
    }
