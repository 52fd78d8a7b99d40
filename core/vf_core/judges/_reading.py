"""What judges read: the row and the rollout they judge, and the verdict in a model's answer.

A judge's model says what it likes. A verdict is taken where it is unmistakable; anything else raises ValueError,
which makes the rollout unscored. A guess would end up as a score.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any, Literal

from vf_core.trace.record import Trace
from vf_core.trace.task import TaskData

JudgeView = Literal["last_reply", "full_trace"]
"""What of a rollout its judge sees: the last reply, or the whole main branch with its tool calls."""
SHOWN = 300
_OBJECTS = 64


def question_of(task: TaskData, field: str) -> str:
    """What the agent was asked: a field of the row, or its prompt. Raises ValueError where there is none."""
    text = str(field_of(task, field)) if field else task.prompt_text
    if not text.strip():
        raise ValueError(f"task {task.name or task.idx!r} has no prompt: set question_field")
    return text


def reference_of(task: TaskData, field: str) -> str:
    """The reference answer in a field of the row, one a line where it holds several. Raises ValueError."""
    found = field_of(task, field)
    lines = [str(item) for item in found] if isinstance(found, list | tuple | set) else [_text(found)]
    text = "\n".join(lines)
    if not text.strip():
        raise ValueError(f"field {field!r} of task {task.name or task.idx!r} is empty")
    return text


def field_of(task: TaskData, field: str) -> Any:
    """A field of the row. Raises ValueError where it is missing."""
    found = getattr(task, field, None) if not field.startswith("_") else None
    if found is None or callable(found):
        from vf_core.config.explain import nearest

        own = [name for name in type(task).model_fields if name not in TaskData.model_fields]
        names = [*own, *(task.model_extra or {}), "prompt", "description"]
        near = nearest(field, names)
        raise ValueError(
            f"task {task.name or task.idx!r} has no field {field!r}"
            + (f": did you mean {near}?" if near else f"; it has {', '.join(names)}")
        )
    return found


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def response_of(trace: Trace[Any, Any], view: JudgeView) -> str:
    """What is judged."""
    return trace.transcript if view == "full_trace" else trace.last_reply


def fence(*texts: str) -> str:
    """A row of backticks that none of `texts` can close."""
    longest = max((len(run) for text in texts for run in re.findall("`+", text)), default=0)
    return "`" * max(3, longest + 1)


_MARKS = " \t\r\n*_`\"'.,:;!()[]{}<>#|“”‘’$"
_ANNOUNCED = re.compile(
    r"(?:final\s+)?(?:verdict|answer|judge?ment|grade|result)\s*(?:is\s*)?[:=-]?\s*(.+)", re.IGNORECASE
)
_BOXED = re.compile(r"\\boxed\{\s*(?:\\text\{)?([^{}]*)\}?\s*\}")


def verdict_in(text: str, choices: Sequence[str]) -> str:
    """Which of `choices` an answer is: it is one of them and no more (case and punctuation aside), or says so in its
    first or last line, or begins with one and names no other. Raises ValueError where it isn't clear.
    """
    _, _, said = text.rpartition("</think>")
    if "<think>" in said:
        raise ValueError(f"no verdict in {text[:SHOWN]!r}: it was cut off while thinking")
    lines = [line for line in said.splitlines() if line.strip(_MARKS)]
    if not lines:
        raise ValueError("no verdict: the answer is empty")
    found = {choice for line in (lines[0], lines[-1]) if (choice := _whole(line, choices)) is not None}
    if not found and (choice := _leading(said, choices)) is not None:
        found = {choice}
    if len(found) != 1:
        told = "two verdicts" if found else f"none of {', '.join(choices)}"
        raise ValueError(f"{told} in {text[:SHOWN]!r}")
    return found.pop()


def _whole(line: str, choices: Sequence[str]) -> str | None:
    """The choice that a line is, announced ("Verdict: yes") or boxed or alone."""
    boxed = _BOXED.search(line)
    plain = boxed[1] if boxed else line
    announced = _ANNOUNCED.fullmatch(plain.strip(_MARKS))
    candidates = [plain] + ([announced[1]] if announced else [])
    by_text = {choice.strip(_MARKS).casefold(): choice for choice in choices}
    for candidate in candidates:
        if (found := by_text.get(candidate.strip(_MARKS).casefold())) is not None:
            return found
    return None


def _leading(said: str, choices: Sequence[str]) -> str | None:
    """The choice that an answer begins with as a sentence of its own ("Yes, because …"), if it names no other."""
    named = [choice for choice in choices if re.search(_word(choice), said, re.IGNORECASE)]
    if len(named) == 1 and re.match(
        rf"\W*{_word(named[0])}\s*[*_`]*[,.:;!\u2013\u2014-]", said, re.IGNORECASE
    ):
        return named[0]
    return None


def _word(choice: str) -> str:
    return rf"(?<!\w){re.escape(choice)}(?!\w)"


def objects_in(text: str) -> Iterator[dict[str, Any]]:
    """The JSON objects in an answer, whatever stands round them, outermost only."""
    decoder = json.JSONDecoder(parse_constant=_no_constant)
    at = text.find("{")
    for _ in range(_OBJECTS):
        if at < 0:
            return
        end = at + 1
        try:
            found, end = decoder.raw_decode(text, at)
        except (ValueError, RecursionError):
            pass
        else:
            if isinstance(found, dict):
                yield found
        at = text.find("{", end)


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")
