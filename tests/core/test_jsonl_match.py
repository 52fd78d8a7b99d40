"""The jsonl taskset's judgement: match rules on replies, commands in a real sandbox (S05, H07, P06, P08)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from doubles.traces import reply, turn, user
from vf_core.errors import TaskError
from vf_core.runtimes import make_runtime, runtime_config_class
from vf_core.runtimes.base import Runtime
from vf_core.tasks.scoring import invoke, score
from vf_core.tasksets import _matching as matching
from vf_core.tasksets.jsonl import JsonlData, JsonlTask
from vf_core.trace.record import Trace, new_trace


@pytest.mark.parametrize(
    ("rule", "answer", "text", "worth"),
    [
        ("exact", "42", " 42\n", 1),
        ("exact", "42", "it is 42", 0),
        ("exact", "Paris", "paris", 0),
        ("exact", "", "", 1),
        ("contains", "42", "it is 42.", 1),
        ("contains", "42", "", 0),
        ("regex", r"^\s*\d+$", "42", 1),
        ("regex", r"\bcat\b", "concatenate", 0),
        ("regex", "(?im)^answer: b$", "so\nAnswer: B\nend", 1),
        ("numeric", "42", "6 x 7 = 42.", 1),
        ("numeric", "42", "first 42, then 43", 0),
        ("numeric", "1234.5", "that makes $1,234.50", 1),
        ("numeric", "1,234", "1234", 1),
        ("numeric", "-3", "it is \u22123", 1),
        ("numeric", "5", "2-5", 1),
        ("numeric", "0.5", "p = .5", 1),
        ("numeric", "1e3", "1000", 1),
        ("numeric", "50%", "50", 1),
        ("numeric", "0.1", "0.1000000001", 1),
        ("numeric", "0.1", "0.1001", 0),
        ("numeric", "12345678901234567890", "12345678901234567890", 1),
        ("numeric", "3", "1e999999999", 0),
        ("numeric", "3", "no number", 0),
        ("numeric", "2", "1,2", 1),
        ("numeric", "7", "", 0),
    ],
)
async def test_replies(rule: str, answer: str, text: str, worth: float) -> None:
    assert await matching.match_reply(rule, [answer], text) == worth


async def test_any_of_several_answers_counts_and_case_may_be_ignored() -> None:
    for rule in ("exact", "contains", "regex"):
        assert await matching.match_reply(rule, ["a", "B"], "b", ignore_case=True) == 1.0
        assert await matching.match_reply(rule, ["a", "B"], "b") == 0.0
    assert await matching.match_reply("numeric", ["1", "2"], "2") == 1.0
    assert await matching.match_reply("numeric", ["100"], "101", tolerance=0.02) == 1.0


async def test_a_pattern_that_never_ends_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """P06, P08."""
    monkeypatch.setattr(matching, "PATTERN_SECONDS", 0.5)
    with pytest.raises(TaskError, match=r"the pattern '\(a\+\)\+\$' was not decided within 0.5 s"):
        await matching.match_reply("regex", ["(a+)+$"], "a" * 60 + "!")


async def test_a_reply_of_any_text_can_be_searched() -> None:
    assert await matching.match_reply("regex", ["x$"], "\ud800\x00日本 x") == 1.0


# -- in a sandbox ------------------------------------------------------------------------------------------------


@pytest.fixture
async def box() -> AsyncIterator[Runtime]:
    runtime = make_runtime(runtime_config_class("subprocess")(type="subprocess"), name="jsonl-match")
    await runtime.start()
    try:
        yield runtime
    finally:
        await runtime.stop_confirmed()


def rollout(said: str | None, **row: Any) -> tuple[JsonlTask, Trace]:
    """A task, and a trace whose last reply is `said`."""
    task = JsonlTask(JsonlData(idx=0, prompt="p", match="command", **row))
    trace = new_trace(task_type="JsonlTask", data=task.data)
    turn(trace, [user()], reply(said))
    return task, trace


@pytest.mark.parametrize(
    ("command", "worth"),
    [
        ("true", 1.0),
        ("false", 0.0),
        ("exit 3", 0.0),
        ("echo noise; echo 0.25", 0.25),
        ("echo 0.25; exit 1", 0.0),
        ("echo 1 >&2", 1.0),
        ("echo -2; echo", -2.0),
        ("echo 1_0", 1.0),
        (["sh", "-c", 'test "$1" = "a b"', "sh", "a b"], 1.0),
        ('test "$VF_REPLY" = "$VF_ANSWER"', 1.0),
        ('cd / && cmp "$VF_REPLY_FILE" "$VF_ANSWER_FILE"', 1.0),
    ],
)
async def test_what_a_command_is_worth(box: Runtime, command: Any, worth: float) -> None:
    task, trace = rollout("x y\nz", command=command, answer=["x y\nz"])
    await score(task, None, trace, box)
    assert trace.rewards == {"match": worth}


@pytest.mark.parametrize(
    ("command", "told"),
    [
        ("no-such-checker --x", "exit code 127"),
        (["./missing"], "exit code 127"),
        ("kill -9 $$", "exit code 137"),
        ("echo nan", "printed 'nan' as the reward"),
        ("echo inf", "printed 'inf'"),
    ],
)
async def test_a_command_that_cannot_judge_is_an_error(box: Runtime, command: Any, told: str) -> None:
    """P06."""
    task, trace = rollout("x", command=command)
    with pytest.raises(TaskError, match=told):
        await score(task, None, trace, box)
    assert (trace.score, trace.errors[0].type) == (None, "TaskError")


HOSTILE = "'; touch pwned; \"$(touch pwned)`touch pwned`\\\n--x\t$HOME *\x01"


async def test_texts_reach_the_command_as_they_are_and_never_as_shell(box: Runtime) -> None:
    """S05."""
    task, trace = rollout(
        HOSTILE, command='printf %s "$VF_REPLY" >seen; printf %s "$VF_ANSWER" >wanted', answer=[HOSTILE]
    )
    await score(task, None, trace, box)
    assert (await box.read("seen")).decode() == HOSTILE.strip()
    assert (await box.read("wanted")).decode() == HOSTILE
    listing = await box.run(["ls", "-a"])
    assert "pwned" not in listing.stdout


@pytest.mark.parametrize("text", [None, "", "a\0b", "\ud800", "é" * 300_000, "x" * 3_000_000])
async def test_replies_of_any_kind_and_length(box: Runtime, text: str | None) -> None:
    """H07: the file has all of it, the variable what fits."""
    task, trace = rollout(text, command='wc -c <"$VF_REPLY_FILE"; printf %s "$VF_REPLY" | wc -c')
    await score(task, None, trace, box)
    bare = (text or "").encode(errors="replace")
    assert trace.rewards["match"] == len(bare[: matching.ENV_LIMIT].replace(b"\0", b""))


async def test_files_and_setup_come_before_the_agent(box: Runtime) -> None:
    task, trace = rollout(
        "x",
        files={"in/a $(x) 'b'.txt": "text \ud800\n", "run.sh": "echo 0.5"},
        setup="mkdir out; mv \"in/a \\$(x) 'b'.txt\" out/moved",
        command=["sh", "run.sh"],
    )
    await invoke(trace.own_task(task).setup, {"trace": trace, "runtime": box})
    assert (await box.read("out/moved")).startswith(b"text ")
    await score(task, None, trace, box)
    assert trace.rewards == {"match": 0.5}


async def test_a_setup_command_that_fails_says_why(box: Runtime) -> None:
    task, trace = rollout("x", setup=["sh", "-c", "echo no such package >&2; exit 3"], command="true")
    with pytest.raises(TaskError, match="setup command ended with exit code 3: no such package"):
        await invoke(trace.own_task(task).setup, {"trace": trace, "runtime": box})


async def test_rules_without_a_command_need_no_sandbox_work(box: Runtime) -> None:
    task, trace = rollout("42")
    other = JsonlTask(task.data.model_copy(update={"match": "numeric", "answer": ["42"]}))
    await score(other, None, trace, box)
    assert trace.rewards == {"match": 1.0}
    assert not Path("pwned").exists()
