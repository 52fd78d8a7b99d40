"""Judges as scoring sees them: their options, who they are in a run, and what their model calls used.

The base class that judges are written with is `vf_core.judges.Judge`; this room knows only how to ask one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from pydantic import Field, field_validator, model_validator

from vf_core.config.base import StrictModel
from vf_core.config.client import Address, ClientConfig, Headers, Variable
from vf_core.trace.plain import plain
from vf_core.trace.record import Trace
from vf_core.trace.types import SamplingConfig, Usage

RECORDS = "judge"
"""Where in a trace's `info` the answers of judges' models stand, as verifiers records them."""
RECORDS_LIMIT = 1_000
TEXT_LIMIT = 20_000
ERROR_LIMIT = 1_000
_NAME_LIMIT = 80


class JudgeConfig(StrictModel):
    """Options of a judge. Without a `base_url` of its own it asks the run's provider, with the run's key and headers.

    `name` is the reward's (empty: the id's), `weight` its weight. `prompt` or `prompt_file` replaces the judge's
    own template. `timeout`: seconds for one model call, the time between its tries included.
    """

    id: str = ""
    name: str = ""
    weight: float = Field(1.0, ge=0)
    model: str = Field(min_length=1)
    base_url: Address | None = None
    api_key_var: Variable | None = None
    headers: Headers = Field(default_factory=dict, repr=False)
    sampling: SamplingConfig = SamplingConfig()
    prompt: str | None = None
    prompt_file: Path | None = None
    timeout: float = Field(300.0, gt=0, le=86_400)

    @property
    def reward_name(self) -> str:
        """What its verdict is called among the rewards."""
        return self.name or self.id.partition("@")[0].rpartition("/")[2].replace("-", "_")

    @field_validator("name")
    @classmethod
    def _showable(cls, name: str) -> str:
        if name != name.strip() or not name.isprintable() or len(name) > _NAME_LIMIT:
            raise ValueError(f"expected a name of at most {_NAME_LIMIT} ordinary characters")
        return name

    @model_validator(mode="after")
    def _one_prompt(self) -> JudgeConfig:
        if self.prompt is not None and self.prompt_file is not None:
            raise ValueError("has both prompt and prompt_file: leave one out")
        return self


class PluggedJudge(Protocol):
    """What scoring asks of a judge. `scale`: lowest and highest verdict; None: any number is one.

    `score` is called with those of `task` (the row), `trace` and `runtime` that it asks for by name, and gives a
    number, or a mapping of names to numbers.
    """

    config: Any
    scale: tuple[float, float] | None

    @property
    def reward_name(self) -> str:
        """What its verdict is called among the rewards."""

    @property
    def score(self) -> Any:
        """The method to call."""


@dataclass(frozen=True, slots=True)
class Panel:
    """The judges of a run, and the run's own provider, for judges that name none."""

    judges: tuple[PluggedJudge, ...] = ()
    client: ClientConfig = field(default_factory=ClientConfig)


@dataclass(frozen=True, slots=True)
class Judging:
    """What is being scored: the trace to record judges' calls on (None: several), and the run's provider."""

    trace: Trace[Any, Any] | None
    client: ClientConfig


_now: ContextVar[Judging | None] = ContextVar("judging", default=None)


def now() -> Judging | None:
    """What is being scored where this is called from, hooks' threads and loops included."""
    return _now.get()


@contextmanager
def judging(trace: Trace[Any, Any] | None, panel: Panel | None) -> Iterator[None]:
    """Judges that are asked inside belong to `trace`, and may use the run's provider."""
    token = _now.set(None if panel is None else Judging(trace, panel.client))
    try:
        yield
    finally:
        _now.reset(token)


def judged(trace: Trace[Any, Any]) -> dict[str, float]:
    """What judges' calls used up to now, as an event tells it; empty when none was made."""
    records = trace.info.get(RECORDS)
    calls = len(records) if isinstance(records, Sequence) and not isinstance(records, str) else 0
    calls = max(calls, len(trace.extra_usage))
    if not calls:
        return {}
    out: dict[str, float] = {"calls": calls}
    usage = Usage.aggregate(trace.extra_usage)
    if usage is not None:
        out |= {"prompt_tokens": usage.prompt_tokens, "completion_tokens": usage.completion_tokens}
        if usage.cached_input_tokens is not None:
            out["cached_tokens"] = usage.cached_input_tokens
        if usage.cost is not None:
            out["cost"] = usage.cost
    return out


def record(
    trace: Trace[Any, Any],
    *,
    name: str,
    model: str,
    text: str | None,
    parsed: Any,
    usage: Usage | None,
    error: str,
) -> None:
    """Write a judge's model call on `trace`: its answer as verifiers records one (None: no answer came), its use
    apart from the agent's, and in `info["vf_tui"]` whose it was and what was wrong with it."""
    if text is not None:
        answers = trace.info.setdefault(RECORDS, [])
        used = None if usage is None else usage.model_dump()
        if isinstance(answers, list) and len(answers) < RECORDS_LIMIT:
            answers.append({"text": text[:TEXT_LIMIT], "parsed": plain(parsed), "usage": used})
    if usage is not None:
        trace.extra_usage.append(usage)
    calls = trace.extra.setdefault("judge", [])
    if len(calls) < RECORDS_LIMIT:
        calls.append({"name": name, "model": model} | ({"error": error[:ERROR_LIMIT]} if error else {}))
