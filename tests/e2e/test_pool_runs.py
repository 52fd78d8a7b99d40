"""`vf-tui run` with the harness `pool`: how its program ends, and what is told of it (contracts 3)."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest

from doubles.command_line import Home, records
from doubles.pool.releases import Releases, remove

ENDS = {
    "finish": "text = '42'",
    "decline": "refusal = 'not that'",
    "fail": "text = 'exit 3'",
    "die": "text = 'signal 9'",
}
"""By its task: what the model says, which is how the stand-in ends."""


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    """A user's home with a config for pool from a server of this test's own."""
    home, version = Home(tmp_path), f"0.0.6-test.{secrets.token_hex(4)}"
    rows = [{"prompt": f"--{task}", "answer": "42", "system_prompt": "be brief"} for task in ENDS]
    (home.work / "tasks.jsonl").write_text("\n".join(map(json.dumps, rows)))
    rules = [
        f"[[rule]]\nname = '{task}'\ntask = '--{task}'\nstep = [{{ {says} }}]\n"
        for task, says in ENDS.items()
    ]
    (home.work / "says.toml").write_text("\n".join(['model = "scripted-ends"', *rules]))
    with Releases() as releases:
        (home.work / "eval.toml").write_text(
            'model = "m"\n[env.taskset]\nid = "jsonl"\npath = "tasks.jsonl"\nmatch = "contains"\n'
            f'[env.agent.harness]\nid = "pool"\nversion = "{version}"\nrelease_base = "{releases.base}"\n'
        )
        yield home
    home.stop_all()
    remove(version)


def test_a_run_of_pool_tells_its_ends_apart(home: Home) -> None:
    done = home("run", "eval.toml", "--scripted", "says.toml", "--json")
    launch, *rollouts, last = records(done.stdout)
    assert done.returncode == 3, done.stderr
    assert "the system prompts of 4 of 4 tasks are part of the user's prompt" in done.stderr
    assert sorted((r["id"], r["status"], r["exit_meaning"], r["stop_condition"], r["reward"]) for r in rollouts) == [
        ("0000-0", "completed", "exit 0", "agent_completed", 1.0),
        ("0001-0", "declined", "declined (4)", "agent_declined", 0.0),
        ("0002-0", "error", "exit 3", "error", None),
        ("0003-0", "error", "exit 137 killed", "error", None),
    ]  # fmt: skip
    assert [r["exit_code"] for r in sorted(rollouts, key=lambda r: str(r["id"]))] == [0, 4, 3, 137]
    assert {r["sandbox"]["state"] for r in rollouts} == {"gone"}
    counts = last["counts"]
    assert {name: counts[name] for name in ("completed", "declined", "error")} == {
        "completed": 1,
        "declined": 1,
        "error": 2,
    }
    assert (last["reward"], last["exit_code"], last["unconfirmed"]) == (0.5, 3, [])
    (run,) = home.runs()
    assert (run["declined"], run["errors"]) == (1, 2)
    assert "declined (4)" in home("show", launch["run"], "0001-0").stdout
