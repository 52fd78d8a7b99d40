"""Whole runs with own and shared tools and a judge that end in every way, by each harness: what is told of them."""

from __future__ import annotations

import json
import secrets
import subprocess
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from doubles.command_line import Home, records
from doubles.engine_boxes import left
from doubles.engine_host import need_engine
from doubles.engine_images import curl_image
from doubles.local_boxes import processes_with
from doubles.mixed import ENDS, LOCAL, write
from doubles.peer_venv import peer_python
from doubles.pool.releases import Releases, remove

PEER = Path(__file__).parents[1] / "doubles" / "verifiers_peer.py"
RELEASE = "verifiers==0.2.1.dev64"
NOTED = [("desk", "desk_note", False), ("db", "db_get", False)]
KILLED = {"pool": [], "bash": [("", "bash", False)], "null": [("desk", "desk_strike", False)]}


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    home = Home(tmp_path)
    yield home
    home.stop_all()


def told(harness: str) -> dict[str, tuple[Any, ...]]:
    """By its task: status, exit, what ended it, reward, the error's type, whether unscored, and its judge's calls."""
    failed = ("exit 3", "HarnessError") if harness == "pool" else ("exit 1", "ProviderError")
    return {
        "finish": ("completed", "exit 0", "agent_completed", 2.0, "", False, 1),
        "decline": ("declined", "declined (4)", "agent_declined", 1.0, "", False, 1),
        "fail": ("error", failed[0], "error", None, failed[1], False, 0),
        "die": ("error", "exit 137 killed", "error", None, "HarnessError", False, 0),
        "misjudge": ("error", "exit 0", "agent_completed", None, "JudgeError", True, 1),
    }


@pytest.mark.parametrize(
    ("harness", "runtime"),
    [
        ("pool", "docker"),
        ("pool", "subprocess"),
        ("bash", "subprocess"),
        pytest.param("null", "subprocess", marks=pytest.mark.network),
    ],
)
def test_every_end_is_told_as_what_it_was(home: Home, harness: str, runtime: str) -> None:
    version, box = f"0.0.6-test.{secrets.token_hex(4)}", LOCAL
    if runtime == "docker":
        home.env["DOCKER_HOST"] = need_engine()
        box = f'type = "docker"\nimage = "{curl_image()}"\npull = "never"'
    with Releases() if harness == "pool" else nullcontext() as releases:
        options = f'version = "{version}"\nrelease_base = "{releases.base}"' if releases else ""
        write(home.work, harness, options=options, runtime=box)
        try:
            # Five agents, six tool servers and what installs pool take a minute where others work, too.
            code = home.start("run", "eval.toml", "--scripted", "says.toml", "--json").wait(200)
        finally:
            remove(version)
    assert code == 3, home.err()
    launch, *rollouts, last = records(home.out())
    check_records(harness, rollouts, last)
    for rollout in rollouts:
        if rollout["name"] in ("finish", "die"):
            check_shown(home, launch["run"], harness, rollout)
    if harness == "bash":
        check_text(home, launch["run"], rollouts)
    traces = [json.loads(line) for line in (Path(launch["dir"]) / "traces.jsonl").read_text().splitlines()]
    check_traces(harness, traces)
    if harness == "null":
        check_the_release_reads(traces)
    # An engine's own processes for a container name it, and stay for minutes.
    assert (left(launch["run"]) if runtime == "docker" else processes_with(f"vf-{launch['run'][:8]}")) == []


def check_records(harness: str, rollouts: list[dict[str, Any]], last: dict[str, Any]) -> None:
    """Each rollout's record, and counts that add up."""
    wanted = told(harness)
    keys = ("status", "exit_meaning", "stop_condition", "reward", "error_type", "unscored")
    assert {r["name"]: (*(r[key] for key in keys), r["judged"]["calls"]) for r in rollouts} == wanted
    assert {r["sandbox"]["state"] for r in rollouts} == {"gone"}
    counts = {"queued": 0, "active": 0, "completed": 1, "declined": 1, "error": 3, "stopped": 0}
    assert (last["counts"], last["total"], last["scored"], last["reward"]) == (counts, len(ENDS), 2, 1.5)
    assert (last["unconfirmed"], last["judged"]["calls"]) == ([], 3)
    for name in ("tool_calls", "tokens", "judged"):
        parts = [r[name] if isinstance(r[name], dict) else {"n": r[name]} for r in rollouts]
        whole = last[name] if isinstance(last[name], dict) else {"n": last[name]}
        for key in set(whole) - {"cost"}:
            assert whole[key] == sum(part[key] for part in parts), (name, key)


def check_shown(home: Home, run: str, harness: str, rollout: dict[str, Any]) -> None:
    """`show` of one rollout as JSON: its record and more, its tools and whose they are."""
    shown = home("show", run, rollout["id"], "--json")
    facts = json.loads(shown.stdout)
    assert {key: facts[key] for key in rollout if key != "type"} == {
        k: v for k, v in rollout.items() if k != "type"
    }
    calls = [(tool["server"], tool["name"], tool["failed"]) for tool in facts["tools"]]
    more = {"finish": [("desk", "desk_fail", True), ("", "nothing", True)], "die": KILLED[harness]}
    assert not any(tool["running"] for tool in facts["tools"])
    assert calls == NOTED + more.get(rollout["name"], [])
    servers = {(s["server"], s["place"], s["shared"]) for s in facts["servers"]}
    assert servers == {("db", "host", True), ("desk", "host", False)}
    assert [box["state"] for box in facts["sandboxes"]] == ["gone", "gone"]
    assert [(a["outcome"], a["exit_meaning"]) for a in facts["attempts"]] == [
        (rollout["status"], rollout["exit_meaning"])
    ]


def check_text(home: Home, run: str, rollouts: list[dict[str, Any]]) -> None:
    """`show` as text: all words there, nothing for the terminal to obey, and each failure told once."""
    (failed,) = [r for r in rollouts if r["name"] == "fail"]
    (unscored,) = [r for r in rollouts if r["name"] == "misjudge"]
    for rollout, words in ((failed, "exit 1"), (unscored, "unscored: JudgeError")):
        text = home("show", run, rollout["id"]).stdout
        assert words in text
        assert "[bold red]markup[/]" in text
        assert not [c for c in text if not c.isprintable() and c != "\n"]
        assert text.partition(" errors ")[2].partition(" sandbox ")[0].count(rollout["error_type"]) == 1


def check_traces(harness: str, traces: list[dict[str, Any]]) -> None:
    """What is recorded is what was told; no score stands where none was given."""
    wanted = told(harness)
    assert len(traces) == len(ENDS)
    for trace in traces:
        status, _, stop, reward, error, unscored, judged = wanted[trace["task"]["data"]["name"]]
        assert (trace["stop_condition"], [e["type"] for e in trace["errors"]]) == (
            stop,
            [error] if error else [],
        )
        assert sum((trace.get("rewards") or {}).values()) == (reward or 0.0), (status, unscored)
        assert bool(trace.get("rewards")) is (reward is not None)
        assert len(trace["info"].get("judge", ())) == judged


def check_the_release_reads(traces: list[dict[str, Any]]) -> None:
    """verifiers' own models take every one of them, and read the same."""
    lines = "\n".join(map(json.dumps, traces)).encode()
    done = subprocess.run(
        [str(peer_python(RELEASE)), str(PEER)], input=lines, capture_output=True, timeout=200, check=False
    )
    assert done.returncode == 0, done.stderr.decode()[-3000:]
    read = {entry["id"]: entry for entry in json.loads(done.stdout)["read"]}
    for trace in traces:
        entry = read[trace["id"]]
        assert entry["errors"] == [e["type"] for e in trace["errors"]]
        assert entry["reward"] == sum((trace.get("rewards") or {}).values())
        assert len(entry["judged"]) == len(trace["info"].get("judge", ()))
