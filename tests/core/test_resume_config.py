"""The config of a run that is taken up: the saved one, and the difference when another is given (C02)."""

from __future__ import annotations

from pathlib import Path

import pytest

from vf_core.engine.same import config_to_resume
from vf_core.errors import ConfigError, RunDirError
from vf_core.eval_config import EvalConfig
from vf_core.runs.layout import RunDir

EVERYTHING = """
model = "m/1"
num_tasks = 3
num_rollouts = 2
max_concurrent = 5
shuffle = true
seed = 7
max_errors = 2
[sampling]
temperature = 0.5
top_p = 0.9
[client]
base_url = "https://a.example/v1"
api_key_var = "KEY"
headers = { X-Team = "secret-team-4711" }
[env.taskset]
id = "vf_test_tasks"
scripts = ["true", "false", "exit 1"]
hook = "none"
[env.agent]
max_turns = 4
max_input_tokens = 100
max_output_tokens = 200
max_total_tokens = 300
[env.agent.harness]
id = "vf_test_harness"
env = { TOKEN = "sk-canary-12345678", MODE = "fast" }
[env.agent.timeout]
setup = 1
rollout = 2
finalize = 3
scoring = 4
[retries.rollout]
max_retries = 1
include = ["TaskError"]
"""


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunDir:
    """A run that was started with that config; what was left out of the saved one is set."""
    file = tmp_path / "eval.toml"
    file.write_text(EVERYTHING)
    config = EvalConfig.load(file)
    run = RunDir(tmp_path / "run")
    run.path.mkdir()
    run.config.write_text(config.to_toml())
    for name, value in config.left_out().items():
        monkeypatch.setenv(name, value)
    return run


def test_c02_without_options_it_is_the_saved_one(run: RunDir) -> None:
    config, changes = config_to_resume(run)
    original = EvalConfig.load(run.path.parent / "eval.toml")
    assert changes == []
    assert config.model_dump() == original.model_dump()


@pytest.mark.parametrize(
    ("options", "changes"),
    [
        (["-c", "2", "--max-errors", "9", "--retries.rollout.max_retries", "0", "-o", "x"], []),
        (["--sampling.temperature", "0.7"], ["sampling.temperature: 0.5 -> 0.7"]),
        (["--env.agent.timeout.rollout", "9"], ["env.agent.timeout.rollout: 2.0 -> 9.0"]),
        (["--env.agent.harness.env.MODE", "slow"], ['env.agent.harness.env.MODE: "fast" -> "slow"']),
        (
            ["--client.api_key_var", "OTHER", "-n", "5"],
            ["num_tasks: 3 -> 5"],
        ),
        (["--env.agent.harness.id", "bash"], ['env.agent.harness.id: "vf_test_harness" -> "bash"']),
    ],
)
def test_c02_one_option_changes_one_setting(run: RunDir, options: list[str], changes: list[str]) -> None:
    saved, _ = config_to_resume(run)
    config, told = config_to_resume(run, None, options)
    # Another harness has options of its own, too.
    assert [line for line in told if "harness" not in line or "(not set)" not in line] == changes
    if not changes:
        assert (config.max_concurrent, config.max_errors, config.retries.rollout.max_retries) == (2, 9, 0)
        assert config.env.model_dump() == saved.env.model_dump()


def test_a_file_is_compared_whole(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the secrets that the saved one lacks are in the file, and not in the environment."""
    original = run.path.parent / "eval.toml"
    for name in EvalConfig.load(original).left_out():
        monkeypatch.delenv(name)
    assert config_to_resume(run, original)[1] == []
    with pytest.raises(ConfigError, match="left out of the saved config"):
        config_to_resume(run)
    other = run.path.parent / "other.toml"
    other.write_text(EVERYTHING.replace("max_turns = 4\n", "").replace('"m/1"', '"m/2"'))
    assert config_to_resume(run, other)[1] == ['model: "m/1" -> "m/2"', "env.agent.max_turns: 4 -> (not set)"]


def test_a_config_that_was_not_saved_is_asked_for(run: RunDir) -> None:
    run.config.unlink()
    with pytest.raises(RunDirError, match="so what it ran is not known"):
        config_to_resume(run)
    config, changes = config_to_resume(run, run.path.parent / "eval.toml")
    assert (config.model, changes) == ("m/1", [])


VERIFIERS = """
model = "m"
num_tasks = 3
num_rollouts = 2
verbose = false
dry_run = false
rich = true
server = false
push = true
[taskset]
id = "vf_test_tasks"
[taskset.task]
judges = []
[harness]
id = "vf_test_harness"
forward_env = []
[harness.runtime]
type = "subprocess"
[harness.env]
[timeout]
[retries.rollout]
max_retries = 0
include = []
exclude = []
[interception]
type = "elastic"
multiplex = 32
[args]
[extra_env_kwargs]
[pool]
type = "elastic"
multiplex = 128
[client]
base_url = "https://api.example/v1"
api_key_var = "PRIME_API_KEY"
type = "eval"
[client.headers]
[sampling]
"""


def test_a_config_of_verifiers_is_read(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    run.config.write_text(VERIFIERS)
    config, _ = config_to_resume(run)
    assert (config.num_rollouts, config.client.api_key_var) == (2, "PRIME_API_KEY")
    _, changes = config_to_resume(run, None, ["-r", "3"])
    assert changes == ["num_rollouts: 2 -> 3"]
    run.config.write_text(VERIFIERS.replace('type = "eval"', 'type = "train"'))
    with pytest.raises(ConfigError, match="training client"):
        config_to_resume(run)
