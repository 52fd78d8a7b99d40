"""What is said before anything is started: how much a run would be, and what it lacks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from doubles.command_line import Home
from vf_core.eval_config import EvalConfig
from vf_tui.commands.preflight import missing_key

CONFIG = """
[client]
base_url = "https://llm.invalid/v1"
api_key_var = "NO_SUCH_KEY"
[env.taskset]
id = "jsonl"
path = "tasks.jsonl"
"""


@pytest.fixture
def home(tmp_path: Path) -> Home:
    home = Home(tmp_path)
    (home.work / "eval.toml").write_text(CONFIG)
    (home.work / "tasks.jsonl").write_text('{"prompt": "a", "answer": "b"}\n' * 2)
    return home


def test_a_dry_run_counts_the_rollouts_and_reads_the_tasks(home: Home) -> None:
    done = home("run", "eval.toml", "--dry-run", "-r", "3", VF_TUI_ASCII="1")
    assert done.returncode == 0
    assert "2 tasks x 3 = 6 rollouts, 6 at once" in done.stderr
    assert json.loads(home("run", "eval.toml", "--dry-run", "--json").stdout)["rollouts"] == 2
    (home.work / "tasks.jsonl").write_text('{"prompt": "a", "answer": "b"}\n{"promt": "a"}\n')
    done = home("run", "eval.toml", "--dry-run")
    assert done.returncode == 2
    assert "tasks.jsonl, line 2: promt: unknown key (did you mean prompt?)" in done.stderr
    assert not (home.work / "outputs").exists()


def test_a_dry_run_runs_no_plugin(home: Home) -> None:
    done = home("run", home.config(["exit 0"]), "--dry-run", "--json")
    assert json.loads(done.stdout)["rollouts"] is None
    done = home("run", home.config(["exit 0"]), "--env.taskset.hook", "load hangs", "--dry-run")
    assert (done.returncode, done.stderr) == (0, "")
    rubric = '[{id = "rubric", model = "m", path = "none.toml"}]'
    refused = home("run", home.config(["exit 0"]), "--env.taskset.task.judges", rubric, "--dry-run")
    assert refused.returncode == 2
    assert "none.toml: cannot be read" in refused.stderr


def test_a_run_that_would_be_refused_everywhere_for_want_of_a_key_is_not_started(home: Home) -> None:
    done = home("run", "eval.toml", "--headless")
    assert done.returncode == 2
    assert "client.api_key_var: NO_SUCH_KEY is not set: calls to llm.invalid would have no key" in done.stderr
    assert not (home.work / "outputs").exists()
    dry = home("run", "eval.toml", "--dry-run")
    assert dry.returncode == 0
    assert "warning: NO_SUCH_KEY is not set" in dry.stderr
    assert "warning" not in home("run", "eval.toml", "--dry-run", NO_SUCH_KEY="any").stderr


@pytest.mark.parametrize(
    "client", [{"base_url": "http://10.0.0.5:8000/v1"}, {"headers": {"Authorization": "Bearer x"}}]
)
def test_some_endpoints_may_need_no_key(client: dict[str, object], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    config = EvalConfig.from_dict({"client": client, "env": {"taskset": {"id": "demo"}}})
    assert missing_key(config) == ""
    assert missing_key(EvalConfig.from_dict({"env": {"taskset": {"id": "demo"}}}))
