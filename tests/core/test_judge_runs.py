"""Judges in whole runs: real sandboxes, a real endpoint, and what the screen, the trace and the exit code say."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import pytest

from doubles.engine_kit import engine_kit, run_whole, script_config
from doubles.plugin_files import plugins
from doubles.upstream import Behaviour, Provider, answer, completion, gated
from vf_core.eval_config import EvalConfig
from vf_core.events.fold import fold
from vf_core.events.journal import read_journal

USAGE = {"prompt_tokens": 10, "completion_tokens": 3, "total_tokens": 13, "cost": 0.25}


def said(text: str) -> Behaviour:
    return answer(completion(text, usage=USAGE))


def graded(verdict: str) -> Behaviour:
    """A rubric's answer."""
    return said(json.dumps({"verdicts": [{"name": "right", "reason": "r", "verdict": verdict}]}))


def config(directory: Path, provider: Provider, scripts: list[str], **settings: Any) -> EvalConfig:
    """A run of scripts with a rubric."""
    (directory / "rubric.json").write_text('[{"name": "right", "text": "It is right."}]')
    judge = {"id": "rubric", "model": "judge", "path": str(directory / "rubric.json")} | settings.pop(
        "judge", {}
    )
    settings["client__base_url"] = provider.base_url
    return script_config(directory, scripts, env__taskset__task={"judges": [judge]}, **settings)


async def test_p06_a_failed_verdict_is_no_zero_and_the_good_ones_count(tmp_path: Path) -> None:
    """P06: a scoring error, out of the average; what it cost is told all the same, apart from the agent's."""
    async with Provider() as provider:
        provider.plan(graded("yes"), said("I would rather not say"), graded("no"))
        settings = {"max_concurrent": 1, "judge": {"weight": 2.0}}
        kit, code = await run_whole(config(tmp_path, provider, ["touch solved", "true", "true"], **settings))
    assert code == 3
    told = [
        (r.status, r.error_type, r.reward, r.rewards, r.metrics)
        for r in sorted(kit.state.rollouts.values(), key=lambda r: r.task)
    ]
    assert told == [
        ("completed", "", 3.0, {"solved": 1.0, "rubric": 2.0}, {"rubric/right": 1.0}),
        ("error", "JudgeError", None, {}, {}),
        ("completed", "", 0.0, {"solved": 0.0, "rubric": 0.0}, {"rubric/right": 0.0}),
    ]
    assert "no JSON object with verdicts in 'I would rather not say'" in kit.rollout("0001-0").error
    totals = kit.state.totals
    assert (totals.scored, kit.state.reward_mean) == (2, 1.5)
    assert (totals.judge_calls, totals.judge_prompt_tokens, totals.judge_cost) == (3, 30, 0.75)
    assert (totals.prompt_tokens, totals.cost, kit.rollout("0001-0").judge_calls) == (0, None, 1)
    assert fold(event for event in read_journal(kit.run_dir.events)).totals == totals
    failed = next(r for r in kit.records() if r["info"]["vf_tui"]["rollout"] == "0001-0")
    assert failed["info"]["vf_tui"]["partial_rewards"] == {"solved": 0.0}
    assert failed["info"]["judge"][0]["text"] == "I would rather not say"
    assert failed["extra_usage"] == [{"prompt_tokens": 10, "completion_tokens": 3, "cost": 0.25}]
    assert (failed["errors"][0]["type"], failed["stop_condition"]) == ("JudgeError", "agent_completed")


async def test_a_judges_error_may_be_tried_again_as_what_it_is(tmp_path: Path) -> None:
    """An error of a judge is an error of the task, too."""
    async with Provider() as provider:
        provider.plan(said("?"), said("?"), graded("yes"))
        retries = {"max_retries": 2, "include": ["TaskError"]}
        kit, code = await run_whole(config(tmp_path, provider, ["true"], retries__rollout=retries))
    rollout = kit.rollout()
    assert (code, rollout.attempt, rollout.reward) == (0, 3, 1.0)
    assert (rollout.judge_calls, kit.state.totals.judge_calls) == (1, 3)


async def test_a_stop_ends_the_judging_at_once(tmp_path: Path) -> None:
    async with Provider() as provider:
        provider.default = gated(asyncio.Event(), graded("yes"))
        async with engine_kit(config(tmp_path, provider, ["true"])) as (kit, run):
            await kit.until(lambda: "0000-0" in kit.state.rollouts and kit.rollout().phase == "scoring")
            await provider.until(lambda: bool(provider.requests), 30)
            await kit.engine.command("stop", ["0000-0"], {}, "test")
            await kit.until(lambda: kit.rollout().status == "stopped")
            await provider.until(lambda: provider.hung_up == 1, 30)
            await run
    assert (kit.rollout().reward, kit.rollout().errors) == (None, [])


BLOCKING = """
import os, time
from vf_core.judges import Judge, JudgeConfig


class HoldConfig(JudgeConfig):
    flag: str


class Hold(Judge[float, HoldConfig]):
    async def score(self, task):
        print("judging", task.idx)
        while task.idx == 0 and not os.path.exists(self.config.flag):
            time.sleep(0.01)
        return 0.5


__all__ = ["Hold"]
"""


async def test_p08_a_judge_that_blocks_holds_up_nobody_else(tmp_path: Path) -> None:
    """P08: neither the engine's loop nor another rollout's judge waits for it."""
    flag = tmp_path / "flag"
    judge = {"id": "hold-judge", "model": "none", "flag": str(flag)}
    with plugins(tmp_path, hold_judge=BLOCKING):
        settings = script_config(tmp_path, ["true", "true"], env__taskset__task={"judges": [judge]})
        async with engine_kit(settings) as (kit, run):
            await kit.until(lambda: "0001-0" in kit.state.rollouts and kit.rollout("0001-0").ended_status)
            assert kit.rollout("0001-0").rewards["hold_judge"] == 0.5
            await kit.until(lambda: kit.rollout("0000-0").phase == "scoring")
            flag.touch()
            await run
    assert kit.rollout("0000-0").rewards == {"solved": 0.0, "hold_judge": 0.5}


async def test_a_scoring_limit_ends_a_slow_judge(tmp_path: Path) -> None:
    async with Provider() as provider:
        provider.default = gated(asyncio.Event(), graded("yes"))
        settings = {"env__agent__timeout": {"scoring": 0.5}}
        kit, code = await run_whole(config(tmp_path, provider, ["true"], **settings))
    assert code == 3
    assert kit.rollout().error == "scoring timed out after 0.5 s"


@pytest.mark.parametrize("handed", [False, True])
async def test_s01_a_judges_key_never_reaches_the_agent_whatever_it_is_called(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, handed: bool
) -> None:
    """S01, S02: names that nothing gives away; handed over only by name."""
    monkeypatch.setenv("BLUE_HORSE", "canary-key")
    monkeypatch.setenv("RED_HORSE", "canary-header")
    monkeypatch.setenv("GREEN_HORSE", "seen")
    async with Provider() as provider:
        provider.default = graded("yes")
        judge = {"api_key_var": "BLUE_HORSE", "headers": {"X-Red": {"env": "RED_HORSE"}}}
        look = "env; tr '\\0' '\\n' </proc/$PPID/environ; test -n \"$GREEN_HORSE\" && touch solved"
        settings: dict[str, Any] = {"judge": judge}
        if handed:
            settings["env__agent__harness__forward_env"] = ["BLUE_HORSE"]
        kit, _ = await run_whole(config(tmp_path, provider, [look], **settings))
    heard = provider.requests[0].headers
    assert (heard["authorization"], heard["x-red"]) == ("Bearer canary-key", "canary-header")
    assert kit.rollout().rewards["solved"] == 1.0
    output = "".join(p.read_text() for p in kit.run_dir.logs.rglob("*.stdout.log"))
    assert ("canary-key" in output) is handed
    assert "canary-header" not in output
    assert os.environ["BLUE_HORSE"] == "canary-key"
    kept = b"".join(p.read_bytes() for p in (kit.run_dir.traces, kit.run_dir.events, kit.run_dir.config))
    assert b"canary" not in kept
