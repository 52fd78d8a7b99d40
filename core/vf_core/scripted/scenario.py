"""Scenario files: what the scripted model says to whom, how fast, and what goes wrong on the way.

    model = "scripted-demo"                     # begins with "scripted"
    seed = 0
    [pace]                                      # seconds, a number or [low, high]; a rule may have its own
    first_token = [0.2, 0.8]
    per_token = 0.03

    [[rule]]                                    # the first that matches is used for the whole conversation
    name = "sum"
    task = 'add (?P<a>\\d+) and (?P<b>\\d+)'      # regex, searched in the first user message
    vars = { word = ["one", "two"] }            # one value is drawn for each conversation
    [[rule.step]]                               # one for each of the model's turns
    text = "Let me see, {{word}}."              # {{…}}: groups of the regexes, vars, `result`, `turn`
    calls = [{ name = "bash", arguments = { command = "echo $(({{a}} + {{b}}))" } }]
    [[rule.step]]
    when = '(?P<sum>\\d+)'                       # regex, searched in the last message (`result`)
    text = "It is {{sum}}."

A step's `turn` is one more than that of the step before it, unless it says otherwise; several steps for one turn are
alternatives, and the first whose `when` and `chance` agree is taken. `repeat` serves all later turns too.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, ValidationError, model_validator

from vf_core.config.base import StrictModel
from vf_core.config.load import load_toml
from vf_core.errors import ConfigError

DEMO = Path(__file__).with_name("demo.toml")
PREFIX = "scripted"
_HOLE = re.compile(r"\{\{(\w+)\}\}")
_ALWAYS_KNOWN = frozenset(("result", "turn", "conversation"))


def _range(value: Any) -> Any:
    return (value, value) if isinstance(value, int | float) and not isinstance(value, bool) else value


Seconds = Annotated[tuple[float, float], BeforeValidator(_range)]
"""Lower and upper bound, in seconds; what is drawn lies between."""


def _pattern(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return re.compile(value, re.DOTALL)
    except re.error as e:
        raise ValueError(f"not a regular expression: {e}") from e


Pattern = Annotated[re.Pattern[str], BeforeValidator(_pattern)]


class Pace(StrictModel):
    """How fast an answer comes."""

    first_token: Seconds = (0.0, 0.0)
    per_token: Seconds = (0.0, 0.0)


class Call(StrictModel):
    """A tool call: `arguments` as a table, or `raw` as the text to send in their place (it need not be JSON)."""

    name: str
    arguments: dict[str, Any] = Field(default_factory=dict)
    raw: str | None = None


class Fault(StrictModel):
    """What goes wrong with an answer, for its first `times` tries (0: every time).

    `status`: an error status with `message`, and `retry_after` if given. After `after_chunks` pieces: `break` cuts
    the connection, `end` closes the stream as if it were whole, `error` sends an error object, `garbage` something
    that is not JSON, `hang` nothing more. `empty`: status 200 and no body.
    """

    kind: Literal["status", "break", "end", "error", "garbage", "hang", "empty"]
    status: int = 500
    message: str = "a scripted failure"
    retry_after: int | float | str | None = None
    after_chunks: int = 0
    times: int = 1


class Step(StrictModel):
    """One turn of the model. `usage` replaces the usage that is told; false: none is told."""

    turn: int | None = None
    repeat: bool = False
    when: Pattern | None = None
    chance: float = 1.0
    reasoning: str = ""
    text: str | None = None
    refusal: str | None = None
    calls: list[Call] = Field(default_factory=list)
    finish_reason: str | None = None
    usage: dict[str, Any] | Literal[False] | None = None
    pace: Pace | None = None
    fault: Fault | None = None

    def holes(self) -> Iterator[str]:
        """Names between double braces in what this step says."""
        for value in _strings(
            [self.reasoning, self.text, self.refusal, [c.model_dump() for c in self.calls]]
        ):
            yield from _HOLE.findall(value)


class Rule(StrictModel):
    """How one kind of task goes."""

    name: str
    task: Pattern | None = None
    vars: dict[str, list[str]] = Field(default_factory=dict)
    pace: Pace | None = None
    step: list[Step] = Field(min_length=1)

    @model_validator(mode="after")
    def _known_holes(self) -> Rule:
        known = {*_ALWAYS_KNOWN, *self.vars, *(self.task.groupindex if self.task else ())}
        for number, step in enumerate(self.step):
            names = known | set(step.when.groupindex if step.when else ())
            for name in step.holes():
                if name not in names:
                    raise ValueError(
                        f"rule {self.name!r}, step {number}: nothing gives {{{{{name}}}}} a value"
                    )
        return self

    @cached_property
    def turns(self) -> list[int]:
        """Each step's turn."""
        out: list[int] = []
        for step in self.step:
            out.append(step.turn if step.turn is not None else (out[-1] + 1 if out else 0))
        return out


class Scenario(StrictModel):
    """A whole scenario file."""

    model: str = PREFIX
    seed: int = 0
    pace: Pace = Pace()
    rule: list[Rule] = Field(default_factory=list)

    @model_validator(mode="after")
    def _says_what_it_is(self) -> Scenario:
        if not self.model.startswith(PREFIX):
            raise ValueError(f"the model's id must begin with {PREFIX!r}: it is not a real model")
        return self


def load_scenario(path: Path) -> Scenario:
    """Read a scenario file. Raises `ConfigError` naming the file and the place in it."""
    try:
        return Scenario.model_validate(load_toml(path))
    except ValidationError as e:
        first = e.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        raise ConfigError(first["msg"], file=path, key=key or None) from e


def fill(value: Any, values: dict[str, str]) -> Any:
    """`value` (a string, or lists and tables of them) with every `{{name}}` replaced."""
    if isinstance(value, str):
        return _HOLE.sub(lambda hole: values.get(hole[1], hole[0]), value)
    if isinstance(value, list):
        return [fill(item, values) for item in value]
    if isinstance(value, dict):
        return {key: fill(item, values) for key, item in value.items()}
    return value


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from _strings(item)
    elif isinstance(value, list):
        for item in value:
            yield from _strings(item)
