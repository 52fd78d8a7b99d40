"""A run with one rollout of every kind that a screen must be able to show, made of events.

`T0` is the Unix time at which it begins; show it as of `NOW`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from vf_core.events import types as ev
from vf_core.events.fold import fold
from vf_core.events.state import RunState

T0 = 1_760_000_000.0
NOW = T0 + 600.0


class Story:
    """Collects a run's events, numbering them."""

    def __init__(self) -> None:
        self.events: list[ev.Event] = []
        self.seq = 0

    def say(self, cls: type[ev.Event], t: float, **fields: Any) -> None:
        """Add an event at `t` seconds into the run."""
        if cls.durable:
            self.seq += 1
        self.events.append(cls(seq=self.seq if cls.durable else 0, t=T0 + t, **fields))


class Rollout:
    """One rollout's part of a `Story`."""

    def __init__(self, story: Story, id: str, task: int, name: str, sample: int = 0) -> None:
        self.story, self.id, self.attempt = story, id, 0
        story.say(ev.RolloutQueued, 0, rollout=id, task=task, sample=sample, name=name)

    def say(self, cls: type[ev.Event], t: float, **fields: Any) -> Rollout:
        self.story.say(cls, t, rollout=self.id, attempt=self.attempt, **fields)
        return self

    def begin(self, t: float, reason: str = "first") -> Rollout:
        """A new attempt, up to the start of its sandbox."""
        self.attempt += 1
        self.say(ev.AttemptStarted, t, trace=f"trace-{self.id}-{self.attempt}", reason=reason)
        self.say(ev.PhaseChanged, t, phase="boot")
        return self.box(t, "starting")

    def box(self, t: float, state: str, proof: str = "", detail: str = "") -> Rollout:
        name = f"vf-{self.id}-{self.attempt}"
        return self.say(
            ev.RuntimeChanged, t, sandbox=name, kind="docker", state=state, proof=proof, detail=detail,
            id="" if state == "starting" else f"c0ffee{self.id}",
        )  # fmt: skip

    def run(self, t: float) -> Rollout:
        """The sandbox lives and the program runs."""
        self.box(t, "live")
        self.say(ev.PhaseChanged, t, phase="setup").say(ev.PhaseChanged, t + 1, phase="running")
        return self.say(ev.ProgramStarted, t + 1, program="bash")

    def turn(self, t: float, call: int, command: str, result: str | None = "ok", seconds: float = 0.4,
             *, failed: bool = False, name: str = "bash") -> Rollout:  # fmt: skip
        """A model call that ends in a tool call; `result` None: the tool still runs."""
        import json

        self.say(ev.ModelCallStarted, t, call=call, stream=True)
        self.say(
            ev.ModelCallFinished, t + 2, call=call, seconds=2.0, prompt_tokens=1200, completion_tokens=90
        )
        arguments = json.dumps({"command": command})
        self.say(ev.ToolCalled, t + 2, call=call, id=f"c{call}", name=name, arguments=arguments)
        if result is not None:
            self.say(ev.ToolReturned, t + 2 + seconds, id=f"c{call}", result=result, seconds=seconds,
                     failed=failed)  # fmt: skip
        return self

    def exit(self, t: float, code: int, meaning: str, kind: str) -> Rollout:
        return self.say(ev.ProgramExited, t, code=code, meaning=meaning, kind=kind, seconds=30.0)

    def end(self, t: float, outcome: str, reward: float | None = None, **fields: Any) -> Rollout:
        if reward is not None:
            self.say(ev.Scored, t - 0.5, reward=reward, rewards={"correct": reward}, metrics={"lines": 4.0})
        return self.say(ev.AttemptFinished, t, outcome=outcome, reward=reward, **fields)

    def gone(self, t: float) -> Rollout:
        for i, state in enumerate(("stopping", "sent", "checking")):
            self.box(t + i, state)
        return self.box(t + 3, "gone", proof="docker: no such container")


def story() -> list[ev.Event]:
    """All events of the gallery."""
    s = Story()
    s.say(
        ev.RunStarted, 0, run="9a1d77c2e0b1", name="swe-small--gpt-5-mini--bash", model="gpt-5-mini",
        taskset="swe-small", harness="bash", runtime="docker", host="devbox", pid=4242, concurrency=16, total=16,
    )  # fmt: skip
    for part in (_live, _ended, _leaving):
        part(s)
    for i in range(3):
        Rollout(s, f"q{i}", 13 + i, "rename-module")
    return s.events


def _live(s: Story) -> None:
    Rollout(s, "a1", 0, "fix-off-by-one").begin(560).box(562, "starting", detail="image pull 40 %")
    r = Rollout(s, "a2", 1, "flaky-network-test").begin(400).run(404)
    r.turn(410, 0, "ls -la").turn(420, 1, "cat src/retry.py", "import time\n\ndef retry():\n    ...")
    r.turn(556, 2, "pytest -x tests/unit", None)
    r = Rollout(s, "a3", 2, "sort-stability").begin(500).run(504).turn(510, 0, "git log --oneline | head")
    r.say(ev.ModelCallStarted, 588, call=1, stream=True)
    r.say(
        ev.TextDelta, 590, call=1, text="The sort is not stable because the key drops the index. I'll add it "
    )
    r.say(
        ev.ToolDelta,
        595,
        call=1,
        index=0,
        id="x",
        name="edit",
        arguments='{"path": "src/sort.py", "new": "key=',
    )
    r = (
        Rollout(s, "a4", 3, "unicode-paths-日本語-🙂")
        .begin(520)
        .run(524)
        .turn(530, 0, "ls 文書", failed=True)
    )
    r.say(ev.ModelCallStarted, 580, call=1, stream=True)
    r.say(
        ev.TextDelta,
        596,
        call=1,
        text="Hmm, the listing failed; the name must be normalised.",
        reasoning=True,
    )
    Rollout(s, "a5", 4, "memory-leak").begin(200).run(204).turn(210, 0, "python soak.py", None)
    r = Rollout(s, "a6", 5, "race-in-cache").begin(540).run(544).turn(550, 0, "make test")
    r.say(ev.ErrorRaised, 570, kind="ProviderError", message="429 too many requests", status_code=429)
    r.say(ev.ModelCallStarted, 590, call=1)


def _ended(s: Story) -> None:
    r = (
        Rollout(s, "e1", 6, "add-cli-flag")
        .begin(10)
        .run(12)
        .turn(20, 0, "cat cli.py")
        .turn(30, 1, "make test")
    )
    r.exit(60, 0, "exit 0", "ok").end(64, "completed", 1.0, stop_condition="agent_completed").gone(65)
    r = Rollout(s, "e2", 7, "parse-dates").begin(15).run(17).turn(25, 0, "pytest", "1 failed", failed=True)
    r.exit(70, 4, "declined (4)", "declined").end(72, "declined", 0.0).gone(73)
    r = Rollout(s, "e3", 8, "port-to-py312").begin(20).run(22).turn(30, 0, "python -m build")
    r.exit(80, 137, "exit 137 killed", "failed")
    r.end(81, "error", error_type="HarnessError", error="the program was killed (out of memory?)").gone(82)
    r = Rollout(s, "e4", 9, "add-cli-flag", 1).begin(30).run(32).turn(40, 0, "cat cli.py")
    r.exit(90, 143, "exit 143 terminated", "failed").end(91, "stopped").gone(92)


def _leaving(s: Story) -> None:
    r = Rollout(s, "l1", 10, "drop-python39").begin(300).run(304).turn(310, 0, "sed -i s/3.9/3.10/ setup.cfg")
    r.exit(545, 0, "exit 0", "ok").end(546, "completed", 0.5)
    r.box(559, "stopping").box(560, "sent")
    r = Rollout(s, "l2", 11, "sort-stability", 1).begin(300).run(304).exit(500, 0, "exit 0", "ok")
    r.end(501, "completed", 1.0).box(510, "stopping").box(511, "sent").box(515, "checking")
    r.box(520, "survived", detail="docker: still listed as running")
    r = Rollout(s, "l3", 12, "memory-leak", 1).begin(100).run(104)
    r.end(130, "error", error_type="SandboxError", error="docker daemon does not answer", final=False)
    r.box(131, "stopping").box(132, "sent").box(133, "checking").box(140, "unknown", detail="no answer")
    r.begin(580, "retry")


def gallery() -> RunState:
    """The folded run."""
    return fold(story())


def hostile() -> Iterator[str]:
    """Strings that attack a screen: markup, control sequences, bidirectional overrides, widths, sizes."""
    yield from ("[/", "[/x]", "[b +", "[bold", "[@click=app.quit]x[/]", "\\[", "[$name]", "path/[slug]/x")
    yield from ("\x1b[2A\x1b[2K", "\x1b[?1049h", "\x1b[?1003h", "\x1b]0;owned\x07", "\x1b]52;c;b3duZWQ=\x07")
    yield from ("\x1b]0;owned", "\x07\x00\x08", "10%\r50%\r100%", "\x9b2J\x9d0;owned\x9c", "\u202egnp.exe")
    yield from (
        "a\u0300" * 3 + "\u0301" * 60,
        "👩‍👩‍👧‍👦🏽🇩🇪",
        "日本語" * 40,
        "x" * 5000,
        "\ud800",
        "\t\t\t",
        "",
    )
