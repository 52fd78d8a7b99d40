"""The harness contract: what a task may be, what an exit code means, what a config may say, what is shipped."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from pydantic import ValidationError

from vf_core.errors import ConfigError
from vf_core.harnesses.base import Harness, HarnessConfig, describe_exit, wire_messages
from vf_core.harnesses.bash import BashHarness, BashHarnessConfig
from vf_core.harnesses.null import NullHarness, NullHarnessConfig
from vf_core.harnesses.program import assemble
from vf_core.harnesses.program.assemble import program_source
from vf_core.plugins import config_class, load_class
from vf_core.tasks import TaskData
from vf_core.trace.types import AssistantMessage, SystemMessage, UserMessage


class _Plain(Harness[HarnessConfig]):
    """Takes text only, and has no place for a system prompt."""

    async def launch(self, *args: object, **kwargs: object) -> object:  # type: ignore[override]
        raise AssertionError


def _plain() -> _Plain:
    return _Plain(HarnessConfig(id="plain"))


def _bash(**config: object) -> BashHarness:
    return BashHarness(BashHarnessConfig.model_validate(config))


@pytest.mark.parametrize(
    ("code", "text"),
    [
        (1, "exit 1"),
        (137, "exit 137 killed"),
        (-9, "exit -9 killed"),
        (143, "exit 143 terminated"),
        (139, "exit 139 segmentation fault"),
        (130, "exit 130 interrupted"),
        (-1, "exit -1 hung up"),
        (127, "exit 127 command not found"),
        (126, "exit 126 cannot be executed"),
        (124, "exit 124 timed out"),
        (128, "exit 128"),
        (255, "exit 255"),
        (-200, "exit -200"),
    ],
)
def test_failing_codes_are_told_with_their_signal(code: int, text: str) -> None:
    assert describe_exit(code) == text
    meaning = _bash().exit_meaning(code)
    assert (meaning.kind, meaning.text) == ("failed", text)


def test_codes_that_are_no_failure() -> None:
    assert _bash().exit_meaning(0).text == "exit 0"
    assert _bash().exit_meaning(0).kind == "ok"
    assert (_bash().exit_meaning(4).kind, _bash().exit_meaning(4).text) == ("declined", "declined (4)")
    assert _plain().exit_meaning(4).kind == "failed"


@pytest.mark.parametrize(
    ("data", "says"),
    [
        ({"prompt": None}, "no prompt"),
        ({"prompt": ""}, "empty"),
        ({"prompt": []}, "empty"),
        ({"prompt": [UserMessage(content="x")]}, "takes text only"),
        ({"prompt": "x", "system_prompt": "y"}, "can't send one in the system role"),
    ],
)
def test_a_task_that_cannot_be_given_as_it_is_is_refused(data: dict[str, object], says: str) -> None:
    """H10, H02: nothing is moved to another role, nothing empty is sent."""
    with pytest.raises(ValueError, match=says):
        _plain().resolve_prompt(TaskData.model_validate({"idx": 0, **data}))


@pytest.mark.parametrize("prompt", ["--help", "\n\n", " ", "@x"])
def test_prompts_are_taken_as_they_are(prompt: str) -> None:
    assert _plain().resolve_prompt(TaskData(idx=0, prompt=prompt)) == (None, prompt)


def test_the_programs_take_messages_and_a_system_prompt() -> None:
    data = TaskData(
        idx=0, system_prompt="be kind", prompt=[UserMessage(content="a"), AssistantMessage(content="b")]
    )
    system, prompt = _bash().resolve_prompt(data)
    whole = wire_messages(_bash().system_prompt(system), prompt)
    assert [m["role"] for m in whole] == ["system", "user", "assistant"]
    assert whole[0]["content"].endswith("\n\nbe kind")
    assert wire_messages(None, "hi") == [{"role": "user", "content": "hi"}]


def test_there_is_one_system_message_at_most() -> None:
    prompt = [SystemMessage(content="the row's own"), UserMessage(content="a")]
    assert wire_messages("first", prompt) == [
        {"role": "system", "content": "first\n\nthe row's own"},
        {"role": "user", "content": "a"},
    ]
    assert wire_messages(None, prompt)[0]["content"] == "the row's own"


def test_the_system_prompt_names_the_tools_there_are() -> None:
    assert "edit" in _bash().system_prompt(None)
    assert "search" not in _bash().system_prompt(None)
    assert "edit" not in _bash(edit=False).system_prompt(None)
    assert "edit" not in _bash(disabled_tools=["edit"]).system_prompt(None)


def test_search_without_a_key_is_refused_before_anything_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SERPER_API_KEY", raising=False)
    with pytest.raises(ConfigError, match="SERPER_API_KEY"):
        _bash(search=True).validate()
    monkeypatch.setenv("SERPER_API_KEY", "host")
    _bash(search=True).validate()
    with pytest.raises(ConfigError, match="SERPER_API_KEY"):
        _bash(search=True, env={"SERPER_API_KEY": ""}).validate()


def test_the_search_key_travels_by_flag_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SERPER_API_KEY", "host-key")
    harness = _bash(search=True, forward_env=["SERPER_API_KEY", "NOT_SET"], env={"A": "1"})
    assert "--serper-key=host-key" in harness.own_flags()
    assert "SERPER_API_KEY" not in harness.environment()
    assert harness.environment()["A"] == "1"
    kept = _bash(forward_env=["SERPER_API_KEY"])
    assert kept.environment()["SERPER_API_KEY"] == "host-key"


def test_config_wins_over_what_the_programs_set() -> None:
    assert _bash().environment()["PAGER"] == "cat"
    assert _bash(env={"PAGER": "less"}).environment()["PAGER"] == "less"


def test_a_disabled_tool_that_is_none_is_refused_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match="did you mean 'edit'"):
        _bash(disabled_tools=["edti"]).validate()
    _bash(disabled_tools=["bash", "server_tool"]).validate()
    with pytest.raises(ConfigError, match="unknown tool 'bash'"):
        NullHarness(NullHarnessConfig(disabled_tools=["bash"])).validate()
    with pytest.raises(ValidationError):
        BashHarnessConfig.model_validate({"serach": True})


@pytest.mark.parametrize(
    ("id", "cls", "config"),
    [("bash", BashHarness, BashHarnessConfig), ("null", NullHarness, NullHarnessConfig)],
)
def test_they_are_plugins(id: str, cls: type, config: type) -> None:
    assert load_class("harness", id) is cls
    assert config_class(cls) is config


@pytest.mark.parametrize("cls", [BashHarness, NullHarness])
def test_a_program_is_one_file_that_needs_nothing_of_ours(cls: type[BashHarness] | type[NullHarness]) -> None:
    source = program_source(cls.PROGRAM)
    header = re.match(r"# /// script\n((?:#.*\n)+?)# ///\n", source)
    assert header is not None
    data = tomllib.loads("".join(line[2:] for line in header[1].splitlines(keepends=True)))
    assert data["requires-python"] == ">=3.11"
    for text in data["dependencies"]:
        operators = {spec.operator for spec in Requirement(text).specifier}
        assert operators == {">=", "<"}, f"{text}: its major is not pinned"
    tree = ast.parse(source)
    imported = {
        name.partition(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in (
            [node.module or ""] if isinstance(node, ast.ImportFrom) else [a.name for a in node.names]
        )
    }
    own = {"httpx", "tenacity", "mcp", "mcp_types", "httpx2"}
    assert imported - own <= set(sys.stdlib_module_names)
    at_start = {alias.name for node in tree.body if isinstance(node, ast.Import) for alias in node.names}
    assert not at_start & {*own, "asyncio"}


@pytest.mark.parametrize("cls", [BashHarness, NullHarness])
def test_starting_a_program_imports_no_more_than_it_needs(cls: type[BashHarness], tmp_path: Path) -> None:
    """What a start costs is what it imports; neither MCP nor httpx's command line may slip in."""
    script = tmp_path / "program.py"
    script.write_text(program_source(cls.PROGRAM))
    told = subprocess.run(
        [sys.executable, "-I", "-X", "importtime", str(script), "--base-url=http://127.0.0.1:9", "--api-key=x",
         "--model=x", "--prompt=x"],
        capture_output=True,
        text=True,
        check=False,
    ).stderr  # fmt: skip
    modules = {
        line.rpartition("|")[2].strip() for line in told.splitlines() if line.startswith("import time:")
    }
    assert "httpx._client" in modules
    for heavy in (
        "asyncio",
        "anyio._core",
        "mcp",
        "openai",
        "pydantic",
        "click.core",
        "rich.console",
        "argparse",
    ):
        assert heavy not in modules


def test_parts_that_define_the_same_name_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(assemble, "_HERE", tmp_path)
    (tmp_path / "part.py").write_text("def helper() -> None: ...\n")
    entry = tmp_path / "entry.py"
    entry.write_text("from vf_core.harnesses.program.part import helper\nhelper = 1\n")
    with pytest.raises(ValueError, match=r"'helper' is defined in part.py and in entry.py"):
        program_source(entry)
