"""From a request to what the scripted model answers: which step, its text and calls, cut into pieces."""

from __future__ import annotations

import json
import random
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from vf_core.scripted.scenario import Fault, Pace, Rule, Scenario, Step, fill

_CALL_ID = re.compile(r"call_(\d+)_")
_TOKEN = re.compile(r"\s*[^\s]{1,6}|\s+")
_NOTHING_MORE = "(The scripted model's scenario says nothing more here.)"
_ENDLESS = Step(text=_NOTHING_MORE)


@dataclass(frozen=True, slots=True)
class Piece:
    """One delta of an answer, and the seconds to wait before it."""

    delta: dict[str, Any]
    wait: float


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer: the whole `message`, its pieces for a stream, and what is to go wrong with it.

    `usage` is None when none is told.
    """

    message: dict[str, Any]
    finish_reason: str
    first_wait: float
    pieces: list[Piece]
    usage: dict[str, Any] | None
    fault: Fault | None = None


@dataclass(slots=True)
class Player:
    """Plays a scenario. What it answers depends on the scenario and on what it was asked before, never on time."""

    scenario: Scenario
    _begun: Counter[str] = field(default_factory=Counter)
    _tries: Counter[str] = field(default_factory=Counter)

    def reply(self, body: Mapping[str, Any], *, retry: int | None = None) -> Reply:
        """The answer to a request's body; `retry` is how often its sender says it was sent before."""
        messages = [m for m in body.get("messages") or () if isinstance(m, dict)]
        task = _text(next((m for m in messages if m.get("role") == "user"), None))
        turn = sum(m.get("role") == "assistant" for m in messages)
        rule, groups = self._rule(task)
        key = f"{rule.name if rule else ''}|{task}"
        conversation = self._conversation(messages, key, turn)
        drawn = _chance(f"{self.scenario.seed}|{key}|{conversation}")
        last = _text(messages[-1] if messages else None).strip()
        values = {"result": last, "turn": str(turn), "conversation": str(conversation), **groups}
        step = _ENDLESS
        if rule is not None:
            values |= {name: drawn.choice(options) for name, options in rule.vars.items()}
            step, found = _choose(rule, turn, last, drawn)
            values |= found
        pace = step.pace or (rule.pace if rule else None) or self.scenario.pace
        chance = _chance(f"{drawn.random()}|{turn}")
        message, pieces = _speak(step, values, pace, chance, f"call_{conversation}_{turn}")
        return Reply(
            message=message,
            finish_reason=step.finish_reason or ("tool_calls" if step.calls else "stop"),
            first_wait=chance.uniform(*pace.first_token),
            pieces=pieces,
            usage=_usage(step, body, len(pieces)),
            fault=self._fault(step.fault, body, retry),
        )

    def _rule(self, task: str) -> tuple[Rule | None, dict[str, str]]:
        for rule in self.scenario.rule:
            if rule.task is None:
                return rule, {}
            if match := rule.task.search(task):
                return rule, {k: v or "" for k, v in match.groupdict().items()}
        return None, {}

    def _conversation(self, messages: list[dict[str, Any]], key: str, turn: int) -> int:
        """Which conversation this is: told by the ids of its tool calls; a new one gets the next number."""
        for message in messages:
            for call in message.get("tool_calls") or () if turn else ():
                if found := _CALL_ID.match(str(call.get("id"))):
                    return int(found[1])
        if turn:
            return 0
        self._begun[key] += 1
        return self._begun[key] - 1

    def _fault(self, fault: Fault | None, body: Mapping[str, Any], retry: int | None) -> Fault | None:
        if fault is None or fault.times == 0:
            return fault
        if retry is None:
            key = json.dumps(body, sort_keys=True, default=str)
            retry = self._tries[key]
            self._tries[key] += 1
        return fault if retry < fault.times else None


def _chance(seed: str) -> random.Random:
    """Chance that falls the same way for the same seed, whatever characters are in it."""
    return random.Random(seed.encode("utf-8", "surrogatepass"))  # noqa: S311


def _choose(rule: Rule, turn: int, last: str, drawn: random.Random) -> tuple[Step, dict[str, str]]:
    """The step for a turn, and what its `when` found."""
    luck = [drawn.random() for _ in rule.step]
    for step, at, roll in zip(rule.step, rule.turns, luck, strict=True):
        if at != turn and not (step.repeat and at <= turn):
            continue
        if roll >= step.chance:
            continue
        if step.when is None:
            return step, {}
        if match := step.when.search(last):
            return step, {k: v or "" for k, v in match.groupdict().items()}
    return _ENDLESS, {}


def _speak(
    step: Step, values: dict[str, str], pace: Pace, chance: random.Random, ident: str
) -> tuple[dict[str, Any], list[Piece]]:
    """A step's message, and the deltas that it is streamed in."""
    message: dict[str, Any] = {"role": "assistant", "content": None}
    deltas: list[dict[str, Any]] = []
    spoken = {"reasoning_content": step.reasoning or None, "content": step.text, "refusal": step.refusal}
    for name, template in spoken.items():
        if template is not None:
            text = message[name] = fill(template, values)
            deltas += [{name: token} for token in _TOKEN.findall(text)] or [{name: ""}]
    calls = []
    for index, call in enumerate(step.calls):
        arguments = json.dumps(fill(call.arguments, values)) if call.raw is None else fill(call.raw, values)
        function = {"name": call.name, "arguments": arguments}
        calls.append({"id": f"{ident}_{index}", "type": "function", "function": function})
        head = {"index": index, "id": f"{ident}_{index}", "type": "function"}
        deltas.append({"tool_calls": [{**head, "function": {"name": call.name, "arguments": ""}}]})
        for part in _cut(arguments, chance):
            deltas.append({"tool_calls": [{"index": index, "function": {"arguments": part}}]})
    if calls:
        message["tool_calls"] = calls
    return message, [Piece(delta, chance.uniform(*pace.per_token)) for delta in deltas]


def _cut(text: str, chance: random.Random) -> list[str]:
    """`text` in pieces about as long as tokens are."""
    out: list[str] = []
    start = 0
    while start < len(text):
        size = chance.randint(2, 7)
        out.append(text[start : start + size])
        start += size
    return out


def _usage(step: Step, body: Mapping[str, Any], tokens: int) -> dict[str, Any] | None:
    if step.usage is not None:
        return step.usage or None
    prompt = len(json.dumps(body.get("messages"), default=str)) // 4
    return {"prompt_tokens": prompt, "completion_tokens": tokens, "total_tokens": prompt + tokens}


def _text(message: Mapping[str, Any] | None) -> str:
    content = (message or {}).get("content")
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else []
    return "\n".join(str(part.get("text")) for part in parts if isinstance(part, dict) and part.get("text"))
