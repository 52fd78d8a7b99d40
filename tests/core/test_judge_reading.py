"""Verdicts in what a model says: taken where they are unmistakable, refused where a guess would be a score (P06)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from doubles.traces import Row
from vf_core.judges._calls import strict_schema
from vf_core.judges._reading import fence, objects_in, question_of, reference_of, verdict_in
from vf_core.judges.rubric import Criterion, Verdicts
from vf_core.trace.task import WireTaskData

YES_NO = ("yes", "no")


@pytest.mark.parametrize(
    ("text", "choices", "verdict"),
    [
        ("yes", YES_NO, "yes"),
        ("  **No.**\n", YES_NO, "no"),
        ('"YES"', YES_NO, "yes"),
        ("The two agree in substance.\n\nVerdict: yes", YES_NO, "yes"),
        ("**Final answer:** no", YES_NO, "no"),
        ("Yes, it names the same city.", YES_NO, "yes"),
        ("No - it names another city.", YES_NO, "no"),
        ("no\nThe response names Lyon.", YES_NO, "no"),
        ("<think>no? or yes? no</think>\nyes", YES_NO, "yes"),
        ("so \\boxed{yes}", YES_NO, "yes"),
        ("\\boxed{\\text{B}}", ("A", "B"), "B"),
        ("A", ("A", "B"), "A"),
        ("A response that matches is B.\nB", ("A", "B"), "B"),
        ("not correct", ("correct", "not correct"), "not correct"),
        ("Straße", ("STRASSE", "x"), "STRASSE"),
    ],
)
def test_a_clear_verdict_is_taken(text: str, choices: tuple[str, str], verdict: str) -> None:
    assert verdict_in(text, choices) == verdict


@pytest.mark.parametrize(
    ("text", "choices"),
    [
        ("", YES_NO),
        ("None", YES_NO),
        ("null", YES_NO),
        ("7", YES_NO),
        ("I can't say yes", YES_NO),
        ("yes and no", YES_NO),
        ("Yes, but also no.", YES_NO),
        ("yes\n\nVerdict: no", YES_NO),
        ("<think>yes", YES_NO),
        ("yesterday", YES_NO),
        ("Verdict: maybe", YES_NO),
        ("A response that matches is B.", ("A", "B")),
        ("***", YES_NO),
        # Long and odd: read in a moment, or this test does not end.
        ("<think>" * 28_000, YES_NO),
        ("\\boxed{" * 28_000, YES_NO),
        ("verdict: " * 22_000, YES_NO),
        (" " * 199_000 + "x", YES_NO),
        ("`" * 199_000, YES_NO),
    ],
    ids=lambda value: str(value)[:20],
)
def test_p06_an_unclear_one_is_refused(text: str, choices: tuple[str, str]) -> None:
    with pytest.raises(ValueError):
        verdict_in(text, choices)


@given(st.text(alphabet="yesno .:*\n<>thinkVrdicABx7{}`", max_size=60))
def test_a_verdict_is_among_the_choices_or_refused(text: str) -> None:
    try:
        found = verdict_in(text, YES_NO)
    except ValueError:
        return
    assert found in YES_NO
    assert found in text.lower()


def test_objects_are_found_whatever_stands_round_them() -> None:
    text = 'a {b} {"x": {"y": 1}} ``` {"z": NaN} {"z": [2]} {"open": '
    assert list(objects_in(text)) == [{"x": {"y": 1}}, {"z": [2]}]


@given(st.lists(st.text(alphabet="`a\n", max_size=12), max_size=3))
def test_no_text_can_close_its_fence(texts: list[str]) -> None:
    marks = fence(*texts)
    assert len(marks) >= 3
    assert not any(marks in text for text in texts)


def test_what_a_row_says_is_read_by_field() -> None:
    row = Row(idx=3, name="r", prompt="Q?", answer="A")
    assert (question_of(row, ""), question_of(row, "answer"), reference_of(row, "answer")) == ("Q?", "A", "A")
    wire = WireTaskData(idx=0, prompt="p", gold=["a", 2], facts={"n": 1})  # type: ignore[call-arg]
    assert (reference_of(wire, "gold"), reference_of(wire, "facts")) == ("a\n2", '{"n": 1}')
    for field, told in (("anwser", "did you mean answer"), ("copy", "no field"), ("__class__", "no field")):
        with pytest.raises(ValueError, match=told):
            reference_of(row, field)
    with pytest.raises(ValueError, match="is empty"):
        reference_of(Row(idx=0, prompt="p", answer=" "), "answer")
    with pytest.raises(ValueError, match="no prompt"):
        question_of(Row(idx=0, prompt=None), "")


def test_choices_are_evenly_spaced() -> None:
    criterion = Criterion(name="c", text="t", choices=("bad", "fair", "good"))
    assert [criterion.value(verdict) for verdict in ("bad", " FAIR", "good")] == [0.0, 0.5, 1.0]
    with pytest.raises(ValueError, match="none of bad, fair, good"):
        criterion.value("7")


def test_a_schema_is_as_structured_output_wants_it() -> None:
    schema = strict_schema(Verdicts.model_json_schema())
    for table in (schema, schema["$defs"]["Verdict"]):
        assert table["required"] == list(table["properties"])
        assert table["additionalProperties"] is False
