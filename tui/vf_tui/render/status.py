"""What a rollout is doing, in words: one vocabulary for the list, the panes, the header and the tabs."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import lru_cache

from vf_core.events.state import RolloutView, SandboxView, ToolView, Totals
from vf_core.runtimes.lifecycle import State
from vf_tui.attention import ERROR, FAILING, STALL_SECONDS, STALLED, SURVIVED, UNKNOWN
from vf_tui.attention import attention as reason
from vf_tui.render import timefmt
from vf_tui.safe_text import cell, visible

STATUS_STYLES = {
    "queued": "faint",
    "active": "run",
    "completed": "ok",
    "declined": "warn",
    "error": "error",
    "stopped": "dim",
}
SANDBOX_STYLES = {
    State.NEW: "faint",
    State.STARTING: "dim",
    State.LIVE: "run",
    State.FAILED: "error",
    State.STOPPING: "warn",
    State.SENT: "warn",
    State.CHECKING: "warn",
    State.GONE: "gone",
    State.SURVIVED: "alarm",
    State.UNKNOWN: "alarm",
}
PROGRAM_STYLES = {"ok": "text", "declined": "warn", "failed": "error"}

_BUSY = ("finalize", "scoring", "teardown")


@dataclass(frozen=True, slots=True)
class Now:
    """What is being done: `verb` (boot, model, tool, scoring, …), its object, and since when (None: no clock)."""

    verb: str
    what: str = ""
    since: float | None = None
    style: str = "text"

    def age(self, now: float) -> str:
        """How long it has been going on, as a clock-free word; blank without a start."""
        return "" if self.since is None else timefmt.span(now - self.since)


@dataclass(frozen=True, slots=True)
class Attention:
    """Why a rollout wants to be looked at: a word, its style, and a rank (0 first)."""

    word: str
    style: str
    rank: int


def doing(view: RolloutView) -> Now:
    """What `view` is doing now, or how it ended."""
    if view.status == "queued":
        return Now("queued", style="faint")
    if view.ended_status:
        return Now(_ended_word(view), _ended_how(view), style=status_word(view)[1])
    box = view.sandbox
    if view.phase == "tools":
        return Now("tool servers", since=view.phase_since, style="dim")
    if view.phase in _BUSY:
        return Now(view.phase, since=view.phase_since, style="dim")
    if view.phase in ("", "boot") or (box is not None and box.state is State.STARTING):
        what = cell(box.detail, 60) if box is not None and box.state is State.STARTING else ""
        return Now("boot", what, view.phase_since or view.started, "dim")
    if view.model_since is not None:
        return Now("model", "", view.model_since, "model")
    if (tool := running_tool(view)) is not None:
        return Now("tool", tool_words(tool), tool.started, "tool")
    return Now(cell(view.phase, 20), since=view.phase_since, style="dim")


# Ends that are none of the agent's own: the rollout counts, and yet something cut it short.
_CUT_SHORT = {"harness_timeout": "timeout", "max_turns": "max turns"}


def status_word(view: RolloutView) -> tuple[str, str]:
    """The rollout's status for a list, and its style: a completed one says what cut it short."""
    cut = _CUT_SHORT.get(view.stop_condition) or (
        "max tokens" if view.stop_condition.startswith("max_") else ""
    )
    if view.status == "completed" and cut:
        return cut, "warn"
    return view.status, STATUS_STYLES[view.status]


def _ended_word(view: RolloutView) -> str:
    if view.status == "error":
        kind = cell(view.error_type, 40) or "error"
        return f"unscored: {kind}" if unscored(view) else kind
    if view.status == "declined":
        program = view.program
        return cell(program.meaning, 40) if program and program.kind == "declined" else "declined"
    return status_word(view)[0]


def unscored(view: RolloutView) -> bool:
    """The agent's work is done, and its scoring failed: no reward of zero, and none of the agent's failures."""
    if view.status != "error" or view.reward is not None:
        return False
    return scoring_failed(view, view.error_type)


def scoring_failed(view: RolloutView, error_type: str) -> bool:
    """Whether an error of this type, which ended the current attempt, came of its scoring: no other follows that."""
    return error_type == "JudgeError" or any(name == "scoring" for name, _ in view.phases)


def _ended_how(view: RolloutView) -> str:
    return cell(view.stop_condition, 40) if view.stop_condition != view.status else ""


def running_tool(view: RolloutView) -> ToolView | None:
    """The newest tool call that was made and has not returned."""
    for tool in reversed(view.tools):
        if tool.ended is None and not tool.partial:
            return tool
    return None


def tool_words(tool: ToolView, limit: int = 160) -> str:
    """A tool call in one line: its server, its name and what it was given."""
    server, name = tool_name(tool)
    return f"{server}{name} {arguments(tool.arguments, limit)}".rstrip()


def tool_name(tool: ToolView, limit: int = 40) -> tuple[str, str]:
    """The server, with a slash behind it (blank: none, or not known), and the name that the tool has there."""
    server = cell(tool.server, limit)
    if not server:
        return "", cell(tool.name, limit) or "tool"
    return f"{server}/", cell(tool.name.removeprefix(f"{tool.server}_"), limit) or "tool"


_OPEN = re.compile(r'^\s*\{\s*"[^"]{0,60}"\s*:\s*"?')

_NEXT_KEY = re.compile(r'"?\s*,\s*"(\w{1,40})"\s*:\s*"?')
_CLOSE = re.compile(r'["\']?\s*\}\s*$')


@lru_cache(maxsize=2048)
def arguments(text: str, limit: int = 160) -> str:
    """A tool call's JSON arguments in one readable line; what is still being generated is shown as far as it is.

    A single string argument is shown bare, several as `key=value`.
    """
    if not text:
        return ""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        bare = _OPEN.sub("", text[: limit * 3])
        if text.rstrip().endswith("}"):
            bare = _CLOSE.sub("", bare)
        bare = _NEXT_KEY.sub(r" \1=", bare)
        return cell(visible(bare.replace('\\"', '"').replace("\\n", " ")), limit)
    if isinstance(value, dict):
        if len(value) == 1 and isinstance(only := next(iter(value.values())), str):
            return cell(visible(only[: limit * 2]), limit)
        return cell(" ".join(f"{k}={_short(v)}" for k, v in list(value.items())[:8]), limit)
    return cell(_short(value), limit)


def _short(value: object) -> str:
    if isinstance(value, str):
        return visible(value if len(value) <= 60 else value[:59] + "…")
    return json.dumps(value, ensure_ascii=False)[:80]


def attention(view: RolloutView, now: float, stall: float = STALL_SECONDS) -> Attention | None:
    """Why `view` wants attention and how to say it, None when it does not."""
    why = reason(view, now, stall)
    if why in (SURVIVED, UNKNOWN):
        return Attention(why, "alarm", 0)
    if why == ERROR:
        return Attention("UNSCORED" if unscored(view) else "FAILED", "error", 1)
    if why == STALLED:
        return Attention(f"STALLED {timefmt.span(now - view.last_progress)}", "warn", 2)
    if why == FAILING:
        return Attention("FAILING", "warn", 2)
    if view.status == "declined":
        return Attention(_ended_word(view), "warn", 3)
    return None


def exit_words(view: RolloutView) -> tuple[str, str]:
    """The program's exit meaning and its style: `running`, `exit 0`, `declined (4)`; blank before it started."""
    program = view.program
    if program is None:
        return "", "faint"
    if program.code is None:
        word = view.exit_word
        return word, "run" if word == "running" else "dim"
    # A program that was stopped on request did not fail.
    style = "dim" if view.status == "stopped" else PROGRAM_STYLES.get(program.kind, "text")
    return cell(program.meaning, 60) or f"exit {program.code}", style


def trouble(view: RolloutView, limit: int = 300) -> tuple[str, str]:
    """What went wrong, in its own words, and the style: of a sandbox that would not go, the attempt's error, or
    the last failure that it lives with. Blank when nothing did."""
    box = view.sandbox
    if box is not None and box.state in (State.SURVIVED, State.UNKNOWN) and box.detail:
        return cell(box.detail, limit), "error"
    if view.status == "error":
        return cell(view.error, limit), "text"
    if view.errors and not view.ended_status:
        _, kind, message = view.errors[-1]
        return cell(f"{kind}: {message}", limit), "warn"
    return "", ""


def errors(view: RolloutView) -> list[tuple[float, str, str]]:
    """The current attempt's errors: when, type, message. The one that ended it is told once, though it was a model
    call's first."""
    told = list(view.errors)
    if len(told) > 1 and any(entry[1:] == told[-1][1:] for entry in told[:-1]):
        told.pop()
    return told


def teardown_words(box: SandboxView | None) -> tuple[str, str]:
    """A sandbox's teardown word and its style; blank when there is none."""
    return ("", "faint") if box is None else (box.state.word, SANDBOX_STYLES[box.state])


def label(view: RolloutView) -> str:
    """What a rollout is called: its task's name, or its id."""
    return cell(view.name, 120) or f"task {view.task}"


def sample(view: RolloutView) -> str:
    """Which task and sample: `12.0`."""
    return f"{view.task}.{view.sample}"


def tokens(view: RolloutView) -> str:
    """Tokens in and out together; a `+` when a provider gave no counts for some calls."""
    total = view.prompt_tokens + view.cached_tokens + view.completion_tokens
    if not view.tokens_known:
        return f"{timefmt.count(total)}+" if total else "?"
    return timefmt.count(total) if total else ""


def judged(of: RolloutView | Totals) -> str:
    """What judges' model calls used, which is no part of the agent's: `2 calls, 1.2k in, 90 out, $0.0021`; blank
    without any."""
    if not of.judge_calls:
        return ""
    fed = of.judge_prompt_tokens + of.judge_cached_tokens
    calls = f"{of.judge_calls:,} call{'s' * (of.judge_calls != 1)}"
    parts = [calls, f"{timefmt.count(fed)} in", f"{timefmt.count(of.judge_completion_tokens)} out"]
    return ", ".join([*parts, timefmt.money(of.judge_cost)] if of.judge_cost is not None else parts)


def ticking(view: RolloutView) -> bool:
    """Whether what is shown of `view` changes as time goes by."""
    if view.status == "active":
        return True
    box = view.sandbox
    return box is not None and box.state in (State.STOPPING, State.SENT, State.CHECKING)
