"""Judges in a config: a list of tables, each of its plugin's own class; saved without secrets; refused before the run
(P07)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from doubles.plugin_files import plugins
from vf_core.engine.plan import make_plan
from vf_core.errors import ConfigError, PluginError
from vf_core.eval_config import EvalConfig
from vf_core.judges.reference import ReferenceJudgeConfig
from vf_core.judges.rubric import RubricJudgeConfig

JUDGE = """
from pydantic import Field, SecretStr
from vf_core.judges import Judge, JudgeConfig


class FussyConfig(JudgeConfig):
    fuss: int = Field(1, ge=0)
    forbidden: str = ""
    hush: SecretStr = SecretStr("")


class Fussy(Judge[float, FussyConfig]):
    def validate(self):
        super().validate()
        if self.config.forbidden:
            raise RuntimeError(f"{self.config.forbidden} is forbidden")

    async def score(self, task, trace, runtime):
        return 1.0


__all__ = ["Fussy"]
"""

BASE = """
[env.taskset]
id = "jsonl"
path = "tasks.jsonl"

[[env.taskset.task.judges]]
id = "reference"
model = "m1"
"""
RUBRIC = """
[[env.taskset.task.judges]]
id = "rubric"
model = "m2"
path = "rubric.toml"
"""


@pytest.fixture(autouse=True)
def here(tmp_path: Path) -> Iterator[Path]:
    """A directory with tasks, a rubric and the plugin `fussy_judge`."""
    (tmp_path / "tasks.jsonl").write_text('{"prompt": "2 + 2?", "answer": ["4", "four"]}\n')
    (tmp_path / "rubric.toml").write_text('[[criteria]]\nname = "right"\ntext = "It is right."\n')
    odd = JUDGE.replace("Fussy", "Odd").replace("trace, runtime", "weather")
    scoreless = JUDGE.replace("Fussy", "Scoreless").replace("def score", "def other")
    with plugins(tmp_path, fussy_judge=JUDGE, odd_judge=odd, scoreless=scoreless):
        yield tmp_path


def load(directory: Path, text: str, *options: str) -> EvalConfig:
    file = directory / "e.toml"
    file.write_text(text, encoding="utf-8")
    return EvalConfig.load(file, options)


def refusal(directory: Path, text: str, *options: str) -> str:
    """What is told about a config that is refused when it is read, or before the run; the file's name left out."""
    with pytest.raises(ConfigError) as e:
        make_plan(load(directory, text, *options))
    return str(e.value).replace(str(directory), "")


def judges(config: EvalConfig) -> tuple[Any, ...]:
    return config.env.taskset.task.judges


def test_each_judge_has_its_plugins_own_options(here: Path) -> None:
    third = '[[env.taskset.task.judges]]\nid = "org/fussy-judge@2"\nmodel = "m3"\nfuss = 4\nweight = 0\n'
    config = load(here, BASE + 'choices = ["A", "B"]\n' + RUBRIC + third)
    reference, rubric, fussy = judges(config)
    assert isinstance(reference, ReferenceJudgeConfig)
    assert (reference.choices, reference.reward_name, reference.weight) == (("A", "B"), "reference", 1.0)
    assert isinstance(rubric, RubricJudgeConfig)
    assert rubric.path == here / "rubric.toml"
    assert (fussy.fuss, fussy.reward_name) == (4, "fussy_judge")
    assert [judge.reward_name for judge in make_plan(config).specs[0].panel.judges] == [
        "reference",
        "rubric",
        "fussy_judge",
    ]


def test_the_older_layout_and_options(here: Path) -> None:
    older = BASE.replace("env.taskset", "taskset")
    assert judges(load(here, older)) == judges(load(here, BASE))
    options = ("--env.taskset.task.judges.0.weight", "2", "--env.taskset.task.judges[0].sampling.top_k", "5")
    (judge,) = judges(load(here, BASE, *options))
    assert (judge.weight, judge.model, judge.sampling.model_dump(exclude_none=True)) == (
        2.0,
        "m1",
        {"top_k": 5},
    )
    one = '[{id = "rubric", model = "m9", path = "rubric.toml"}]'
    (judge,) = judges(load(here, BASE, "--env.taskset.task.judges", one))
    assert (judge.id, judge.model, judge.path) == ("rubric", "m9", Path.cwd() / "rubric.toml")
    (judge,) = judges(load(here, BASE, "--taskset.task.judges.0.id", "fussy-judge"))
    assert judge.fuss == 1


@pytest.mark.parametrize(
    ("text", "options", "told"),
    [
        ("wieght = 2", (), "e.toml: env.taskset.task.judges[0].wieght: unknown key (did you mean weight?)"),
        ("weight = -1", (), "judges[0].weight: must be at least 0, got -1"),
        ("weight = nan", (), "judges[0].weight: must be a finite number"),
        ("weight = 0", (), "judges[0].weight: is 0 for every judge"),
        ('view = "all"', (), "judges[0].view: must be one of last_reply, full_trace"),
        ('choices = ["yes", "YES"]', (), "judges[0].choices: expected two different verdicts"),
        ('answer_field = "anser"', (), "judges[0]: task 0 has no field 'anser': did you mean answer?"),
        ('question_field = "info"\nprompt = "{oops}"', (), "judges[0]: the prompt has {oops}"),
        ('prompt = "{question"', (), "judges[0]: the prompt is no template"),
        ('prompt = "a"\nprompt_file = "b"', (), "judges[0]: has both prompt and prompt_file"),
        ('prompt_file = "none.txt"', (), "judges[0]: prompt_file /none.txt: No such file"),
        (
            'name = "match"',
            (),
            "judges[0].name: the reward 'match' is there already: @reward match of JsonlTask",
        ),
        ('name = "a\\nb"', (), "judges[0].name: expected a name"),
        ('api_key_var = "NO_SUCH_KEY"', (), "judges[0].api_key_var: NO_SUCH_KEY is not set"),
        ('api_key_var = "TWO_LINES"', (), "judges[0].api_key_var: TWO_LINES holds what can't be a key"),
        ('api_key_var = "sk-12345678901"', (), "judges[0].api_key_var: expected the name of an environment"),
        ('base_url = "http://me:secret@h"', (), "judges[0].base_url: an address must not hold a password"),
        ("timeout = 0", (), "judges[0].timeout: must be more than 0"),
        ("", ("--env.taskset.task.judges[0].wieght=1",), "command line: --env.taskset.task.judges[0].wieght"),
        (
            "",
            ("--env.taskset.task.judges[1].weight=1",),
            "no such entry of the list (it has 1, counted from 0)",
        ),
        ("", ("--env.taskset.task.judge.0.weight=1",), "did you mean judges?"),
        (
            "[[judges]]\nid='reference'",
            (),
            "judges: unknown key in this table (it belongs in [env.taskset.task])",
        ),
    ],
)
def test_p07_a_judge_that_can_not_work_is_refused_by_key(
    here: Path, text: str, options: tuple[str, ...], told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TWO_LINES", "key\nof two")
    assert told in refusal(here, BASE + text, *options)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (BASE.replace('model = "m1"', ""), "env.taskset.task.judges[0].model: is required"),
        (BASE.replace('id = "reference"', ""), "judges[0].id: is required (which judge: reference, rubric"),
        (BASE.replace('"reference"', '"refrence"'), "judges[0].id: judge 'refrence' not found"),
        (
            BASE + BASE.split("\n\n")[1].replace("m1", "m2"),
            "judges[1].id: the reward 'reference' is there already",
        ),
        (
            BASE.replace("[[env.taskset.task.judges]]", "[env.taskset.task.judges]"),
            "expected a list of tables",
        ),
        (BASE.split("\n\n", maxsplit=1)[0] + "\ntask = { judges = [3] }", "judges[0]: expected a table"),
        (BASE + RUBRIC.replace('path = "rubric.toml"', ""), "judges[1].path: is required"),
        (BASE + RUBRIC.replace("rubric.toml", "none.toml"), "/none.toml: cannot be read: No such file"),
        (BASE + RUBRIC + "weights = { rihgt = 1 }", "no criterion 'rihgt'; did you mean right?"),
        (BASE + RUBRIC + "weights = { right = 0 }", "all weights of /rubric.toml are 0"),
        (BASE + RUBRIC + "weights = { right = -1 }", "'right' must be at least 0"),
        (BASE + RUBRIC + "max_criteria = 0", "judges[1].max_criteria: must be at least 1"),
        (
            BASE.replace('"reference"', '"fussy-judge"') + "fusss = 1",
            "judges[0].fusss: unknown key (did you mean fuss?)",
        ),
        (
            BASE.replace('"reference"', '"fussy-judge"') + 'forbidden = "it"',
            "judges[0]: judge 'fussy-judge' can't be made: RuntimeError: it is forbidden",
        ),
        (
            BASE.replace('"reference"', '"odd-judge"'),
            "score asks for 'weather'",
        ),
        (
            BASE.replace('"reference"', '"scoreless"'),
            "judges[0].id: judge 'scoreless': Scoreless does not fit",
        ),
    ],
)
def test_p07_what_is_missing_or_of_no_use_is_refused(here: Path, text: str, told: str) -> None:
    assert told in refusal(here, text)


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("", "criteria: is required"),
        ("criteria = []", "criteria: lists no criteria"),
        ('[[criteria]]\nname = "a"', "criteria[0].text: is required"),
        ('[[criteria]]\nname = "a"\ntext = "b"\nweight = -1', "criteria[0].weight: must be at least 0"),
        ('[[criteria]]\nname = "a"\ntext = "b"\nweight = inf', "criteria[0].weight: must be a finite number"),
        ('[[criteria]]\nname = "a"\ntext = "b"\nchoises = ["x"]', "unknown key (did you mean choices?)"),
        ('[[criteria]]\nname = "a"\ntext = "b"\nchoices = ["x"]', "at least two different verdicts"),
        ('[[criteria]]\nname = "a"\ntext = "b"\n' * 2, "two criteria named 'a'"),
        ("criteria = [", "not valid TOML"),
        ("\ufeff", "criteria: is required"),
    ],
)
def test_p07_a_criteria_file_is_checked_by_file_and_key(here: Path, content: str, told: str) -> None:
    (here / "rubric.toml").write_text(content, encoding="utf-8")
    message = refusal(here, BASE + RUBRIC)
    assert "/rubric.toml" in message
    assert told in message


@pytest.mark.parametrize(
    "row", ['{"prompt": "x", "answer": []}', '{"prompt": "x", "match": "command", "command": "true"}']
)
def test_p07_a_task_without_a_reference_is_refused_whatever_its_place(here: Path, row: str) -> None:
    with open(here / "tasks.jsonl", "a") as f:
        f.write(row + "\n")
    message = refusal(here, BASE)
    assert "answer" in message
    assert "task 1" in message or "tasks.jsonl" in message


def test_jsonl_rows_may_be_left_to_judges_alone(here: Path) -> None:
    (here / "tasks.jsonl").write_text('{"prompt": "2 + 2?", "match": "judge", "answer": "4"}\n')
    assert make_plan(load(here, BASE)).specs[0].task.data.match == "judge"
    assert "tasks.jsonl, line 1: match 'judge', and the config has no [[env.taskset.task.judges]]" in refusal(
        here, BASE.split("\n\n", maxsplit=1)[0]
    )


def test_a_saved_config_runs_again_without_its_secrets(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """S01, S02."""
    monkeypatch.setenv("MY_HEADER", "canary-1")
    monkeypatch.setenv("MY_KEY", "canary-2")
    text = (
        BASE
        + 'base_url = "http://h/v1"\napi_key_var = "MY_KEY"\n'
        + 'headers = { X-Ref = { env = "MY_HEADER" }, X-Acme = "canary-3", Accept = "text/plain" }\n'
        + 'sampling = { temperature = 0.5, api_token = "canary-4" }\n'
        + RUBRIC
    )
    config = load(here, text)
    saved = config.to_toml()
    assert "canary" not in saved
    assert "canary" not in json.dumps(config.public_dict())
    left_out = config.left_out()
    assert sorted(left_out.values()) == ["canary-3", "canary-4"]
    (here / "saved.toml").write_text(saved)
    with pytest.raises(ConfigError, match=r"judges\[0\].headers.X-Acme.*VF_TUI_SECRET"):
        EvalConfig.load(here / "saved.toml")
    for name, value in left_out.items():
        monkeypatch.setenv(name, value)
    elsewhere = here / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "saved.toml").write_text(saved)
    again = EvalConfig.load(elsewhere / "saved.toml")
    assert judges(again) == judges(config)
    assert judges(EvalConfig.from_dict(config.to_dict())) == judges(config)
    assert config.secret_variables() == {"OPENAI_API_KEY", "MY_KEY", "MY_HEADER"}


def test_s01_a_variable_behind_a_secret_option_is_secret_whatever_both_are_called(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BLUE_HORSE", "canary")
    text = BASE.replace('"reference"', '"fussy-judge"') + 'hush = { env = "BLUE_HORSE" }'
    assert load(here, text).secret_variables() == {"OPENAI_API_KEY", "BLUE_HORSE"}


def test_a_taskset_may_bring_judges_which_a_file_replaces(here: Path) -> None:
    source = """
from collections.abc import Iterable
from vf_core.judges.reference import ReferenceJudgeConfig
from vf_core.tasks import Task, TaskConfig, TaskData, Taskset, TasksetConfig

class MineConfig(TasksetConfig):
    task: TaskConfig = TaskConfig(judges=(ReferenceJudgeConfig(model="brought", answer_field="description"),))

class Mine(Taskset[Task, MineConfig]):
    def load(self) -> Iterable[Task]:
        return [Task(TaskData(idx=0, prompt="x", description="y"), self.config.task)]

__all__ = ["Mine"]
"""
    text = '[env.taskset]\nid = "brings"\n'
    with plugins(here, brings=source):
        config = load(here, text)
        assert [judge.model for judge in judges(config)] == ["brought"]
        assert len(make_plan(config).specs[0].panel.judges) == 1
        assert judges(load(here, config.to_toml())) == judges(config)
        assert judges(load(here, text + "task = { judges = [] }")) == ()
        index = refusal(here, text, "--env.taskset.task.judges.0.weight", "2")
        assert "no such entry of the list (no file has it: give it whole)" in index


def test_tasks_with_judges_of_their_own_are_refused(here: Path) -> None:
    source = """
from collections.abc import Iterable
from vf_core.judges.reference import ReferenceJudgeConfig
from vf_core.tasks import Task, TaskConfig, TaskData, Taskset, TasksetConfig

class Mine(Taskset[Task, TasksetConfig]):
    def load(self) -> Iterable[Task]:
        return [Task(TaskData(idx=0, prompt="x"), TaskConfig(judges=(ReferenceJudgeConfig(model="other"),)))]

__all__ = ["Mine"]
"""
    with plugins(here, own_judges=source), pytest.raises(PluginError, match="task 0 has judges of its own"):
        make_plan(load(here, '[env.taskset]\nid = "own-judges"\n'))
