"""The pool harness with its stand-in, which reads what the contract says and nothing else."""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from doubles.agent_program import scenario
from doubles.engine_boxes import docker_box, new_run
from doubles.engine_host import need_engine
from doubles.engine_images import curl_image
from doubles.engine_kit import run_whole
from doubles.local_rollout import Rolled, roll
from doubles.pool.releases import Releases, archive, remove
from vf_core.engine.plan import make_plan
from vf_core.errors import ConfigError
from vf_core.eval_config import EvalConfig
from vf_core.harnesses.pool import PoolHarness, PoolHarnessConfig
from vf_core.plugins import config_class, load_class
from vf_core.runtimes.base import ProgramResult, Runtime
from vf_core.runtimes.subprocess import SubprocessConfig, SubprocessRuntime
from vf_core.scripted.scenario import Scenario
from vf_core.scripted.server import ScriptedServer
from vf_core.tasks import Task, TaskData
from vf_core.trace.types import AssistantMessage, SystemMessage, UserMessage

LONG = "--help\n" + "ü€" * 45_000
OPTION_LIKE = ["--help", "-p x", "@file", "\n\n", "$(touch stolen)'\"`touch stolen`"]
PICTURE = [{"type": "text", "text": "look"}, {"type": "image_url", "image_url": {"url": "data:x"}}]


@pytest.fixture(scope="module")
def releases() -> Iterator[Releases]:
    """Good releases."""
    with Releases() as releases:
        yield releases


@pytest.fixture(scope="module")
def version() -> Iterator[str]:
    """One version for these tests: what it costs to install is tested elsewhere."""
    version = f"0.0.2-test.{secrets.token_hex(4)}"
    yield version
    remove(version)


@pytest.fixture
def pool(releases: Releases, version: str) -> Any:
    """Makes the harness, with options."""

    def make(**config: Any) -> PoolHarness:
        config = {"version": version, "release_base": releases.base, **config}
        return PoolHarness(PoolHarnessConfig.model_validate(config))

    return make


async def _run(
    plan: Scenario,
    harness: PoolHarness,
    *,
    box: Runtime | None = None,
    **data: Any,
) -> tuple[Rolled, list[dict[str, Any]]]:
    """What became of one rollout, and the bodies of the requests that the model got."""
    task = Task(TaskData.model_validate({"idx": 0, "prompt": "go", **data}))
    async with ScriptedServer(plan, record=True) as server:
        rolled = await roll(task, harness, server.base_url, box=box)
        return rolled, server.bodies


def shell(command: str) -> dict[str, object]:
    """A step that calls the stand-in's tool."""
    return {"calls": [{"name": "shell", "arguments": {"command": command}}]}


def _text(rolled: Rolled) -> str:
    assert rolled.meaning is not None
    assert rolled.result is not None
    return f"{rolled.meaning.kind}: {rolled.meaning.text} {rolled.result.stderr}".strip()


# ---------------------------------------------------------------------- a run


class _Image(SubprocessRuntime):
    """A local sandbox with variables that an image may have set."""

    async def run_program(
        self, argv: Sequence[str], env: Mapping[str, str] | None = None, **options: Any
    ) -> ProgramResult:
        theirs = dict.fromkeys(("POOLSIDE_API_URL", "POOLSIDE_TOKEN", "XDG_CACHE_HOME"), "/the/images")
        return await super().run_program(argv, {**theirs, **(env or {})}, **options)


@pytest.mark.parametrize("place", ["local", "docker"])
async def test_a_whole_rollout(
    pool: Any, place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """H01, H11: 200 KiB each, by file; a home of its own, whatever the host's holds; streamed calls and results."""
    for name in ("API_KEY", "API_URL", "STANDALONE_CONTEXT_LENGTH"):
        monkeypatch.setenv(f"POOLSIDE_{name}", "the-users-own")
    monkeypatch.setenv("XDG_DATA_HOME", "/the/users/own")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    (tmp_path / "poolside").mkdir()
    (tmp_path / "poolside" / "settings.yaml").write_text("hooks: {}")
    box: Runtime = _Image(SubprocessConfig(grace=0.5), name=f"vf-test-{secrets.token_hex(4)}")
    if place == "docker":
        monkeypatch.setenv("DOCKER_HOST", need_engine())
        box = docker_box(new_run(), image=curl_image())
    system = "s€" * 51_200
    look = shell(
        'cat .poolside/settings.local.yaml; echo; ls -A .vf-pool; echo "$HOME"; echo "${PAGER-none}"; pwd'
    )
    rolled, bodies = await _run(
        scenario(look, {"text": "all done"}),
        pool(disabled_tools=["read"]),
        box=box,
        system_prompt=system,
        prompt=LONG,
    )
    assert _text(rolled) == "ok: exit 0"
    assert bodies[0]["messages"][1] == {"role": "user", "content": f"{system}\n\n{LONG}"}
    assert bodies[0]["stream"] is True
    settings, *names, home, pager, workspace = bodies[1]["messages"][-1]["content"].splitlines()
    assert json.loads(settings) == {"mcp_servers": {}, "tools": {"read": {"disabled": True}}}
    assert sorted(names) == ["config", "home", f"prompt-{rolled.trace.id}.txt", "state"]
    assert home == f"{workspace}/.vf-pool/home"
    assert pager == "cat"
    assert rolled.out.endswith("all done\n")
    assert [
        call.name for node in rolled.trace.nodes for call in getattr(node.message, "tool_calls", 0) or ()
    ] == ["shell"]
    assert rolled.trace.stop_condition == "agent_completed"


@pytest.mark.parametrize("prompt", OPTION_LIKE)
async def test_prompts_that_look_like_something_else(pool: Any, prompt: str) -> None:
    """H02."""
    rolled, bodies = await _run(scenario(shell("ls -A"), {"text": "ok"}), pool(), prompt=prompt)
    assert bodies[0]["messages"][1]["content"] == prompt
    assert "stolen" not in bodies[1]["messages"][-1]["content"]
    assert _text(rolled) == "ok: exit 0"


@pytest.mark.parametrize(
    ("last", "says", "stop"),
    [
        ({"refusal": "not that"}, "declined: declined (4)", "agent_declined"),
        ({"text": "exit 4"}, "declined: declined (4)", "agent_declined"),
        ({"text": "exit 3"}, "failed: exit 3", None),
        ({"text": "signal 9"}, "failed: exit 137 killed", None),
        ({"text": "signal 15"}, "failed: exit 143 terminated", None),
    ],
    ids=["refusal", "4", "3", "killed", "terminated"],
)
async def test_exit_codes(pool: Any, last: dict[str, Any], says: str, stop: str | None) -> None:
    rolled, _ = await _run(scenario(last), pool())
    assert _text(rolled) == says
    assert rolled.trace.stop_condition == stop


async def test_eight_rollouts_at_once_install_once(releases: Releases) -> None:
    version = f"0.0.3-test.{secrets.token_hex(4)}"
    harness = PoolHarness(PoolHarnessConfig(version=version, release_base=releases.base))
    try:
        ended = await asyncio.gather(*(_run(scenario({"text": "ok"}), harness) for _ in range(8)))
    finally:
        remove(version)
    assert {_text(rolled) for rolled, _ in ended} == {"ok: exit 0"}
    assert sum(n for path, n in releases.downloads.items() if f"/v{version}/" in path) == 1


async def test_a_run_with_tools(pool: Any, tmp_path: Path) -> None:
    """Its MCP servers stand in the settings; their calls are told with their server, its own tool's without."""
    plan = scenario(
        {"calls": [{"name": "notes_note", "arguments": {"text": "a"}}]},
        {"calls": [{"name": "db_get", "arguments": {"word": "capital"}}]},
        {"calls": [{"name": "shell", "arguments": {"command": "echo never"}}]},
        {"refusal": "no more"},
    )
    harness = pool(disabled_tools=["shell"]).config.model_dump()
    async with ScriptedServer(plan, record=True) as server:
        env = {"taskset": {"id": "vf_test_toolset"}, "agent": {"harness": harness}}
        data = {"model": "scripted", "output_dir": str(tmp_path), "client": {"base_url": server.base_url}}
        kit, code = await run_whole(EvalConfig.from_dict({**data, "env": env}))
    rollout = kit.rollout()
    assert (code, rollout.status, rollout.reward) == (0, "declined", 11.0), rollout.error
    told = [m["content"] for m in server.bodies[-1]["messages"] if m["role"] == "tool"]
    assert (told[0], told[1].partition(" (")[0], told[2]) == (
        "noted: a",
        "Paris",
        "error: there is no tool 'shell'",
    )
    assert [(tool.name, tool.server) for tool in list(rollout.tools)[:2]] == [
        ("notes_note", "notes"),
        ("db_get", "db"),
    ]


async def test_a_home_of_ones_own_only_where_it_is_asked_for(tmp_path: Path) -> None:
    """H11: the program sees these variables, and the caller's where the config names them."""
    version = f"0.0.4-test.{secrets.token_hex(4)}"
    look = archive(
        program=b'#!/bin/sh\necho "$HOME|$XDG_CONFIG_HOME|$XDG_STATE_HOME|${XDG_DATA_HOME-unset}|$POOLSIDE_LOG|$A"\n'
    )
    try:
        with Releases(body=look) as releases:
            asked = {
                "HOME": str(tmp_path),
                "XDG_DATA_HOME": "/data",
                "POOLSIDE_LOG": "debug",
                "A": 'it\'s "$HOME"',
            }
            config = PoolHarnessConfig(version=version, release_base=releases.base, env=asked)
            rolled, _ = await _run(scenario({"text": "ok"}), PoolHarness(config))
    finally:
        remove(version)
    home, config_home, state, data, log, plain = rolled.out.strip().split("|")
    assert (home, data, log, plain) == (str(tmp_path), "/data", "debug", 'it\'s "$HOME"')
    assert config_home.endswith("/.vf-pool/config")
    assert state.endswith("/.vf-pool/state")


async def test_a_program_that_wants_a_terminal_fails_with_its_own_words() -> None:
    """H13: none is there, and nothing waits for one."""
    version = f"0.0.5-test.{secrets.token_hex(4)}"
    wants = archive(program=b'#!/bin/sh\nread line; [ -t 1 ] || { echo "no terminal" >&2; exit 9; }\n')
    try:
        with Releases(body=wants) as releases:
            config = PoolHarnessConfig(version=version, release_base=releases.base)
            rolled, _ = await _run(scenario({"text": "ok"}), PoolHarness(config))
    finally:
        remove(version)
    assert _text(rolled) == "failed: exit 9 no terminal"


# ---------------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("data", "says"),
    [
        ({"prompt": None}, "it has no prompt"),
        ({"prompt": ""}, "its prompt is empty"),
        ({"prompt": "", "system_prompt": "s"}, "its prompt is empty"),
        ({"prompt": []}, "its prompt is empty"),
        ({"prompt": [UserMessage(content="")]}, "its prompt is empty"),
        (
            {"prompt": [UserMessage(content="a"), AssistantMessage(content="b")]},
            "message 2 of its prompt has the role 'assistant', and harness 'pool' takes system and user only",
        ),
        (
            {"prompt": [{"role": "tool", "tool_call_id": "c", "content": "r"}]},
            "message 1 of its prompt has the role 'tool'",
        ),
        ({"prompt": [{"role": "user", "content": PICTURE}]}, "message 1 of its prompt has an image"),
        ({"prompt": "ab\ud800"}, "half of a surrogate pair at character 2"),
    ],
)  # fmt: skip
def test_a_task_that_it_cannot_be_given_is_refused(data: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        PoolHarness(PoolHarnessConfig()).resolve_prompt(TaskData.model_validate({"idx": 0, **data}))


def test_texts_are_joined_by_blank_lines() -> None:
    parts = [{"type": "text", "text": "b"}, {"type": "text", "text": ""}, {"type": "text", "text": "c\n"}]
    prompt = [
        SystemMessage(content="a"),
        UserMessage.model_validate({"content": parts}),
        UserMessage(content="d"),
    ]
    data = TaskData(idx=0, system_prompt="s", prompt=prompt)
    assert PoolHarness(PoolHarnessConfig()).resolve_prompt(data) == (None, "s\n\na\n\nb\n\nc\n\n\nd")


@pytest.mark.parametrize(
    "config",
    [
        *({"version": version} for version in ("", "../1", "1 0", "1.0.11\n", "$(x)", "v/1", "é")),
        *({"release_base": base} for base in ("", "github.com/x", "/mirror", "ftp://x/y", 'https://x/"y', "https://x/\ny")),
        *({"release_base": base} for base in ("https://x/y?token=z", "https://x y")),
        {"realease_base": "https://x"},
    ],
)  # fmt: skip
def test_configs_that_are_refused(config: dict[str, str]) -> None:
    with pytest.raises(ValidationError):
        PoolHarnessConfig.model_validate(config)


@pytest.mark.parametrize("version", ["1.0.11", "..", "-1", "1.0.0-rc.1+build_7"])
def test_odd_versions_stay_names(version: str) -> None:
    assert PoolHarnessConfig(version=version).version == version


@pytest.mark.parametrize("table", [{"env": {"POOLSIDE_API_KEY": "k"}}, {"forward_env": ["POOLSIDE_API_URL"]}])
def test_what_the_run_gives_it_is_not_to_be_given(table: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="is not to be given to pool"):
        PoolHarness(PoolHarnessConfig.model_validate(table)).validate()
    PoolHarness(PoolHarnessConfig(env={"POOLSIDE_LOG": "debug"})).validate()


def test_it_is_a_plugin() -> None:
    assert load_class("harness", "pool") is PoolHarness
    assert config_class(PoolHarness) is PoolHarnessConfig


def test_a_system_prompt_that_is_moved_is_told_before_the_run(tmp_path: Path) -> None:
    """H10."""
    parts = [{"role": "system", "content": "s"}, {"role": "user", "content": "c"}]
    rows = [{"prompt": "a"}, {"prompt": "b", "system_prompt": "s"}, {"messages": parts}]
    (tmp_path / "t.jsonl").write_text("\n".join(json.dumps({"answer": "x", **row}) for row in rows))
    taskset = {"id": "jsonl", "path": str(tmp_path / "t.jsonl")}
    for harness, told in (
        ("pool", ["the system prompts of 2 of 3 tasks are part of the user's prompt"]),
        ("bash", []),
    ):
        env = {"taskset": taskset, "agent": {"harness": {"id": harness}}}
        warnings = make_plan(EvalConfig.from_dict({"model": "m", "env": env})).warnings
        assert [warning.partition(": ")[2] for warning in warnings] == told


@pytest.mark.parametrize(
    ("harness", "row", "says"),
    [
        ("pool", {"messages": [{"role": "assistant", "content": "a"}]}, "takes system and user only"),
        ("pool", {"messages": [{"role": "user", "content": ""}]}, "its prompt is empty"),
        ("vf_test_harness", {"prompt": "a", "system_prompt": "s"}, "can't send one in the system role"),
    ],
)
def test_what_a_harness_cannot_be_given_is_refused_at_load(
    harness: str, row: dict[str, Any], says: str, tmp_path: Path
) -> None:
    """H02, H10: by the task's name, before anything is started."""
    (tmp_path / "t.jsonl").write_text(json.dumps({"name": "odd", "answer": "x", **row}))
    env = {
        "taskset": {"id": "jsonl", "path": str(tmp_path / "t.jsonl")},
        "agent": {"harness": {"id": harness}},
    }
    with pytest.raises(ConfigError, match=f"task 'odd': .*{says}"):
        make_plan(EvalConfig.from_dict({"model": "m", "env": env}))
