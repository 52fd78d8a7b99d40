"""How attempts end, and what the run makes of it: real sandboxes, real programs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from doubles.engine_kit import engine_kit, run_whole, script_config
from vf_core.events import types as ev
from vf_core.events.fold import fold
from vf_core.events.journal import read_journal
from vf_core.runtimes.lifecycle import State


async def test_each_end_is_told_apart(tmp_path: Path) -> None:
    scripts = ["touch solved", "true", "exit 4", "echo broken >&2; exit 3", "kill -9 $$"]
    kit, code = await run_whole(script_config(tmp_path, scripts))
    assert code == 3
    told = [
        (r.status, r.program and r.program.meaning, r.stop_condition, r.reward)
        for r in sorted(kit.state.rollouts.values(), key=lambda r: r.task)
    ]
    assert told == [
        ("completed", "exit 0", "agent_completed", 1.0),
        ("completed", "exit 0", "agent_completed", 0.0),
        ("declined", "declined (4)", "agent_declined", 0.0),
        ("error", "exit 3", "error", None),
        ("error", "exit 137 killed", "error", None),
    ]
    assert "broken" in kit.rollout("0003-0").error
    assert kit.state.totals.ended == 5
    assert kit.state.unconfirmed == set()
    assert all(box.state is State.GONE and box.proof for box in kit.state.sandboxes.values())


async def test_the_trace_says_what_the_screen_said(tmp_path: Path) -> None:
    kit, _ = await run_whole(script_config(tmp_path, ["exit 4"]))
    (record,) = kit.records()
    extra = record["info"]["vf_tui"]
    assert (extra["exit_code"], extra["exit_meaning"], extra["outcome"]) == (4, "declined (4)", "declined")
    assert [step["state"] for step in extra["lifecycle"]][-1] == "gone"
    assert extra["lifecycle"][-1]["proof"]


async def test_a_timed_out_agent_is_scored(tmp_path: Path) -> None:
    scripts = ["touch solved; sleep 600 & sleep 600", "sleep 600"]
    kit, code = await run_whole(script_config(tmp_path, scripts, env__agent__timeout={"rollout": 0.5}))
    assert code == 0
    for id, reward in (("0000-0", 1.0), ("0001-0", 0.0)):
        rollout = kit.rollout(id)
        assert (rollout.status, rollout.stop_condition, rollout.reward) == (
            "completed",
            "harness_timeout",
            reward,
        )
        assert rollout.program is not None
        assert rollout.program.meaning == "timeout after 0.5 s"


@pytest.mark.parametrize(
    ("hook", "kind", "words"),
    [
        ("setup raises", "TaskError", "the data set is not there"),
        ("reward raises", "TaskError", "no verdict"),
        ("finalize hangs", "TaskError", "finalize timed out after 0.2 s"),
    ],
)
async def test_a_hook_that_fails_is_an_error_not_a_zero(
    tmp_path: Path, hook: str, kind: str, words: str
) -> None:
    config = script_config(tmp_path, ["true", "true"], hook=hook, env__agent__timeout={"finalize": 0.2})
    kit, code = await run_whole(config)
    assert code == 3
    for rollout in kit.state.rollouts.values():
        assert (rollout.status, rollout.error_type, rollout.reward) == ("error", kind, None)
        assert words in rollout.error
    assert kit.state.reward_mean is None


async def test_max_errors_decides_the_exit_code(tmp_path: Path) -> None:
    _, code = await run_whole(script_config(tmp_path, ["exit 1", "true"], max_errors=1))
    assert code == 0


async def test_retries_by_type_and_attempts_apart(tmp_path: Path) -> None:
    retries = {"rollout": {"max_retries": 2, "include": ["HarnessError"]}}
    kit, code = await run_whole(
        script_config(tmp_path, ["echo $(ls -A | wc -l) files; touch left; exit 7"], retries=retries)
    )
    assert code == 3
    rollout = kit.rollout()
    assert [a.reason for a in rollout.attempts] == ["first", "retry", "retry"]
    assert [r["info"]["vf_tui"]["attempt"] for r in kit.records()] == [1, 2, 3]
    assert len({r["id"] for r in kit.records()}) == 3
    for number in (1, 2, 3):
        assert kit.run_dir.stdout_log("0000-0", number).read_bytes() == b"0 files\n"
    finals = [e.final for e in kit.of(ev.AttemptFinished)]
    assert finals == [False, False, True]


async def test_excluded_errors_are_not_retried(tmp_path: Path) -> None:
    retries = {"rollout": {"max_retries": 2, "exclude": ["HarnessError"]}}
    kit, _ = await run_whole(script_config(tmp_path, ["exit 7"], retries=retries))
    assert kit.rollout().attempt == 1


async def test_group_rewards_wait_for_the_group(tmp_path: Path) -> None:
    kit, code = await run_whole(script_config(tmp_path, ["touch solved", "true"], group=True, num_rollouts=4))
    assert code == 0
    records = kit.records()
    assert len(records) == 8
    assert all(record["rewards"]["share"] == 0.25 for record in records)
    assert kit.state.totals.scored == 8
    assert kit.state.reward_mean == pytest.approx(0.75)


async def test_the_journal_folds_to_the_live_state(tmp_path: Path) -> None:
    kit, _ = await run_whole(script_config(tmp_path, ["touch solved", "exit 4", "exit 1"], num_rollouts=3))
    again = fold(read_journal(kit.run_dir.events))
    assert again.totals == kit.state.totals
    assert {r.id: (r.status, r.reward, r.attempt) for r in again.rollouts.values()} == {
        r.id: (r.status, r.reward, r.attempt) for r in kit.state.rollouts.values()
    }
    assert again.over
    assert again.exit_code == 3


async def test_an_unreachable_provider_has_its_own_exit_code(tmp_path: Path) -> None:
    call = (
        "curl -s -o /dev/null -w '%{http_code}' -H \"Authorization: Bearer $SECRET\" "
        '-d \'{"messages": [{"role": "user", "content": "x"}]}\' $URL/chat/completions; exit 1'
    )
    kit, code = await run_whole(script_config(tmp_path, [call]))
    assert code == 5
    assert kit.rollout().error_type == "ProviderError"


async def test_output_is_kept_byte_for_byte(tmp_path: Path) -> None:
    kit, _ = await run_whole(script_config(tmp_path, [r"printf 'a\xff\x00b'; printf err >&2"]))
    assert kit.run_dir.stdout_log("0000-0", 1).read_bytes() == b"a\xff\x00b"
    assert kit.run_dir.stderr_log("0000-0", 1).read_bytes() == b"err"


async def test_output_that_cannot_be_kept_is_told_once_and_costs_nothing_else(tmp_path: Path) -> None:
    config = script_config(tmp_path, ["echo a; touch solved"] * 3, max_concurrent=1)
    async with engine_kit(config) as (kit, run):
        kit.run_dir.logs.rename(tmp_path / "elsewhere")
        kit.run_dir.logs.write_text("not a directory")
        assert await run == 0
    warnings = [e.message for e in kit.of(ev.Log) if e.level == "warning"]
    assert len(warnings) == 1
    assert "goes on without it" in warnings[0]
    assert kit.state.totals.completed == 3
    assert len(kit.records()) == 3


async def test_what_a_sandbox_cannot_give_is_said_once(tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    row = {"prompt": "touch solved", "answer": "x"}
    asking = {"workdir": "/app", "resources": {"memory": 2, "gpu": "T4"}}
    rows.write_text("".join(json.dumps(row | more) + "\n" for more in ({}, asking, asking)))
    config = script_config(tmp_path, [], env__taskset={"id": "jsonl", "path": str(rows)})
    kit, code = await run_whole(config)
    assert code == 0
    told = [event.message for event in kit.of(ev.Log) if event.level == "warning"]
    assert told == [
        f"runtime 'subprocess' has no {name}: what 2 of 3 tasks ask for is ignored"
        for name in ("memory", "gpu", "workdir")
    ]
