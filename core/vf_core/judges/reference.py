"""The judge `reference`: does the reply say what the task's reference answer says?"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import field_validator

from vf_core.judges._reading import JudgeView, fence, question_of, reference_of, response_of, verdict_in
from vf_core.judges.base import Judge, JudgeResponse
from vf_core.tasks.judging import JudgeConfig
from vf_core.trace.record import Trace
from vf_core.trace.task import TaskData

__all__ = ["ReferenceJudge"]

_PROMPT = Path(__file__).with_name("reference.txt")


class ReferenceJudgeConfig(JudgeConfig):
    """`answer_field`: the row's field with the reference answer, or a list of them: any counts. `question_field`: the
    field with the question; empty: the prompt. `view`: what is judged. `choices`: the verdicts that count 1 and 0.
    """

    id: str = "reference"
    answer_field: str = "answer"
    question_field: str = ""
    view: JudgeView = "last_reply"
    choices: tuple[str, str] = ("yes", "no")

    @field_validator("choices")
    @classmethod
    def _distinct(cls, choices: tuple[str, str]) -> tuple[str, str]:
        if not all(choice.strip() for choice in choices) or choices[0].casefold() == choices[1].casefold():
            raise ValueError('expected two different verdicts, such as ["yes", "no"]')
        return choices


class ReferenceJudge(Judge[float, ReferenceJudgeConfig]):
    """1.0 for the first of `choices`, 0.0 for the second, and for a rollout that said nothing, unasked."""

    prompt = _PROMPT.read_text(encoding="utf-8")
    fields = ("question", "answer", "response", "positive", "negative", "fence")

    def validate_task(self, task: TaskData) -> None:
        """See `Judge.validate_task`."""
        reference_of(task, self.config.answer_field)
        question_of(task, self.config.question_field)

    def parse(self, response: JudgeResponse[Any]) -> float:
        """See `Judge.parse`."""
        return float(verdict_in(response.text, self.config.choices) == self.config.choices[0])

    async def score(self, task: TaskData, trace: Trace[Any, Any]) -> float:
        """See `Judge.score`."""
        response = response_of(trace, self.config.view)
        if not response.strip():
            return 0.0
        question = question_of(task, self.config.question_field)
        answer = reference_of(task, self.config.answer_field)
        positive, negative = self.config.choices
        verdict = await self.evaluate(
            trace=trace,
            question=question,
            answer=answer,
            response=response,
            positive=positive,
            negative=negative,
            fence=fence(question, answer, response),
        )
        return float(verdict.parsed or 0.0)
