"""The eval config: layouts, options, refusals, paths (cases C01, C02, C04, C05, C07, C08)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from doubles.plugin_files import HARNESS, TASKSET, plugins
from vf_core.errors import ConfigError, PluginError
from vf_core.eval_config import EvalConfig

BASE = """
[env.taskset]
id = "my-tasks"
"""

FULL = """
model = "m"
num_tasks = 7
num_rollouts = 3
max_concurrent = 5
shuffle = true
seed = 9
max_errors = 2
output_dir = "out"

[sampling]
temperature = 0.5
max_tokens = 100
top_k = 4

[client]
base_url = "http://host:1/v1"
api_key_var = "MY_KEY"
headers = { Accept = "text/plain" }

[env.taskset]
id = "my-tasks"
level = 8
names = []
flag = false
inner = { depth = 5 }

[env.agent]
max_turns = 11
max_input_tokens = 12
max_output_tokens = 13
max_total_tokens = 14

[env.agent.harness]
id = "my-harness"
effort = 2
env = { A = "1" }
forward_env = ["B"]
disabled_tools = ["edit"]

[env.agent.runtime]
type = "subprocess"

[env.agent.timeout]
setup = 1
rollout = 2.5
finalize = 3
scoring = 4

[retries.rollout]
max_retries = 2
include = ["ProviderError"]
exclude = ["SandboxError"]
"""

OLDER = """
model = "m"
n = 7
r = 3
c = 5
shuffle = true
seed = 9
max_errors = 2
output_dir = "out"
max_turns = 11
max_input_tokens = 12
max_output_tokens = 13
max_total_tokens = 14

[sampling]
temperature = 0.5
max_completion_tokens = 100
top_k = 4

[client]
base_url = "http://host:1/v1"
api_key_var = "MY_KEY"
headers = { Accept = "text/plain" }

[taskset]
id = "my-tasks"
level = 8
names = []
flag = false
inner = { depth = 5 }

[harness]
id = "my-harness"
effort = 2
env = { A = "1" }
forward_env = ["B"]
disabled_tools = ["edit"]
runtime = { type = "subprocess" }

[timeout]
setup = 1
rollout = 2.5
finalize = 3
scoring = 4

[retries.rollout]
max_retries = 2
include = ["ProviderError"]
exclude = ["SandboxError"]
"""


@pytest.fixture(autouse=True)
def here(tmp_path: Path) -> Iterator[Path]:
    """A directory with the plugins `my_tasks` and `my_harness`."""
    with plugins(tmp_path, my_tasks=TASKSET, my_harness=HARNESS):
        yield tmp_path


def load(directory: Path, text: str, *options: str) -> EvalConfig:
    file = directory / "e.toml"
    file.write_text(text, encoding="utf-8")
    return EvalConfig.load(file, options)


def refusal(directory: Path, text: str, *options: str) -> str:
    with pytest.raises(ConfigError) as info:
        load(directory, text, *options)
    return str(info.value)


def differences(a: dict[str, Any], b: dict[str, Any], at: str = "") -> dict[str, Any]:
    out: dict[str, Any] = {}
    for key in sorted(a.keys() | b.keys()):
        here, there = a.get(key), b.get(key)
        if isinstance(here, dict) and isinstance(there, dict):
            out |= differences(here, there, f"{at}{key}.")
        elif here != there:
            out[f"{at}{key}"] = there
    return out


def test_defaults(here: Path) -> None:
    config = load(here, BASE)
    assert (config.model, config.num_tasks, config.num_rollouts) == ("deepseek/deepseek-v4-flash", None, 1)
    assert (config.max_concurrent, config.shuffle, config.output_dir) == (128, False, here / "outputs")
    assert (config.client.base_url, config.client.api_key_var) == (
        "https://api.openai.com/v1",
        "OPENAI_API_KEY",
    )
    assert (config.env.agent.harness.id, config.env.agent.runtime.type) == ("bash", "subprocess")
    assert config.env.agent.timeout.rollout is None
    assert config.retries.rollout.max_retries == 0
    assert config.run_name == "my-tasks--deepseek-deepseek-v4-flash--bash"


def test_plugins_own_options_are_of_their_own_classes(here: Path) -> None:
    config = load(here, FULL)
    assert type(config.env.taskset).__name__ == "MineConfig"
    assert config.env.taskset.level == 8  # type: ignore[attr-defined]
    assert config.env.taskset.inner.depth == 5  # type: ignore[attr-defined]
    assert config.env.agent.harness.effort == 2  # type: ignore[attr-defined]


def test_the_older_layout_means_the_same(here: Path) -> None:
    assert load(here, OLDER).to_dict() == load(here, FULL).to_dict()


@pytest.mark.parametrize("alias", ["n", "num_examples", "batch_size", "num_tasks"])
def test_aliases_in_files_and_options(here: Path, alias: str) -> None:
    assert load(here, f"{alias} = 4\n{BASE}").num_tasks == 4
    assert load(here, f"num_tasks = 9\n{BASE}", f"--{alias.replace('_', '-')}", "4").num_tasks == 4
    assert load(here, f"{alias} = 9\n{BASE}", "--num-tasks=4").num_tasks == 4
    assert load(here, f"{alias} = 9\n{BASE}", "-n", "4").num_tasks == 4


@pytest.mark.parametrize(
    "older", ["max_turns = 3\n", "[taskset]\nid = 'x'\n", "[harness]\nid = 'x'\n", "[timeout]\n"]
)
def test_both_layouts_in_one_file_are_refused(here: Path, older: str) -> None:
    text = refusal(here, older + BASE)
    assert "mixed in one file" in text
    assert str(here / "e.toml") in text


@pytest.mark.parametrize(
    ("options", "key", "value"),
    [
        (["--model", "x"], "model", "x"),
        (["--model", "123"], "model", "123"),
        (["-m", "2024-01-01"], "model", "2024-01-01"),
        (["--sampling.temperature", "0"], "sampling.temperature", 0.0),
        (["--sampling.max-completion-tokens", "7"], "sampling.max_tokens", 7),
        (["--sampling.min-p=0.1"], "sampling.min_p", 0.1),
        (["--sampling.stop", '["a", "b"]'], "sampling.stop", ["a", "b"]),
        (["--env.agent.max-turns", "2"], "env.agent.max_turns", 2),
        (["--max_turns", "2"], "env.agent.max_turns", 2),
        (["--taskset.level", "0"], "env.taskset.level", 0),
        (["--env.taskset.inner.depth=0"], "env.taskset.inner.depth", 0),
        (["--harness.effort", "9"], "env.agent.harness.effort", 9),
        (["--harness.env.MY-VAR", "1"], "env.agent.harness.env.MY-VAR", "1"),
        (["--env.agent.harness.forward-env", "[]"], "env.agent.harness.forward_env", []),
        (["--harness.disabled-tools", "[]"], "env.agent.harness.disabled_tools", []),
        (["--timeout.rollout", "9"], "env.agent.timeout.rollout", 9.0),
        (["--client.headers.User-Agent", "5"], "client.headers.User-Agent", "5"),
        (["--shuffle", "false"], "shuffle", False),
        (["--env.taskset.flag"], "env.taskset.flag", True),
        (["--retries.rollout.max-retries", "0"], "retries.rollout.max_retries", 0),
        (["--seed", "1", "--seed", "0"], "seed", 0),
    ],
)
def test_c02_an_option_changes_its_value_and_leaves_its_siblings(
    here: Path, options: list[str], key: str, value: Any
) -> None:
    before, after = load(here, FULL).to_dict(), load(here, FULL, *options).to_dict()
    assert differences(before, after) == {key: value}


def test_c02_no_options_change_nothing_and_options_suffice(here: Path) -> None:
    assert load(here, FULL).to_dict() == load(here, FULL).to_dict()
    config = EvalConfig.load(
        None, ["--taskset.id", "my-tasks", "--harness.id=my-harness", "-n", "2", "--shuffle"]
    )
    assert (config.env.agent.harness.id, config.num_tasks, config.shuffle) == ("my-harness", 2, True)


def test_a_whole_table_given_as_option_replaces_it(here: Path) -> None:
    config = load(here, FULL, "--client.headers", "{}", "--env.taskset", '{id = "my-tasks", level = 1}')
    assert config.client.headers == {}
    assert config.env.taskset.names == ["a"]  # type: ignore[attr-defined]


TYPOS = [
    ("modle = 'x'", "modle", "model"),
    ("num_task = 1", "num_task", "num_tasks"),
    ("rollouts_per_exmple = 1", "rollouts_per_exmple", "rollouts_per_example"),
    ("[client]\nbase-url = 'x'", "client.base-url", "base_url"),
    ("[client]\napi_key = 'sk-abcdefgh12345678'", "client.api_key", "api_key_var"),
    ("[env.taskset]\nid = 'my-tasks'\nlevl = 1", "env.taskset.levl", "level"),
    ("[env.taskset]\nid = 'my-tasks'\n[env.taskset.inner]\ndept = 1", "env.taskset.inner.dept", "depth"),
    ("[env.agent]\nmax_turn = 1", "env.agent.max_turn", "max_turns"),
    ("[env.agent.harness]\nforward_envs = []", "env.agent.harness.forward_envs", "forward_env"),
    ("[env.agent.runtime]\ntyp = 'subprocess'", "env.agent.runtime.typ", "type"),
    ("[env.agent.timeout]\nrolout = 1", "env.agent.timeout.rolout", "rollout"),
    ("[retries.rollout]\nmax_retry = 1", "retries.rollout.max_retry", "max_retries"),
    ("[retry]\nx = 1", "retry", "retries"),
    ("[samplings]\ntemperature = 1", "samplings", "sampling"),
]


@pytest.mark.parametrize(("text", "key", "meant"), TYPOS)
def test_c01_typos_at_every_level(here: Path, text: str, key: str, meant: str) -> None:
    told = refusal(here, text if "my-tasks" in text else text + BASE)
    assert told.startswith(f"{here / 'e.toml'}: {key}: unknown key")
    assert f"did you mean {meant}?" in told
    assert "sk-" not in told


MISPLACED = [
    ("temperature = 1", "temperature", "[sampling]"),
    ("[env.agent]\nmax_tokens = 1", "env.agent.max_tokens", "[sampling]"),
    ("max_retries = 1", "max_retries", "[retries.rollout]"),
    ("[env]\nmax_turns = 1", "env.max_turns", "[env.agent]"),
    ("[runtime]\ntype = 'subprocess'", "runtime", "[env.agent]"),
    ("[env.agent.harness]\nruntime = {}", "env.agent.harness.runtime", "[env.agent]"),
    ("[client]\nmodel = 'x'", "client.model", "the top level"),
    ("base_url = 'x'", "base_url", "[client]"),
    ("level = 1", "level", "[env.taskset]"),
]


@pytest.mark.parametrize(("text", "key", "home"), MISPLACED)
def test_c01_a_key_in_the_wrong_table_is_told_where_it_belongs(
    here: Path, text: str, key: str, home: str
) -> None:
    told = refusal(here, text + BASE)
    assert told.startswith(f"{here / 'e.toml'}: {key}: unknown key")
    assert f"it belongs in {home}" in told


UNFIT = [
    ("num_tasks = {}", "num_tasks: expected a whole number, got a table"),
    ("sampling = 3", "sampling: expected a table, got 3"),
    ("shuffle = 'perhaps'", "shuffle: expected true or false, got 'perhaps'"),
    ("num_rollouts = 1.5", "num_rollouts: expected a whole number, got 1.5"),
    ("num_rollouts = true", "num_rollouts: expected a number, got true"),
    ("model = ['x']", "model: expected text, got a list"),
    ("[sampling]\ntemperature = nan", "sampling.temperature: must be a finite number"),
    ("[sampling]\nmin_p = inf", "sampling.min_p: must be a finite number"),
    ("[env.agent.runtime]\ntype = 'subproces'", "there is no runtime 'subproces'; available: subprocess"),
    ("[env.agent.runtime]\ntype = 3", "there is no runtime 3"),
    ("[env.agent]\nharness = 'bash'", "env.agent.harness: expected a table, got 'bash'"),
    ("[env.agent.harness]\nid = 3", "env.agent.harness.id: expected text"),
    ("[retries.rollout]\ninclude = ['ProvidrError']", "did you mean ProviderError?"),
    ("[client]\napi_key_var = 'sk-abcdefgh12345678'", "expected the name of an environment variable"),
    ("[client]\nbase_url = 'host/v1'", "client.base_url: expected an address"),
    ("[client.headers]\n'a b' = 'x'", "not a header's name"),
    ('[client.headers]\nA = "x\\r\\nB: y"', "must not hold control characters"),
    ("output_dir = ''", "output_dir: must not be empty"),
    ("n = 1\nnum_tasks = 2", "given twice, as n and as num_tasks"),
]


@pytest.mark.parametrize(("text", "told"), UNFIT)
def test_c01_unfit_values_are_refused(here: Path, text: str, told: str) -> None:
    assert told in refusal(here, text + BASE)


def test_a_default_that_follows_from_a_refused_value_is_not_told(here: Path) -> None:
    with pytest.raises(ConfigError) as info:
        load(here, '[env.taskset]\nid = "demo"\n[env.agent.runtime]\ntype = "prime"\ntimeout = 5\n')
    assert "timeout: must be at least 60" in str(info.value)
    assert "idle_timeout" not in str(info.value)


def test_c01_all_problems_are_told_at_once(here: Path) -> None:
    told = refusal(
        here, "modle = 1\nnum_rollouts = 0\n" + BASE + "levl = 1\n", "--sampling.temperature", "hot"
    )
    assert [line.split(": ")[:2] for line in told.splitlines()] == [
        [str(here / "e.toml"), "env.taskset.levl"],
        [str(here / "e.toml"), "num_rollouts"],
        ["command line", "--sampling.temperature"],
        [str(here / "e.toml"), "modle"],
    ]


def test_c01_older_layouts_keys_are_told_as_written(here: Path) -> None:
    told = refusal(
        here, "[taskset]\nid = 'my-tasks'\nlevl = 1\n[harness.runtime]\nx = 1\n[timeout]\nsetup = -1\n"
    )
    assert [key in told for key in ("taskset.levl", "harness.runtime.x", "timeout.setup")] == [True] * 3
    assert "env." not in told.replace("[env.", "")


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--modle", "x"], "command line: --modle: unknown key (did you mean model?)"),
        (
            ["--harness.id=my-harness", "--harness.efort", "1"],
            "command line: --harness.efort: unknown key (did you mean effort?)",
        ),
        (["--temperature", "1"], "--temperature: unknown key in this table (it belongs in [sampling])"),
        (["--model"], "command line: --model: needs a value"),
        (["--num-tasks", "few"], "command line: --num-tasks: expected a whole number, got 'few'"),
        (["--harness.id", "nope-x"], "command line: --harness.id: harness 'nope-x' not found"),
        (
            ["--env.agent.runtime.type", "dokcer"],
            "command line: --env.agent.runtime.type: there is no runtime",
        ),
        (["-z", "1"], "unexpected argument '-z'"),
    ],
)
def test_c01_options_are_told_as_written(here: Path, options: list[str], told: str) -> None:
    assert told in refusal(here, BASE, *options)


def test_a_taskset_is_required(here: Path) -> None:
    assert "env.taskset.id: is required" in refusal(here, "model = 'x'")
    assert "env.taskset: expected a table, got 'my-tasks'" in refusal(here, "[env]\ntaskset = 'my-tasks'")
    with pytest.raises(PluginError, match=r"e\.toml: env\.taskset\.id: taskset 'nope-x' not found"):
        load(here, "[env.taskset]\nid = 'nope-x'\n")


KEPT = [
    ("seed = 0", "seed", 0),
    ("max_errors = 0", "max_errors", 0),
    ("shuffle = false", "shuffle", False),
    ("[sampling]\ntemperature = 0", "sampling.temperature", 0),
    ("[sampling]\nstop = []", "sampling.stop", []),
    ("[client]\nheaders = {}", "client.headers", {}),
    ("[env.agent.harness]\ndisabled_tools = []", "env.agent.harness.disabled_tools", []),
    ("[env.agent.harness]\nforward_env = []", "env.agent.harness.forward_env", []),
    ("[retries.rollout]\nmax_retries = 0", "retries.rollout.max_retries", 0),
    ("[retries.rollout]\ninclude = []", "retries.rollout.include", []),
    ("[env.taskset]\nid = 'my-tasks'\nlevel = 0", "env.taskset.level", 0),
    ("[env.taskset]\nid = 'my-tasks'\nnames = []", "env.taskset.names", []),
    ("[env.taskset]\nid = 'my-tasks'\nflag = false", "env.taskset.flag", False),
]


@pytest.mark.parametrize(("text", "key", "value"), KEPT)
def test_c05_zero_false_and_empty_are_kept_and_saved(here: Path, text: str, key: str, value: Any) -> None:
    config = load(here, text if "my-tasks" in text else text + BASE)
    saved: Any = config.to_dict()
    for part in key.split("."):
        saved = saved[part]
    assert saved == value


@pytest.mark.parametrize(
    "text",
    [
        "num_tasks = 0",
        "num_rollouts = 0",
        "max_concurrent = 0",
        "c = 0",
        "seed = -1",
        "max_errors = -1",
        "model = ''",
        *(
            f"[env.agent]\nmax_{name} = 0"
            for name in ("turns", "input_tokens", "output_tokens", "total_tokens")
        ),
        *(f"[env.agent.timeout]\n{name} = 0" for name in ("setup", "rollout", "finalize", "scoring")),
    ],
)
def test_c05_zero_is_refused_where_it_means_nothing(here: Path, text: str) -> None:
    assert "at least" in (told := refusal(here, text + BASE)) or "more than 0" in told


@pytest.mark.parametrize("directory", ["one", "two words", "drei/ä"])
def test_c07_paths_are_relative_to_the_file(
    here: Path, directory: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (here / directory).mkdir(parents=True)
    monkeypatch.chdir(here / directory)
    config = load(here, BASE + 'path = "../data/x.jsonl"\n')
    assert config.output_dir == here / "outputs"
    assert config.env.taskset.path == here.parent / "data/x.jsonl"  # type: ignore[attr-defined]
    assert load(here, BASE).env.taskset.path == here / "rows.jsonl"  # type: ignore[attr-defined]
    relative = EvalConfig.load(Path("../e.toml") if "/" not in directory else Path("../../e.toml"))
    assert relative.output_dir == here / "outputs"
    assert load(here, BASE, "-o", "typed").output_dir == here / directory / "typed"
    assert EvalConfig.load(None, ["--taskset.id=my-tasks"]).output_dir == here / directory / "outputs"


def test_c08_loading_again_gives_the_same_and_leaves_its_input(here: Path) -> None:
    data: dict[str, Any] = {"taskset": {"id": "my-tasks", "extra": {"a": [1, {"b": 2}]}}, "n": 3}
    before = repr(data)
    configs = [EvalConfig.from_dict(data, base_dir=here) for _ in range(3)]
    assert repr(data) == before
    assert configs[0].to_toml() == configs[1].to_toml() == configs[2].to_toml()
    with pytest.raises(ValueError, match="frozen"):
        configs[0].model = "other"  # type: ignore[misc]


def test_c04_text_beyond_ascii_arrives(here: Path) -> None:
    file = here / "e.toml"
    file.write_bytes(("\ufeffmodel = 'grün ✓'\r\n" + BASE.replace("\n", "\r\n")).encode())
    assert EvalConfig.load(file).model == "grün ✓"
