"""What could happen to a rollout, told as events: the scripts of the fake engine."""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from vf_core.events import types as ev

Story = Iterator[ev.RolloutEvent]

HOSTILE = (
    "\x1b]0;owned\x07title",
    "\x1b[2J\x1b[Hcleared",
    "[/foo] [$name] [@click=app.quit]x[/]",
    "bidi \u202etxt.exe\u202c end",
    "lone \ud800 surrogate",
    "\x1b]52;c;ZXZpbA==\x07",
    "a\rb\r\nc\x00d\x7f\x9b31m",
    "日本語 👩‍👩‍👧 é Ω \u2028line\u2029para",
    "\x1bP" + "unterminated " * 20,
)

COMMANDS = (
    "ls -la",
    "pytest -x -q tests/test_parser.py",
    "cat README.md | head -40",
    "grep -rn 'def main' src/",
    "python - <<'EOF'\nprint(sum(range(10)))\nEOF",
    "git diff --stat",
    "make build 2>&1 | tail -20",
)
SPEECH = "the parser reads one line too many so I will look at how the loop ends before changing it"
WORDS = SPEECH.split()


@dataclass(slots=True)
class Teller:
    """Tells one attempt of one rollout. `end` is how its sandbox goes: gone, survived or unknown."""

    id: str
    attempt: int
    rng: random.Random
    end: str = "gone"
    hostile: bool = False
    call: int = field(default=0, init=False)

    @property
    def sandbox(self) -> str:
        return f"sb-{self.id}-{self.attempt}"

    def _e(self, cls: type[Any], **fields: Any) -> Any:
        return cls(rollout=self.id, attempt=self.attempt, **fields)

    def box(self, state: str, *, proof: str = "", detail: str = "") -> ev.RuntimeChanged:
        id = "" if state == "starting" else f"pgid-{zlib.crc32(self.sandbox.encode()) % 90000 + 10000}"
        return self._e(
            ev.RuntimeChanged,
            sandbox=self.sandbox,
            kind="subprocess",
            state=state,
            id=id,
            proof=proof,
            detail=detail,
        )

    def boot(self, reason: str = "first") -> Story:
        yield self._e(ev.AttemptStarted, trace=f"trace-{self.id}-{self.attempt}", reason=reason)
        yield self._e(ev.PhaseChanged, phase="boot")
        yield self.box("starting")
        yield self.box("live")
        yield self._e(ev.PhaseChanged, phase="setup")
        yield self._e(ev.PhaseChanged, phase="running")
        yield self._e(ev.ProgramStarted, program="bash")

    def spoken(self, count: int) -> str:
        if self.hostile and self.rng.random() < 0.5:
            return self.rng.choice(HOSTILE)
        return " ".join(self.rng.choice(WORDS) for _ in range(count))

    def turn(self, tools: int = 1, *, result: str | None = None, seconds: float = 0.4) -> Story:
        """One model call that streams its thought, then its tool calls, which return."""
        call, self.call = self.call, self.call + 1
        yield self._e(ev.ModelCallStarted, call=call, stream=True)
        for _ in range(3):
            yield self._e(ev.TextDelta, call=call, text=self.spoken(5) + " ", reasoning=True)
        text = self.spoken(8)
        for word in text.split(" "):
            yield self._e(ev.TextDelta, call=call, text=word + " ")
        commands = [self.rng.choice(COMMANDS) for _ in range(tools)]
        for index, command in enumerate(commands):
            yield self._e(ev.ToolDelta, call=call, index=index, id=f"c{call}-{index}", name="bash")
            arguments = '{"command": ' + repr(command) + "}"
            for at in range(0, len(arguments), 12):
                yield self._e(ev.ToolDelta, call=call, index=index, arguments=arguments[at : at + 12])
        yield self._e(
            ev.ModelCallFinished,
            call=call,
            seconds=self.rng.uniform(0.3, 9),
            finish_reason="tool_calls" if tools else "stop",
            prompt_tokens=800 + 300 * call,
            cached_tokens=200 * call,
            completion_tokens=self.rng.randint(20, 400),
            cost=0.002,
            text=text,
        )
        for index, command in enumerate(commands):
            arguments = '{"command": ' + repr(command) + "}"
            yield self._e(ev.ToolCalled, call=call, id=f"c{call}-{index}", name="bash", arguments=arguments)
        for index in range(tools):
            yield self._e(ev.OutputChunk, stream="stdout", text=f"$ {commands[index]}\n{self.spoken(12)}\n")
            yield self._e(
                ev.ToolReturned,
                id=f"c{call}-{index}",
                result=self.spoken(20) if result is None else result,
                seconds=seconds,
                failed=self.rng.random() < 0.1,
            )

    def failed_call(self, status: int, message: str) -> Story:
        call, self.call = self.call, self.call + 1
        yield self._e(ev.ModelCallStarted, call=call)
        yield self._e(ev.ModelCallFinished, call=call, seconds=1.5, error=message, status_code=status)
        yield self._e(ev.ErrorRaised, kind="ProviderError", message=message, status_code=status)

    def exit(self, code: int, meaning: str, kind: str, seconds: float = 12.0) -> Story:
        yield self._e(ev.ProgramExited, code=code, meaning=meaning, kind=kind, seconds=seconds)
        yield self._e(ev.PhaseChanged, phase="finalize")

    def score(self, reward: float) -> Story:
        yield self._e(ev.PhaseChanged, phase="scoring")
        yield self._e(
            ev.Scored, reward=reward, rewards={"exact": reward}, metrics={"num_turns": float(self.call)}
        )

    def result(self, outcome: str, *, final: bool = True, reward: float | None = None, **more: str) -> Story:
        yield self._e(ev.AttemptFinished, outcome=outcome, final=final, reward=reward, **more)

    def teardown(self, *, confirm: bool = True) -> Story:
        yield self._e(ev.PhaseChanged, phase="teardown")
        yield self.box("stopping")
        yield self.box("sent")
        if confirm:
            yield from self.check()

    def check(self) -> Story:
        yield self.box("checking")
        if self.end == "survived":
            yield self.box("survived", detail="2 processes with our marker are still there")
        elif self.end == "unknown":
            yield self.box("unknown", detail="could not read /proc: permission denied")
        else:
            yield self.box("gone", proof="/proc: no process with our marker, no directory")


def completed(t: Teller, reason: str, turns: int = 3) -> Story:
    yield from t.boot(reason)
    for _ in range(turns):
        yield from t.turn(t.rng.choice((1, 1, 2)))
    yield from t.turn(0)
    yield from t.exit(0, "exit 0", "ok")
    reward = t.rng.choice((0.0, 0.5, 1.0, 1.0))
    yield from t.score(reward)
    yield from t.result("completed", reward=reward, stop_condition="agent_completed")
    yield from t.teardown()


def declined(t: Teller, reason: str) -> Story:
    yield from t.boot(reason)
    yield from t.turn(0)
    yield from t.exit(4, "declined (4)", "declined")
    yield from t.result("declined", stop_condition="agent_declined")
    yield from t.teardown()


def killed(t: Teller, reason: str) -> Story:
    yield from t.boot(reason)
    yield from t.turn(1, result="MemoryError\n" * 4)
    yield from t.exit(137, "exit 137 killed", "failed")
    message = "the program was killed (exit 137), perhaps out of memory"
    yield t._e(ev.ErrorRaised, kind="HarnessError", message=message)
    yield from t.result("error", error_type="HarnessError", error=message)
    yield from t.teardown()


def provider_error(t: Teller, reason: str) -> Story:
    yield from t.boot(reason)
    yield from t.turn(1)
    yield from t.failed_call(429, "rate limited: retry after 20 s")
    yield from t.failed_call(500, "upstream: internal error")
    yield from t.exit(1, "exit 1", "failed")
    yield from t.result("error", error_type="ProviderError", error="upstream: internal error")
    yield from t.teardown()


def fails_to_start(t: Teller, reason: str) -> Story:
    yield t._e(ev.AttemptStarted, trace=f"trace-{t.id}-{t.attempt}", reason=reason)
    yield t._e(ev.PhaseChanged, phase="boot")
    yield t.box("starting")
    yield t.box("failed", detail="no space left on device")
    yield t._e(ev.ErrorRaised, kind="SandboxError", message="no space left on device")
    yield from t.result("error", error_type="SandboxError", error="no space left on device")
    yield from t.teardown()


def timed_out(t: Teller, reason: str) -> Story:
    yield from t.boot(reason)
    yield from t.turn(1, seconds=600.0)
    yield from t.exit(143, "exit 143 terminated", "failed", seconds=600.0)
    yield from t.result("completed", stop_condition="harness_timeout")
    yield from t.teardown()


def talkative(t: Teller, reason: str) -> Story:
    yield from t.boot(reason)
    for _ in range(12):
        yield from t.turn(3, result=t.spoken(400))
    yield from t.exit(0, "exit 0", "ok")
    yield from t.score(1.0)
    yield from t.result("completed", reward=1.0, stop_condition="max_turns")
    yield from t.teardown()


def endless(t: Teller, reason: str) -> Story:
    yield from t.boot(reason)
    while True:
        yield from t.turn(t.rng.choice((0, 1, 1, 2)))


PLOTS: tuple[tuple[str, Callable[[Teller, str], Story], str], ...] = (
    ("reads a file", completed, "gone"),
    ("declines", declined, "gone"),
    ("runs out of memory", killed, "gone"),
    ("provider fails", provider_error, "gone"),
    ("never starts", fails_to_start, "gone"),
    ("survives its stop", completed, "survived"),
    ("cannot be asked", completed, "unknown"),
    ("times out", timed_out, "gone"),
    ("talks much", talkative, "gone"),
    ("\x1b[31mhostile\x1b[0m [/name] \u202e", completed, "gone"),
)
