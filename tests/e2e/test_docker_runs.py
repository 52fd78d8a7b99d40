"""Whole runs in containers from the command line: interrupted again and again, and looked through for secrets."""

from __future__ import annotations

import hashlib
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from doubles.command_line import ARGV, Home, alive, wait_for
from doubles.engine_boxes import left
from doubles.engine_host import call, containers, need_engine
from doubles.engine_images import python_image
from doubles.engine_proxy import EngineProxy
from doubles.pty_driver import PtyProcess

CANARY = "zq7canary"
SLOW_END = "trap 'sleep 0.5; echo trapped' TERM; echo up; sleep 600 & wait"


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    home = Home(
        tmp_path,
        {
            "DOCKER_HOST": need_engine(),
            "TERM": "xterm-256color",
            "LANG": "C.UTF-8",
            "OPENAI_API_KEY": f"sk-{CANARY}-key",
            "GITHUB_TOKEN": f"{CANARY}-github",
            "HTTP_COOKIE": f"{CANARY}-cookie",
        },
    )
    yield home
    home.stop_all()


def config(home: Home, scripts: list[str], head: str = "") -> Path:
    file = home.config(scripts, head=head)
    runtime = f'[env.agent.runtime]\ntype = "docker"\nimage = "{python_image()}"\npull = "never"\n'
    file.write_text(file.read_text() + runtime)
    return file


def run_dir(home: Home) -> Path:
    return Path(wait_for(lambda: list(home.work.rglob("engine.json")), "the engine")[0]).parent


def logs(path: Path) -> str:
    return "".join(log.read_text(errors="replace") for log in path.rglob("*.stdout.log"))


@pytest.mark.parametrize("signals", [[signal.SIGINT] * 3, [signal.SIGTERM, signal.SIGINT]], ids=str)
def test_t01_interrupts_cut_no_cleanup_of_containers_short(home: Home, signals: list[signal.Signals]) -> None:
    process = home.start("run", config(home, [SLOW_END] * 4), "--headless")
    wait_for(lambda: home.out().count(": started") == 4, "four rollouts")
    path = run_dir(home)
    wait_for(lambda: logs(path).count("up") == 4, "four programs")
    run = json.loads((path / "engine.json").read_text())["run"]
    assert len(left(run)) == 4
    process.send_signal(signals[0])
    wait_for(lambda: "cleaning up" in home.err(), "the notice")
    for number in signals[1:]:
        process.send_signal(number)
    assert process.wait(60) == 130
    assert "nothing is cut short" in home.err()
    assert "sandboxes: 0 unconfirmed" in home.out()
    assert logs(path).count("trapped") == 4
    assert left(run) == []
    assert "Traceback" not in home.err() + (path / "logs" / "engine.log").read_text()


@pytest.mark.pty
def test_t01_an_embedded_screen_that_is_interrupted_leaves_no_container(home: Home) -> None:
    argv = [*ARGV, "run", str(config(home, [SLOW_END] * 4)), "--embedded"]
    with PtyProcess(argv, size=(100, 30), env=home.env, cwd=home.work) as term:
        path = run_dir(home)
        wait_for(lambda: logs(path).count("up") == 4, "four programs")
        run = json.loads((path / "engine.json").read_text())["run"]
        term.kill(signal.SIGINT)
        term.wait_for("stopping the run and cleaning up")
        term.send("qqq\x03")
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGINT):
            term.kill(number)
        assert term.wait_exit() == 130
        assert "Traceback" not in term.text
    assert left(run) == []
    assert logs(path).count("trapped") == 4


def test_s01_no_canary_in_a_container_its_engine_or_what_is_written(home: Home) -> None:
    """The agent looks round; then the engine's own words, the ledger, the labels and the run directory are read."""
    go = "until [ -e go ]; do sleep 0.1; done"
    look = f"env; tr '\\0' '\\n' </proc/1/environ; cat /proc/*/cmdline; echo looked; {go}"
    head = f'[client.headers]\nX-Acme = "{CANARY}-header"\n'
    file = config(home, [look, "exit 1"])
    text = file.read_text().replace("[env.taskset]", f"{head}[env.taskset]")
    file.write_text(text)
    done = home("run", file, "--detach", "--json")
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout.splitlines()[-1])
    path, run = Path(facts["dir"]), facts["run"]
    wait_for(lambda: "looked" in logs(path), "the agent's look round")
    wait_for(lambda: len(left(run)) == 1, "the end of the other one")
    (row,) = containers(f"vf-tui.run={run}")
    status, inspected = call("GET", f"/v1.41/containers/{row['Id']}/json")
    assert status == 200
    shown = json.dumps([row, inspected])
    for exec_id in inspected["ExecIDs"] or []:
        shown += json.dumps(call("GET", f"/v1.41/exec/{exec_id}/json")[1])
    assert CANARY not in shown
    assert holders(home) == []
    assert home("stop", run, "all", "--confirm").returncode == 0
    assert left(run) == []
    assert "URL=http" in logs(path)
    assert holders(home) == []
    listing = ("sandboxes", "--all", "--json", "--provider", "docker")
    for command in (("show", run), ("events", run, "--json"), listing):
        told = home(*command)
        assert CANARY not in told.stdout + told.stderr
    assert "docker" in told.stdout


def test_r35_a_run_that_is_killed_under_a_context_is_cleaned_up_there(home: Home) -> None:
    with EngineProxy() as second:
        meta = home.path / "docker" / "contexts" / "meta" / hashlib.sha256(b"second").hexdigest()
        meta.mkdir(parents=True)
        (meta / "meta.json").write_text(
            json.dumps({"Name": "second", "Endpoints": {"docker": {"Host": second.url}}})
        )
        (home.path / "docker" / "config.json").write_text(json.dumps({"currentContext": "second"}))
        del home.env["DOCKER_HOST"]
        home.env["DOCKER_CONFIG"] = str(home.path / "docker")
        done = home("run", config(home, ["exec sleep 600"]), "--detach", "--json")
        assert done.returncode == 0, done.stderr
        facts = json.loads(done.stdout.splitlines()[-1])
        wait_for(lambda: len(left(facts["run"])) == 1, "the container")
        os.kill(facts["pid"], signal.SIGKILL)
        wait_for(lambda: not alive(facts["pid"]), "the engine's end")
        listing = ("sandboxes", "--json", "--provider", "docker")
        (record,) = [json.loads(line) for line in home(*listing).stdout.splitlines()]
        (box,) = [box for box in record["sandboxes"] if box["run"] == facts["run"]]
        assert box["account"].startswith(second.url)
        assert box["leftover"]
        assert second.url in [report["account"] for report in record["providers"]]
        cleaned = home("cleanup", "--yes", "--provider", "docker", facts["run"])
        assert cleaned.returncode == 0, cleaned.stdout + cleaned.stderr
        assert f"docker engine {second.url}: no such container" in cleaned.stdout
        assert left(facts["run"]) == []


def holders(home: Home) -> list[Path]:
    """The files below the user's home that hold a canary, the config as it was written left out."""
    return [
        path
        for path in home.path.rglob("*")
        if path.is_file() and CANARY.encode() in path.read_bytes() and path.name != "eval.toml"
    ]
