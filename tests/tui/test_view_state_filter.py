"""The list's filter."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vf_core.events.state import ProgramView, RolloutView, SandboxView, ToolView
from vf_core.runtimes.lifecycle import State
from vf_tui.filter import FilterError, parse, words


def rollout(**fields: object) -> RolloutView:
    r = RolloutView(
        id="t3-s1", task=3, sample=1, name="parse /etc/[hosts]", status="error", attempt=2, turns=7
    )
    r.error_type, r.error = "ProviderError", "rate limited"
    r.program = ProgramView(started=0.0, code=137, meaning="exit 137 killed", kind="failed")
    r.sandbox = SandboxView("sb-1", "t3-s1", 2, "docker", state=State.SURVIVED, id="abc123")
    r.tools.append(ToolView(id="c", name="bash", arguments='{"command": "pytest -x"}'))
    for name, value in fields.items():
        setattr(r, name, value)
    return r


@pytest.mark.parametrize(
    "text",
    [
        "", "rate", "RATE limited", '"rate limited"', "/rate.limited/", "status:error", "status:queued,error",
        "exit:137", "box:SURVIVED", "box:survived", "provider:docker", "turns:7", "turns:>6", "turns:<=7",
        "attempt:2", "!status:completed", "!/nothing/", "/etc/[hosts]", "[hosts]", "tool:bash", "pytest",
        "error:Provider !queued",
    ],
)  # fmt: skip
def test_what_lets_a_rollout_through(text: str) -> None:

    assert parse(text)(rollout())


@pytest.mark.parametrize(
    "text",
    ["!rate", "status:completed", "turns:>7", "reward:>0", "/^nothing$/", "!/rate/", "rate status:queued"],
)
def test_what_keeps_a_rollout_out(text: str) -> None:
    assert not parse(text)(rollout())


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("/[/", "regular expression"), ("stauts:error", "status"), ("turns:many", "number"), ("status:", "value"),
        ("!", "invert"),
    ],
)  # fmt: skip
def test_a_bad_filter_says_what_is_wrong(text: str, says: str) -> None:
    with pytest.raises(FilterError, match=says):
        parse(text)


@given(st.text(max_size=40))
@settings(max_examples=150)
def test_any_text_is_a_filter_or_is_refused(text: str) -> None:
    """U01: brackets, escapes and the like in a filter box are only text."""
    with contextlib.suppress(FilterError):
        assert isinstance(parse(text)(rollout()), bool)
    with contextlib.suppress(FilterError):
        assert all(word for _, word in words(text))


@given(st.text(alphabet="abcdefghijk[]{}\\$@-_.", min_size=1, max_size=20))
def test_a_word_finds_itself_and_inverted_does_not(word: str) -> None:
    r = rollout(error=f"before {word} after")
    assert parse(word)(r)
    assert not parse(f"!{word}")(r)
