"""`kill -9` of an engine, twice, and `vf-tui resume`: totals as if it had never been interrupted (X05)."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from doubles.command_line import ARGV, DEADLINE, PLUGINS, alive, records, wait_for
from doubles.engine_kit import run_whole, script_config
from vf_core.engine.spawn import start_engine
from vf_core.eval_config import EvalConfig
from vf_core.events.fold import fold
from vf_core.events.journal import read_journal
from vf_core.events.state import RunState
from vf_core.runs.layout import RunDir
from vf_core.scripted.server import ScriptedServer

SCENARIO = """
model = "scripted"
[[rule]]
name = "all"
[[rule.step]]
repeat = true
text = "ok"
usage = { prompt_tokens = 11, completion_tokens = 7 }
"""
# $1 model calls, and what this attempt leaves is not there for the next one.
ASK = """
[ -e left ] && exit 9
touch left
for n in $(seq $1); do curl -s -o /dev/null -H "Authorization: Bearer $SECRET" \
-H 'content-type: application/json' -d '{"model": "m", "messages": [{"role": "user", "content": "hi"}]}' \
$URL/chat/completions; done
sleep 0.1
touch solved
"""


def config(place: Path, base_url: str) -> EvalConfig:
    """Tasks by two with a group reward, which ask the model once to three times; one declines, one errs."""
    (place / "ask.sh").write_text(ASK)
    ends = {3: "; exit 4", 5: "; exit 1"}
    scripts = [f"set -- {1 + n % 3}; . {place / 'ask.sh'}{ends.get(n, '')}" for n in range(7)]
    return script_config(
        place, scripts, group=True, num_rollouts=2, max_concurrent=4, client={"base_url": base_url}
    )


def killed(config: EvalConfig, run_dir: RunDir, more: int, *, resume: bool) -> None:
    """Start an engine, and kill it when it has written `more` traces."""
    count = run_dir.traces.read_bytes().count(b"\n") + more
    handle = start_engine(config, run_dir, resume=resume)
    wait_for(lambda: run_dir.traces.read_bytes().count(b"\n") >= count, f"{count} traces")
    os.kill(handle.pid, signal.SIGKILL)
    handle.process.wait()
    assert not alive(handle.pid)


def vf(*args: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*ARGV, *map(str, args)], capture_output=True, encoding="utf-8", timeout=DEADLINE, check=False
    )


def told(state: RunState) -> tuple[Any, ...]:
    """What must not depend on interruptions."""
    names = ("completed", "declined", "error", "stopped", "scored", "reward_sum", "model_calls")
    tokens = ("prompt_tokens", "cached_tokens", "completion_tokens")
    each = {
        r.id: (r.status, r.reward, r.rewards, r.turns, r.prompt_tokens, r.completion_tokens, r.exit_word)
        for r in state.rollouts.values()
    }
    return state.status, state.exit_code, [getattr(state.totals, name) for name in (*names, *tokens)], each


async def test_x05_killed_twice_and_resumed_it_is_the_run_it_would_have_been(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(PLUGINS))
    (tmp_path / "scenario.toml").write_text(SCENARIO)
    async with ScriptedServer(tmp_path / "scenario.toml") as server:
        plan = config(tmp_path, server.base_url)
        whole, _ = await run_whole(plan)
        run_dir = RunDir.create(plan.output_dir, plan.run_name)
        await asyncio.to_thread(killed, plan, run_dir, 4, resume=False)
        await asyncio.to_thread(killed, plan, run_dir, 3, resume=True)
        done = await asyncio.to_thread(vf, "resume", run_dir.path, "--json")
    assert done.returncode == 3, done.stderr
    launch, *_, last = records(done.stdout)[0], records(done.stdout)[-1]
    assert (last["type"], last["exit_code"]) == ("done", 3)
    state = fold(read_journal(run_dir.events))
    assert told(state) == told(whole.state)
    # What the killed engines left is gone, and the journal says with what proof.
    assert state.unconfirmed == set()
    assert all(box.proof for box in state.sandboxes.values())
    lines = run_dir.traces.read_bytes().split(b"\n")
    own = [json.loads(line)["info"]["vf_tui"] for line in lines if line]
    assert len({(entry["rollout"], entry["attempt"]) for entry in own}) == len(own)
    assert launch["type"] in ("sandbox", "launch")
