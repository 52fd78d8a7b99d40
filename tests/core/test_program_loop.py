"""The agent programs as processes, against the scripted model over HTTP."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from doubles.agent_program import bash, run_agent, scenario, tool_results
from vf_core.scripted.server import ScriptedServer


def _file(directory: Path, messages: list[dict[str, object]]) -> str:
    (directory / "messages.json").write_text(json.dumps(messages))
    return "--initial-messages-file=messages.json"


async def test_a_command_runs_and_its_result_reaches_the_model(tmp_path: Path) -> None:
    plan = scenario(bash("echo one; echo two >&2"), {"text": "done: {{result}}"})
    async with ScriptedServer(plan, record=True) as server:
        ended = await run_agent("bash", server, tmp_path, "--prompt=go")
    assert ended.code == 0, ended.err
    assert tool_results(server) == ["one\ntwo\n"]
    assert "done: one\ntwo" in ended.out
    assert server.bodies[0]["stream"] is True
    assert [t["function"]["name"] for t in server.bodies[0]["tools"]] == ["bash"]


async def test_null_offers_no_tools_and_ends_after_one_answer(tmp_path: Path) -> None:
    async with ScriptedServer(scenario({"text": "hello"}), record=True) as server:
        ended = await run_agent(
            "null", server, tmp_path, "--prompt=hi", "--system-prompt=be brief", "--no-stream"
        )
    assert (ended.code, ended.out) == (0, "hello\n")
    (body,) = server.bodies
    assert "tools" not in body
    assert "stream" not in body
    assert body["messages"] == [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hi"}]


async def test_every_call_of_a_turn_is_answered_before_the_next_request(tmp_path: Path) -> None:
    """H08: also when one times out while others wait, and for calls that can't be run at all."""
    calls = [
        {"name": "bash", "arguments": {"command": "echo before; sleep 60"}},
        {"name": "bash", "arguments": {"command": "echo second"}},
        {"name": "nonsense", "arguments": {}},
        {"name": "bash", "raw": '{"command": "ech'},
        {"name": "bash", "raw": "[1, 2]"},
        {"name": "bash", "raw": ""},
        {"name": "edit", "arguments": {"path": "no/such/file", "old_str": "a", "new_str": "b"}},
    ]
    async with ScriptedServer(scenario({"calls": calls}, {"text": "ok"}), record=True) as server:
        ended = await run_agent("bash", server, tmp_path, "--prompt=go", "--edit", "--command-timeout=0.5")
    assert ended.code == 0, ended.err
    messages = server.bodies[-1]["messages"]
    asked = [call["id"] for m in messages if m["role"] == "assistant" for call in m["tool_calls"]]
    assert [m["tool_call_id"] for m in messages if m["role"] == "tool"] == asked
    slow, second, unknown, torn, no_object, nothing, no_file = tool_results(server)
    assert slow.startswith("before\n[timed out after 0.5 s")
    assert second == "second\n"
    assert unknown.startswith("error: there is no tool 'nonsense'")
    assert torn.startswith("error: the arguments are not valid JSON")
    assert "resend" in torn
    assert no_object.startswith("error: the arguments must be a JSON object, not list")
    assert "resend" in no_object
    assert nothing.startswith("error: 'command'")
    assert no_file.startswith("error: no/such/file could not be edited")


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    "step",
    [{"text": None}, {"text": ""}, {"text": " \n "}, {"reasoning": "hmm"}],
    ids=["null", "empty", "white space", "reasoning only"],
)
async def test_an_empty_answer_ends_the_program_well(
    tmp_path: Path, step: dict[str, object], stream: bool
) -> None:
    """H07."""
    flags = [] if stream else ["--no-stream"]
    async with ScriptedServer(scenario({k: v for k, v in step.items() if v is not None})) as server:
        ended = await run_agent("bash", server, tmp_path, "--prompt=go", *flags)
    assert (ended.code, ended.err) == (0, "")


async def test_reasoning_goes_back_to_the_model_with_its_call(tmp_path: Path) -> None:
    plan = scenario({"reasoning": "think", **bash("true")}, {"text": "end"})
    async with ScriptedServer(plan, record=True) as server:
        await run_agent("bash", server, tmp_path, "--prompt=go")
    said = server.bodies[-1]["messages"][1]
    assert said["reasoning_content"] == "think"
    assert said["content"] is None


async def test_a_refusal_is_told_by_the_exit_code(tmp_path: Path) -> None:
    async with ScriptedServer(scenario({"refusal": "I won't do that."})) as server:
        assert (await run_agent("bash", server, tmp_path, "--prompt=go")).code == 4


@pytest.mark.parametrize("name", ["bash", "null"])
async def test_long_prompts_arrive_whole_by_file_and_the_file_is_gone(tmp_path: Path, name: str) -> None:
    """H01."""
    system = "s" * 200 * 1024
    prompt = ("äöü€😀\ud800\x00" * 40_000)[: 200 * 1024]
    messages = [{"role": "system", "content": system}, {"role": "user", "content": prompt}]
    async with ScriptedServer(scenario({"text": "ok"}), record=True) as server:
        ended = await run_agent(name, server, tmp_path, _file(tmp_path, messages))
    assert ended.code == 0, ended.err
    assert server.bodies[0]["messages"] == messages
    assert not (tmp_path / "messages.json").exists()


async def test_a_command_of_any_length_runs(tmp_path: Path) -> None:
    """H01: 200 KiB in one command."""
    text = "x" * 200 * 1024
    async with ScriptedServer(
        scenario(bash(f"printf %s {text} | wc -c"), {"text": "ok"}), record=True
    ) as server:
        await run_agent("bash", server, tmp_path, "--prompt=go")
    assert [r.strip() for r in tool_results(server)] == [str(len(text))]


@pytest.mark.parametrize("prompt", ["--help", "-p x", "@file", "\n\n", "a=b --model=x"])
@pytest.mark.parametrize("by", ["flag", "file"])
async def test_prompts_that_look_like_options_are_literal(tmp_path: Path, prompt: str, by: str) -> None:
    """H02."""
    flag = f"--prompt={prompt}" if by == "flag" else _file(tmp_path, [{"role": "user", "content": prompt}])
    async with ScriptedServer(scenario({"text": "ok"}), record=True) as server:
        ended = await run_agent("null", server, tmp_path, flag)
    assert ended.code == 0, ended.err
    assert server.bodies[0]["messages"] == [{"role": "user", "content": prompt}]


async def test_shell_metacharacters_in_a_prompt_are_never_run(tmp_path: Path) -> None:
    """S05."""
    prompt = '\'; touch stolen; "$(touch stolen)" `touch stolen`\n| touch stolen'
    async with ScriptedServer(scenario(bash("ls"), {"text": prompt}), record=True) as server:
        await run_agent("bash", server, tmp_path, f"--prompt={prompt}", f"--system-prompt={prompt}")
    assert not (tmp_path / "stolen").exists()
    assert server.bodies[0]["messages"][1]["content"] == prompt


async def test_commands_see_no_secret_and_no_provider_settings(tmp_path: Path) -> None:
    """I05, S01: neither in their environment nor in that of the program, their parent."""
    plan = scenario(bash("env; tr '\\0' '\\n' </proc/$PPID/environ; echo canary-$TASK_VALUE"), {"text": "ok"})
    env = {"SERPER_API_KEY": "serper-canary", "TASK_VALUE": "kept"}
    flags = ("--prompt=go", "--search", "--serper-key=serper-canary")
    async with ScriptedServer(plan, record=True) as server:
        await run_agent("bash", server, tmp_path, *flags, env=env)
        own = await run_agent("bash", server, tmp_path, "--prompt=go", env={"TASK_VALUE": "kept"})
    assert own.code == 0
    (seen,) = tool_results(server)
    assert "canary-kept" in seen
    for word in ("rollout-secret", "OPENAI", "API_KEY", "BASE_URL", "serper-canary"):
        assert word not in seen


async def test_the_search_key_is_taken_out_of_the_environment(tmp_path: Path) -> None:
    plan = scenario(bash("echo key=$SERPER_API_KEY"), {"text": "ok"})
    flags = ("--prompt=go", "--search", "--serper-key=canary")
    async with ScriptedServer(plan, record=True) as server:
        await run_agent("bash", server, tmp_path, *flags, env={"SERPER_API_KEY": "canary"})
    assert tool_results(server) == ["key=\n"]


async def test_commands_have_no_input_and_no_terminal(tmp_path: Path) -> None:
    """R14: what asks for input gets its end at once."""
    asks = [
        "read x; echo read:$?",
        "tty",
        "cat",
        "stty size 2>&1; echo stty:$?",
        "exec 3</dev/tty; echo tty:$?",
    ]
    if shutil.which("git"):
        asks.append("git init -q . && git -c user.name=a -c user.email=a@b commit --allow-empty; echo git:$?")
    if shutil.which("python3"):
        asks.append("python3; echo python:$?")
    plan = scenario(
        {"calls": [{"name": "bash", "arguments": {"command": ask}} for ask in asks]}, {"text": "ok"}
    )
    env = {"GIT_EDITOR": ":", "PAGER": "cat"}
    async with ScriptedServer(plan, record=True) as server:
        ended = await run_agent("bash", server, tmp_path, "--prompt=go", "--command-timeout=20", env=env)
    assert ended.code == 0
    results = tool_results(server)
    assert not any("timed out" in result for result in results)
    assert "read:1" in results[0]
    assert "not a tty" in results[1]


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (("--prompt=x", "--serper-key"), "serper-key"),
        (("--prompt=x", "--search"), "--search needs --serper-key"),
        (("--prompt=x", "--nonsense"), "nonsense"),
        (("--prompt=x", "--disable=edti"), "there is no tool 'edti'"),
        (("--prompt=x", "--mcp-config=[1]"), "--mcp-config"),
        ((), "nothing to ask"),
    ],
)
async def test_a_wrong_command_line_is_told(tmp_path: Path, flags: tuple[str, ...], says: str) -> None:
    ended = await run_agent("bash", "http://127.0.0.1:9/v1", tmp_path, *flags)
    assert ended.code == 2
    assert says in ended.err
    assert "Traceback" not in ended.err


async def test_a_proxy_of_the_environment_is_not_asked_for_the_loopback(tmp_path: Path) -> None:
    env = {
        "HTTP_PROXY": "http://127.0.0.1:9",
        "http_proxy": "http://127.0.0.1:9",
        "ALL_PROXY": "http://127.0.0.1:9",
    }
    async with ScriptedServer(scenario({"text": "ok"})) as server:
        assert (await run_agent("null", server, tmp_path, "--prompt=go", env=env)).code == 0


async def test_a_disabled_tool_is_not_offered(tmp_path: Path) -> None:
    async with ScriptedServer(scenario({"text": "ok"}), record=True) as server:
        ended = await run_agent("bash", server, tmp_path, "--prompt=go", "--edit", "--disable=bash")
    assert ended.code == 0, ended.err
    assert [t["function"]["name"] for t in server.bodies[0]["tools"]] == ["edit"]


async def test_a_model_that_cannot_be_asked_is_told_without_a_traceback(tmp_path: Path) -> None:
    fault = {"kind": "status", "status": 400, "message": "max_turns reached", "times": 0}
    async with ScriptedServer(scenario({"text": "x", "fault": fault})) as server:
        ended = await run_agent("bash", server, tmp_path, "--prompt=go")
        assert server.requests == 1
    assert ended.code == 1
    assert ended.err == "error: HTTP 400: max_turns reached\n"
