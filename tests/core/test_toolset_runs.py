"""Runs whose tasks have tools of their own and share others: what the tools do, and that nothing of them is left."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from doubles.engine_kit import Kit, engine_kit, run_whole
from doubles.local_boxes import processes_with, until
from vf_core.eval_config import EvalConfig
from vf_core.events import snapshot
from vf_core.events import types as ev
from vf_core.runtimes.lifecycle import State

NOTE = ["notes", "note", {"text": "a"}]
ELSEWHERE = {"url": "http://127.0.0.1:9/mcp"}
LOOK = ["db", "get", {"word": "capital"}]


def config(output: Path, *prompts: list[Any], **options: Any) -> EvalConfig:
    """One task for each list of calls; `options` go to the taskset."""
    agent = {"harness": {"id": "vf_test_caller"}, "runtime": {"type": "subprocess", "grace": 0.2}}
    taskset = {"id": "vf_test_toolset", "prompts": [json.dumps(calls) for calls in prompts], **options}
    data = {
        "model": "scripted",
        "output_dir": str(output),
        "client": {"base_url": "http://127.0.0.1:9/v1"},
        "env": {"taskset": taskset, "agent": agent},
    }
    return EvalConfig.from_dict(data)


def answers(kit: Kit) -> list[list[str]]:
    """What the tools answered, by rollout."""
    records = sorted(
        kit.records(), key=lambda r: (r["info"]["vf_tui"]["rollout"], r["info"]["vf_tui"]["attempt"])
    )
    return [record["info"].get("answers", []) for record in records]


def all_gone(kit: Kit) -> bool:
    """Every sandbox that was ever seen is proven gone, and no process of the run's is left."""
    boxes = kit.state.sandboxes.values()
    gone = all(box.state is State.GONE and box.proof for box in boxes)
    return gone and not kit.state.unconfirmed and not processes_with(f"vf-{kit.run_dir.run_id[:8]}")


async def test_own_and_shared_tools_reach_their_rollouts_state_and_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S01, too: neither the host's secrets nor the tools' own are where they do not belong."""
    monkeypatch.setenv("SOME_VENDOR_TOKEN", "canary-host-1")
    monkeypatch.setenv("MY_TOOL_KEY", "canary-tool-2")
    about = ["notes", "about", {}]
    first = [NOTE, LOOK, ["notes", "note", {"text": "b", "times": 2}], ["notes", "fail", {}]]
    second = [LOOK, LOOK, ["notes", "environment", {}], about, ["notes", "note", {"times": "many"}]]
    kit, code = await run_whole(
        config(tmp_path, first, second, task={"notes": {"key": {"env": "MY_TOOL_KEY"}}})
    )
    assert code == 0
    told, other = answers(kit)
    assert (told[0], told[2]) == ("noted: a", "noted: a, b, b")
    assert told[3] == "Error executing tool fail: ValueError: the tool's own failure"
    assert told[1].startswith("Paris (call ")
    assert other[0].rpartition("pid ")[2] == told[1].rpartition("pid ")[2]  # one server for both
    seen = json.loads(other[2])
    assert "canary" not in "".join(v for name, v in seen.items())
    assert json.loads(other[3]) == {"row": 1, "kind": "ToolTaskData", "key": "canary-tool-2"}
    assert "validation error" in other[4]
    # What was noted and looked up was there when rewards were given.
    assert [kit.rollout(id).reward for id in ("0000-0", "0001-0")] == [3.0 + 10.0, 0.0 + 20.0]
    served = {box.name.rpartition("-")[2] for box in kit.state.sandboxes.values()}
    assert {"t1", "a1"} < served
    assert kit.rollout().sandbox is not None
    assert kit.rollout().sandbox.name.endswith("-a1")
    assert len(kit.state.sandboxes) == 5
    assert set(snapshot.load(snapshot.dump(kit.state)).sandboxes) == set(kit.state.sandboxes)
    assert list(kit.state.rollouts) == ["0000-0", "0001-0"]
    assert all_gone(kit)
    files = [path for path in kit.run_dir.path.rglob("*") if path.is_file() and path.name != "traces.jsonl"]
    assert not [path for path in files if b"canary" in path.read_bytes()]


async def test_a_server_from_elsewhere_is_neither_started_nor_told_of(tmp_path: Path) -> None:
    """S01: what it is sent stays here, also when it does not answer."""
    notes = {**ELSEWHERE, "headers": {"X-Key": "canary-4"}}
    kit, code = await run_whole(config(tmp_path, [NOTE], task={"notes": notes}, lookup=ELSEWHERE))
    assert code == 0
    ((answer,),) = answers(kit)
    assert "127.0.0.1:9" not in answer
    assert "error" in answer
    assert list(kit.state.sandboxes) == [kit.rollout().sandbox.name]  # type: ignore[union-attr]
    files = [path for path in kit.run_dir.path.rglob("*") if path.is_file()]
    assert not [path for path in files if b"canary" in path.read_bytes()]


async def test_a_server_that_dies_fails_its_calls_and_a_shared_one_comes_back(tmp_path: Path) -> None:
    calls = [NOTE, ["notes", "die", {}], NOTE, ["db", "die", {}], [*LOOK, "Paris (call 1"]]
    kit, code = await run_whole(config(tmp_path, calls))
    assert code == 0
    (told,) = answers(kit)
    assert told[0] == "noted: a"
    assert not [text for text in told[1:4] if "noted" in text or "error" not in text]
    shared, own = [log for log in kit.of(ev.Log) if "died" in log.message]
    assert shared.message.startswith("shared tool server 'db' died; starting it again (2 more such starts)")
    assert (own.rollout, own.message.splitlines()[0]) == ("0000-0", "tool server 'notes' died")
    assert own.message.endswith("dying on purpose")  # the end of its log
    assert kit.rollout().reward == 1.0 + 10.0
    assert all_gone(kit)


@pytest.mark.parametrize(
    ("trouble", "why"), [("raise", "RuntimeError: no room for notes"), ("exit", "exit 3")]
)
async def test_a_server_that_does_not_start_says_why(tmp_path: Path, trouble: str, why: str) -> None:
    run = config(tmp_path, [NOTE], task={"notes": {"trouble": trouble, "key": "canary-3"}}, lookup=ELSEWHERE)
    kit, code = await run_whole(run)
    assert code == 3
    rollout = kit.rollout()
    assert rollout.status == "error"
    assert rollout.error_type == "ToolsetError"
    assert f"tool server 'notes' did not start: {why}" in rollout.error
    assert "notes are set up" in rollout.error  # the end of its log
    assert "[secret]" in rollout.error
    assert "canary" not in rollout.error
    assert rollout.program is None
    assert all_gone(kit)


async def test_stopped_while_its_server_starts(tmp_path: Path) -> None:
    """M05: a server that never gets ready, behind a wrapper, with a child of its own that is deaf to signals."""
    run = config(tmp_path, [NOTE], task={"notes": {"trouble": "hang"}}, lookup=ELSEWHERE)
    async with engine_kit(run) as (kit, running):
        mine = f"vf-{kit.run_dir.run_id[:8]}-0000-0-a1-t1"
        await until(
            lambda: len(processes_with(mine)) >= 4
        )  # the wrapper, the server, its child, that one's sleep
        assert (await kit.engine.command("stop", ["0000-0"], {}, "test")).ok
        assert not processes_with(mine)
        await asyncio.wait_for(asyncio.shield(running), 60)
    assert kit.rollout().status == "stopped"
    assert all_gone(kit)


async def test_stopped_in_the_midst_of_a_call_and_restarted_while_the_shared_server_goes(
    tmp_path: Path,
) -> None:
    """T16, T08: a tool that listens to nobody, a restart while the run's end takes the shared server down, a quit."""
    run = config(tmp_path, [LOOK, ["notes", "hang", {}]])
    async with engine_kit(run) as (kit, running):
        kit.engine.viewers(1)
        await kit.until(lambda: kit.state.rollouts and kit.rollout().program is not None)
        await kit.until(lambda: any(box.kind == "subprocess" for box in kit.state.sandboxes.values()))
        assert (await kit.engine.command("stop", ["0000-0"], {}, "test")).ok
        # The run's end begins: the shared server is asked to go.
        await kit.until(
            lambda: any(b.rollout == "" and b.state is not State.LIVE for b in kit.state.sandboxes.values())
        )
        assert (await kit.engine.command("restart", ["0000-0"], {}, "test")).ok
        await kit.running(attempt=2)
        shared = [box for box in kit.state.sandboxes.values() if box.rollout == ""]
        assert len(shared) == 2
        assert shared[-1].state is State.LIVE
        await kit.engine.command("shutdown", (), {}, "test")
        code = await asyncio.wait_for(asyncio.shield(running), 60)
    assert code in (0, 130)
    assert kit.rollout().status == "stopped"
    assert all_gone(kit)
