"""What a screen shows, as plain data: the state that `fold.apply` builds out of events.

All times are Unix seconds as stamped by the engine. Collections that grow with a rollout are bounded. Strings
are as raw as in the events.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Literal

from vf_core.runtimes.lifecycle import State

TOOLS_KEPT = 32
TOOLS_KEPT_ENDED = 8
TOOLS_WHOLE = 4
"""How many of the latest tool calls keep their arguments and results whole."""
TOOL_TEXT_KEPT = 400
SERVERS_KEPT = 32
SERVED_KEPT = 100
PARTIAL_KEPT = 16
HISTORY_KEPT = 64
TEXT_KEPT = 2_000
OUTPUT_KEPT = 8_000
OUTPUT_KEPT_ENDED = 2_000
LOGS_KEPT = 400
COMMANDS_KEPT = 50

Status = Literal["queued", "active", "completed", "declined", "error", "stopped"]
"""A rollout's status: `active` from its attempt's start until its result stands; the last four are final
unless a restart or a retry begins a new attempt."""

DIED = "died"
"""A run's status whose engine is gone without a last word."""
ENDED: frozenset[str] = frozenset({"completed", "declined", "error", "stopped"})


@dataclass(slots=True)
class SandboxView:
    """One sandbox of one attempt, with every state it went through as (state, time, proof or detail). `ends`: when
    its provider ends it by itself, Unix seconds; None where it does not. `serves`: the tool server that it is for;
    without a `rollout` it is one that all of them share."""

    name: str
    rollout: str
    attempt: int
    kind: str
    state: State = State.NEW
    since: float = 0.0
    id: str = ""
    proof: str = ""
    detail: str = ""
    image: str = ""
    ends: float | None = None
    serves: str = ""
    history: list[tuple[State, float, str]] = field(default_factory=list)


@dataclass(slots=True)
class ProgramView:
    """The agent program: running while `code` is None. `kind`: ok, declined or failed."""

    started: float
    code: int | None = None
    meaning: str = ""
    kind: str = ""
    ended: float | None = None


@dataclass(slots=True)
class ToolView:
    """One tool call. `partial`: the model is still generating it; `ended` is None while it runs; `seconds` stays None
    when the program ended before its result was seen."""

    id: str
    name: str
    arguments: str = ""
    server: str = ""
    started: float = 0.0
    ended: float | None = None
    seconds: float | None = None
    result: str = ""
    failed: bool = False
    partial: bool = False
    index: int = 0


@dataclass(slots=True)
class ServedView:
    """A tool server that an attempt has: where it is (host, sandbox or external), and its tools' own names, empty
    while they are not known; of very many only the first (`count` tells how many there are)."""

    place: str = ""
    shared: bool = False
    tools: tuple[str, ...] = ()
    count: int = 0


@dataclass(slots=True)
class AttemptView:
    """An attempt that is over, or the current one. `outcome` is empty until its result stands; `interrupted`
    when the engine ended before it did."""

    number: int
    trace: str = ""
    reason: str = "first"
    started: float = 0.0
    ended: float | None = None
    outcome: str = ""
    stop_condition: str = ""
    reward: float | None = None
    exit_meaning: str = ""
    error: str = ""
    sandbox: str = ""


@dataclass(slots=True)
class RolloutView:
    """Everything that the screen knows of one rollout; what is about an attempt is about the current one.

    `tools` ends with the calls that are being generated (`partial`). `served` are the tool servers by the name that
    their tools are advertised under, "" where it is left out. `sandboxes` names those of all attempts.
    `model_since` is set while a model call is under way, `model_call` is the number of the latest. `past` is what the
    attempts before the current one used, as far as it counts in the run's totals (see `fold_resume`).
    """

    id: str
    task: int = 0
    sample: int = 0
    name: str = ""
    status: Status = "queued"
    phase: str = ""
    phase_since: float = 0.0
    phases: list[tuple[str, float]] = field(default_factory=list)
    attempt: int = 0
    attempts: list[AttemptView] = field(default_factory=list)
    started: float | None = None
    ended: float | None = None
    last_progress: float = 0.0
    sandbox: SandboxView | None = None
    sandboxes: list[str] = field(default_factory=list)
    program: ProgramView | None = None
    turns: int = 0
    calls: int = 0
    calls_open: int = 0
    model_since: float | None = None
    model_call: int = -1
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    tokens_known: bool = True
    cost: float | None = None
    text: str = ""
    reasoning: str = ""
    answer: str = ""
    tools: deque[ToolView] = field(default_factory=deque)
    tool_count: int = 0
    served: dict[str, ServedView] = field(default_factory=dict)
    output: str = ""
    reward: float | None = None
    rewards: dict[str, float] = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)
    judge_calls: int = 0
    judge_prompt_tokens: int = 0
    judge_cached_tokens: int = 0
    judge_completion_tokens: int = 0
    judge_cost: float | None = None
    stop_condition: str = ""
    error_type: str = ""
    error: str = ""
    errors: list[tuple[float, str, str]] = field(default_factory=list)
    past: dict[str, float] = field(default_factory=dict)
    command: str = ""
    revision: int = 0

    @property
    def ended_status(self) -> bool:
        """The current attempt's result stands and none follows by itself."""
        return self.status in ENDED

    @property
    def exit_word(self) -> str:
        """What is known of the program's exit: `running`, its meaning, `exit unknown` where nobody is left to hear of
        it; empty before it started."""
        program = self.program
        if program is None:
            return ""
        if program.code is not None:
            return program.meaning or f"exit {program.code}"
        unheard = self.ended_status or (self.sandbox is not None and self.sandbox.state.settled)
        return "exit unknown" if unheard else "running"


@dataclass(slots=True)
class CommandView:
    """A command and how it ended: `status` is accepted, done or failed."""

    id: str
    name: str
    t: float
    targets: tuple[str, ...] = ()
    by: str = ""
    status: str = "accepted"
    message: str = ""
    changed: tuple[str, ...] = ()


@dataclass(slots=True)
class Totals:
    """Counts over the run's rollouts, kept as events come: each rollout is in exactly one status count.

    What judges' models used stands apart from what the agents' did. `redone` is what attempts used that a resume
    replaced: it is in none of the other counts, so that those are an uninterrupted run's.
    """

    queued: int = 0
    active: int = 0
    completed: int = 0
    declined: int = 0
    error: int = 0
    stopped: int = 0
    scored: int = 0
    reward_sum: float = 0.0
    reward_squares: float = 0.0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    cost: float | None = None
    model_calls: int = 0
    tool_calls: int = 0
    judge_calls: int = 0
    judge_prompt_tokens: int = 0
    judge_cached_tokens: int = 0
    judge_completion_tokens: int = 0
    judge_cost: float | None = None
    redone: dict[str, float] = field(default_factory=dict)

    @property
    def redone_tokens(self) -> int:
        """Tokens of replaced attempts, cache reads included, judges' left out."""
        names = ("prompt_tokens", "cached_tokens", "completion_tokens")
        return int(sum(self.redone.get(name, 0) for name in names))

    @property
    def ended(self) -> int:
        """Rollouts whose result stands."""
        return self.completed + self.declined + self.error + self.stopped


@dataclass(slots=True)
class RunState:
    """A run as told by its events so far. `seq` is the last durable event's number.

    `status`: starting, running, stopping, then completed, stopped or failed; died where its engine went without a
    word. `changed` collects the ids of
    rollouts touched since a reader last cleared it; `revision` counts every event. `unconfirmed` names the
    sandboxes that were asked to go, or failed to start, and are not proven gone; once the run is over, or its
    engine known to be gone (`abandon`), all that are not. `kept` rollouts of earlier sittings stand; `idle` are the
    seconds between sittings. `told` is when the last durable event was, `now` the last of all.
    """

    run: str = ""
    name: str = ""
    status: str = "starting"
    model: str = ""
    taskset: str = ""
    harness: str = ""
    runtime: str = ""
    host: str = ""
    pid: int = 0
    total: int = 0
    concurrency: int = 0
    paused: bool = False
    pause_reason: str = ""
    stop_reason: str = ""
    kept: int = 0
    started: float | None = None
    finished: float | None = None
    idle: float = 0.0
    told: float = 0.0
    now: float = 0.0
    exit_code: int | None = None
    message: str = ""
    caps: dict[str, float] = field(default_factory=dict)
    totals: Totals = field(default_factory=Totals)
    rollouts: dict[str, RolloutView] = field(default_factory=dict)
    sandboxes: dict[str, SandboxView] = field(default_factory=dict)
    unconfirmed: set[str] = field(default_factory=set)
    logs: deque[tuple[float, str, str, str]] = field(default_factory=lambda: deque(maxlen=LOGS_KEPT))
    commands: deque[CommandView] = field(default_factory=lambda: deque(maxlen=COMMANDS_KEPT))
    seq: int = 0
    revision: int = 0
    changed: set[str] = field(default_factory=set, compare=False)

    def left_over(self) -> list[SandboxView]:
        """Every sandbox that is not known to be gone, those at work included."""
        return [box for box in self.sandboxes.values() if not box.state.settled]

    def abandon(self) -> None:
        """Its engine is gone: nobody is left who would stop what may still be there. A run that was not over died."""
        self.unconfirmed.update(box.name for box in self.left_over())
        if not self.over:
            self.status = DIED

    @property
    def unattended(self) -> bool:
        """No engine runs it any more."""
        return self.over or self.status == DIED

    @property
    def over(self) -> bool:
        """The engine said its last word."""
        return self.finished is not None

    @property
    def reward_mean(self) -> float | None:
        """Mean reward of the scored rollouts; None when there is none."""
        n = self.totals.scored
        return self.totals.reward_sum / n if n else None

    @property
    def reward_error(self) -> float | None:
        """Standard error of the mean reward; None below two scored rollouts."""
        n = self.totals.scored
        if n < 2:
            return None
        mean = self.totals.reward_sum / n
        variance = max(0.0, (self.totals.reward_squares - n * mean * mean) / (n - 1))
        return float((variance / n) ** 0.5)
