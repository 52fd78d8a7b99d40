"""Names, prompts, paths and values that mean something to a shell or a file system, in a whole run (S04, S05)."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from doubles.agent_program import bash, scenario
from doubles.command_line import Home, records
from vf_core.scripted.server import ScriptedServer

EVIL = 'it\'s "$(touch stolen)" `touch stolen`; touch stolen & touch stolen\n> stolen %s {x} \\'
NAMES = [
    "../../x",
    "/etc/x",
    "a/b",
    "a b",
    "a_b",
    "con",
    "CON",
    "n" * 300,
    "line\nbreak",
    "ü",
    "[/x]",
    "--help",
    EVIL,
    "same",
    "same",
]


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    home = Home(tmp_path / "a user's $(touch stolen) `home`")
    (tmp_path / "tmp").mkdir()
    home.env["TMPDIR"] = str(tmp_path / "tmp")
    yield home
    home.stop_all()


async def test_s04_s05_everything_is_taken_literally_and_stays_inside(home: Home, tmp_path: Path) -> None:
    look = scenario(bash('cat "$FILE"; printf "<%s>" "$EVIL"; ls -A'), {"text": "{{result}}"})
    row: dict[str, Any] = {
        "answer": "x",
        "match": "contains",
        "setup": ["sh", "-c", 'echo "$1" >> set', "-", EVIL],
    }
    file = "-rf $(touch stolen) 'q' \"d\"\n.txt"
    rows = [{**row, "name": name, "prompt": EVIL, "files": {f"./{file}": EVIL}} for name in NAMES]
    (home.work / "rows `touch stolen`.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    config = home.work / "eval; touch stolen.toml"
    text = json.dumps
    async with ScriptedServer(look, record=True) as server:
        config.write_text(
            f'model = "scripted"\noutput_dir = {text(EVIL[:-3])}\n[client]\nbase_url = "{server.base_url}"\n'
            '[env.taskset]\nid = "jsonl"\npath = "rows `touch stolen`.jsonl"\n'
            f"[env.agent.harness]\nstream = false\nenv = {{ EVIL = {text(EVIL)}, FILE = {text('./' + file)} }}\n"
        )
        before = files(tmp_path)
        done = await asyncio.to_thread(home, "run", config, "-c", "8", "--json")
        bodies = server.bodies
    assert done.returncode == 0, done.stderr
    launch, *rollouts, last = records(done.stdout)
    assert last["counts"]["completed"] == len(NAMES)
    for body in bodies:
        assert [m["content"] for m in body["messages"] if m["role"] == "user"] == [EVIL]
    told = [body["messages"][-1]["content"] for body in bodies if body["messages"][-1]["role"] == "tool"]
    assert len(told) == len(NAMES)
    assert all(f"{EVIL}<{EVIL}>" in result for result in told)
    run = Path(launch["dir"])
    assert len({rollout["id"] for rollout in rollouts}) == len(NAMES)
    traces = records((run / "traces.jsonl").read_text())
    assert sorted(trace["task"]["data"]["name"] for trace in traces) == sorted(NAMES)
    assert len(list((run / "logs").glob("*/attempt-1.stdout.log"))) == len(NAMES)
    shown = json.loads((await asyncio.to_thread(home, "show", launch["run"], "--json")).stdout)
    assert len(shown["rollouts"]) == len(NAMES)
    assert not list(tmp_path.rglob("stolen"))
    for path in files(tmp_path) - before:
        allowed = (run, home.path / "state", home.path / "cache")
        assert any(place in path.parents for place in allowed), path


def files(root: Path) -> set[Path]:
    return {Path(above) / name for above, _, names in os.walk(root) for name in names}
