"""`vf-tui run` with the scripted model instead of a provider, and the options that others' scripts give."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from doubles.command_line import Home, records

SCENARIO = """model = "scripted-six"
[pace]
first_token = 0
per_token = 0
[[rule]]
name = "all"
step = [{ text = "42, of course" }]
"""


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    """A user's home with a config whose provider is nowhere."""
    home = Home(tmp_path)
    (home.work / "tasks.jsonl").write_text(json.dumps({"prompt": "6 * 7?", "answer": "42"}) + "\n")
    (home.work / "eval.toml").write_text(
        'model = "gpt-5"\n[client]\nbase_url = "https://127.0.0.1:9/v1"\nheaders = { X-Key = "for-the-provider" }\n'
        '[env.taskset]\nid = "jsonl"\npath = "tasks.jsonl"\nmatch = "contains"\n[env.agent.harness]\nid = "null"\n'
    )
    (home.work / "says.toml").write_text(SCENARIO)
    yield home
    home.stop_all()


def test_a_scenario_answers_instead_of_the_provider(home: Home) -> None:
    done = home("run", "eval.toml", "--scripted", "says.toml", "--no-push", "--verbose", "--json")
    launch, *_, last = records(done.stdout)
    assert (done.returncode, last["reward"]) == (0, 1.0), done.stderr
    assert launch["model"] == "scripted-six"
    saved = (Path(launch["dir"]) / "config.toml").read_text()
    assert "127.0.0.1:9/" not in saved
    assert "for-the-provider" not in saved

    shown = home("show", launch["run"][:8], "0.0")
    assert shown.returncode == 0, shown.stderr
    for words in ("agent_completed", "GONE", "proof", "attempt 1", "stdout: "):
        assert words in shown.stdout
    facts = json.loads(home("show", launch["run"], "0000-0", "--json").stdout)
    assert (facts["id"], facts["reward"], facts["tools"], facts["servers"]) == ("0000-0", 1.0, [], [])
    assert [a["outcome"] for a in facts["attempts"]] == ["completed"]
    assert [box["state"] for box in facts["sandboxes"]] == ["gone"]
    assert facts["sandboxes"][0]["history"][-1]["remark"] == facts["sandbox"]["proof"]
    refused = home("show", launch["run"], "nope")
    assert refused.returncode == 2
    assert "no rollout is meant by 'nope'" in refused.stderr


def test_without_a_file_it_is_the_bundled_one(home: Home) -> None:
    """The config is the config wherever it stands; no key is asked for."""
    for args in (
        ["--scripted", "eval.toml"],
        ["eval.toml", "--scripted"],
        ["eval.toml", "--scripted", "--no-push"],
    ):
        shown = home("run", *args, "--dry-run")
        assert 'model = "scripted-demo"' in shown.stdout, shown.stderr
        assert "warning" not in shown.stderr
    refused = home("run", "eval.toml", "--scripted", "nothing.toml")
    assert refused.returncode == 2
    assert "nothing.toml: no such file" in refused.stderr
    assert not (home.work / "outputs").exists()
