"""What is saved of a config: it can be run again from anywhere and holds no secrets (cases S01, S02, C07)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from doubles.plugin_files import HARNESS, TASKSET, plugins
from vf_core.errors import ConfigError
from vf_core.eval_config import ClientConfig, EvalConfig
from vf_core.text import clean

CANARIES = [f"zq-canary-{n}-8f3a1c" for n in range(9)]

SECRET = f"""
[sampling]
extra_headers = {{ Cookie = "{CANARIES[0]}", note = "kept-note" }}
[client]
api_key_var = "ZQ_KEY"
headers = {{ X-Team-ID = "{CANARIES[1]}", Authorization = {{ env = "ZQ_HEADER" }}, Accept = "text/plain" }}
[env.taskset]
id = "my-tasks"
password = "{CANARIES[3]}"
extra = {{ nested = {{ judge_key = "kept-column", api_key = "{CANARIES[4]}" }}, db = "pg://u:{CANARIES[5]}@h/x" }}
[env.agent.harness]
env = {{ ACME_ID = "{CANARIES[6]}", SESSION_ID = "{CANARIES[7]}", DEBUG = "1", VIA = {{ env = "ZQ_ENV" }} }}
forward_env = ["ZQ_FORWARD"]
"""


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Plugins on the path, and variables that hold canaries."""
    monkeypatch.setenv("ZQ_KEY", CANARIES[8])
    monkeypatch.setenv("ZQ_HEADER", CANARIES[2])
    monkeypatch.setenv("ZQ_ENV", CANARIES[8])
    monkeypatch.setenv("ZQ_FORWARD", CANARIES[8])
    with plugins(tmp_path, my_tasks=TASKSET, my_harness=HARNESS):
        yield tmp_path


def load(directory: Path, text: str) -> EvalConfig:
    file = directory / "e.toml"
    file.write_text(text, encoding="utf-8")
    return EvalConfig.load(file)


def test_s01_no_canary_is_saved_or_shown_and_ordinary_values_are(here: Path) -> None:
    config = load(here, SECRET)
    saved = config.to_toml()
    for text in (saved, json.dumps(config.public_dict()), repr(config.client)):
        assert not [canary for canary in CANARIES if canary in text]
    for kept in (
        "ZQ_KEY",
        "ZQ_HEADER",
        "ZQ_ENV",
        "ZQ_FORWARD",
        "text/plain",
        "kept-note",
        "kept-column",
        'DEBUG = "1"',
    ):
        assert kept in saved
    assert config.client.headers["Authorization"] == CANARIES[2]
    assert config.client.api_key() == CANARIES[8]


def test_s01_a_re_run_says_what_is_missing(here: Path, tmp_path: Path) -> None:
    config = load(here, SECRET)
    again = tmp_path / "saved.toml"
    again.write_text(config.to_toml(), encoding="utf-8")
    with pytest.raises(ConfigError) as info:
        EvalConfig.load(again)
    told = str(info.value)
    names = config.left_out()
    assert set(names.values()) == {CANARIES[i] for i in (0, 1, 3, 4, 6, 7)} | {f"pg://u:{CANARIES[5]}@h/x"}
    assert all(name in told and name in config.to_toml().splitlines()[0] for name in names)
    assert all("SECRET" in name for name in names)


def test_s01_a_re_run_with_them_set_is_the_same(
    here: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = load(here, SECRET)
    for name, value in config.left_out().items():
        monkeypatch.setenv(name, value)
    again = tmp_path / "elsewhere"
    again.mkdir()
    (again / "config.toml").write_text(config.to_toml(), encoding="utf-8")
    monkeypatch.chdir(again)
    second = EvalConfig.load(again / "config.toml")
    assert second.model_dump(serialize_as_any=True) == config.model_dump(serialize_as_any=True)
    assert second.left_out() == {}
    assert tomllib.loads(second.to_toml()) == tomllib.loads(config.to_toml())


def test_another_process_gets_everything(here: Path) -> None:
    config = load(here, SECRET)
    second = EvalConfig.from_dict(json.loads(json.dumps(config.to_dict())), file=here / "run" / "config.toml")
    assert second.model_dump(serialize_as_any=True) == config.model_dump(serialize_as_any=True)
    assert second.to_toml() == config.to_toml()


def test_a_missing_variable_is_told_with_its_key(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ZQ_HEADER")
    with pytest.raises(ConfigError, match=r"client\.headers\.Authorization: .*ZQ_HEADER, which is not set"):
        load(here, SECRET)


@pytest.mark.parametrize("url", ["http://u:zq-word@h/v1", "http://h/v1?api_key=zq-word", "http://zq-word@h/"])
def test_s02_an_address_with_a_login_is_refused_without_repeating_it(here: Path, url: str) -> None:
    with pytest.raises(ConfigError, match="must not hold a password") as info:
        load(here, f"[client]\nbase_url = '{url}'\n[env.taskset]\nid = 'my-tasks'\n")
    assert "zq-word" not in str(info.value)


@pytest.mark.parametrize(
    "text",
    ["[client.headers]\nX = 5\n", "[env.agent.harness.env]\nX = 5432198\n", "[client]\napi_key='zq-54321'\n"],
)
def test_s02_refusals_dont_repeat_what_may_be_secret(here: Path, text: str) -> None:
    with pytest.raises(ConfigError) as info:
        load(here, text + "[env.taskset]\nid = 'my-tasks'\n")
    assert "5" not in str(info.value).replace(str(here), "")


PLAIN = st.text(st.characters(blacklist_categories=["Cs"]), max_size=12)


@given(
    model=PLAIN.filter(bool),
    extra=st.dictionaries(
        PLAIN, st.integers(-5, 5) | st.booleans() | PLAIN | st.lists(PLAIN, max_size=2), max_size=3
    ),
    env=st.dictionaries(st.text("AB_-.", min_size=1), PLAIN, max_size=3),
    turns=st.none() | st.integers(1, 9),
)
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
def test_saving_and_loading_is_the_identity(here: Path, model, extra, env, turns) -> None:  # type: ignore[no-untyped-def]
    data = {
        "model": model,
        "env": {
            "taskset": {"id": "my-tasks", "extra": extra},
            "agent": {"harness": {"id": "my-harness", "env": env}, **({"max_turns": turns} if turns else {})},
        },
    }
    config = EvalConfig.from_dict(data, base_dir=here)
    assert config.env.taskset.extra == extra  # type: ignore[attr-defined]
    assert clean(config.to_toml()) == config.to_toml()
    saved = here / "saved.toml"
    saved.write_text(config.to_toml(), encoding="utf-8", newline="")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in config.left_out().items():
            if "\0" in value:
                return  # no variable can hold it
            patch.setenv(name, value)
        second = EvalConfig.load(saved)
    assert second.model_dump(serialize_as_any=True) == config.model_dump(serialize_as_any=True)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux shows a process's environment as a file")
def test_s01_variables_for_left_out_values_cannot_be_read_off_the_engine() -> None:
    code = (
        "import os; from vf_core.runtimes.environment import hide_own_secrets; hide_own_secrets();"
        "print(os.environ['VF_TUI_SECRET_X'], b'zq-left-out' in open('/proc/self/environ', 'rb').read())"
    )
    env = {**os.environ, "VF_TUI_SECRET_X": "zq-left-out"}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    assert done.stdout == "zq-left-out False\n"


def test_c02_what_replaces_a_reference_is_what_is_saved_and_run(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An option's value; the scripted model, whose run must not reach the provider that a variable names."""
    monkeypatch.setenv("ZQ_URL", "http://real.invalid/v1")
    judge = '[[env.taskset.task.judges]]\nid = "reference"\nmodel = { env = "ZQ_KEY" }\n'
    client = '[client]\nbase_url = { env = "ZQ_URL" }\n[env.taskset]\nid = "my-tasks"\n'
    text = 'model = { env = "ZQ_KEY" }\n' + client + judge
    config = load(here, text)
    assert config.to_dict()["client"]["base_url"] == {"env": "ZQ_URL"}
    typed = EvalConfig.load(here / "e.toml", ["--client.base-url", "http://typed/v1", "--model=typed"])
    same = EvalConfig.load(here / "e.toml", ["--client.base-url", config.client.base_url])
    assert same.to_dict()["client"]["base_url"] == config.client.base_url
    scripted = config.with_model("scripted", ClientConfig(base_url="http://127.0.0.1:9/v1"))
    for changed in (typed, scripted):
        for again in (EvalConfig.from_dict(changed.to_dict()), load(here, changed.to_toml())):
            assert (again.model, again.client.base_url) == (changed.model, changed.client.base_url)
            assert again.env.taskset.task.judges == changed.env.taskset.task.judges
