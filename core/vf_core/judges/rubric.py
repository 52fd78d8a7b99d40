"""The judge `rubric`: criteria of a file, each with its verdicts and weight, graded one by one."""

from __future__ import annotations

import asyncio
import json
import math
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError, field_validator

from vf_core.config.base import StrictModel
from vf_core.config.explain import explain, nearest
from vf_core.errors import ConfigError
from vf_core.judges._reading import (
    SHOWN,
    JudgeView,
    fence,
    objects_in,
    question_of,
    reference_of,
    response_of,
)
from vf_core.judges.base import Judge, JudgeResponse
from vf_core.tasks.judging import JudgeConfig
from vf_core.trace.record import Trace
from vf_core.trace.task import TaskData

__all__ = ["RubricJudge"]

_PROMPT = Path(__file__).with_name("rubric.txt")
_JSON = """
Reply with one JSON object and nothing else, an entry for each criterion, the reason before the verdict:
{"verdicts": [{"name": "the criterion's name", "reason": "one sentence of evidence", "verdict": "its verdict"}]}
"""
_SIZE_LIMIT = 1_000_000


class Criterion(StrictModel):
    """`choices` are its verdicts from worst to best: the first counts 0, the last 1, the others evenly between."""

    name: str = Field(min_length=1)
    text: str = Field(min_length=1)
    weight: float = Field(1.0, ge=0)
    choices: tuple[str, ...] = ("no", "yes")

    @field_validator("choices")
    @classmethod
    def _several(cls, choices: tuple[str, ...]) -> tuple[str, ...]:
        plain = [choice.strip().casefold() for choice in choices]
        if len(plain) < 2 or not all(plain) or len(set(plain)) < len(plain):
            raise ValueError("expected at least two different verdicts")
        return choices

    def value(self, verdict: str) -> float:
        """What a verdict counts. Raises ValueError for one that is not on the list."""
        plain = [choice.strip().casefold() for choice in self.choices]
        try:
            return plain.index(verdict.strip().casefold()) / (len(plain) - 1)
        except ValueError:
            raise ValueError(
                f"criterion {self.name!r}: {verdict[:SHOWN]!r} is none of {', '.join(self.choices)}"
            ) from None


class Rubric(StrictModel):
    """A criteria file."""

    criteria: list[Criterion]


class RubricJudgeConfig(JudgeConfig):
    """`path` is the criteria file (TOML or JSON), `weights` go over its own. `answer_field`: the row's field with a
    reference answer to show; empty: none. `max_criteria` in one call (None: all). `structured_output`: ask for it.
    """

    id: str = "rubric"
    path: Path
    weights: dict[str, float] = Field(default_factory=dict)
    question_field: str = ""
    answer_field: str = ""
    view: JudgeView = "full_trace"
    max_criteria: int | None = Field(None, ge=1)
    structured_output: bool = False


class Verdict(StrictModel):
    """A criterion's verdict."""

    name: str
    reason: str
    verdict: str


class Verdicts(StrictModel):
    """What the model says of one batch of criteria."""

    verdicts: list[Verdict]


class RubricJudge(Judge[Verdicts, RubricJudgeConfig]):
    """The weighted mean of the criteria, each also recorded as a metric `<judge's name>/<criterion>`."""

    prompt = _PROMPT.read_text(encoding="utf-8")
    schema = Verdicts
    fields = ("question", "reference", "response", "criteria", "fence")
    criteria: tuple[Criterion, ...] = ()

    def validate(self) -> None:
        """See `Judge.validate`: reads the criteria."""
        super().validate()
        self.criteria = _weighted(read_rubric(self.config.path), self.config)

    def validate_task(self, task: TaskData) -> None:
        """See `Judge.validate_task`."""
        question_of(task, self.config.question_field)
        if self.config.answer_field:
            reference_of(task, self.config.answer_field)

    async def score(self, task: TaskData, trace: Trace[Any, Any]) -> float:
        """See `Judge.score`."""
        if not self.criteria:
            self.validate()
        size = self.config.max_criteria or len(self.criteria)
        batches = [self.criteria[i : i + size] for i in range(0, len(self.criteria), size)]
        values: dict[str, float] = {}
        try:
            # A batch that fails takes the others with it: nothing more is paid for.
            async with asyncio.TaskGroup() as group:
                graded = [group.create_task(self._grade(task, trace, batch)) for batch in batches]
        except ExceptionGroup as e:
            raise e.exceptions[0] from None
        for batch in graded:
            values |= batch.result()
        trace.record_metrics({f"{self.reward_name}/{c.name}": values[c.name] for c in self.criteria})
        total = math.fsum(c.weight for c in self.criteria)
        # Rounding must not lead out of the scale.
        return min(1.0, math.fsum(c.weight * values[c.name] for c in self.criteria) / total)

    async def _grade(
        self, task: TaskData, trace: Trace[Any, Any], batch: Sequence[Criterion]
    ) -> dict[str, float]:
        response, question = (
            response_of(trace, self.config.view),
            question_of(task, self.config.question_field),
        )
        answer = reference_of(task, self.config.answer_field) if self.config.answer_field else ""
        marks = fence(question, response, answer)
        messages = self.build_messages(
            question=question,
            response=response,
            reference=f"\nReference solution, for comparison:\n{marks}\n{answer}\n{marks}\n"
            if answer
            else "",
            criteria="\n".join(f"- {c.name}: {c.text} ({' / '.join(c.choices)})" for c in batch),
            fence=marks,
        )
        structured = self.config.structured_output

        values: dict[str, float] = {}

        def parse(answered: JudgeResponse[Any]) -> Any:
            verdicts = answered.parsed if structured else _verdicts_in(answered.text)
            values.update(_values(verdicts, batch))
            return verdicts

        if not structured:
            messages = f"{messages}{_JSON}"
        await self.complete(messages, trace=trace, schema=Verdicts if structured else None, parse=parse)
        return values


def _verdicts_in(text: str) -> Verdicts:
    """The one object with verdicts in an answer; what stands round it does not matter."""
    found = [candidate for candidate in objects_in(text) if "verdicts" in candidate]
    if not found:
        raise ValueError(f"no JSON object with verdicts in {text[:SHOWN]!r}")
    if any(other != found[0] for other in found[1:]):
        raise ValueError(f"several different objects with verdicts in {text[:SHOWN]!r}")
    try:
        return Verdicts.model_validate(found[0])
    except ValidationError as e:
        error = e.errors()[0]
        raise ValueError(
            f"unreadable verdicts in {text[:SHOWN]!r}: {'.'.join(map(str, error['loc']))}: {error['msg']}"
        ) from None


def _values(verdicts: Any, batch: Sequence[Criterion]) -> dict[str, float]:
    """What each criterion of a batch got: exactly one verdict. Raises ValueError."""
    known = {criterion.name: criterion for criterion in batch}
    if sorted(verdict.name for verdict in verdicts.verdicts) != sorted(known):
        named = ", ".join(verdict.name for verdict in verdicts.verdicts)[:SHOWN] or "none"
        raise ValueError(f"verdicts on {named}, wanted one each on {', '.join(known)[:SHOWN]}")
    return {verdict.name: known[verdict.name].value(verdict.verdict) for verdict in verdicts.verdicts}


def read_rubric(path: Path) -> Rubric:
    """Read a criteria file: a table with the list `criteria`, or in JSON that list alone.

    Raises ConfigError with the file and the key in it.
    """
    try:
        with open(path, "rb") as f:
            raw = f.read(_SIZE_LIMIT + 1)
        if len(raw) > _SIZE_LIMIT:
            raise ConfigError(f"a criteria file has at most {_SIZE_LIMIT} bytes", file=path)
        text = raw.decode("utf-8-sig")
        data = tomllib.loads(text) if path.suffix.lower() == ".toml" else json.loads(text)
    except OSError as e:
        raise ConfigError(f"cannot be read: {e.strerror or e}", file=path) from e
    except (ValueError, RecursionError) as e:
        kind = "TOML" if path.suffix.lower() == ".toml" else "JSON"
        raise ConfigError(f"not valid {kind}: {e}", file=path) from e
    if isinstance(data, list):
        data = {"criteria": data}
    if not isinstance(data, dict):
        raise ConfigError("expected a table with a list `criteria`", file=path)
    if data.get("criteria") == []:
        raise ConfigError("lists no criteria", file=path, key="criteria")
    try:
        rubric = Rubric.model_validate(data)
    except ValidationError as e:
        raise explain(e, Rubric, path, data) from e
    names = [criterion.name for criterion in rubric.criteria]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise ConfigError(f"has two criteria named {twice!r}", file=path, key="criteria")
    return rubric


def _weighted(rubric: Rubric, config: RubricJudgeConfig) -> tuple[Criterion, ...]:
    """The criteria with the config's weights over their own. Raises ValueError."""
    names = [criterion.name for criterion in rubric.criteria]
    for name, weight in config.weights.items():
        if name not in names:
            near = nearest(name, names)
            hint = f"did you mean {near}?" if near else f"it has {', '.join(names)}"
            raise ValueError(f"weights: {config.path} has no criterion {name!r}; {hint}")
        if weight < 0:
            raise ValueError(f"weights: {name!r} must be at least 0")
    out = tuple(
        c.model_copy(update={"weight": config.weights.get(c.name, c.weight)}) for c in rubric.criteria
    )
    if not any(criterion.weight for criterion in out):
        raise ValueError(f"all weights of {config.path} are 0: nothing would count")
    return out
