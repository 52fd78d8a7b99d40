"""A stream of events as a busy engine sends them, made from a seed: for measuring and looking at the screen.

Nothing runs behind it; it is never shown as a run of anything.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from vf_core.events import types as ev

WORDS = re.findall(
    r"\w+",
    "the test fails because of an off by one in the parser so I will read the file first then run it again and "
    "look at what changed between both versions of the function before editing anything else",
)
COMMANDS = (
    "pytest -x tests/unit", "ls -la", "cat src/parser.py", "grep -rn 'def parse' src", "git diff HEAD~1",
    "python -m build", "sed -n 1,80p README.md", "find . -name '*.py' | head", "make lint",
)  # fmt: skip
NAMES = (
    "fix-off-by-one", "rename-module", "add-cli-flag", "flaky-network-test", "sort-stability", "unicode-paths",
    "memory-leak", "race-in-cache", "parse-dates", "port-to-py312",
)  # fmt: skip


@dataclass(slots=True)
class _Live:
    id: str
    call: int = 0
    step: int = 0
    tool: str = ""
    script: list[str] = field(default_factory=list)


class Feed:
    """`live` rollouts at work out of `total`; `events(n)` gives the next n events, spread over them."""

    def __init__(
        self, live: int, *, total: int | None = None, seed: int = 1, start: float = 1_000_000.0
    ) -> None:
        self.random = random.Random(seed)
        self.t = start
        self.total = total or live
        self.seq = 0
        self.live = [_Live(f"r{i:05}") for i in range(live)]
        self.next = live

    def _stamp(self, cls: type[ev.Event], **fields: object) -> ev.Event:
        seq = 0
        if cls.durable:
            self.seq += 1
            seq = self.seq
        return cls(seq=seq, t=self.t, **fields)  # type: ignore[arg-type]

    def begin(self) -> Iterator[ev.Event]:
        """The run's start and every live rollout brought to its program."""
        yield self._stamp(
            ev.RunStarted, run="9a1d77c2", name="demo--scripted--bash", model="scripted", taskset="demo",
            harness="bash", runtime="subprocess", concurrency=len(self.live), total=self.total,
        )  # fmt: skip
        for i in range(self.total):
            yield self._stamp(
                ev.RolloutQueued,
                rollout=f"r{i:05}",
                task=i // 4,
                sample=i % 4,
                name=NAMES[i // 4 % len(NAMES)],
            )
        for one in self.live:
            yield from self._attempt(one)

    def _attempt(self, one: _Live) -> Iterator[ev.Event]:
        at = {"rollout": one.id, "attempt": 1}
        box = {**at, "sandbox": f"vf-{one.id}-1", "kind": "subprocess"}
        self.t += self.random.random() * 0.01
        yield self._stamp(ev.AttemptStarted, trace=f"t{one.id}", **at)
        yield self._stamp(ev.PhaseChanged, phase="boot", **at)
        yield self._stamp(ev.RuntimeChanged, state="starting", **box)
        yield self._stamp(ev.RuntimeChanged, state="live", id=f"pid-{one.id}", **box)
        yield self._stamp(ev.PhaseChanged, phase="running", **at)
        yield self._stamp(ev.ProgramStarted, program="bash", **at)

    def events(self, n: int, seconds: float) -> list[ev.Event]:
        """The next `n` events, over `seconds` of time."""
        out: list[ev.Event] = []
        step = seconds / max(1, n)
        while len(out) < n:
            self.t += step
            one = self.random.choice(self.live)
            out += self._next(one)
        return out

    def _next(self, one: _Live) -> list[ev.Event]:
        at = {"rollout": one.id, "attempt": 1}
        if not one.script:
            one.script = ["call", *["text"] * 4, *["tool"] * 4, "answer", "output", "output", "return"]
        kind = one.script.pop(0)
        if kind == "call":
            return [self._stamp(ev.ModelCallStarted, call=one.call, stream=True, **at)]
        if kind == "text":
            text = " ".join(self.random.choices(WORDS, k=4)) + " "
            return [self._stamp(ev.TextDelta, call=one.call, text=text, **at)]
        if kind == "tool":
            if len([s for s in one.script if s == "tool"]) == 3:
                one.tool = self.random.choice(COMMANDS)
                return [self._stamp(ev.ToolDelta, call=one.call, index=0, id="", name="bash",
                                    arguments='{"command": "', **at)]  # fmt: skip
            size = len(one.tool) // 3 + 1
            third = 2 - len([s for s in one.script if s == "tool"])
            piece = one.tool[third * size : (third + 1) * size]
            return [self._stamp(ev.ToolDelta, call=one.call, index=0, arguments=piece, **at)]
        if kind == "answer":
            return self._answer(one, at)
        if kind == "output":
            line = f"tests/unit/test_{self.random.randrange(99)}.py {'.' * self.random.randrange(3, 40)}\n"
            return [self._stamp(ev.OutputChunk, stream="stdout", text=line, **at)]
        one.call += 1
        return [self._stamp(ev.ToolReturned, id=f"c{one.call - 1}", result="12 passed in 0.31s\nok",
                            seconds=self.random.random() * 4, failed=self.random.random() < 0.1, **at)]  # fmt: skip

    def _answer(self, one: _Live, at: dict[str, object]) -> list[ev.Event]:
        done = self._stamp(
            ev.ModelCallFinished, call=one.call, seconds=2.0, finish_reason="tool_calls",
            prompt_tokens=self.random.randrange(200, 2000), completion_tokens=80, text="", **at,
        )  # fmt: skip
        called = self._stamp(ev.ToolCalled, call=one.call, id=f"c{one.call}", name="bash",
                             arguments=f'{{"command": "{one.tool}"}}', **at)  # fmt: skip
        return [done, called]
