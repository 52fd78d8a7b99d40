"""The harnesses in a real local sandbox, their model calls through the real interception server."""

from __future__ import annotations

from typing import Any

import pytest

from doubles.agent_program import bash, scenario
from doubles.local_rollout import Rolled, roll
from vf_core.harnesses.base import Harness
from vf_core.harnesses.bash import BashHarness, BashHarnessConfig
from vf_core.harnesses.null import NullHarness, NullHarnessConfig
from vf_core.interception import Limits
from vf_core.scripted.scenario import Scenario
from vf_core.scripted.server import ScriptedServer
from vf_core.tasks import Task, TaskData


def _bash(**config: object) -> BashHarness:
    return BashHarness(BashHarnessConfig.model_validate(config))


def _null(**config: object) -> NullHarness:
    return NullHarness(NullHarnessConfig.model_validate(config))


async def _run(
    plan: Scenario, harness: Harness[Any] | None = None, limits: Limits | None = None, **data: Any
) -> tuple[Rolled, list[dict[str, Any]]]:
    """What became of one rollout, and the bodies of the requests that the model got."""
    task = Task(TaskData.model_validate({"idx": 0, "prompt": "go", **data}))
    async with ScriptedServer(plan, record=True) as server:
        rolled = await roll(task, harness or _bash(), server.base_url, limits=limits)
        return rolled, server.bodies


async def _command(command: str, harness: Harness[Any] | None = None, **data: Any) -> str:
    """What the agent is told that a command printed."""
    _, bodies = await _run(scenario(bash(command), {"text": "ok"}), harness, **data)
    return str(bodies[-1]["messages"][-1]["content"])


@pytest.mark.parametrize("harness", [_bash(), _null()], ids=["bash", "null"])
async def test_the_first_request_has_the_whole_prompt_in_its_roles(harness: Harness[Any]) -> None:
    """H01, H10: 200 KiB each, system prompt in the system role."""
    system, prompt = "s€" * 60_000, "--help\n" + "ü" * 150_000
    rolled, bodies = await _run(scenario({"text": "fine"}), harness, system_prompt=system, prompt=prompt)
    assert rolled.meaning is not None
    assert rolled.meaning.text == "exit 0", rolled.result
    first = bodies[0]["messages"]
    assert [m["role"] for m in first] == ["system", "user"]
    assert first[0]["content"].endswith(system)
    assert first[1]["content"] == prompt
    assert rolled.trace.last_reply == "fine"


async def test_message_prompts_go_as_they_are() -> None:
    parts = [
        {"type": "text", "text": "look"},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA"}},
    ]
    prompt = [
        {"role": "user", "content": "earlier"},
        {"role": "assistant", "content": "yes"},
        {"role": "user", "content": parts},
    ]
    _, bodies = await _run(scenario({"text": "ok"}), _null(), prompt=prompt)
    assert bodies[0]["messages"] == prompt


async def test_commands_run_outside_our_virtual_environment() -> None:
    """R20."""
    told = await _command("echo venv=$VIRTUAL_ENV; which python3; python3 -c 'import textual'; ls -A; pwd")
    assert "venv=\n" in told
    assert ".venv" not in told
    assert "No module named 'textual'" in told or "python3" not in told
    assert ".vf-messages" not in told


@pytest.fixture
def _canaries(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL", "SOME_TOKEN", "SERPER_API_KEY", "MY_SECRET_THING"):
        monkeypatch.setenv(name, f"canary-{name}")


@pytest.mark.usefixtures("_canaries")
async def test_commands_see_neither_secrets_nor_provider_settings() -> None:
    """I05, S01: in their own environment and in the program's, which is their parent."""
    look = "env; tr '\\0' '\\n' </proc/$PPID/environ"
    told = await _command(look, _bash(search=True, env={"HERE": 'it\'s "$(touch x)" `y`\nz;'}))
    assert "canary" not in told
    assert "OPENAI" not in told
    assert 'HERE=it\'s "$(touch x)" `y`\nz;' in told


async def test_nothing_in_a_prompt_or_a_variable_is_run_by_a_shell() -> None:
    """S05."""
    evil = '\'; touch stolen; "$(touch stolen)" `touch stolen` & touch stolen\n'
    told = await _command("ls -A", _bash(env={"EVIL": evil}), prompt=evil, system_prompt=evil)
    assert "stolen" not in told


async def test_output_comes_while_the_program_runs() -> None:
    rolled, _ = await _run(scenario(bash("echo one; echo two"), {"text": "the end"}))
    assert "one\ntwo\n" in rolled.out
    assert rolled.out.endswith("the end\n")
    assert len(rolled.output) > 1


async def test_streaming_can_be_switched_off() -> None:
    _, bodies = await _run(scenario({"text": "ok"}), _null(stream=False))
    assert "stream" not in bodies[0]
    _, bodies = await _run(scenario({"text": "ok"}), _null())
    assert bodies[0]["stream"] is True


async def test_calls_that_do_not_parse_count_against_the_limits() -> None:
    """H04."""
    usage = {"prompt_tokens": 900, "completion_tokens": 100, "total_tokens": 1000}
    always = {"repeat": True, "usage": usage, "calls": [{"name": "bash", "raw": '{"command": '}]}
    rolled, bodies = await _run(scenario(always), limits=Limits(max_total_tokens=5000))
    assert len(bodies) == 5
    assert rolled.trace.stop_condition == "max_total_tokens"
    assert rolled.trace.num_total_tokens == 5000


@pytest.mark.parametrize(
    "fault",
    [
        {"kind": "status", "status": 500},
        {"kind": "break", "after_chunks": 2},
        {"kind": "end", "after_chunks": 2},
    ],
    ids=lambda fault: str(fault["kind"]),
)
async def test_a_failure_that_passes_leaves_one_clean_turn(fault: dict[str, Any]) -> None:
    rolled, bodies = await _run(scenario({"text": "all of the answer", "fault": fault}), _null())
    assert len(bodies) == 2
    assert rolled.trace.last_reply == "all of the answer"
    assert (rolled.trace.num_turns, rolled.trace.num_branches) == (1, 1)


async def test_a_failure_that_stays_is_an_exit_code_with_its_reason() -> None:
    fault = {"kind": "status", "status": 400, "message": "no such thing", "times": 0}
    rolled, _ = await _run(scenario({"text": "x", "fault": fault}), _null())
    assert rolled.meaning is not None
    assert (rolled.meaning.kind, rolled.meaning.text) == ("failed", "exit 1")
    assert rolled.result is not None
    assert "no such thing" in rolled.result.stderr


async def test_one_launch_is_one_program() -> None:
    """H05: a program that fails is not started again."""
    rolled, bodies = await _run(scenario(bash("kill -9 $PPID"), {"text": "never"}))
    assert rolled.meaning is not None
    assert rolled.meaning.text == "exit 137 killed"
    assert len(bodies) == 1
